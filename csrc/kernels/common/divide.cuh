// Division of indices by numbers known only at launch.
#pragma once

#include <cstdint>
#include <type_traits>

namespace customconv {

// 32-bit: multiply and shift (Granlund and Montgomery, PLDI 1994), exact for 0 <= n < 2^31.
// 64-bit: the machine's own division; such indices occur only in tensors past 2^31 elements.
template <typename Index>
class Divider {
 public:
  Divider() = default;
  explicit Divider(int64_t divisor) : divisor_(static_cast<Index>(divisor)) {
    if constexpr (std::is_same_v<Index, int32_t>) {
      while ((int64_t{1} << shift_) < divisor) ++shift_;
      const uint64_t one = 1;
      magic_ =
          static_cast<uint32_t>(((one << 32) * ((one << shift_) - static_cast<uint64_t>(divisor))) /
                                    static_cast<uint64_t>(divisor) +
                                1);
    }
  }

  __device__ Index divisor() const { return divisor_; }

  __device__ Index quotient(Index n) const {
    if constexpr (std::is_same_v<Index, int32_t>) {
      const uint32_t high = __umulhi(static_cast<uint32_t>(n), magic_);
      return static_cast<Index>((high + static_cast<uint32_t>(n)) >> shift_);
    } else {
      return n / divisor_;
    }
  }

  // Returns n % divisor and leaves n / divisor in n.
  __device__ Index split(Index& n) const {
    const Index q = quotient(n);
    const Index remainder = n - q * divisor_;
    n = q;
    return remainder;
  }

 private:
  Index divisor_ = 1;
  uint32_t magic_ = 1;
  uint32_t shift_ = 0;
};

}  // namespace customconv
