// Attention on a GPU from the host: which kernels, their tiles, their launches.
#pragma once

#include <algorithm>

#include "attention/gpu_bfloat.h"
#include "attention/gpu_double.h"
#include "attention/gpu_passes.h"
#include "attention/gpu_plain.h"
#include "attention/gpu_second.h"

namespace mdops::gpu_attention {

// Whether tensor cores multiply numbers of T.
template <class T>
constexpr bool kHasTiles = !std::is_same_v<T, double>;

constexpr int kWidestTile = kTileWidth;

// For the second derivative: up to how many sequences per multiprocessor a tile of keys has its own block,
// and how many tiles of a sequence.
constexpr int kFewRounds = 2, kMostTiles = 8;

inline bool is_aligned(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory) % 16 == 0;
}

// The gradients by gate and switch from their parts; null if not requested.
template <class T>
void launch_sum_of_parts(const Gpu& gpu, const TensorArgs<T>& p, const Sums<T>* parts, int count,
                         T* grad_gate, T* grad_switch) {
  if (!grad_gate && !grad_switch) return;
  gpu.launch_for(p.rows, kPlainThreads, sum_parts_kernel<T>, p, parts, count, grad_gate, grad_switch);
}

// Runs the passes; also computes the memory that they need.
template <class T>
class Attention {
 public:
  using A = Sums<T>;

  // `bad`: kPrepareBlocks integers, which `args` has if an earlier pass checked the same offsets and plan;
  // `bias_at`: an integer per sequence if there is a bias. `parts`: 2 for float32's accuracy of products, 1
  // for tf32's; 1 for 16-bit tensors.
  Attention(const Gpu& gpu, const TensorArgs<T>& args, int parts, int32_t* bad, int64_t* bias_at)
      : gpu_(gpu), p_(args), parts_(sizeof(T) == 2 ? 1 : parts), bias_at_(bias_at), limits_(gpu.limits()) {
    if (p_.bad == nullptr) {
      if (p_.bias) gpu_.clear(bias_at, p_.sequences * sizeof(int64_t));  // for empty or wrong ones
      gpu_.launch_early(prepare_kernel<T>, kPrepareBlocks, kPrepareThreads, 0, p_, bad,
                        p_.bias ? bias_at : nullptr);
    }
    p_.bad = bad;
  }

  void forward(const ForwardResults<T>& r) const {
    const bool done = double_forward(r) || with_tiles([&]<class N, int D, bool Options>() {
                        return forward_by_tiles<N, D, Options>(r);
                      });
    if (!done) gpu_.launch(plain_forward_kernel<T>, plain_blocks(), kPlainThreads, 0, p_, r);
    fill({r.out, of_values()}, {}, {}, {}, {r.logsumexp, p_.heads});
  }

  // Size in float32 of the sums of dQ in `backward`.
  int64_t sums_size() const {
    int64_t size = 0;
    if constexpr (sizeof(T) == 2)
      with_tiles([&]<class N, int D, bool Options>() {
        if (!is_bfloat<N, D>() && p_.max_length > backward_layout<N, D>().keys)
          size = static_cast<int64_t>(p_.rows) * of_keys();
        return true;
      });
    return size;
  }

  // `grad_gate` and `grad_switch` are null if not requested.
  void backward(const GradientArgs<T>& g, T* grad_gate, T* grad_switch, float* sums) const {
    const bool done =
        with_tiles([&]<class N, int D, bool Options>() { return backward_by_tiles<N, D, Options>(g, sums); });
    if (!done) {
      if (g.out) delta(g);
      if (!double_gradients(g)) gradients<false>(g, {});
    }
    finish(g, grad_gate, grad_switch);
    if (g.around.to)
      fill(g.around, {}, {}, {}, {});
    else
      fill({g.grad_q, of_keys()}, {g.grad_k, of_keys()}, {g.grad_v, of_values()}, {}, {}, whole_bias(g));
  }

  // Size in float32 of the sums over tiles of keys in `backward_backward`.
  int64_t second_sums_size() const {
    return (second_tiles() - 1) * static_cast<int64_t>(p_.rows) * p_.heads * second_columns();
  }

