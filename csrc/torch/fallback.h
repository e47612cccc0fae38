// A value, or why PyTorch computes it.
#pragma once

#include <optional>
#include <utility>

#include "core/fallback.h"

namespace customconv::torch_layer {

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
