#include "core/build.h"

#include "customconv_build.h"

namespace customconv {

const char* const kBuild = CUSTOMCONV_BUILD;
const char* const kArchitecture = CUSTOMCONV_ARCHITECTURE;

}  // namespace customconv