  void backward_backward(const GradientArgs<T>& g, const Directions<T>& u, T* grad_gate, T* grad_switch,
                         float* sums) const {
    const bool done = std::is_same_v<T, float> && with_tiles([&]<class N, int D, bool Options>() {
                        return second_by_tiles<Numbers<float, 2>, D>(g, u, sums);
                      });
    if (!done) {
      gpu_.launch(plain_change_kernel<T>, plain_blocks(), kPlainThreads, 0, p_, g, u);
      gradients<true>(g, u);
    }
    finish(g, grad_gate, grad_switch);
    fill({g.grad_q, of_keys()}, {g.grad_k, of_keys()}, {g.grad_v, of_values()},
         {g.grad_grad_out, of_values()}, {}, whole_bias(g));
  }

 private:
  int64_t plain_blocks() const { return static_cast<int64_t>(p_.items) * kSubtiles * p_.heads; }
  // Blocks of 64 rows of a head.
  int64_t items() const { return static_cast<int64_t>(p_.items) * p_.heads; }
  int64_t of_keys() const { return static_cast<int64_t>(p_.heads) * p_.width; }
  int64_t of_values() const { return static_cast<int64_t>(p_.heads) * p_.value_width; }
  RowsToFill<T> whole_bias(const GradientArgs<T>& g) const { return {g.grad_bias, p_.heads * p_.bias_size}; }

  void fill(RowsToFill<T> a, RowsToFill<T> b, RowsToFill<T> c, RowsToFill<T> d, RowsToFill<A> sums,
            RowsToFill<T> whole = {}) const {
    gpu_.launch_early(fill_kernel<T>, kPrepareBlocks, kPrepareThreads, 0, p_, a, b, c, d, sums, whole);
  }

  void delta(const GradientArgs<T>& g) const {
    const int64_t rows = static_cast<int64_t>(p_.rows) * p_.heads;
    gpu_.launch_for(rows * kWarp, kPlainThreads, delta_kernel<T>, p_, g);
  }

  // Whether float64 kernels can take the tensors.
  bool goes_double(std::initializer_list<const void*> tensors) const {
    const Wide all = wide(tensors);
    return std::is_same_v<T, double> && limits_.capability >= 80 && all.keys && all.values &&
           (p_.width | p_.value_width) % 16 == 0 && std::max(p_.width, p_.value_width) <= kDoubleWidth;
  }
  void launch_double(const auto& kernel, const auto& results) const {
    gpu_.launch(kernel, blocks_for(plain_blocks(), kDoubleWarps), kDoubleThreads, 0, p_, results);
  }
  bool double_forward(const ForwardResults<T>& r) const {
    if constexpr (std::is_same_v<T, double>) {
      if (!goes_double({p_.q, p_.k, p_.v, r.out})) return false;
      launch_double(double_forward_kernel, r);
      return true;
    } else {
      return false;
    }
  }
  bool double_gradients(const GradientArgs<T>& g) const {
    if constexpr (std::is_same_v<T, double>) {
      if (!goes_double({p_.q, p_.k, p_.v, g.grad_out, g.grad_q, g.grad_k, g.grad_v})) return false;
      const auto by_pairs = [&]<int kGates>() {
        launch_double(double_gradient_kernel<DoubleSum::queries, kGates>, g);
        launch_double(double_gradient_kernel<DoubleSum::keys, kGates>, g);
      };
      p_.gates <= kFewGates ? by_pairs.template operator()<kFewGates>()
                            : by_pairs.template operator()<kMostGate>();
      launch_double(double_gradient_kernel<DoubleSum::values, 0>, g);
      return true;
    } else {
      return false;
    }
  }

  template <bool Second>
  void gradients(const GradientArgs<T>& g, const Directions<T>& u) const {
    gpu_.launch(plain_gradient_kernel<T, Side::queries, Second>, plain_blocks(), kPlainThreads, 0, p_, g, u);
    gpu_.launch(plain_gradient_kernel<T, Side::keys, Second>, plain_blocks(), kPlainThreads, 0, p_, g, u);
  }

