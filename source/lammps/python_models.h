// Models that a process of Python evaluates (mdops/lammps_server.py), for those that the C core has not. The
// two talk through a socket, in messages of a header and a text, and share memory for arrays.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <mdops.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "lammps/halo.h"

extern char** environ;

namespace mdops::lammps {

class PythonModels {
 public:
  // What goes to Python, and what comes from there.
  enum Kind : int64_t {
    kLoad = 1,
    kNeighbors,
    kCompute,
    kExchanged,
    kModel = 11,
    kDone,
    kFailed,
    kToGhosts,
    kFromGhosts
  };

  struct Header {
    int64_t kind, numbers[6], bytes;
  };

  struct Message {
    Kind kind = kFailed;
    int64_t width = 0;  // of an exchange, in places of 8 bytes an atom
    std::string text;   // of kFailed: why
  };

  PythonModels() = default;
  PythonModels(const PythonModels&) = delete;
  PythonModels& operator=(const PythonModels&) = delete;

  ~PythonModels() {
    if (data_) munmap(data_, size_);
    if (memory_ >= 0) close(memory_);
    if (channel_ >= 0) close(channel_);  // Python ends at that
    if (process_ > 0) waitpid(process_, nullptr, 0);
  }

  // Starts Python, which loads the models; a reason if it cannot.
  std::string start(const std::vector<std::string>& paths, const mdops_options& options,
                    const std::vector<double>& fparam, const std::vector<double>& aparam,
                    const std::vector<double>& charge_spin) {
    const char* const python = std::getenv("MDOPS_PYTHON");
    if (!python)
      return "a model without a part for the C core, which `mdops convert` writes where the core has the "
             "model, "
             "needs Python beside LAMMPS: start LAMMPS by `mdops lammps`, or set MDOPS_PYTHON to a Python "
             "that "
             "has mdops";
    int ends[2];
    memory_ = memfd_create("mdops", MFD_CLOEXEC);
    if (memory_ < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      return std::string("no memory to share with Python: ") + std::strerror(errno);
    channel_ = ends[0];
    const std::string other = std::to_string(ends[1]), shared = std::to_string(memory_);
    const char* const words[] = {python, "-m", "mdops.lammps_server", other.c_str(), shared.c_str(), nullptr};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    for (const int file : {ends[1], memory_}) posix_spawn_file_actions_adddup2(&files, file, file);
    // A launcher of MPI takes a process whose files are open for alive.
    for (const int file : open_files())
      if (file > 2 && file != ends[1] && file != memory_) posix_spawn_file_actions_addclose(&files, file);
    const int problem = posix_spawnp(&process_, python, &files, nullptr, const_cast<char**>(words), environ);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    if (problem) {
      process_ = -1;
      return std::string(python) + " (MDOPS_PYTHON) does not start: " + std::strerror(problem);
    }
    std::ostringstream text;
    text.precision(17);
    text << (options.precision == MDOPS_FLOAT64 ? "float64" : "float32") << '\n'
         << (options.overflow == MDOPS_EXTEND ? "extend" : "error") << '\n'
         << (options.device ? options.device : "cpu") << '\n';
    for (const std::vector<double>* const some : {&fparam, &aparam})
      for (const double x : *some) text << ' ' << x;
    text << '\n';
    for (const double x : charge_spin) text << ' ' << x;
    for (const std::string& path : paths) text << '\n' << path;
    send(kLoad, {options.threads, static_cast<int64_t>(fparam.size())}, text.str());
    const Message answer = receive();
    return answer.kind == kModel ? describe(answer.text) : answer.text;
  }

  const mdops_info& info() const { return info_; }
  // Places of 8 bytes that an exchange takes an atom, at most; 0 if nothing is exchanged.
  int64_t width() const { return width_; }

  // Gives Python the types, the neighbours, and what ghosts are images of; a reason if that fails.
  std::string fill(const mdops_neighbors& near, const Halo& halo) {
    int64_t entries = 0;
    for (int64_t i = 0; i < near.atoms; ++i) entries += near.counts[i];
    const auto border = static_cast<int64_t>(halo.border().size());
    if (const std::string problem = lay_out(near.atoms, near.ghosts, entries, border, halo.rows());
        !problem.empty())
      return problem;
    std::copy(halo.sources().begin(), halo.sources().end(), sources_);
    std::copy(halo.border().begin(), halo.border().end(), border_);
    std::copy_n(near.types, near.atoms + near.ghosts, types_);
    std::copy_n(near.counts, near.atoms, counts_);
    int32_t* to = entries_;
    for (int64_t i = 0; i < near.atoms; ++i)
      for (int32_t k = 0; k < near.counts[i]; ++k) *to++ = near.rows[i][k] & near.mask;
    send(kNeighbors, {near.atoms, near.ghosts, entries, border, halo.rows(), halo.processes()});
    const Message answer = receive();
    return answer.kind == kDone ? "" : answer.text;
  }

  // Has a model compute. Then answers are to be received, and exchanges done, until one says kDone.
  void begin(size_t model, const double* positions) {
    std::copy_n(positions, 3 * all_, positions_);
    send(kCompute, {static_cast<int64_t>(model)});
  }

  // Rows of numbers go between processes as the message says.
  void exchange(const Message& message, const Halo& halo) {
    message.kind == kToGhosts ? halo.to_ghosts(border_rows_, halo_rows_, message.width)
                              : halo.from_ghosts(halo_rows_, border_rows_, message.width);
    send(kExchanged, {});
  }

  Message receive() {
    Header head;
    if (!read(&head, sizeof(head))) return {kFailed, 0, "the process of Python beside LAMMPS has ended"};
    Message message{static_cast<Kind>(head.kind), head.numbers[0], std::string(head.bytes, '\0')};
    if (!read(message.text.data(), message.text.size())) return {kFailed, 0, "Python has ended"};
    if (message.kind == kModel) width_ = head.numbers[0], ntypes_ = head.numbers[1];
    return message;
  }

  // The answers of the last model.
  void take(int64_t atoms, mdops_output& output) const {
    output.energy = totals_[0], output.nearest = totals_[10];
    std::copy_n(totals_ + 1, 9, output.virial);
    std::copy_n(forces_, 3 * all_, output.forces);
    if (output.atom_energy) std::copy_n(energies_, atoms, output.atom_energy);
  }

 private:
  std::string describe(const std::string& text) {
    std::istringstream lines(text);
    info_ = mdops_info{};
    info_.struct_size = sizeof(info_);
    info_.gpu = -1;
    lines >> info_.cutoff >> info_.fparam >> info_.aparam;
    int has_own = 0;
    lines >> has_own;
    info_.needs_fparam = info_.fparam && !has_own;
    info_.ntypes = static_cast<int32_t>(ntypes_);
    names_.resize(ntypes_), pointers_.clear();
    for (std::string& name : names_) lines >> name, pointers_.push_back(name.c_str());
    info_.names = pointers_.data();
    return "";
  }

  static std::vector<int> open_files() {
    std::vector<int> found;
    DIR* const folder = opendir("/proc/self/fd");
    if (!folder) return found;
    while (const dirent* const entry = readdir(folder))
      if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != dirfd(folder))
        found.push_back(std::atoi(entry->d_name));
    closedir(folder);
    return found;
  }

