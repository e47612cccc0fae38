#include "torch/stats.h"

#include <atomic>

namespace customconv::torch_layer {

namespace {

using Counter = std::atomic<uint64_t>;

Counter calls[kPassCount][kFamilyCount];
Counter fallbacks[kFallbackCount];

void increment(Counter& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

uint64_t read(Counter& counter, bool reset) {
  return reset ? counter.exchange(0, std::memory_order_relaxed)
               : counter.load(std::memory_order_relaxed);
}

}  // namespace

const char* to_string(Fallback reason) {
  switch (reason) {
    case Fallback::kAsked:
      return "algorithm 'aten' was asked for";
    case Fallback::kDevice:
      return "the tensors are not on CUDA";
    case Fallback::kBuild:
      return "customconv was built without CUDA";
    case Fallback::kArchitecture:
      return "the kernels were built for other architectures";
    case Fallback::kCudnnOff:
      return "torch.backends.cudnn.enabled is False";
    case Fallback::kDtype:
      return "there are no kernels for this dtype";
    case Fallback::kDimensions:
      return "the convolution is neither 1-D nor 2-D";
    case Fallback::kLayout:
      return "a tensor is not strided";
    case Fallback::kEmpty:
      return "a tensor is empty";
    case Fallback::kOutputPadding:
      return "the output padding reaches the stride";
    case Fallback::kArguments:
      return "the arguments do not fit together";
    case Fallback::kNoFamily:
      return "no family can compute this problem";
    case Fallback::kUnmeasured:
      return "this GPU has not been measured, so PyTorch's own is taken; customconv.tune times "
             "both";
    case Fallback::kTuned:
      return "PyTorch's own was faster when it was tuned";
    case Fallback::kCount:
      break;
  }
  return "";
}

void count(Pass pass, FamilyId family) {
  increment(calls[static_cast<size_t>(pass)][static_cast<size_t>(family)]);
}

void count(Fallback reason) { increment(fallbacks[static_cast<size_t>(reason)]); }

Stats read_stats(bool reset) {
  Stats stats;
  for (size_t pass = 0; pass < kPassCount; ++pass) {
    for (size_t family = 0; family < kFamilyCount; ++family) {
      stats.calls[pass][family] = read(calls[pass][family], reset);
    }
  }
  for (size_t reason = 0; reason < kFallbackCount; ++reason) {
    stats.fallbacks[reason] = read(fallbacks[reason], reset);
  }
  return stats;
}

}  // namespace customconv::torch_layer