  void finish(const GradientArgs<T>& g, T* grad_gate, T* grad_switch) const {
    launch_sum_of_parts(gpu_, p_, g.parts, 2 * p_.heads, grad_gate, grad_switch);
  }

  bool uses_tiles() const {
    return kHasTiles<T> && limits_.capability >= 80 && std::max(p_.width, p_.value_width) <= kWidestTile;
  }

  // Calls f<N, D, Options>() with the kind of numbers, the tile's width and whether there are options; false
  // if no tile fits.
  bool with_tiles(const auto& f) const {
    if constexpr (kHasTiles<T>) {
      if (!uses_tiles()) return false;
      if constexpr (std::is_same_v<T, float>)
        if (parts_ == 2) return with_width<Numbers<T, 2>>(f);
      return with_width<Numbers<T, 1>>(f);
    } else {
      return false;
    }
  }
  template <class N, class F>
  bool with_width(const F& f) const {
    const int width = std::max(p_.width, p_.value_width);
    // Narrow heads have their own tiles, and kernels without options have more registers: only for common
    // dtypes, because each takes time to compile.
    if constexpr (N::kParts == 2 || N::kBfloat) {
      if (width <= 32) return f.template operator()<N, 32, true>();
      if (!p_.bias && !has_factors())
        return width <= 64 ? f.template operator()<N, 64, false>()
                           : f.template operator()<N, kWidestTile, false>();
    }
    if (width <= 64) return f.template operator()<N, 64, true>();
    return f.template operator()<N, kWidestTile, true>();
  }
  bool has_factors() const { return p_.gate || p_.switches; }

  Wide wide(std::initializer_list<const void*> tensors) const {
    bool all = true;
    for (const void* tensor : tensors) all &= is_aligned(tensor);
    constexpr int each = 16 / sizeof(T);
    return {all && (p_.width | p_.key_stride) % each == 0,
            all && (p_.value_width | p_.value_stride) % each == 0};
  }

  // Blocks of whole sequences that the chip holds at once, from their shared memory and a guess of their
  // registers.
  Blocks blocks_of(bool whole, int warps, int64_t shared) const {
    const int64_t each = std::max<int64_t>(
        1, std::min(limits_.shared_bytes / std::max<int64_t>(1, shared), int64_t{16} / warps));
    return {whole, static_cast<int>(std::max<int64_t>(1, each * limits_.multiprocessors / p_.heads))};
  }

  // Whether bfloat16 uses products of warpgroups; the ops ensure that all rows are aligned to 16 bytes.
  template <class N, int D>
  bool is_bfloat() const {
#ifdef MDOPS_HOPPER
    if constexpr (N::kBfloat && D > 32)
      return limits_.capability == 90 && !p_.bias && !has_factors() && p_.scale > 0 && p_.width % 8 == 0 &&
             p_.value_width % 8 == 0 && limits_.shared_bytes >= BfloatMemory<D>::kBackwardBytes;
#endif
    return false;
  }

  // Calls f<Gates, Switches>() for the arguments, if kernels of warpgroups are compiled for them: DPA-1's
  // variants, and neither. Else returns false.
  template <class N, int D, class F>
  bool with_groups(const F& f) const {
#ifdef MDOPS_HOPPER
    if constexpr (D == kTileWidth && N::kParts == 2) {
      if (limits_.capability != 90 || p_.bias) return false;
      const bool switches = p_.switches != nullptr;
      if (p_.gates == 3)
        return switches ? f.template operator()<3, true>() : f.template operator()<3, false>();
      return p_.gates == 0 && !switches && f.template operator()<0, false>();
    }
#endif
    return static_cast<void>(f), false;
  }

  // The same for DPA-1's variants by products of warps: by default only for narrow heads.
  template <class N, int D, int Most = 64, class F>
  bool with_known(const F& f) const {
    if constexpr (D <= Most && N::kParts == 2) {
      if (p_.bias || p_.gates != 3) return false;
      return p_.switches ? f.template operator()<KnownFactors<3, true>>()
                         : f.template operator()<KnownFactors<3, false>>();
    }
    return static_cast<void>(f), false;
  }