  // Places the arrays in the shared memory, as mdops.lammps_server.Memory has them.
  std::string lay_out(int64_t atoms, int64_t ghosts, int64_t entries, int64_t border, int64_t halo) {
    all_ = atoms + ghosts;
    double** const numbers[] = {&positions_, &forces_, &energies_, &totals_, &border_rows_, &halo_rows_};
    int32_t** const integers[] = {&types_, &counts_, &entries_, &sources_, &border_};
    constexpr int kNumbers = 6, kIntegers = 5, kArrays = kNumbers + kIntegers;
    const int64_t sizes[kArrays] = {24 * all_,           24 * all_,         8 * atoms, 128,
                                    8 * border * width_, 8 * halo * width_, 4 * all_,  4 * atoms,
                                    4 * entries,         4 * ghosts,        4 * border};
    int64_t places[kArrays + 1] = {};
    for (int k = 0; k < kArrays; ++k) places[k + 1] = places[k] + (sizes[k] + 63) / 64 * 64;
    const size_t needed = static_cast<size_t>(places[kArrays]);
    if (needed > size_) {
      if (data_) munmap(data_, size_);
      data_ = nullptr, size_ = 0;
      const size_t size = needed + needed / 4;  // ghosts come and go
      void* const found = ftruncate(memory_, static_cast<off_t>(size)) == 0
                              ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0)
                              : MAP_FAILED;
      if (found == MAP_FAILED) return std::string("no memory to share with Python: ") + std::strerror(errno);
      data_ = static_cast<char*>(found), size_ = size;
    }
    for (int k = 0; k < kNumbers; ++k) *numbers[k] = reinterpret_cast<double*>(data_ + places[k]);
    for (int k = 0; k < kIntegers; ++k)
      *integers[k] = reinterpret_cast<int32_t*>(data_ + places[kNumbers + k]);
    return "";
  }

  void send(Kind kind, const std::vector<int64_t>& numbers, const std::string& text = "") {
    Header head{kind, {}, static_cast<int64_t>(text.size())};
    std::copy(numbers.begin(), numbers.end(), head.numbers);
    write(&head, sizeof(head));
    write(text.data(), text.size());
  }

  // What cannot be written is told by the next `receive`, as Python is not there.
  void write(const void* from, size_t size) {
    for (const char* at = static_cast<const char*>(from); size;) {
      const ssize_t done = ::send(channel_, at, size, MSG_NOSIGNAL);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return;
      at += done, size -= static_cast<size_t>(done);
    }
  }

  bool read(void* to, size_t size) {
    for (char* at = static_cast<char*>(to); size;) {
      const ssize_t done = recv(channel_, at, size, 0);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return false;
      at += done, size -= static_cast<size_t>(done);
    }
    return true;
  }

  int channel_ = -1, memory_ = -1;
  pid_t process_ = -1;
  mdops_info info_{};
  std::vector<std::string> names_;
  std::vector<const char*> pointers_;
  int64_t width_ = 0, ntypes_ = 0, all_ = 0;
  char* data_ = nullptr;
  size_t size_ = 0;
  double *positions_ = nullptr, *forces_ = nullptr, *energies_ = nullptr, *totals_ = nullptr,
         *border_rows_ = nullptr, *halo_rows_ = nullptr;
  int32_t *types_ = nullptr, *counts_ = nullptr, *entries_ = nullptr, *sources_ = nullptr, *border_ = nullptr;
};

}  // namespace mdops::lammps
