"""Runs every op on a GPU, or those whose names begin with an argument, on many kinds of small lists, for NVIDIA's
compute-sanitizer:

export PYTORCH_NO_CUDA_MEMORY_CACHING=1
for tool in memcheck racecheck initcheck; do
    compute-sanitizer --tool $tool --error-exitcode 1 python scripts/sanitize_ops.py
done

initcheck must also see the kernels of PyTorch and of the sort (no --kernel-name): otherwise memory that they write
counts as never written.
"""

import dataclasses
import itertools
import os
import sys
from typing import Any

import torch

import mdops  # noqa: F401  (registers the ops)
from mdops.cli.sample_model import sample_model
from mdops.jit.sample_box import sample_box
from mdops.ops import gemm_lowbit, linear, pack_ternary, quantize, ragged_plan
from mdops.ops.attention import RaggedPlan
from mdops.ops.attention_layer import AttentionWeights, attention_layer
from mdops.ops.attention_moments import JoinedLayer, attention_moments
from mdops.system import from_atoms
from mdops.tables.spline import SplineGrid
from mdops.testing import CUTOFF, PROTECTION, SMOOTH, Sample, has_kernel, op_samples

OPS = torch.ops.mdops


NETS = 14  # the index of `nets` among the arguments of spline_potential
# Indices among the arguments of hybrid_potential, and of fitting_energy.
HYBRID_NETS, HYBRID_EXTRA, HYBRID_WIDTH, HYBRID_AXIS, HYBRID_NEURONS = 15, 16, 25, 26, 28
FITTING_NETS, FITTING_NEURONS = 2, 6
# Wrong values that a CPU refuses, and that the GPU's kernels do not use in samples so narrow.
UNUSED = {"message": ("groups", "ends", "offsets")}


def samples(dtype: torch.dtype) -> list[Sample]:
    """Samples of the ops that the GPU has. They are made on the CPU and copied, because initcheck observes copies and
    our kernels, but not PyTorch's. Only packed weights are made on the GPU, and only in float32."""
    made = {True: [], False: []}
    for s in op_samples("cpu", dtype):
        in_float32_alone = s.op.startswith(("attention_layer", "attention_moments"))
        if has_kernel(s.op, "cuda") and not (in_float32_alone and dtype == torch.float64):
            args = tuple(map(copied, s.args))
            if s.op == "so2_messages_backward":  # a GPU keeps fewer layers for it than a CPU
                args = (args[0], OPS.so2_messages(*args[2:])[1], *args[2:])
            made[s.op.startswith("spline_potential")].append(dataclasses.replace(s, args=args))
    own, others = [], made[False]
    if dtype == torch.float32:
        own = [s for matmul in ("float32", "tf32") for s in packed_samples(made[True], matmul)]
        packing = {"hybrid_potential": packed_hybrid, "fitting_energy": packed_fitting}
        others = [packing.get(s.op, lambda s: s)(s) for s in others]
    else:
        others = [s for s in others if not s.op.startswith(("hybrid_potential", "fitting_energy"))]
    return [s for s in own + others if s.op.startswith(tuple(sys.argv[1:]) or "")]


def packed_samples(given: list[Sample], matmul: str) -> list[Sample]:
    """Samples of packing, each followed by those of steps with its weights; all with `matmul`."""
    made = []
    for sample in given:
        args = tuple(matmul if isinstance(a, str) and a == "float32" else a for a in sample.args)
        if sample.op == "spline_potential_pack":
            packed = sample.function(*args).cpu()
        else:
            nets = copied(packed.expand(len(sample.args[NETS]), -1).contiguous())
            args = (*args[:NETS], nets, *args[NETS + 1 :])
        made.append(dataclasses.replace(sample, args=args))
    return made


def packed_hybrid(sample: Sample) -> Sample:
    """The sample with a net that is packed for the GPU."""
    args = list(sample.args)
    width, axis, inputs = args[HYBRID_WIDTH], args[HYBRID_AXIS], args[HYBRID_EXTRA].shape[1]
    inputs += sum(m * max(k, 1) for m, k in zip(width, axis, strict=True))
    args[HYBRID_NETS] = packed_nets(args[HYBRID_NETS], inputs, args[HYBRID_NEURONS], width, axis)
    return dataclasses.replace(sample, args=tuple(args))


