// What a family decides of a plan: a struct of its own, in a box that every plan has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace customconv {

enum class PlanKind : uint8_t {
#define CUSTOMCONV_PLAN_KIND(kind, family, word) kind,
#include "plan/kinds.def"
#undef CUSTOMCONV_PLAN_KIND
  kNone,  // PyTorch's own convolution
};

// Holds a plain struct of up to kBytes, whose `kKind` says which it is. The struct has what the
// family's search varies. What follows from it and the problem, the launcher computes again.
class Payload {
 public:
  static constexpr size_t kBytes = 40;

  Payload() = default;
  template <typename Decided, PlanKind kKind = Decided::kKind>
  Payload(const Decided& decided) : kind_(kKind) {
    static_assert(std::is_trivially_copyable_v<Decided> && sizeof(Decided) <= kBytes);
    std::memcpy(bytes_, &decided, sizeof decided);
  }

  PlanKind kind() const { return kind_; }

  template <typename Decided>
  Decided as() const {
    if (kind_ != Decided::kKind) throw std::logic_error("customconv: a plan is of another kind");
    Decided decided;
    std::memcpy(&decided, bytes_, sizeof decided);
    return decided;
  }

  // For what knows the struct by its fields alone (plan/fields.h).
  unsigned char* bytes() { return bytes_; }
  const unsigned char* bytes() const { return bytes_; }

 private:
  PlanKind kind_ = PlanKind::kNone;
  unsigned char bytes_[kBytes] = {};
};

}  // namespace customconv
