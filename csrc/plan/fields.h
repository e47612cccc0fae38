// The fields of a kind of plans, from which its plans get names (plan/name.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "plan/payload.h"

namespace customconv {

// A field holds a number or a few. They are in a payload's bytes, and none is negative.
struct Field {
  const char* name;
  size_t offset, width, count;
  int64_t most;  // that a number can be
  // What the numbers 0, 1, … are called; none where they are plain numbers.
  std::vector<std::string> words;
  bool is_flag = false;
  bool is_size = false;  // not part of the kind of a plan

  std::vector<int64_t> read(const Payload& payload) const;
  void write(Payload& payload, const std::vector<int64_t>& numbers) const;
};

struct Fields {
  Payload defaults;
  std::vector<Field> list;  // in the order that names have
};

// The fields as a name spells them out, each after a space, without those of `sizes` where these
// are not wanted.
std::string text_of(const Fields& fields, const Payload& payload, bool sizes);

// Lists the fields of a struct.
template <typename Decided>
class FieldList {
 public:
  // A table's row, or an enumerator.
  template <typename T>
  FieldList& word(const char* name, T Decided::* member, std::vector<std::string> words) {
    Field& field = add(name, member);
    field.most = static_cast<int64_t>(words.size()) - 1;
    field.words = std::move(words);
    return *this;
  }
  FieldList& flag(const char* name, bool Decided::* member) {
    add(name, member).is_flag = true;
    return *this;
  }
  // One number, or an array of them.
  template <typename T>
  FieldList& number(const char* name, T Decided::* member) {
    add(name, member);
    return *this;
  }
  // The same of a number that is no part of the kind of a plan.
  template <typename T>
  FieldList& size(const char* name, T Decided::* member) {
    add(name, member).is_size = true;
    return *this;
  }

  operator Fields() { return {Payload(kDefaults), std::move(list_)}; }

 private:
  static constexpr Decided kDefaults{};

  template <typename T>
  Field& add(const char* name, T Decided::* member) {
    using Number = std::remove_all_extents_t<T>;
    const auto* const first = reinterpret_cast<const unsigned char*>(&kDefaults);
    const auto* const own = reinterpret_cast<const unsigned char*>(&(kDefaults.*member));
    Field field{};
    field.name = name;
    field.offset = static_cast<size_t>(own - first);
    field.width = sizeof(Number);
    field.count = sizeof(T) / sizeof(Number);
    if constexpr (std::is_integral_v<Number>) field.most = std::numeric_limits<Number>::max();
    return list_.emplace_back(std::move(field));
  }

  std::vector<Field> list_;
};

// A table's names of its rows, as words: "3 x 192" becomes 3x192, "any stride x1" any-stride-x1.
std::string word_of(const char* name);
template <typename Row, size_t kRows>
std::vector<std::string> words_of(const Row (&table)[kRows]) {
  std::vector<std::string> words;
  for (const Row& row : table) words.push_back(word_of(row.name));
  return words;
}

template <PlanKind kKind>
Fields fields_of();
#define CUSTOMCONV_PLAN_KIND(kind, family, word) \
  template <>                                    \
  Fields fields_of<PlanKind::kind>();
#include "plan/kinds.def"
#undef CUSTOMCONV_PLAN_KIND

}  // namespace customconv
