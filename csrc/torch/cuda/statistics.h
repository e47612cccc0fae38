// Memory for the statistics of an output's channels (kernels/statistics).
#pragma once

#include <ATen/ATen.h>

#include "kernels/epilogue.h"

namespace customconv::torch_layer {

struct StatisticsMemory {
  // Of so many parts; none need no memory.
  StatisticsMemory(int64_t count, int64_t channels, c10::Device device);

  int64_t count;
  at::Tensor memory;
  StatisticsParts parts;
};

}  // namespace customconv::torch_layer
