#include "torch/batch_invariance.h"

#include "torch/core.h"

namespace customconv::torch_layer {

void fall_back(Fallback why) {
  TORCH_CHECK(!wants_batch_invariance() || why == Fallback::kArguments || why == Fallback::kEmpty,
              "customconv is batch invariant, and only PyTorch can compute this call, which "
              "promises no such thing: ",
              customconv_fallback_text(why),
              why == Fallback::kDevice ? "; move them to CUDA, or" : ";",
              " call it outside of customconv.batch_invariant()");
  count(why);
}

}  // namespace customconv::torch_layer
