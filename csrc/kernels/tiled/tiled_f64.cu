#include <stdexcept>

#include "kernels/launch.h"

namespace customconv::tiled {

template <>
void launch<double>(const ConvProblem&, const ConvPlan&, const Operands&, const LaunchContext&) {
  throw std::logic_error("customconv: tiled: float64 is never planned");
}

}  // namespace customconv::tiled
