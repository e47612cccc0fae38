// How variants of all kinds are numbered. Plain C++.
#pragma once

namespace customconv::depthwise {

enum class Kind {
#define CUSTOMCONV_KIND(name) name,
#include "kernels/depthwise/kinds.def"
#undef CUSTOMCONV_KIND
};

// A plan's variant is the kind times this, and the kind's own number.
inline constexpr int kKindVariants = 1 << 24;

}  // namespace customconv::depthwise
