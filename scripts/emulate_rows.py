"""Runs the GPU kernels of `edge_environment`, `edge_frames`, `edge_splines`, `edge_softmax`, `degree_norm`,
`scalar_gate`, `row_gate`, `own_message`, `edge_update` and `node_update` on the CPU, thread by thread, and compares
them with the CPU's kernels.

    python scripts/emulate_rows.py [--cuda DIR]

Use it to test changes of the kernels without a GPU, like scripts/emulate_so2.py for layers of edges. It runs every
sample of these ops, and as many rows as several blocks have.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from gpu_emulator.compile import library_of

from mdops.ops import EdgeIndex
from mdops.testing import op_samples

NAMES = (
    "edge_environment",
    "edge_frames",
    "edge_splines",
    "edge_softmax",
    "degree_norm",
    "scalar_gate",
    "row_gate",
    "own_message",
    "edge_update",
    "node_update",
)
TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-13}


def passes_of(op: str) -> tuple[str, int]:
    """The forward op, and the pass: the op itself, 1 and 2 backward passes, 3 of quantities summed over atoms."""
    name = op.removesuffix("_terms")
    if name != op:
        return name, 3
    name = op.removesuffix("_backward")
    again = name.removesuffix("_backward")
    return again, (again != name) + (name != op)


def sizes_of(name: str, args: Sequence[Any]) -> tuple[list[int], Sequence[float]]:
    """The sizes for `rows.cpp`, and further numbers, from the arguments of the forward op."""
    shape = args[0].shape
    if name == "edge_environment":
        return [*shape[:2], len(args[1]), len(args[4])], args[6:]
    if name == "edge_frames":
        return [shape[0], *args[-2:]], ()
    if name == "edge_splines":
        kinds, splines, functions = args[2].shape
        return [shape[0], functions, splines - 5, kinds], args[3:]
    if name == "edge_softmax":
        return [len(args[2]), shape[0], len(args[1]), args[2].shape[1], shape[1]], args[-1:]
    if name == "own_message":
        return [*shape, args[5]], (args[4], args[6])
    if name == "edge_update":
        return [*args[-7].shape, len(args[-3]) - 1, args[-2]], args[-1:]
    if name == "node_update":
        return [*shape, args[-2]], args[-1:]
    if name == "degree_norm":
        return [*shape, int(args[-1])], args[-2:-1]
    return list(shape), ()


def emulated(
    library: ctypes.CDLL,
    op: str,
    args: Sequence[Any],
    like: Sequence[torch.Tensor],
    before: float = torch.nan,
) -> list[torch.Tensor]:
    """The results of the op, with the shapes of `like`, in memory that contains the numbers `before`."""
    name, back = passes_of(op)
    grads = {"edge_environment": 5, "edge_frames": 2}.get(name, 1)
    sizes, numbers = sizes_of(name, args[grads:] if back == 1 else args)
    found = [torch.full_like(one, before) for one in like]
    tensors = [a for a in args if a is None or isinstance(a, torch.Tensor)]
    given = [None if a is None else a.contiguous() for a in tensors]
    pointers = [None if t is None else t.data_ptr() for t in (*given, *found)]
    called = (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(sizes))(*sizes)
    scalars = (ctypes.c_double * 8)(*numbers)
    getattr(library, f"run_{name}")(like[0].dtype == torch.float64, back, scalars, *called)
    return found


def check(library: ctypes.CDLL, op: str, args: Sequence[Any]) -> float:
    """The largest error against the CPU's op; raises AssertionError if it is too large."""
    wanted = getattr(torch.ops.mdops, op)(*args)
    wanted = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
    off = 0.0
    for one, other in zip(emulated(library, op, args, wanted), wanted, strict=True):
        if not other.numel():
            continue
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE[other.dtype] * scale)
        off = max(off, float((one - other).abs().max()) / scale)
    return off


