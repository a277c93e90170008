// Libraries of rebuilt kernels that this process has loaded. They stay loaded.
#pragma once

#include <atomic>
#include <string>

#include "common/kernel_table.h"

namespace mdops {

struct RebuiltKernels {
  const KernelTable* table;
  std::string key;
  std::atomic<bool> used;
  RebuiltKernels* next;
};

// The one installed last, linked to all others: a list that only grows at its head.
const RebuiltKernels* rebuilt_kernels();

// The table of a family that is in use and fits(table), or null; queried once a call.
template <class Table, class Fits>
const Table* rebuilt_table(const Fits& fits) {
  for (const RebuiltKernels* k = rebuilt_kernels(); k; k = k->next) {
    if (!k->used.load(std::memory_order_relaxed) || !Table::is(*k->table)) continue;
    const Table* table = static_cast<const Table*>(k->table);
    if (fits(*table)) return table;
  }
  return nullptr;
}

}  // namespace mdops
