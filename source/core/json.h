// JSON for model files: read as a whole, with an error for any fault.
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

  // Throws Error (MDOPS_FILE) if the text is not JSON, or is nested too deeply. Of repeated keys the first
  // counts.
  static Json parse(std::string_view text);

  // A member of a map, or null; the second throws Error if it does not exist.
  const Json* find(std::string_view key) const;
  const Json& at(std::string_view key) const;

  // The value, if it has this type; they throw Error otherwise. An integer must be exact as a double.
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
