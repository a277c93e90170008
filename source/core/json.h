// JSON as files of models have it: read whole, refused where anything is wrong.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mdops::core {

struct Json {
  enum class Kind { null, boolean, number, text, list, map };

  Kind kind = Kind::null;
  double number = 0;  // of a boolean: 0 or 1
  std::string text;
  std::vector<Json> items;
  struct Member;
  std::vector<Member> members;

  // Throws Error (MDOPS_FILE) where the text is none, or is nested too deeply. Of a key twice the first
  // counts.
  static Json parse(std::string_view text);

  // A member of a map, or null; the second throws Error if it is not there.
  const Json* find(std::string_view key) const;
  const Json& at(std::string_view key) const;

  // The value, if it is such a one; they throw Error otherwise. An integer is one that a double has exactly.
  const std::string& as_text() const;
  double as_number() const;
  long long as_integer() const;
  bool as_bool() const;
  const std::vector<Json>& as_list() const;
};

struct Json::Member {  // no std::pair: Clang 14 asks whether its Json is complete too early
  std::string name;
  Json value;
};

}  // namespace mdops::core
