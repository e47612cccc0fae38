#include "torch/batch_invariance.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>

#include "torch/stats.h"

namespace customconv::torch_layer {

namespace {

std::atomic<bool> is_set{false};
std::atomic<int64_t> open_contexts{0};

}  // namespace

bool set_batch_invariant(bool enabled) {
  return is_set.exchange(enabled, std::memory_order_relaxed);
}

void begin_batch_invariance() { open_contexts.fetch_add(1, std::memory_order_relaxed); }

void end_batch_invariance() { open_contexts.fetch_sub(1, std::memory_order_relaxed); }

bool wants_batch_invariance() {
  return is_set.load(std::memory_order_relaxed) ||
         open_contexts.load(std::memory_order_relaxed) > 0;
}

void fall_back(Fallback why) {
  TORCH_CHECK(!wants_batch_invariance() || why == Fallback::kArguments || why == Fallback::kEmpty,
              "customconv is batch invariant, and only PyTorch can compute this call, which "
              "promises no such thing: ",
              to_string(why), why == Fallback::kDevice ? "; move them to CUDA, or" : ";",
              " call it outside of customconv.batch_invariant()");
  count(why);
}

}  // namespace customconv::torch_layer
