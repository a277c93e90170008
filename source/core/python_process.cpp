#include "core/python_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

extern char** environ;

namespace mdops::core {

namespace {

struct Header {
  int64_t kind, numbers[PythonProcess::kNumbers], bytes;
};

[[noreturn]] void refuse_memory() {
  throw Error(MDOPS_MEMORY, std::string("no memory to share with Python: ") + std::strerror(errno));
}

std::vector<int> open_files() {
  std::vector<int> found;
  DIR* const folder = opendir("/proc/self/fd");
  if (!folder) return found;
  while (const dirent* const entry = readdir(folder))
    if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != dirfd(folder))
      found.push_back(std::atoi(entry->d_name));
  closedir(folder);
  return found;
}

}  // namespace

std::shared_ptr<PythonProcess> PythonProcess::of(const std::string& python, const std::string& device) {
  static std::mutex guard;
  static std::map<std::pair<std::string, std::string>, std::weak_ptr<PythonProcess>> running;
  const std::lock_guard<std::mutex> lock(guard);
  std::weak_ptr<PythonProcess>& known = running[{python, device}];
  std::shared_ptr<PythonProcess> found = known.lock();
  if (!found || found->has_ended_ || found->parent_ != getpid()) {
    found = std::make_shared<PythonProcess>(python, device);
    known = found;
  }
  return found;
}

PythonProcess::PythonProcess(const std::string& python, std::string device)
    : device_(std::move(device)), parent_(getpid()) {
  try {
    start(python);
  } catch (...) {
    if (channel_ >= 0) close(channel_);
    if (memory_ >= 0) close(memory_);
    throw;
  }
}

PythonProcess::~PythonProcess() {
  if (data_) munmap(data_, size_);
  if (memory_ >= 0) close(memory_);
  if (channel_ >= 0) close(channel_);  // Python ends at that
  if (process_ > 0 && parent_ == getpid()) waitpid(process_, nullptr, 0);
}

void PythonProcess::start(const std::string& python) {
  int ends[2];
  memory_ = memfd_create("mdops", MFD_CLOEXEC);
  if (memory_ < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) refuse_memory();
  channel_ = ends[0];
  const std::string other = std::to_string(ends[1]), shared = std::to_string(memory_);
  const char* const words[] = {python.c_str(), "-m",           "mdops.model_server",
                               other.c_str(),  shared.c_str(), nullptr};
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (const int file : {ends[1], memory_}) posix_spawn_file_actions_adddup2(&files, file, file);
  // A launcher of MPI takes a process with open files for alive.
  for (const int file : open_files())
    if (file > 2 && file != ends[1] && file != memory_) posix_spawn_file_actions_addclose(&files, file);
  const int problem =
      posix_spawnp(&process_, python.c_str(), &files, nullptr, const_cast<char**>(words), environ);
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  if (!problem) return;
  process_ = -1;
  throw Error(MDOPS_INVALID,
              "the Python of MDOPS_PYTHON, " + python + ", does not start: " + std::strerror(problem));
}

PythonProcess::Loaded PythonProcess::load(const std::string& path, const mdops_options& options) {
  const std::lock_guard<std::mutex> lock(guard_);
  std::ostringstream text;
  text.precision(17);
  text << (options.precision == MDOPS_FLOAT64 ? "float64" : "float32") << '\n'
       << (options.overflow == MDOPS_EXTEND ? "extend" : "error") << '\n'
       << device_ << '\n';
  if (options.charge_spin) text << options.charge_spin[0] << ' ' << options.charge_spin[1];
  text << '\n' << path;
  send(kLoad, {}, text.str());
  Message answer = receive();
  places_ = std::max(places_, answer.numbers[1]);
  fparam_ = std::max(fparam_, answer.numbers[2]), aparam_ = std::max(aparam_, answer.numbers[3]);
  spin_ = std::max(spin_, answer.numbers[4]);
  version_ = 0;  // rows may need more room now
  return {answer.numbers[0], std::move(answer.text)};
}

void PythonProcess::free(int64_t model) noexcept {
  const std::lock_guard<std::mutex> lock(guard_);
  if (!has_ended_ && parent_ == getpid()) send(kFree, {model});
}

struct PythonProcess::Sizes {
  int64_t atoms, ghosts, width, ntypes, border, halo;
};

// Places the arrays in the shared memory, in the layout of mdops.model_server.Memory.
void PythonProcess::lay_out(const Sizes& s) {
  const int64_t all = s.atoms + s.ghosts;
  const std::pair<double**, int64_t> numbers[] = {{&positions_, 3 * all},
                                                  {&box_, 12},
                                                  {&forces_, 3 * all},
                                                  {&energies_, s.atoms},
                                                  {&virials_, 9 * all},
                                                  {&totals_, 16},
                                                  {&fparams_, fparam_},
                                                  {&aparams_, s.atoms * aparam_},
                                                  {&spins_, all * spin_},
                                                  {&magnetic_forces_, all * spin_},
                                                  {&border_rows_, s.border * places_},
                                                  {&halo_rows_, s.halo * places_}};
  const std::pair<int32_t**, int64_t> integers[] = {{&types_, all},
                                                    {&neighbors_, s.atoms * s.width},
                                                    {&images_, s.ghosts ? 0 : s.atoms * s.width},
                                                    {&counts_, s.atoms * s.ntypes},
                                                    {&sources_, s.ghosts},
                                                    {&border_, s.border}};
  const auto bytes = [](int64_t count, size_t size) {
    return (static_cast<size_t>(count) * size + 63) / 64 * 64;
  };
  size_t needed = 0;
  for (const auto& [place, count] : numbers) needed += bytes(count, sizeof(double));
  for (const auto& [place, count] : integers) needed += bytes(count, sizeof(int32_t));
  if (needed > size_) {
    if (data_) munmap(data_, size_);
    data_ = nullptr, size_ = 0;
    const size_t size = needed + needed / 4;  // the number of atoms and ghosts varies
    void* const found = ftruncate(memory_, static_cast<off_t>(size)) == 0
                            ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0)
                            : MAP_FAILED;
    if (found == MAP_FAILED) refuse_memory();
    data_ = static_cast<char*>(found), size_ = size;
  }
  char* at = data_;
  for (const auto& [place, count] : numbers)
    *place = reinterpret_cast<double*>(at), at += bytes(count, sizeof(double));
  for (const auto& [place, count] : integers)
    *place = reinterpret_cast<int32_t*>(at), at += bytes(count, sizeof(int32_t));
}

