// The atoms of a process that others have as ghosts, and the exchange of rows of numbers between processes.
// An atom is sent once to a process with several of its images, and not at all for those on its own process.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace mdops::lammps {

class Halo {
 public:
  // Takes the process that owns each ghost's atom, and its index there. All processes call it together.
  void find(MPI_Comm world, int64_t atoms, const std::vector<std::pair<int, int>>& owners) {
    world_ = world;
    int me = 0;
    MPI_Comm_rank(world, &me);
    MPI_Comm_size(world, &processes_);
    std::vector<std::pair<int, int>> wanted;
    for (const auto& owner : owners)
      if (owner.first != me) wanted.push_back(owner);
    std::sort(wanted.begin(), wanted.end());
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    received_.assign(processes_, 0), sent_.assign(processes_, 0);
    std::vector<int32_t> asked;
    for (const auto& [process, index] : wanted) ++received_[process], asked.push_back(index);
    MPI_Alltoall(received_.data(), 1, MPI_INT, sent_.data(), 1, MPI_INT, world);
    border_.resize(std::accumulate(sent_.begin(), sent_.end(), size_t{0}));
    exchange(MPI_INT32_T, asked.data(), received_, border_.data(), sent_, 1);
    sources_.clear();
    for (const auto& owner : owners)
      sources_.push_back(static_cast<int32_t>(
          owner.first == me
              ? owner.second
              : atoms + (std::lower_bound(wanted.begin(), wanted.end(), owner) - wanted.begin())));
    rows_ = static_cast<int64_t>(wanted.size());
  }

  int64_t processes() const { return processes_; }
  // The atoms whose rows go to other processes, and the number of rows that arrive.
  const std::vector<int32_t>& border() const { return border_; }
  int64_t rows() const { return rows_; }
  // For each ghost, the atom here of which it is an image, or the number of atoms plus its row of the halo.
  const std::vector<int32_t>& sources() const { return sources_; }

  // Sends rows of the border to the processes that have them in their halo, or back.
  void to_ghosts(const double* border, double* halo, int64_t width) const {
    exchange(MPI_DOUBLE, border, sent_, halo, received_, width);
  }
  void from_ghosts(const double* halo, double* border, int64_t width) const {
    exchange(MPI_DOUBLE, halo, received_, border, sent_, width);
  }

 private:
  template <class T>
  void exchange(MPI_Datatype type, const T* from, const std::vector<int>& out, T* to,
                const std::vector<int>& in, int64_t width) const {
    constexpr int kTag = 7319;
    std::vector<MPI_Request> requests;
    for (int k = 0; k < processes_; to += in[k++] * width)
      if (in[k])
        MPI_Irecv(to, static_cast<int>(in[k] * width), type, k, kTag, world_, &requests.emplace_back());
    for (int k = 0; k < processes_; from += out[k++] * width)
      if (out[k])
        MPI_Isend(from, static_cast<int>(out[k] * width), type, k, kTag, world_, &requests.emplace_back());
    MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  }

  MPI_Comm world_ = MPI_COMM_NULL;
  int processes_ = 1;
  int64_t rows_ = 0;
  std::vector<int> sent_, received_;  // rows for each process
  std::vector<int32_t> border_, sources_;
};

}  // namespace mdops::lammps