  // Whole sequences, a block each, if enough for the chip; else 64 queries a block. As many keys at once as
  // fit, preferably with several blocks per multiprocessor.
  template <class N, int D, bool Options>
  bool forward_by_tiles(const ForwardResults<T>& r) const {
    if constexpr (N::kBfloat && D > 32 && !Options)
      if (is_bfloat<N, D>()) {
        using Layout = BfloatMemory<D>;
        gpu_.launch(bfloat_forward_kernel<T, D>, items(), Layout::kThreads, Layout::kForwardBytes, p_, r);
        return true;
      }
    const int longest = std::max(1, p_.max_length);
    const bool whole = static_cast<int64_t>(p_.sequences) * p_.heads > limits_.multiprocessors;
    ForwardMemory<N, D> layout{round_up(longest, kKeyStep), p_.gates};
    while (layout.size() + kAlignment > limits_.shared_bytes && layout.keys > kKeyStep)
      layout.keys =
          std::max(kKeyStep, std::min(layout.keys - kKeyStep, layout.keys / 2 / kKeyStep * kKeyStep));
    if (layout.size() > limits_.shared_bytes) return false;
    // Few warps a block if several blocks share a multiprocessor; registers of wide heads allow that only
    // with few.
    const int shared = layout.size() + (1 << 10);
    const bool few = 4 * shared <= limits_.shared_bytes || (D > 64 && 2 * shared <= limits_.shared_bytes);
    int warps = few || !whole ? 4 : kMostWarps;
    warps = std::min<int>(warps, static_cast<int>(blocks_for(longest, kGroup)));
    const int64_t blocks = whole ? static_cast<int64_t>(p_.sequences) * p_.heads : items();
    const auto launch = [&](auto* kernel, int64_t bytes) {
      gpu_.launch(kernel, blocks, warps * kWarp, bytes, p_, r, layout, blocks_of(whole, warps, bytes),
                  bias_at_, wide({p_.q, p_.k, p_.v, r.out}));
      return true;
    };
    const bool by_groups = with_groups<N, D>([&]<int Gates, bool Switches>() {
      if (layout.size() + kAlignment > limits_.shared_bytes) return false;
      warps = round_up(warps, 4);
      return launch(forward_kernel<T, N, D, KnownFactors<Gates, Switches>, true>, layout.size() + kAlignment);
    });
    const auto by_warps = [&]<class Have>() {
      return launch(forward_kernel<T, N, D, Have, false>, layout.size());
    };
    return by_groups || with_known<N, D>(by_warps) || by_warps.template operator()<GivenFactors<Options>>();
  }

  template <class N, int D, int Warps = kBackwardWarps<N, D>>
  BackwardMemory<N, D, kQueryStep<N, D>> backward_layout() const {
    using Layout = BackwardMemory<N, D, kQueryStep<N, D>>;
    const int queries = Layout::kStages == 2 ? Layout::kStep : kMostQueries;
    Layout layout{kGroup * Warps, queries, p_.gates};
    const auto fit = [&](int64_t bytes, int& room, int step) {
      while (room > step && layout.size(has_factors()) > bytes) room -= step;
    };
    fit(limits_.shared_bytes / kBackwardBlocks<N, D> - kAlignment, layout.queries, Layout::kStep);
    fit(limits_.shared_bytes, layout.keys, kGroup);
    return layout;
  }