// Sends Python the list, unless it has it already.
void PythonProcess::fill(const mdops_list& list) {
  if (version_ == list.version) return;
  version_ = 0;
  const auto border = static_cast<int64_t>(list.border.size());
  const Sizes s{list.atoms, list.ghosts, list.rows.width, list.ntypes, border, list.halo};
  lay_out(s);
  std::copy(list.types.begin(), list.types.end(), types_);
  std::copy_n(list.rows.neighbors.begin(), s.atoms * s.width, neighbors_);
  if (!s.ghosts) std::copy_n(list.rows.images.begin(), s.atoms * s.width, images_);
  std::copy_n(list.rows.counts.begin(), s.atoms * s.ntypes, counts_);
  std::fill_n(sources_, s.ghosts, -1);
  std::copy(list.sources.begin(), list.sources.end(), sources_);
  std::copy(list.border.begin(), list.border.end(), border_);
  send(kNeighbors, {s.atoms, s.ghosts, s.width, s.ntypes, s.border, s.halo, !list.exchange.call});
  receive();
  version_ = list.version;
}

void PythonProcess::compute(const Question& question, const mdops_list& list, mdops_output& output) {
  const std::lock_guard<std::mutex> lock(guard_);
  fill(list);
  const mdops_input& input = question.input;
  const int64_t all = input.atoms + input.ghosts;
  std::copy_n(input.positions, 3 * all, positions_);
  std::copy_n(question.box.cell, 9, box_);
  std::copy_n(question.box.periodic, 3, box_ + 9);
  if (input.fparam) std::copy_n(input.fparam, question.fparam, fparams_);
  if (input.aparam) std::copy_n(input.aparam, question.aparam * input.atoms, aparams_);
  if (input.spins) std::copy_n(input.spins, 3 * all, spins_);
  send(kCompute, {question.model, question.threads, input.fparam ? question.fparam : 0,
                  input.aparam ? question.aparam : 0, output.atom_virial != nullptr});
  for (Message message = receive(); message.kind != kDone; message = receive()) exchange(message, list);
  output.energy = totals_[0], output.nearest = totals_[10];
  std::copy_n(totals_ + 1, 9, output.virial);
  if (output.forces) std::copy_n(forces_, 3 * all, output.forces);
  if (output.atom_energy) std::copy_n(energies_, input.atoms, output.atom_energy);
  if (output.atom_virial) std::copy_n(virials_, 9 * all, output.atom_virial);
  if (output.magnetic_forces) std::copy_n(magnetic_forces_, 3 * all, output.magnetic_forces);
}

// Exchanges rows between processes, as the message says.
void PythonProcess::exchange(const Message& message, const mdops_list& list) {
  const mdops_exchange& others = list.exchange;
  if (!others.call)
    throw Error(MDOPS_INTERNAL, "Python sends numbers to other processes, and there are none");
  const bool to_ghosts = message.kind == kToGhosts;
  if (others.call(others.context, to_ghosts ? MDOPS_TO_GHOSTS : MDOPS_FROM_GHOSTS,
                  to_ghosts ? border_rows_ : halo_rows_, to_ghosts ? halo_rows_ : border_rows_,
                  message.numbers[0])) {
    has_ended_ = true;  // it would wait in vain
    throw StopsElsewhere();
  }
  send(kExchanged, {});
}

PythonProcess::Message PythonProcess::receive() {
  Header head;
  Message message{};
  if (read(&head, sizeof(head))) {
    message.kind = static_cast<Kind>(head.kind);
    std::copy_n(head.numbers, kNumbers, message.numbers);
    message.text.resize(static_cast<size_t>(head.bytes));
    if (read(message.text.data(), message.text.size())) {
      if (message.kind != kFailed) return message;
      throw Refused(static_cast<int>(message.numbers[0]), message.text, message.numbers[1] - 1);
    }
  }
  has_ended_ = true;
  throw Error(MDOPS_INTERNAL, "the process of Python beside the program has ended");
}

void PythonProcess::send(Kind kind, const std::initializer_list<int64_t>& numbers, const std::string& text) {
  Header head{kind, {}, static_cast<int64_t>(text.size())};
  std::copy(numbers.begin(), numbers.end(), head.numbers);
  write(&head, sizeof(head));
  write(text.data(), text.size());
}

// A failed write is reported by the next `receive`, as Python has ended.
void PythonProcess::write(const void* from, size_t size) {
  for (const char* at = static_cast<const char*>(from); size;) {
    const ssize_t done = ::send(channel_, at, size, MSG_NOSIGNAL);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return;
    at += done, size -= static_cast<size_t>(done);
  }
}

bool PythonProcess::read(void* to, size_t size) {
  for (char* at = static_cast<char*>(to); size;) {
    const ssize_t done = recv(channel_, at, size, 0);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done, size -= static_cast<size_t>(done);
  }
  return true;
}

}  // namespace mdops::core