def check_wrong_offsets(library: ctypes.CDLL, args: Sequence[Any]) -> None:
    """Checks that a GPU, which does not check offsets before, returns NaN for edges that are not their atom's."""
    offsets, y = args[6], torch.ops.mdops.edge_softmax(*args)
    beyond, large = offsets + len(y), offsets.clone()
    large[2] = 10**6
    for wrong, rows in (
        (beyond, slice(None)),
        (offsets + 1, offsets[:-1].long()),
        (large, slice(int(offsets[1]), int(offsets[2]))),
    ):
        given = (*args[:6], wrong, *args[7:])
        (found,) = emulated(library, "edge_softmax", given, [y], before=7.0)
        assert found[rows].isnan().all() and not (found == 7.0).any()


def larger(dtype: torch.dtype) -> list[tuple[str, tuple[Any, ...]]]:
    """As many edges and atoms as several blocks have."""
    gen = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=gen, dtype=dtype)

    edges, atoms = 500, 7
    kinds = torch.randint(-1, 4, (edges,), generator=gen, dtype=torch.int32)
    lengths, table = 6 * random(edges, 1).sigmoid(), random(4, 37, 32)
    centers = torch.randint(0, atoms, (edges,), generator=gen).sort().values.int()
    of_atom = EdgeIndex.of(centers, atoms)
    of_node = EdgeIndex.of(torch.randint(0, atoms, (edges,), generator=gen, dtype=torch.int32), atoms)
    softmax = random(atoms, 32), random(atoms, 32), random(edges, 1), random(edges, 1).sigmoid()
    softmax += random(1).exp(), of_atom.nodes, of_atom.offsets, *of_node, 0.2
    by_frames = random(edges, 9), random(edges, 7, 9)
    norm = random(50, 9, 32), random(9, 32), random(32), random(9).exp(), 1e-5, True
    few = random(50, 1, 32), random(1, 32), random(32), random(1).exp(), 1e-7, False
    gate, along = ((random(50, 27, 96), random(50, 96), random(50, 192)) for _ in range(2))
    message = random(edges, 32), random(32, 32), random(32), random(32), 0.9, 1, 0.0
    update = random(edges, 48), random(48), random(48), of_atom.nodes, of_atom.offsets, 1, 0.0
    nodes = random(50, 48), random(50, 48), random(3, 48)
    return [
        ("edge_frames", (random(edges, 3), 2, 1)),
        ("edge_frames_backward", (*by_frames, random(edges, 3), 2, 1)),
        ("edge_splines", (lengths, kinds, table, 6.0)),
        ("edge_splines_backward", (random(edges, 32), lengths, kinds, table, 6.0)),
        ("edge_softmax", softmax),
        ("edge_softmax_backward", (random(edges, 1), *softmax)),
        ("degree_norm", norm),
        ("degree_norm_backward", (random(50, 9, 32), *norm)),
        ("degree_norm_terms", (random(50, 9, 32), norm[0], *norm[3:])),
        ("degree_norm", few),
        ("degree_norm_backward", (random(50, 1, 32), *few)),
        ("degree_norm_backward_backward", (random(50, 9, 32), random(50, 9, 32), *norm[:2], *norm[3:])),
        ("edge_frames_backward_backward", (random(edges, 3), *by_frames, random(edges, 3), 2, 1)),
        ("row_gate_backward_backward", (*along[:2], random(50, 27, 96), *gate[:2])),
        ("scalar_gate", gate),
        ("scalar_gate_backward", (random(50, 27, 96), *gate)),
        ("scalar_gate_backward_backward", (*along, random(50, 27, 96), *gate)),
        ("own_message", message),
        ("own_message_backward", (random(edges, 32), *message)),
        ("edge_update", (random(atoms, 48), *update)),
        ("edge_update_backward", (random(atoms, 48), *update)),
        ("node_update", (random(50, 48), *nodes[:2], random(50, 48), nodes[2], 1, 0.0)),
        ("node_update_backward", (random(50, 48), *nodes, 1, 0.0)),
    ]


def main() -> None:
    with library_of("rows", __doc__) as library:
        for dtype in TOLERANCE:
            calls = [(s.op, s.args) for s in op_samples("cpu", dtype) if passes_of(s.op)[0] in NAMES]
            for op, args in [*calls, *larger(dtype)]:
                print(f"{op}, {tuple(args[0].shape)}, {dtype}: {check(library, op, args):.1e}", flush=True)
                if op == "edge_softmax" and len(args[2]) > 100:
                    check_wrong_offsets(library, args)


if __name__ == "__main__":
    main()
