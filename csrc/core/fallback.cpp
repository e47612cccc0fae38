#include "core/fallback.h"

namespace customconv {

const char* to_string(Fallback reason) {
  switch (reason) {
    case Fallback::kAsked:
      return "algorithm 'aten' was asked for";
    case Fallback::kDevice:
      return "the tensors are not on CUDA";
    case Fallback::kBuild:
      return "customconv's operators for this PyTorch have no CUDA";
    case Fallback::kArchitecture:
      return "no kernels of this installation run on the GPU";
    case Fallback::kCudnnOff:
      return "torch.backends.cudnn.enabled is False";
    case Fallback::kDtype:
      return "there are no kernels for this dtype";
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
    case Fallback::kSlower:
      return "PyTorch's own is faster than any family";
    case Fallback::kCount:
      break;
  }
  return "";
}

}  // namespace customconv
