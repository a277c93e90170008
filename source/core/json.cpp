#include "core/json.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace mdops::core {

namespace {

constexpr int kDeepest = 64;

class Parser {
 public:
  explicit Parser(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  Json whole() {
    Json value = any(0);
    skip();
    if (at_ != end_) fail();
    return value;
  }

 private:
  [[noreturn]] static void fail() { damaged("its header is no JSON"); }

  void skip() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
  }

  char peek() {
    skip();
    if (at_ == end_) fail();
    return *at_;
  }

  void expect(char wanted) {
    if (peek() != wanted) fail();
    ++at_;
  }

  bool take(std::string_view word) {
    if (std::string_view(at_, end_ - at_).substr(0, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json any(int depth) {
    if (depth > kDeepest) fail();
    Json value;
    switch (peek()) {
      case '{':
        value.kind = Json::Kind::map;
        each('}', [&] {
          peek();
          std::string key = text();
          expect(':');
          value.members.push_back({std::move(key), any(depth + 1)});
        });
        break;
      case '[':
        value.kind = Json::Kind::list;
        each(']', [&] { value.items.push_back(any(depth + 1)); });
        break;
      case '"':
        value.kind = Json::Kind::text;
        value.text = text();
        break;
      default:
        word_or_number(value);
    }
    return value;
  }

  // The parts between matching brackets.
  void each(char close, const auto& part) {
    ++at_;
    if (peek() == close) {
      ++at_;
      return;
    }
    for (;;) {
      part();
      if (peek() == close) break;
      expect(',');
    }
    ++at_;
  }

  void word_or_number(Json& value) {
    if (take("null")) return;
    value.kind = Json::Kind::boolean;
    if (take("true")) {
      value.number = 1;
      return;
    }
    if (take("false")) return;
    value.kind = Json::Kind::number;
    const auto [rest, error] = std::from_chars(at_, end_, value.number);
    if (error != std::errc() || rest == at_ || !std::isfinite(value.number)) fail();
    at_ = rest;
  }

  unsigned hex() {
    unsigned value = 0;
    if (end_ - at_ < 4) fail();
    const auto [rest, error] = std::from_chars(at_, at_ + 4, value, 16);
    if (error != std::errc() || rest != at_ + 4) fail();
    at_ = rest;
    return value;
  }

  // A code point in UTF-8.
  static void append(unsigned point, std::string& to) {
    const int more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;  // bytes after the first
    constexpr unsigned kFirst[] = {0, 0xc0, 0xe0, 0xf0};
    to += static_cast<char>(kFirst[more] | point >> 6 * more);
    for (int k = more - 1; k >= 0; --k) to += static_cast<char>(0x80 | (point >> 6 * k & 0x3f));
  }

  void escaped(std::string& to) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kCharacters = "\"\\/\b\f\n\r\t";
    if (at_ == end_) fail();
    const char c = *at_++;
    if (const size_t place = kNames.find(c); place != kNames.npos) {
      to += kCharacters[place];
      return;
    }
    if (c != 'u') fail();
    unsigned point = hex();
    if (point >= 0xd800 && point < 0xdc00) {
      if (!take("\\u")) fail();
      const unsigned low = hex();
      if (low < 0xdc00 || low >= 0xe000) fail();
      point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    } else if (point >= 0xdc00 && point < 0xe000) {
      fail();
    }
    append(point, to);
  }

  std::string text() {
    if (*at_ != '"') fail();
    ++at_;
    std::string value;
    for (;;) {
      if (at_ == end_ || static_cast<unsigned char>(*at_) < 0x20) fail();
      const char c = *at_++;
      if (c == '"') return value;
      if (c == '\\')
        escaped(value);
      else
        value += c;
    }
  }

  const char *at_, *end_;
};

}  // namespace

Json Json::parse(std::string_view text) {
  return Parser(text).whole();
}

const Json* Json::find(std::string_view key) const {
  for (const auto& [name, value] : members)
    if (name == key) return &value;
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  const Json* const value = find(key);
  if (!value) damaged("it lacks `" + std::string(key) + "`");
  return *value;
}

const std::string& Json::as_text() const {
  if (kind != Kind::text) damaged("it has something else where a text should be");
  return text;
}

double Json::as_number() const {
  if (kind != Kind::number) damaged("it has something else where a number should be");
  return number;
}

long long Json::as_integer() const {
  if (as_number() != std::floor(number) || std::fabs(number) > 0x1p53)
    damaged("it has something else where a whole number should be");
  return static_cast<long long>(number);
}

bool Json::as_bool() const {
  if (kind != Kind::boolean) damaged("it has something else where true or false should be");
  return number != 0;
}

const std::vector<Json>& Json::as_list() const {
  if (kind != Kind::list) damaged("it has something else where a list should be");
  return items;
}

}  // namespace mdops::core
