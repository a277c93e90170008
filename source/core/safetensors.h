// Files that mdops wrote (mdops/io/safetensors_file.py): arrays by name, and texts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/json.h"

namespace mdops::core {

// An array, with its numbers in the file's memory.
struct Array {
  std::string dtype;  // the format's name: "F64"
  std::vector<int64_t> shape;
  const uint8_t* data;
  size_t bytes;

  int64_t count() const;
};

class File {
 public:
  // Reads a whole file and checks its checksum. Throws Error (MDOPS_FILE).
  explicit File(const std::string& path);
  File(const File&) = delete;

  // Whether a file names this array, by its header alone; true if it cannot be opened.
  static bool names(const std::string& path, const std::string& array);

  // Throws Error if there is no such array, or text.
  const Array& array(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  bool has(const std::string& name) const { return arrays_.count(name) > 0; }

  // The numbers of a float array of this shape (-1: any size), which must be finite.
  template <class T>
  std::vector<T> numbers(const std::string& name, const std::vector<int64_t>& shape) const;
  // The same of an array of bytes, each 0 or 1, and of one of int32.
  std::vector<uint8_t> flags(const std::string& name, const std::vector<int64_t>& shape) const;
  std::vector<int32_t> integers(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  void read(const std::string& path);
  void find_arrays(const Json& header, size_t from);
  void check_digest() const;
  const Array& shaped(const std::string& name, const std::vector<int64_t>& shape) const;

  std::vector<uint8_t> bytes_;
  std::map<std::string, Array> arrays_;
  std::map<std::string, std::string> texts_;
};

}  // namespace mdops::core
