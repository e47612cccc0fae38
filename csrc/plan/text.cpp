#include "plan/text.h"

#include <initializer_list>
#include <sstream>
#include <stdexcept>

namespace customconv {

namespace {

template <typename Enum>
Enum named(const std::string& name, std::initializer_list<Enum> values, const char* what) {
  for (const Enum value : values) {
    if (name == to_string(value)) return value;
  }
  throw std::invalid_argument(std::string("unknown ") + what + " '" + name + "'");
}

std::string joined(const std::vector<int64_t>& numbers) {
  std::string all;
  for (const int64_t number : numbers) all += (all.empty() ? "" : ",") + std::to_string(number);
  return all;
}

// The fields of a text, one after the other.
class Reader {
 public:
  explicit Reader(const std::string& text) : words_(text) {}

  std::string word(const char* name) {
    std::string next;
    words_ >> next;
    const std::string start = std::string(name) + "=";
    if (next.rfind(start, 0) != 0) {
      throw std::invalid_argument("a problem's text has '" + next + "' where " + start +
                                  " is expected");
    }
    return next.substr(start.size());
  }
  int64_t number(const char* name, int64_t least, int64_t most) {
    return checked(name, word(name), least, most);
  }
  Shape5 strides(const char* name, int64_t least, int64_t most, bool deep) {
    std::istringstream list(word(name));
    Shape5 all{};
    std::string each;
    for (size_t i = 0; i < (deep ? 5 : 4); ++i) {
      if (!std::getline(list, each, ',')) each.clear();
      all[i] = checked(name, each, least, most);
    }
    if (!list.eof()) {
      throw std::invalid_argument(std::string(name) + " has more than " + (deep ? "five" : "four") +
                                  " numbers");
    }
    return all;
  }
  // Whether the next field has that name.
  bool is_next(const char* name) {
    const std::string start = " " + std::string(name) + "=";
    const auto at = words_.tellg();
    return at >= 0 && words_.str().compare(static_cast<size_t>(at), start.size(), start) == 0;
  }
  void end() {
    std::string rest;
    if (words_ >> rest) throw std::invalid_argument("a problem's text ends with '" + rest + "'");
  }

 private:
  static int64_t checked(const char* name, const std::string& text, int64_t least, int64_t most) {
    size_t read = 0;
    int64_t value = 0;
    try {
      value = std::stoll(text, &read);
    } catch (const std::exception&) {
      read = 0;
    }
    if (read == 0 || read != text.size() || value < least || value > most) {
      throw std::invalid_argument(std::string(name) + " is out of range: " + text);
    }
    return value;
  }

  std::istringstream words_;
};

}  // namespace

DType dtype_named(const std::string& name) {
  return named(name, {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16},
               "dtype");
}

Pass pass_named(const std::string& name) {
  return named(name, {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}, "op");
}

void check_fields(const ConvProblem& p, bool has_depth) {
  if (has_depth != p.is_deep()) throw std::invalid_argument("D and its like are of volumes");
  if (p.C % p.groups != 0 || p.K % p.groups != 0) {
    throw std::invalid_argument("groups must divide C and K");
  }
  const auto is_canonical = [](int64_t size, const Shape5& strides) {
    return size > 1 || strides[4] == 0;
  };
  if (!is_canonical(p.D, p.x_strides) || !is_canonical(p.T, p.w_strides) ||
      !is_canonical(p.O, p.y_strides)) {
    throw std::invalid_argument("a depth of one must have a stride of 0");
  }
  if (!p.is_deep() && (p.stride_d != 1 || p.dilation_d != 1)) {
    throw std::invalid_argument("stride_d and dilation_d must be 1 where there is no depth");
  }
}

std::vector<int64_t> listed_strides(const ConvProblem& problem, const Shape5& strides) {
  return {strides.begin(), strides.end() - (problem.is_deep() ? 0 : 1)};
}

std::string problem_text(const ConvProblem& p) {
  std::ostringstream text;
  text << "op=" << to_string(p.pass) << " dtype=" << to_string(p.dtype);
  for (const auto& field : kProblemNumbers) text << ' ' << field.name << '=' << p.*field.member;
  if (p.is_deep()) {
    for (const auto& field : kDepthNumbers) text << ' ' << field.name << '=' << p.*field.member;
  }
  for (const auto& field : kProblemFlags) text << ' ' << field.name << '=' << p.*field.member;
  for (const auto& field : kUntunedFlags) text << ' ' << field.name << '=' << p.*field.member;
  for (const auto& field : kProblemStrides) {
    text << ' ' << field.name << '=' << joined(listed_strides(p, p.*field.member));
  }
  text << ' ' << kEpiloguePasses.name << '=' << p.*kEpiloguePasses.member;
  return text.str();
}

ConvProblem parse_problem(const std::string& text) {
  Reader reader(text);
  ConvProblem p;
  p.pass = pass_named(reader.word("op"));
  p.dtype = dtype_named(reader.word("dtype"));
  for (const auto& f : kProblemNumbers) p.*f.member = reader.number(f.name, f.least, f.most);
  const bool deep = reader.is_next("D");
  if (deep) {
    for (const auto& f : kDepthNumbers) p.*f.member = reader.number(f.name, f.least, f.most);
  }
  for (const auto& f : kProblemFlags) p.*f.member = reader.number(f.name, f.least, f.most) != 0;
  for (const auto& f : kUntunedFlags) p.*f.member = reader.number(f.name, f.least, f.most) != 0;
  for (const auto& f : kProblemStrides) p.*f.member = reader.strides(f.name, f.least, f.most, deep);
  p.epilogue_passes = static_cast<int>(
      reader.number(kEpiloguePasses.name, kEpiloguePasses.least, kEpiloguePasses.most));
  reader.end();
  check_fields(p, deep);
  return p;
}

}  // namespace customconv
