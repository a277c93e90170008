// The functions of mdops.h.
#include "core/mdops.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "core/error.h"
#include "core/list.h"
#include "core/model.h"

struct mdops_model {
  std::unique_ptr<mdops::core::Model> own;
};

namespace {

using mdops::core::Error, mdops::core::Model;

thread_local char message[2048] = "";

int failed(int status, const char* why) noexcept {
  std::snprintf(message, sizeof(message), "mdops: %s", why);
  return status;
}

// Catches all exceptions.
int guarded(const auto& f) noexcept {
  try {
    f();
    return MDOPS_OK;
  } catch (const Error& error) {
    return failed(error.status, error.what());
  } catch (const std::bad_alloc&) {
    return failed(MDOPS_MEMORY, "there is not enough memory");
  } catch (const std::length_error&) {
    return failed(MDOPS_MEMORY, "there is not enough memory");
  } catch (const std::system_error& error) {
    return failed(MDOPS_MEMORY, error.what());
  } catch (const std::runtime_error& error) {  // of the checks that the ops have, too
    return failed(MDOPS_INVALID, error.what());
  } catch (const std::exception& error) {
    return failed(MDOPS_INTERNAL, error.what());
  } catch (...) {
    return failed(MDOPS_INTERNAL, "an unknown error");
  }
}

void require(bool condition, const char* why) {
  if (!condition) throw Error(MDOPS_INVALID, why);
}

// Refuses an impossible size of a struct.
size_t checked_size(size_t size, const std::string& name) {
  constexpr size_t kMost = 4096;  // more is uninitialised memory
  if (size > sizeof(size) && size <= kMost) return size;
  throw Error(MDOPS_INVALID, name + ": struct_size is " + std::to_string(size) + ", expected sizeof(" + name +
                                 "), which the caller sets");
}

// A caller's struct in this library's form. Fields missing there are zero; further ones, e.g. of a program
// for a later version, must be zero.
template <class T>
T taken(const T* from, const char* name) {
  const size_t size = checked_size(from->struct_size, name);
  const char* const bytes = reinterpret_cast<const char*>(from);
  for (size_t k = sizeof(T); k < size; ++k)
    if (bytes[k])
      throw Error(MDOPS_INVALID, std::string(name) + ": what is set behind its first " +
                                     std::to_string(sizeof(T)) +
                                     " bytes is of a later version of this library");
  T own{};
  std::memcpy(static_cast<void*>(&own), bytes, std::min(size, sizeof(T)));
  return own;
}

// Writes the fields that the caller's struct has, except its size.
template <class T>
void give(const T& own, T* to) {
  constexpr size_t kBegin = sizeof(own.struct_size);
  const size_t end = std::min(to->struct_size, sizeof(T));
  std::memcpy(reinterpret_cast<char*>(to) + kBegin, reinterpret_cast<const char*>(&own) + kBegin,
              end - kBegin);
}

// fill(list), which is made if it does not exist; an error leaves it empty.
void renew(mdops_list** list, const auto& fill) {
  std::unique_ptr<mdops_list> made = *list ? nullptr : std::make_unique<mdops_list>();
  mdops_list& to = *list ? **list : *made;
  try {
    fill(to);
  } catch (...) {
    to.clear();
    throw;
  }
  if (made) *list = made.release();
}

}  // namespace

int mdops_api_version(void) {
  return MDOPS_API_VERSION;
}

const char* mdops_message(void) {
  return message;
}

int mdops_gpu_count(void) {
  int count = 0;
  guarded([&] { count = mdops::core::gpu_count(); });
  return count;
}

