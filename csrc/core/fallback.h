// Why PyTorch computes a call instead of kernels of ours.
#pragma once

#include <cstdint>

namespace customconv {

enum class Fallback : uint8_t {
  kAsked,
  kDevice,
  kBuild,
  kArchitecture,
  kCudnnOff,
  kDtype,
  kLayout,
  kEmpty,
  kOutputPadding,
  kArguments,  // PyTorch raises the error
  kNoFamily,
  kUnmeasured,
  kTuned,
  kSlower,
  kCount,
};

const char* to_string(Fallback reason);

}  // namespace customconv