def packed_fitting(sample: Sample) -> Sample:
    args = list(sample.args)
    args[FITTING_NETS] = packed_nets(args[FITTING_NETS], args[0].shape[1], args[FITTING_NEURONS], [], [])
    return dataclasses.replace(sample, args=tuple(args))


def packed_nets(
    like: torch.Tensor, inputs: int, neurons: list[int], width: list[int], axis: list[int]
) -> torch.Tensor:
    """As many packed nets as `like` has."""
    gen, weights = torch.Generator().manual_seed(0), []
    for outputs in (*neurons, 1):
        weights.append(0.5 * torch.randn(inputs, outputs, generator=gen))
        inputs = outputs
    rows = [0.5 * torch.randn(w.shape[1], generator=gen) for w in weights]
    net = OPS.hybrid_potential_pack(copied(weights), copied(rows), copied(rows), width, axis)
    return net.expand(len(like), -1).contiguous()


def copied(value: Any) -> Any:
    if isinstance(value, list):
        return [copied(v) for v in value]
    return value.cuda() if isinstance(value, torch.Tensor) else value


def larger_lists(dtype: torch.dtype, intervals: int, radial: bool, gated: bool = False) -> None:
    """Rows of 100 slots, three types: several rounds of a warp, the last one not full."""
    gen = torch.Generator().manual_seed(0)
    atoms, width, ntypes = 37, 100, 3
    counts = torch.randint(0, width // ntypes + 1, (atoms, ntypes), generator=gen).int()
    types = torch.randint(-1, ntypes, (atoms,), generator=gen).int()
    present = torch.arange(width) < counts.sum(1, keepdim=True)
    neighbors = torch.randint(0, atoms, (atoms, width), generator=gen).int().masked_fill(~present, -1)
    d = 2 * torch.randn(atoms, width, 3, generator=gen).to(dtype)
    moments = torch.randn(atoms, ntypes, intervals + 5, 1 if radial else 4, generator=gen).to(dtype)
    mean, std = torch.zeros(ntypes, dtype=dtype), torch.ones(ntypes, 2, dtype=dtype)
    mask, sel = torch.eye(ntypes, dtype=torch.bool), torch.full((ntypes,), 40, dtype=torch.int32)
    batch = torch.randint(0, 2, (atoms,), generator=gen).int()
    counts, types, neighbors, d, moments, mean, std, mask, sel, batch = (
        t.cuda() for t in (counts, types, neighbors, d, moments, mean, std, mask, sel, batch)
    )
    norm, kind = (counts, types, mean, std, mask), (radial, gated)
    knots = CUTOFF, SMOOTH, PROTECTION, 1.2, 0.0
    for places in ((sel, sel[:0]), (sel[:1], types.clamp(min=0))):
        OPS.spline_moment(d, *norm, mask, *places, *knots, intervals, *kind)
    OPS.spline_moment_backward(moments, d, *norm, *knots, *kind)
    OPS.spline_moment_jvp(d, d, *norm, *knots, intervals, *kind)
    OPS.spline_moment_hvp(d, moments, d, *norm, *knots, *kind)
    forces, virial, atom_virial = OPS.pair_forces(d, d, batch, neighbors, 2)
    OPS.pair_forces_backward(forces, virial, atom_virial, d, d, batch, neighbors)
    OPS.displacements_backward(d, batch, neighbors, neighbors, 2)


def whole_steps() -> None:
    """Systems without atoms, with one, and with several windows of a warp."""
    gen = torch.Generator().manual_seed(0)
    sizes = torch.tensor([0, 1, 300, 128, 24, 24, 9000, 0])
    systems, n = len(sizes), int(sizes.sum())

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen, dtype=torch.float64).cuda()

    batch = torch.repeat_interleave(torch.arange(systems), sizes).int().cuda()
    atoms = (random(n, 3), random(n, 3), random(n).abs(), batch)
    chains = (random(systems, 3), random(systems, 3), (3.0 * sizes.double()).clamp(min=1).cuda())
    ones, none = random(systems).abs(), torch.empty(0, 3, dtype=torch.float64).cuda()
    OPS.begin_step(random(n, 3), *atoms, ones, ones, *chains, none, 0.1, 1.0, 2.0, 1.0)
    within, sel = torch.zeros(n, 2, dtype=torch.int32).cuda(), torch.ones(2, dtype=torch.int32).cuda()
    ends = (random(n), random(n).float(), within, sel, *chains, random(systems, 6))
    OPS.end_step(random(n, 3), random(n, 3), *atoms, *ends, 0.1, 1.0, 2.0)
    OPS.next_step(random(n, 3), random(n, 3), *atoms, *ends, none, 0.1, 1.0, 2.0, 1.0)
    virial, cell = random(systems, 3, 3), 4 * torch.eye(3).double().cuda() + 0.1 * random(systems, 3, 3)
    inertia, scalars = 16 * (sizes.double() + 1).cuda(), (0.1, 1.0, 2.0, 0.1, 4.0)
    cells = (virial, cell, random(systems, 6), random(systems, 3), random(systems, 3), *chains, inertia)
    begun = OPS.begin_cell_step(random(n, 3), *atoms, ones, random(systems, 6), *cells, *scalars, True)
    ends = (random(n), random(n).float(), within, sel, begun[-1], 1.01 * cell, *cells, random(systems, 6))
    OPS.end_cell_step(random(n, 3), random(n, 3), *atoms, *ends, *scalars, 6.0, True)


