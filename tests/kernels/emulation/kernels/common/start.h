// Stands in for csrc/kernels/common/start.h.
#pragma once

#include "gpu.h"

namespace customconv {

struct Start {
  int64_t blocks;
  int threads;
  int shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool early = false;
  int cluster = 1;
};

template <typename... P>
void start(const char*, const Start& how, void (*kernel)(P...), const P&... arguments) {
  emulation::launch(how.blocks, how.threads, how.cluster, how.shared_bytes,
                    [&] { kernel(arguments...); });
}

}  // namespace customconv