  // By products of warpgroups; false if they cannot be used.
  template <class N, int D>
  bool backward_by_groups(const GradientArgs<T>& g) const {
    if constexpr (N::kBfloat && D > 32)
      if (is_bfloat<N, D>()) {
        using Layout = BfloatMemory<D>;
        if (g.out) gpu_.launch(bfloat_delta_kernel<T, D>, items(), Layout::kThreads, 0, p_, g);
        gpu_.launch(bfloat_backward_kernel<T, D>, 2 * items(), Layout::kThreads, Layout::kBackwardBytes, p_,
                    g);
        return true;
      }
    return with_groups<N, D>([&]<int Gates, bool Switches>() {
      const int64_t each = static_cast<int64_t>(p_.sequences) * p_.heads;
      const Wide all = wide({p_.q, p_.k, p_.v, g.out, g.grad_out, g.grad_q, g.grad_k, g.grad_v});
      const GroupMemory layout{Gates};
      const int shared = layout.size(has_factors());
      if (shared > limits_.shared_bytes) return false;
      gpu_.launch(group_backward_kernel<KnownFactors<Gates, Switches>>, each, GroupMemory::kThreads, shared,
                  p_, g, layout, blocks_of(true, kMostWarps, shared), all);
      return true;
    });
  }

  template <class N, int D, bool Options>
  bool backward_by_tiles(const GradientArgs<T>& g, float* sums) const {
    if (backward_by_groups<N, D>(g)) return true;
    const auto layout = backward_layout<N, D>();
    if (layout.size(has_factors()) > limits_.shared_bytes) return false;
    const auto launch = [&]<class Have, int Warps>(const auto& own, Lengths lengths) {
      const int shared = own.size(has_factors());
      gpu_.launch(backward_kernel<T, N, D, Warps, kQueryStep<N, D>, Have>,
                  static_cast<int64_t>(p_.sequences) * p_.heads, Warps * kWarp, shared, p_, g, own,
                  blocks_of(true, Warps, shared), bias_at_,
                  wide({p_.q, p_.k, p_.v, g.out, g.grad_out, g.grad_q, g.grad_k, g.grad_v}), sums, lengths);
    };
    const bool known = with_known<N, D>([&]<class Have>() {
      constexpr int few = kBackwardWarps<N, D>, more = kLongerWarps<N, D>;
      const auto longer = backward_layout<N, D, more>();
      const bool some = p_.max_length > layout.keys && longer.keys > layout.keys;
      // If a multiprocessor has at most as many sequences as it holds at once, two launches would take the
      // time of the longest sequence of each.
      const bool all = some && static_cast<int64_t>(p_.sequences) * p_.heads <=
                                   kBackwardBlocks<N, D> * int64_t{limits_.multiprocessors};
      if (!all) launch.template operator()<Have, few>(layout, some ? Lengths{-1, layout.keys} : Lengths{});
      if (some) launch.template operator()<Have, more>(longer, all ? Lengths{} : Lengths{layout.keys});
      return true;
    });
    if (!known) launch.template operator()<GivenFactors<Options>, kBackwardWarps<N, D>>(layout, {});
    return true;
  }

  template <class N, int D>
  SecondMemory<N, D> second_layout() const {
    SecondMemory<N, D> layout{4 * kGroup, p_.gates};
    while (layout.keys > kGroup && layout.size() > limits_.shared_bytes) layout.keys -= kGroup;
    return layout;
  }

  // Tiles of keys of the longest sequence that have a block each: a single one if the sequences fill the
  // chip, which would otherwise wait for the last of them.
  int64_t second_tiles() const {
    int64_t tiles = 1;
    if constexpr (std::is_same_v<T, float>)
      with_tiles([&]<class N, int D, bool Options>() {
        const bool few =
            static_cast<int64_t>(p_.sequences) * p_.heads <= kFewRounds * limits_.multiprocessors;
        if (few && second_layout<Numbers<float, 2>, D>().keys == kPlanTile)
          tiles = std::max<int64_t>(1, blocks_for(p_.max_length, kPlanTile));
        return true;
      });
    return tiles <= kMostTiles ? tiles : 1;
  }
  int64_t second_columns() const { return std::max(p_.width, p_.value_width) + p_.gates + 1; }