def fused_steps() -> None:
    """The fitting net with every kind of tile: few atoms, in one kernel with so many rows per block (Hopper's, and that
    for every chip), large tiles, and those for chips with little shared memory."""
    for atoms, widths, activation, shared, chain, block in (
        (200, (40, 40), "tanh", "", "", ""),
        (300, (40, 40), "tanh", "", "32", ""),
        (300, (40, 40), "tanh", "", "64", ""),
        (300, (24, 48, 96), "gelu", "", "96", ""),
        (300, (24, 48) + (48,) * 6, "softplus", "", "96", ""),
        (300, (24, 48, 96), "gelu", "", "128", ""),
        (300, (248, 40), "silu", "", "128", ""),
        (300, (150, 300), "tanh", "", "64", ""),
        (300, (300, 40), "silu", "", "96", ""),
        (200, (400, 40), "tanh", "", "64", ""),
        (200, (400, 40), "gelu", "", "48", ""),
        (200, (40, 40), "tanh", "", "", "32"),
        (300, (24, 48, 96), "gelu", "", "", "64"),
        (300, (24, 48) + (48,) * 6, "softplus", "101376", "", "64"),
        (200, (240, 240, 8), "tanh", "101376", "", "64"),
        (200, (150, 300), "tanh", "", "", "32"),
        (200, (300, 40), "silu", "", "", "64"),
        (100, (512, 5), "tanh", "101376", "", "32"),
        (4300, (40, 40), "tanh", "101376", "", ""),
        (4300, (40, 40), "tanh", "101376", "", "1"),
        (4300, (40, 40), "tanh", "", "", "1"),
    ):
        os.environ["MDOPS_GPU_SHARED_BYTES"] = shared
        os.environ["MDOPS_CHAIN_ROWS"], os.environ["MDOPS_BLOCK_ROWS"] = chain, block
        model = sample_model((40, 80), 4.0, (8, 16), 8, widths, torch.float32)
        for net in model.model.fitting.nets.nets:
            for layer in net.layers[:-1]:
                layer.activation_name = activation
        model.grid = SplineGrid(1 / 0.9, 32, 0.9, 1e-5)
        model = model.cuda()
        system = from_atoms([sample_box(atoms, ["O", "H"])], ["O", "H"], "cuda")
        for matmul in ("float32", "tf32"):
            model.use_matmul(matmul)
            assert torch.isfinite(model.evaluate(system)["forces"]).all()
    for name in ("MDOPS_GPU_SHARED_BYTES", "MDOPS_CHAIN_ROWS", "MDOPS_BLOCK_ROWS"):
        os.environ.pop(name)


