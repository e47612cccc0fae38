#include <stdexcept>

#include "kernels/launch.h"

namespace customconv::implicit_gemm {

template <>
void launch<double>(const ConvProblem&, const ConvPlan&, const Operands&, const LaunchContext&) {
  throw std::logic_error("customconv: implicit_gemm: float64 is never planned");
}

}  // namespace customconv::implicit_gemm
