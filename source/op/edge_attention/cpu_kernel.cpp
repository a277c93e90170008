// An atom's edges at a time.
#include "edge_attention/cpu_atom.h"

namespace mdops::MDOPS_ISA {

namespace {

template <class T>
AtomEdges<T> edges_of(const EdgeAttentionArgs<T>& args, int64_t first, int64_t n, T absent) {
  const auto at = [&](const T* rows, int64_t width) { return rows ? rows + first * width : nullptr; };
  return {.n = n,
          .heads = args.heads,
          .keys = args.keys,
          .values = args.values,
          .x = at(args.x, args.values),
          .r = at(args.r, 3),
          .w = at(args.w, 1),
          .along_x = at(args.along_x, args.values),
          .along_r = at(args.along_r, 3),
          .along_w = at(args.along_w, 1),
          .absent = absent,
          .shift = args.shift};
}

template <class T, bool gated>
void run_atom(const EdgeAttentionArgs<T>& args, int64_t atom, void* scratch) {
  const int64_t first = args.offsets[atom], n = args.offsets[atom + 1] - first;
  if (n == 0) return;
  Arena arena{static_cast<char*>(scratch)};
  const AtomAttention<T, gated> of(edges_of(args, first, n, args.absent[atom]), args.grad != nullptr, arena);
  of.expand(false);
  const auto queries = [&](auto* rows, int64_t width) { return rows + first * args.heads * width; };
  const T* const q = queries(args.q, args.keys);
  if (!args.grad) return of.forward(q, queries(args.out, args.values));
  const T* const g = queries(args.grad, args.values);
  T *const by_q = queries(args.by_q, args.keys), *const by_x = args.by_x + first * args.values;
  if (args.along_q)
    of.second(q, queries(args.along_q, args.keys), g, queries(args.out, args.values), by_q, by_x);
  else
    of.backward(q, g, by_q, by_x);
  of.fold(false, args.by_r + 3 * first, args.by_w + first);
}

}  // namespace

template <class T>
int64_t edge_attention_bytes(const EdgeAttentionArgs<T>& args, int64_t n) {
  Arena arena{nullptr};
  AtomAttention<T, true>(edges_of(args, 0, n, T(0)), args.grad != nullptr, arena);
  return arena.used;
}

template <class T>
void edge_attention_atoms(const EdgeAttentionArgs<T>& args, int64_t from, int64_t to, void* scratch) {
  for (int64_t i = from; i < to; ++i)
    args.gated ? run_atom<T, true>(args, i, scratch) : run_atom<T, false>(args, i, scratch);
}

MDOPS_INSTANTIATE(edge_attention_bytes, edge_attention_atoms)

}  // namespace mdops::MDOPS_ISA
