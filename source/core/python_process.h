// A process of Python beside the program (mdops/model_server.py), which evaluates models without kernels in
// the core. The two talk through a socket, in messages of a header and a text, and share memory for arrays.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>

#include "core/error.h"
#include "core/list.h"
#include "core/model.h"

namespace mdops::core {

// What Python refuses, and the atom that it is about, or -1.
struct Refused : Error {
  Refused(int status, const std::string& why, int64_t about) : Error(status, why), atom(about) {}
  int64_t atom;
};

// The model failed in another process of the program.
struct StopsElsewhere : Error {
  StopsElsewhere() : Error(MDOPS_INTERNAL, "the model failed in another process of the program") {}
};

class PythonProcess {
 public:
  // Messages to Python, and from Python.
  enum Kind : int64_t {
    kLoad = 1,
    kNeighbors,
    kCompute,
    kFree,
    kExchanged,
    kModel = 11,
    kDone,
    kFailed,
    kToGhosts,
    kFromGhosts
  };

  static constexpr int kNumbers = 8;

  struct Message {
    Kind kind;
    int64_t numbers[kNumbers];
    std::string text;  // of kFailed: the reason, after a code and the atom's number from 1; of kModel: its
                       // description
  };

  // A model loaded in Python.
  struct Loaded {
    int64_t number;
    std::string about;  // JSON
  };

  // The inputs of a model, beside its list.
  struct Question {
    int64_t model, fparam, aparam;  // numbers of parameters of the frame and of an atom
    int threads;
    const mdops_input& input;
    const Box& box;
  };

  // The process with this Python and device, started if there is none. Throws Error.
  static std::shared_ptr<PythonProcess> of(const std::string& python, const std::string& device);

  PythonProcess(const std::string& python, std::string device);
  ~PythonProcess();
  PythonProcess(const PythonProcess&) = delete;

  // Throw Error, with the message from Python.
  Loaded load(const std::string& path, const mdops_options& options);
  void free(int64_t model) noexcept;
  void compute(const Question& question, const mdops_list& list, mdops_output& output);

 private:
  struct Sizes;

  void start(const std::string& python);
  void fill(const mdops_list& list);
  void lay_out(const Sizes& sizes);
  void exchange(const Message& message, const mdops_list& list);
  void send(Kind kind, const std::initializer_list<int64_t>& numbers, const std::string& text = "");
  void write(const void* from, size_t size);
  bool read(void* to, size_t size);
  // The next message. Throws Error if Python has ended, or with the reason of a failure.
  Message receive();

  const std::string device_;
  std::mutex guard_;
  int channel_ = -1, memory_ = -1;
  pid_t process_ = -1, parent_;
  std::atomic<bool> has_ended_{false};
  // The most of all models, for each atom: an exchange's places of 8 bytes, parameters, and numbers of a
  // spin.
  int64_t places_ = 0, fparam_ = 0, aparam_ = 0, spin_ = 0;
  uint64_t version_ = 0;  // of Python's list
  char* data_ = nullptr;
  size_t size_ = 0;
  double *positions_ = nullptr, *box_ = nullptr, *forces_ = nullptr, *energies_ = nullptr,
         *virials_ = nullptr, *totals_ = nullptr, *fparams_ = nullptr, *aparams_ = nullptr, *spins_ = nullptr,
         *magnetic_forces_ = nullptr, *border_rows_ = nullptr, *halo_rows_ = nullptr;
  int32_t *types_ = nullptr, *neighbors_ = nullptr, *images_ = nullptr, *counts_ = nullptr,
          *sources_ = nullptr, *border_ = nullptr;
};

}  // namespace mdops::core