  // Always with float32's accuracy of products; 16-bit tensors, with which nothing is trained, have no tiles.
  template <class N, int D>
  bool second_by_tiles(const GradientArgs<T>& g, const Directions<T>& u, float* sums) const {
    if constexpr (std::is_same_v<T, float>) {
      const auto layout = second_layout<N, D>();
      if (layout.size() > limits_.shared_bytes) return false;
      const bool split = second_tiles() > 1;
      const int64_t each = static_cast<int64_t>(p_.rows) * p_.heads,
                    blocks = split ? items() : int64_t{p_.sequences} * p_.heads;
      TileSums<T> change{}, second{};
      if (split) {
        float* const numbers = sums + (second_tiles() - 1) * each * std::max(p_.width, p_.value_width);
        change = {sums, numbers, each * p_.value_width, each};
        second = {sums, numbers, each * p_.width, each * (p_.gates + 1)};
      }
      const int threads = layout.kTeams * (layout.keys / kGroup) * kWarp;
      const Blocks blocks_each{!split, limits_.multiprocessors};
      const Wide all = wide({p_.q, p_.k, p_.v, u.q, u.k, u.v, g.out, g.grad_out, g.grad_q, g.grad_k, g.grad_v,
                             g.grad_grad_out});
      const auto passes = [&]<class Have>() {
        gpu_.launch(second_kernel<T, N, D, SecondPass::change, Have>, blocks, threads, layout.size(), p_, g,
                    u, layout, change, blocks_each, bias_at_, all);
        gpu_.launch(finish_change_kernel<T>, kRowBlocks * items(), kPlainThreads, 0, p_, g, change);
        gpu_.launch(second_kernel<T, N, D, SecondPass::second, Have>, blocks, threads, layout.size(), p_, g,
                    u, layout, second, blocks_each, bias_at_, all);
        if (split) gpu_.launch(add_tiles_kernel<T>, kRowBlocks * items(), kPlainThreads, 0, p_, g, second);
        return true;
      };
      if constexpr (D == kWidestTile)  // for DPA-1's training
        if (with_known<N, D, kWidestTile>(passes)) return true;
      return passes.template operator()<GivenFactors<true>>();
    } else {
      return static_cast<void>(g), static_cast<void>(u), static_cast<void>(sums), false;
    }
  }

  const Gpu& gpu_;
  TensorArgs<T> p_;
  int parts_;
  int64_t* bias_at_;
  GpuLimits limits_;
};

template <class T>
void forward_pass(const Gpu& gpu, const TensorArgs<T>& args, int parts, int32_t* bad, int64_t* bias_at,
                  const ForwardResults<T>& results) {
  Attention<T>(gpu, args, parts, bad, bias_at).forward(results);
}

template <class T>
void backward_pass(const Gpu& gpu, const TensorArgs<T>& args, int parts, int32_t* bad, int64_t* bias_at,
                   const GradientArgs<T>& grads, Kept<T>* grad_gate, Kept<T>* grad_switch,
                   const SumsMemory& sums) {
  const Attention<T> attention(gpu, args, parts, bad, bias_at);
  attention.backward(grads, grad_gate, grad_switch, sums(attention.sums_size()));
}

template <class T>
void second_pass(const Gpu& gpu, const TensorArgs<T>& args, int parts, int32_t* bad, int64_t* bias_at,
                 const GradientArgs<T>& grads, const Directions<T>& u, Kept<T>* grad_gate,
                 Kept<T>* grad_switch, const SumsMemory& sums) {
  const Attention<T> attention(gpu, args, parts, bad, bias_at);
  attention.backward_backward(grads, u, grad_gate, grad_switch, sums(attention.second_sums_size()));
}

#define MDOPS_FORWARD_PASS(T)                                                              \
  template void forward_pass<T>(const Gpu&, const TensorArgs<T>&, int, int32_t*, int64_t*, \
                                const ForwardResults<T>&);
#define MDOPS_BACKWARD_PASS(T)                                                              \
  template void backward_pass<T>(const Gpu&, const TensorArgs<T>&, int, int32_t*, int64_t*, \
                                 const GradientArgs<T>&, T*, T*, const SumsMemory&);
#define MDOPS_SECOND_PASS(T)                                                              \
  template void second_pass<T>(const Gpu&, const TensorArgs<T>&, int, int32_t*, int64_t*, \
                               const GradientArgs<T>&, const Directions<T>&, T*, T*, const SumsMemory&);

}  // namespace mdops::gpu_attention