def attention() -> None:
    """Attention with all of its kernels: dtypes, widths, options, several tiles of keys, chips with little shared
    memory; few sequences and many."""
    gen = torch.Generator().manual_seed(0)
    for dtype, heads, width, lengths, options, shared in (
        (torch.float32, 1, 128, (70, 0, 33), "all", ""),
        (torch.float32, 1, 128, (70, 0, 33), "", "101376"),
        (torch.float32, 1, 128, (70, 0, 130), "gates", ""),
        (torch.float32, 1, 128, (5,) * 600, "gates", ""),
        (torch.float32, 1, 32, (90, 0, 110), "gates", ""),
        (torch.float32, 1, 64, (90, 1, 110), "gates", ""),
        (torch.float32, 3, 50, (70, 1, 16), "all", ""),
        (torch.float32, 1, 200, (30, 17), "all", ""),
        (torch.bfloat16, 4, 64, (70, 1, 130), "", ""),
        (torch.bfloat16, 1, 128, (70, 0, 130), "", ""),
        (torch.bfloat16, 1, 64, (5,) * 150, "all", ""),
        (torch.float16, 2, 100, (70, 33), "all", ""),
        (torch.float64, 2, 20, (40, 33), "all", ""),
    ):
        os.environ["MDOPS_GPU_SHARED_BYTES"] = shared
        ends = torch.tensor([0, *lengths]).cumsum(0).int()
        rows, squares = int(ends[-1]) + 3, sum(n * n for n in lengths)
        plan = ragged_plan(ends, max_total=rows + 70, max_batch=len(lengths) + 1, max_length=max(lengths))

        def random(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.randn(*shape, generator=gen).to(dtype).cuda()

        q, k, v, grad, *along = (random(rows, heads, width) for _ in range(7))
        optional = [random(heads, squares) if options == "all" else None, *[None] * 2]
        if options:
            optional[1:] = random(rows, 3), random(rows).abs()
        sums = torch.float64 if dtype == torch.float64 else torch.float32
        absent = torch.ones(len(lengths), dtype=sums).cuda() if options else None
        rest = (ends.cuda(), plan.items.cuda(), *optional, absent, 0.1, 0.5, plan.max_length)
        for matmul in ("float32", "tf32"):
            saved = OPS.ragged_attention(q, k, v, *rest, matmul)
            OPS.ragged_attention_backward(grad, q, k, v, *saved, *rest, matmul)
            OPS.ragged_attention_backward_backward(*along, *optional, grad, q, k, v, *saved, *rest, matmul)
    os.environ.pop("MDOPS_GPU_SHARED_BYTES")


def attention_layers() -> None:
    """Layers of simulations: with weights for q, k and v, or with given q, k and v, with and without lengths; rows that
    are read two numbers at a time, and others; rows without an atom."""
    gen = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen).cuda()

    ends = torch.tensor([0, 70, 70, 170, 260]).int()
    plan = ragged_plan(ends, max_total=300, max_batch=5, max_length=100)
    for features, width, given, ready in (
        (100, 64, False, False),
        (100, 32, True, False),
        (100, 32, True, True),
        (33, 128, False, False),
        (99, 48, True, True),
        (128, 112, True, False),
    ):
        columns = features + 3 * width + features % 8 if given else features
        weights = AttentionWeights(
            None if given else random(features, 3 * width) / features**0.5,
            None if given else random(3 * width),
            random(width, features) / width**0.5,
            *(random(features) for _ in range(3)),
            None if ready else random(width).cos(),
        )
        g = random(300, columns).requires_grad_()
        keys = {"directions": random(300, 3), "switch": random(300).sigmoid(), "empty": random(4).abs()}
        how = {
            "scale": 0.5,
            "eps": 1e-5,
            "normalize": not ready,
            "plan": RaggedPlan(plan.items.cuda(), plan.max_length),
        }
        out = attention_layer(g, ends.cuda(), weights, **keys, **how)
        last = int(ends[-1])  # later rows are uninitialised memory
        assert torch.isfinite(torch.autograd.grad(out[:last].square().sum(), g)[0][:last]).all()


