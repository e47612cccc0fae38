#include "plan/fields.h"

namespace customconv {

namespace {

template <typename Number>
int64_t load(const unsigned char* from) {
  Number number;
  std::memcpy(&number, from, sizeof number);
  return static_cast<int64_t>(number);
}

template <typename Number>
void store(unsigned char* to, int64_t value) {
  const auto number = static_cast<Number>(value);
  std::memcpy(to, &number, sizeof number);
}

std::string text_of(const Field& field, const std::vector<int64_t>& numbers) {
  if (field.is_flag) return "yes";
  std::string text;
  for (const int64_t number : numbers) {
    if (!text.empty()) text += 'x';
    text += field.words.empty() ? std::to_string(number) : field.words[number];
  }
  return text;
}

}  // namespace

// No number is negative, so those with a sign are read as the same without.
std::vector<int64_t> Field::read(const Payload& payload) const {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < count; ++i) {
    const unsigned char* const from = payload.bytes() + offset + i * width;
    numbers.push_back(width == 1   ? load<uint8_t>(from)
                      : width == 2 ? load<uint16_t>(from)
                      : width == 4 ? load<uint32_t>(from)
                                   : load<uint64_t>(from));
  }
  return numbers;
}

void Field::write(Payload& payload, const std::vector<int64_t>& numbers) const {
  for (size_t i = 0; i < count; ++i) {
    unsigned char* const to = payload.bytes() + offset + i * width;
    const int64_t number = numbers.at(i);
    if (width == 1) store<uint8_t>(to, number);
    if (width == 2) store<uint16_t>(to, number);
    if (width == 4) store<uint32_t>(to, number);
    if (width == 8) store<uint64_t>(to, number);
  }
}

std::string text_of(const Fields& fields, const Payload& payload, bool sizes) {
  std::string text;
  for (const Field& field : fields.list) {
    const std::vector<int64_t> numbers = field.read(payload);
    const bool is_default = numbers == field.read(fields.defaults);
    if ((field.is_size && !sizes) || (field.words.empty() && is_default)) continue;
    text += std::string(" ") + field.name + '=' + text_of(field, numbers);
  }
  return text;
}

std::string word_of(const char* name) {
  std::string word;
  for (const char* c = name; *c != '\0'; ++c) {
    if (*c == ',') continue;
    word += *c == ' ' ? '-' : *c;
  }
  const auto is_digit = [&](size_t at) { return '0' <= word[at] && word[at] <= '9'; };
  for (size_t at = 1; at + 3 < word.size(); ++at) {
    const bool joins = word[at] == '-' && (word[at + 1] == 'x' || word[at + 1] == '+') &&
                       word[at + 2] == '-' && is_digit(at - 1) && is_digit(at + 3);
    if (joins) word.replace(at, 3, 1, word[at + 1]);
  }
  return word;
}

}  // namespace customconv
