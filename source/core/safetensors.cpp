#include "core/safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "core/sha256.h"

namespace mdops::core {

namespace {

struct Dtype {
  const char *name, *of_numpy;
  size_t size;
};
constexpr Dtype kDtypes[] = {{"F64", "float64", 8}, {"F32", "float32", 4},   {"F16", "float16", 2},
                             {"I64", "int64", 8},   {"I32", "int32", 4},     {"I16", "int16", 2},
                             {"I8", "int8", 1},     {"U64", "uint64", 8},    {"U32", "uint32", 4},
                             {"U16", "uint16", 2},  {"BF16", "bfloat16", 2}, {"U8", "uint8", 1},
                             {"BOOL", "bool", 1}};

const Dtype& dtype_of(const std::string& name) {
  for (const Dtype& dtype : kDtypes)
    if (name == dtype.name) return dtype;
  damaged("it has an array of unknown type");
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace

int64_t Array::count() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

bool File::names(const std::string& path, const std::string& array) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) return true;
  uint64_t length = 0;
  if (std::fread(&length, sizeof(length), 1, file.get()) != 1 || length > (uint64_t{1} << 28)) return false;
  std::string names(length, '\0');
  names.resize(std::fread(names.data(), 1, length, file.get()));
  return names.find('"' + array + '"') != std::string::npos;
}

File::File(const std::string& path) {
  read(path);
  uint64_t length = 0;
  if (bytes_.size() < 10) damaged("it is too short for a .safetensors file");
  for (int k = 7; k >= 0; --k) length = length << 8 | bytes_[k];
  if (bytes_[8] != '{' || length > bytes_.size() - 8)
    damaged(std::string("it is no .safetensors file, or a part of one: convert models with `mdops convert IN "
                        "OUT.safetensors`; ") +
            kOtherwise);
  const Json header = Json::parse({reinterpret_cast<const char*>(bytes_.data()) + 8, length});
  if (const Json* metadata = header.find("__metadata__"))
    for (const auto& [name, value] : metadata->members) texts_.emplace(name, value.as_text());
  if (!texts_.count("format") || texts_["format"] != "mdops")
    damaged("it is a .safetensors file, but not a model written by mdops");
  if (text("version") != "1")
    damaged("it is of version " + text("version") + "; this library reads version 1");
  find_arrays(header, 8 + length);
  check_digest();
}

void File::read(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) damaged("it cannot be opened");
  std::vector<uint8_t> piece(1 << 20);
  while (const size_t got = std::fread(piece.data(), 1, piece.size(), file.get()))
    bytes_.insert(bytes_.end(), piece.data(), piece.data() + got);
  if (std::ferror(file.get())) damaged("it cannot be read");
}

void File::find_arrays(const Json& header, size_t from) {
  const size_t size = bytes_.size() - from;
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const auto& [name, about] : header.members) {
    if (name == "__metadata__") continue;
    const Dtype& dtype = dtype_of(about.at("dtype").as_text());
    const std::vector<Json>& offsets = about.at("data_offsets").as_list();
    Array array{dtype.name, {}, nullptr, dtype.size};
    for (const Json& length : about.at("shape").as_list()) {
      const int64_t n = length.as_integer();
      if (n < 0 || (n > 0 && array.bytes > size / static_cast<size_t>(n)))
        damaged("its arrays are larger than the file");
      array.shape.push_back(n);
      array.bytes *= static_cast<size_t>(n);
    }
    if (offsets.size() != 2) damaged("an array has no place");
    const long long begin = offsets[0].as_integer(), end = offsets[1].as_integer();
    if (begin < 0 || end < begin || static_cast<uint64_t>(end) > size ||
        static_cast<uint64_t>(end - begin) != array.bytes)
      damaged("the place of an array does not fit its shape");
    array.data = bytes_.data() + from + begin;
    places.emplace_back(begin, end);
    if (!arrays_.emplace(name, std::move(array)).second) damaged("two arrays have one name");
  }
  std::sort(places.begin(), places.end());
  uint64_t last = 0;
  for (const auto& [begin, end] : places) {
    if (begin != last) damaged("its arrays overlap, or leave gaps");
    last = end;
  }
  if (last != size) damaged("it is longer than its arrays");
}

// As `_digest` of safetensors_file.py.
void File::check_digest() const {
  Sha256 sum;
  sum.add(text("model"));
  sum.add(text("source"));
  for (const auto& [name, array] : arrays_) {
    sum.add(name + " " + dtype_of(array.dtype).of_numpy + " " + shape_text(array.shape));
    sum.add(array.data, array.bytes);
  }
  if (sum.digest() != text("sha256"))
    damaged("its contents do not have the checksum written with them: it is damaged");
}

const Array& File::array(const std::string& name) const {
  const auto found = arrays_.find(name);
  if (found == arrays_.end()) damaged("it lacks the array " + name);
  return found->second;
}

const std::string& File::text(const std::string& name) const {
  const auto found = texts_.find(name);
  if (found == texts_.end()) damaged("it lacks the text " + name);
  return found->second;
}

const Array& File::shaped(const std::string& name, const std::vector<int64_t>& shape) const {
  const Array& found = array(name);
  bool fits = found.shape.size() == shape.size();
  for (size_t k = 0; fits && k < shape.size(); ++k) fits = shape[k] < 0 || shape[k] == found.shape[k];
  if (!fits) damaged("its array " + name + " has another shape than the model");
  return found;
}

template <class T>
std::vector<T> File::numbers(const std::string& name, const std::vector<int64_t>& shape) const {
  const Array& found = shaped(name, shape);
  std::vector<T> result(found.count());
  const auto copy = [&](auto like) {
    for (size_t k = 0; k < result.size(); ++k) {
      std::memcpy(&like, found.data + k * sizeof(like), sizeof(like));
      result[k] = static_cast<T>(like);
      if (!std::isfinite(result[k])) damaged("its array " + name + " holds NaN or infinite numbers");
    }
  };
  if (found.dtype == "F64")
    copy(double{});
  else if (found.dtype == "F32")
    copy(float{});
  else
    damaged("its array " + name + " holds no float32 or float64 numbers");
  return result;
}
template std::vector<float> File::numbers(const std::string&, const std::vector<int64_t>&) const;
template std::vector<double> File::numbers(const std::string&, const std::vector<int64_t>&) const;

std::vector<uint8_t> File::flags(const std::string& name, const std::vector<int64_t>& shape) const {
  const Array& found = shaped(name, shape);
  std::vector<uint8_t> result(found.data, found.data + found.bytes);
  if ((found.dtype != "BOOL" && found.dtype != "U8") ||
      std::any_of(result.begin(), result.end(), [](uint8_t x) { return x > 1; }))
    damaged("its array " + name + " holds something else than true and false");
  return result;
}

std::vector<int32_t> File::integers(const std::string& name, const std::vector<int64_t>& shape) const {
  const Array& found = shaped(name, shape);
  if (found.dtype != "I32") damaged("its array " + name + " holds no int32 numbers");
  std::vector<int32_t> result(found.count());
  std::memcpy(result.data(), found.data, found.bytes);
  return result;
}

}  // namespace mdops::core
