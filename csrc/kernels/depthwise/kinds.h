// How a planned depthwise convolution is started: every kind's `launch`, one instantiation a dtype.
#pragma once

#include "kernels/launch.h"

namespace customconv::depthwise {

#define CUSTOMCONV_KIND(name)                                                             \
  namespace name {                                                                        \
  template <typename T>                                                                   \
  void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands, \
              const LaunchContext& context);                                              \
  }
#include "kernels/depthwise/kinds.def"
#undef CUSTOMCONV_KIND

}  // namespace customconv::depthwise
