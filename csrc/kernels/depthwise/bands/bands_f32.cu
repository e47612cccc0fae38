#include <stdexcept>

#include "kernels/depthwise/kinds.h"

namespace customconv::depthwise::bands {

template <>
void launch<float>(const ConvProblem&, const ConvPlan&, const Operands&, const LaunchContext&) {
  throw std::logic_error("customconv: bands: float32 is never planned");
}

}  // namespace customconv::depthwise::bands