int mdops_load(const char* path, const mdops_options* options, mdops_model** model) {
  return guarded([&] {
    require(model, "model is null");
    *model = nullptr;
    require(path, "path is null");
    const mdops_options wanted = options ? taken(options, "mdops_options") : mdops_options{};
    require(wanted.precision == MDOPS_FLOAT32 || wanted.precision == MDOPS_FLOAT64,
            "precision is neither MDOPS_FLOAT32 nor MDOPS_FLOAT64");
    require(wanted.overflow == MDOPS_REFUSE || wanted.overflow == MDOPS_EXTEND,
            "overflow is neither MDOPS_REFUSE nor MDOPS_EXTEND");
    require(wanted.threads >= 0, "threads is negative");
    require(wanted.part == MDOPS_WHOLE || wanted.part == MDOPS_SHORT_RANGE || wanted.part == MDOPS_DIPOLES,
            "part is none of MDOPS_WHOLE, MDOPS_SHORT_RANGE and MDOPS_DIPOLES");
    *model = new mdops_model{Model::load(path, wanted)};
  });
}

void mdops_free(mdops_model* model) {
  delete model;
}

int mdops_describe(const mdops_model* model, mdops_info* info) {
  return guarded([&] {
    require(model && info, "model or info is null");
    checked_size(info->struct_size, "mdops_info");
    give(model->own->info(), info);
  });
}

int mdops_set_threads(mdops_model* model, int32_t threads) {
  return guarded([&] {
    require(model, "model is null");
    require(threads >= 0, "threads is negative");
    model->own->set_threads(threads);
  });
}

int mdops_allocate(mdops_model* model, int64_t bytes, void** memory) {
  return guarded([&] {
    require(memory, "memory is null");
    *memory = nullptr;
    require(model, "model is null");
    require(bytes >= 0, "bytes is negative");
    *memory = model->own->allocate(std::max<int64_t>(1, bytes));
  });
}

void mdops_release(mdops_model* model, void* memory) {
  if (model && memory) model->own->release(memory);
}

int mdops_list_fill(const mdops_neighbors* neighbors, int32_t ntypes, mdops_list** list) {
  return guarded([&] {
    require(neighbors && list, "neighbors or list is null");
    renew(list, [&](mdops_list& to) {
      mdops_neighbors near = taken(neighbors, "mdops_neighbors");
      mdops_exchange exchange{};
      if (near.exchange) exchange = taken(near.exchange, "mdops_exchange"), near.exchange = &exchange;
      to.fill(near, ntypes);
    });
  });
}

int mdops_list_search(mdops_model* model, const mdops_input* input, double skin, mdops_list** list) {
  return guarded([&] {
    require(model && input && list, "model, input or list is null");
    renew(list, [&](mdops_list& to) {
      require(skin >= 0 && std::isfinite(skin), "skin is negative, or no number");
      model->own->search(taken(input, "mdops_input"), skin, to);
    });
  });
}

void mdops_list_free(mdops_list* list) {
  delete list;
}

int mdops_compute(mdops_model* model, const mdops_input* input, mdops_output* output) {
  return guarded([&] {
    require(model && input && output, "model, input or output is null");
    const mdops_input from = taken(input, "mdops_input");
    mdops_output to = taken(output, "mdops_output");
    require(model->own->has_dipoles() || !(from.field || to.dipole),
            "field or dipole is given, and the model is not one of dipoles");
    require(model->own->takes_spins() || !(from.spins || to.magnetic_forces),
            "spins or magnetic_forces is given, and the model has no magnetic moments");
    try {
      model->own->compute(from, to);
    } catch (...) {
      give(to, output);  // sets its atom
      throw;
    }
    give(to, output);
  });
}

int mdops_deviation(const double* const* values, int32_t models, int64_t rows, int32_t width,
                    double* deviation) {
  return guarded([&] {
    require(models > 0 && rows >= 0 && width > 0, "models, rows or width is none");
    require(values && (deviation || !rows), "values or deviation is null");
    for (int32_t m = 0; m < models; ++m) require(values[m] || !rows, "an array of values is null");
    for (int64_t i = 0; i < rows; ++i) {
      double squares = 0;
      for (int64_t k = i * width; k < (i + 1) * width; ++k) {
        double mean = 0;
        for (int32_t m = 0; m < models; ++m) mean += values[m][k] / models;
        for (int32_t m = 0; m < models; ++m) squares += (values[m][k] - mean) * (values[m][k] - mean);
      }
      deviation[i] = std::sqrt(squares / models);
    }
  });
}
