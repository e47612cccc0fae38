// Why PyTorch computes a call instead of kernels of ours.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace customconv::torch_layer {

enum class Fallback : uint8_t {
  kAsked,
  kDevice,
  kBuild,
  kArchitecture,
  kCudnnOff,
  kDtype,
  kDimensions,
  kLayout,
  kEmpty,
  kOutputPadding,
  kArguments,  // PyTorch raises the error
  kNoFamily,
  kUnmeasured,
  kTuned,
  kCount,
};

const char* to_string(Fallback reason);

// A value, or why PyTorch computes it.
template <typename T>
class OrFallback {
 public:
  OrFallback(T value) : value_(std::move(value)) {}  // NOLINT: implicit, as std::optional's
  OrFallback(Fallback why) : why_(why) {}            // NOLINT

  explicit operator bool() const { return value_.has_value(); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  Fallback why() const { return why_; }

 private:
  std::optional<T> value_;
  Fallback why_ = Fallback::kCount;  // meaningful without a value
};

}  // namespace customconv::torch_layer
