#include "plan/name.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <stdexcept>

#include "plan/planner.h"

namespace customconv {

namespace {

const Kind& kind_at(PlanKind kind) { return kinds()[static_cast<size_t>(kind)]; }

constexpr const char* kSplits = "splits";

// A name without splits.
std::string write(const PlanName& name, bool sizes) {
  const Kind& kind = kind_at(name.payload.kind());
  std::string text = to_string(name.family);
  if (!kind.word.empty()) text += ' ' + kind.word;
  return text + text_of(kind.fields, name.payload, sizes);
}

// Reads a name from its text, a word after the other.
class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  PlanName read() {
    PlanName name;
    const Kind& kind = read_kind(name);
    while (const auto word = next()) read_field(*word, kind, name);
    const std::string canonical = to_string(name);
    if (canonical != text_) refuse("it is written '" + canonical + "'");
    return name;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw std::invalid_argument("'" + text_ + "' is not the name of a plan: " + why);
  }

  std::optional<std::string> next() {
    if (at_ > text_.size()) return std::nullopt;
    const size_t end = std::min(text_.find(' ', at_), text_.size());
    const std::string word = text_.substr(at_, end - at_);
    at_ = end + 1;
    return word;
  }

  const Kind& read_kind(PlanName& name) {
    const std::string family = next().value_or("");
    std::optional<std::string> word;
    for (const Kind& kind : kinds()) {
      if (to_string(kind.family) != family) continue;
      if (!kind.word.empty() && !word) word = next().value_or("");
      if (word.value_or("") != kind.word) continue;
      name.family = kind.family;
      name.payload = kind.fields.defaults;
      return kind;
    }
    if (word) refuse(family + " has no plans of kind '" + *word + "'");
    refuse("there is no family '" + family + "'");
  }

  void read_field(const std::string& word, const Kind& kind, PlanName& name) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) refuse("'" + word + "' gives no field");
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    if (key == kSplits && name.family != FamilyId::kAten) {
      name.splits = number_in(value, std::numeric_limits<int64_t>::max(), key);
      return;
    }
    const auto& list = kind.fields.list;
    const auto field =
        std::find_if(list.begin(), list.end(), [&](const Field& f) { return key == f.name; });
    if (field == list.end()) refuse("such plans have no field '" + key + "'");
    field->write(name.payload, numbers_in(value, *field));
  }

  std::vector<int64_t> numbers_in(const std::string& value, const Field& field) const {
    if (field.is_flag) {
      if (value != "yes") refuse(std::string(field.name) + " is yes, or left out");
      return {1};
    }
    if (!field.words.empty()) {
      const auto found = std::find(field.words.begin(), field.words.end(), value);
      if (found == field.words.end()) refuse(std::string(field.name) + " is never " + value);
      return {found - field.words.begin()};
    }
    std::vector<int64_t> numbers;
    for (size_t at = 0; at <= value.size();) {
      const size_t end = std::min(value.find('x', at), value.size());
      numbers.push_back(number_in(value.substr(at, end - at), field.most, field.name));
      at = end + 1;
    }
    if (numbers.size() != field.count) {
      refuse(std::string(field.name) + " has " + std::to_string(field.count) + " numbers");
    }
    return numbers;
  }

  int64_t number_in(const std::string& digits, int64_t most, const std::string& key) const {
    uint64_t number = 0;  // has no sign to be read
    const char* const end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, number);
    if (error == std::errc::result_out_of_range || number > static_cast<uint64_t>(most)) {
      refuse(key + " is at most " + std::to_string(most));
    }
    if (error != std::errc() || rest != end) refuse("'" + digits + "' is no number for " + key);
    return static_cast<int64_t>(number);
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
#define CUSTOMCONV_PLAN_KIND(kind, family, word) \
  {FamilyId::family, word, fields_of<PlanKind::kind>()},
#include "plan/kinds.def"
#undef CUSTOMCONV_PLAN_KIND
      {FamilyId::kAten, "", {}},
  };
  return all;
}

bool operator==(const PlanName& a, const PlanName& b) {
  const PlanKind kind = a.payload.kind();
  if (a.family != b.family || a.splits != b.splits || kind != b.payload.kind()) return false;
  const auto& list = fields_of(kind).list;
  return std::all_of(list.begin(), list.end(), [&](const Field& field) {
    return field.read(a.payload) == field.read(b.payload);
  });
}

PlanName name_of(const ConvPlan& plan) { return {plan.family, plan.payload, plan.splits}; }

PlanName parse_name(const std::string& text) { return Reader(text).read(); }

std::string to_string(const PlanName& name) {
  const std::string text = write(name, /*sizes=*/true);
  return name.splits > 1 ? text + ' ' + kSplits + '=' + std::to_string(name.splits) : text;
}

std::string kind_of(const PlanName& name) { return write(name, /*sizes=*/false); }

const std::string& word_of(const PlanName& name) { return kind_at(name.payload.kind()).word; }

std::string label_of(const PlanName& name) {
  std::string label = word_of(name);
  for (const Field& field : fields_of(name.payload.kind()).list) {
    if (field.words.empty()) continue;
    return label + (label.empty() ? "" : " ") + field.words[field.read(name.payload)[0]];
  }
  return label;
}

const Fields& fields_of(PlanKind kind) { return kind_at(kind).fields; }

}  // namespace customconv