def joined_layers() -> None:
    """Layers of coordinates with the sums after them, narrow and wide, and rows without an atom."""
    gen = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen).cuda()

    ends = torch.tensor([0, 70, 70, 170, 260]).int()
    plan = ragged_plan(ends, max_total=300, max_batch=5, max_length=113)
    for widths, features in (
        ((32, 64), 100),
        ((64, 32), 50),
        ((32, 32), 128),
        ((64, 64), 122),
        ((32,), 64),
        ((64,), 100),
    ):
        layers = []
        for n, m in zip(widths, [*widths[1:], features], strict=True):
            own = (random(n, 3 * n) / n**0.5, random(3 * n), random(n).cos()) if layers else ()
            layers.append(JoinedLayer(random(n, m) / n**0.5, random(n, m) / n**0.5, random(m), 0.5, *own))
        rows = random(300, 4 * widths[0]).requires_grad_()
        keys = {"directions": random(300, 3), "switch": random(300).sigmoid(), "empty": random(4).abs()}
        how = {"eps": 1e-5, "normalize": True, "plan": RaggedPlan(plan.items.cuda(), plan.max_length)}
        norm = random(features), random(features)
        t = attention_moments(rows, random(300, 4), ends.cuda(), layers, norm, **keys, **how)
        assert torch.isfinite(torch.autograd.grad(t.square().sum(), rows)[0][:260]).all()


def large_products() -> None:
    """Products of layers that warpgroups compute, forward and both adjoints, and low-bit ones of few rows."""
    gen = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen).cuda().requires_grad_()

    for rows, inputs, outputs in ((17_298, 100, 40), (54_001, 25, 50), (6_000, 33, 350), (6_000, 128, 100)):
        x, w, b = random(rows, inputs), random(inputs, outputs), random(outputs)
        torch.autograd.grad(linear(x, w, b).square().sum(), (x, w, b))
    for rows, kind in itertools.product((16, 64, 130), ("int8", "ternary", "e4m3")):
        a, a_scale = quantize(random(rows, 1024), "int8" if kind == "ternary" else kind, per="row")
        b, b_scale = quantize(random(1024, 520), kind, per="column")
        gemm_lowbit(a, pack_ternary(b) if kind == "ternary" else b, a_scale, b_scale)


def wrong_indices(dtype: torch.dtype) -> None:
    """Runs with indices out of range. Results must be NaN (for searches: a negative `needed`) or an error; nothing
    outside the tensors may be read or written."""
    for sample in samples(dtype):
        for name, (place, value) in sample.bad.items():
            if not isinstance(value, torch.Tensor) or sample.op == "pack_ternary":  # it packs any numbers
                continue
            if name in UNUSED.get(sample.op, ()):
                continue
            args = list(sample.args)
            args[place] = copied(value)
            try:
                results = sample.function(*args)
            except RuntimeError as error:
                assert str(error).startswith(f"mdops::{sample.op}: "), error
                continue
            results = results if isinstance(results, tuple) else (results,)
            floats = [r.cpu() for r in results if r.is_floating_point()]
            if not floats and not sample.op.startswith("neighbor"):  # the integers leave out wrong indices
                continue
            flagged = any(bool(r.isnan().any()) for r in floats) if floats else int(results[-1][0]) < 0
            assert flagged, f"{sample.op} took a wrong {name} for a right one"


def main() -> None:
    for dtype in (torch.float32, torch.float64):
        for sample in samples(dtype):
            sample.function(*sample.args)
        for radial in (False, True):
            larger_lists(dtype, 72, radial)
        larger_lists(dtype, 3000, False)
        for intervals in (72, 3000):
            larger_lists(dtype, intervals, False, True)
        wrong_indices(dtype)
    whole_steps()
    if not sys.argv[1:] or "spline_potential".startswith(tuple(sys.argv[1:])):
        fused_steps()
    if not sys.argv[1:] or "ragged_attention".startswith(tuple(sys.argv[1:])):
        attention()
    if not sys.argv[1:] or "attention_layer".startswith(tuple(sys.argv[1:])):
        attention_layers()
    if not sys.argv[1:] or "attention_moments".startswith(tuple(sys.argv[1:])):
        joined_layers()
    if not sys.argv[1:] or "large_products".startswith(tuple(sys.argv[1:])):
        large_products()
    torch.cuda.synchronize()
    print("all ops ran")


if __name__ == "__main__":
    main()
