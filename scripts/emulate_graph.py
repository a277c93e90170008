"""Runs the GPU kernels of the ops on graphs on the CPU, thread by thread, and compares them with the CPU's kernels.

    python scripts/emulate_graph.py [--cuda DIR]

Use it to test changes of the kernels without a GPU, like scripts/emulate_attention.py. It runs every
sample of these ops, also with wrong values, and a crystal with many neighbours at equal distances.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from gpu_emulator.compile import library_of

from mdops import ops
from mdops.testing import op_samples

OPS = torch.ops.mdops
DTYPES = (torch.float32, torch.float64)
# Of the largest number: gradients by the weights of moments are sums of ten thousand products.
TOLERANCE = {torch.float32: 6e-6, torch.float64: 1e-13}


def placed(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor in the form that GPU kernels take: contiguous and aligned to 16 bytes."""
    if tensor is None:
        return None
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def emulated(library: ctypes.CDLL, op: str, args: Sequence[Any]) -> list[torch.Tensor]:
    """The results of the op, in memory that contains no useful numbers."""
    given: list[Any] = [placed(a) for a in args if a is None or isinstance(a, torch.Tensor)]
    first, is_double = given[0], args[0].dtype == torch.float64

    def results(*shapes: Sequence[int], like: torch.dtype = torch.int32) -> list[torch.Tensor]:
        return [torch.full(tuple(shape), 77, dtype=like) for shape in shapes]

    def run(name: str, out: Sequence[torch.Tensor | None], sizes: Sequence[int], *scalars: Any) -> None:
        tensors = [*given, *out]
        pointers = [None if t is None else t.data_ptr() for t in tensors]
        called = (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(sizes))(*sizes)
        getattr(library, f"run_{name}")(*scalars, *called)

    if op == "neighbor_edges":
        (atoms, width), types, capacity = args[1].shape, args[3].shape[1], args[-1]
        out = results(*[(capacity,)] * 4, (atoms + 1,), (atoms, width), (atoms,), (atoms, 2))
        out += results((2,), like=torch.int64)
        lengths = (ctypes.c_double(value) for value in args[6:8])
        run(op, out, (atoms, width, types, *args[8:]), is_double, *lengths)
    elif op == "edge_reverse":
        out = results(first.shape)
        run(op, out, (len(first), len(given[3]) - 1))
    elif op == "edge_order":
        out = results(first.shape, (args[1] + 1,))
        run(op, out, (len(first), args[1]))
    elif op == "edge_angles":
        edges, capacity = args[2:]
        out = [*results(*[(capacity,)] * 3, (edges + 1,)), *results((2,), like=torch.int64)]
        run(op, out, (len(given[1]), edges, capacity))
    elif op == "edge_scatter":
        targets, width, more = len(given[3]) - 1, args[6], given[5]
        out = results((targets, width), like=first.dtype)
        stride = 0 if more is None or len(more) == 1 != targets else width
        run("rows", out, (len(first), targets, first.shape[1], width, stride), is_double, True)
    elif op == "edge_product":
        given = [given[0], given[1], given[4], given[5]]
        out = results((len(given[1]), first.shape[1]), like=first.dtype)
        run(op, out, (len(given[1]), len(first), len(given[2]), first.shape[1]), is_double)
    elif op == "edge_weighted_sum":
        given = [*given[:3], *given[5:]]
        targets = len(given[5]) - 1
        out = results((targets, first.shape[1]), like=first.dtype)
        run(op, out, (len(first), len(given[1]), targets, first.shape[1]), is_double)
    elif op.startswith("edge_convolution"):
        a = x = b = t = weight = None
        if op == "edge_convolution":
            x, b, w, t, weight, *of_x, a_index, a_order, a_offsets = given
            x_index, sums = of_x[0], (a_index, a_order, a_offsets)
            nodes = len(a_offsets) - 1, len(x)
            out = results((nodes[0], 1 + t.shape[1], x.shape[1]), like=x.dtype)
        elif op == "edge_convolution_nodes":
            a, b, w, t, weight, a_index, _, a_offsets, x_index, x_order, x_offsets = given
            sums, nodes = (x_index, x_order, x_offsets), (len(a), len(x_offsets) - 1)
            out = results((nodes[1], a.shape[2]), like=a.dtype)
        else:
            a, x, b, w, *indices = given
            weight = indices.pop(0) if op == "edge_convolution_edges" else None
            a_index, _, _, x_index, *_ = indices
            sums, nodes = (None, None, None), (len(a), len(x))
            inputs, edges = (b if weight is None else weight.T).shape[1], len(w)
            if weight is None:
                out = results((inputs, a.shape[1]), like=a.dtype)
            else:
                of_w = edges if b.shape[1] else 0
                out = results((edges, inputs), (of_w,), (edges, a.shape[1] - 1), like=a.dtype)
        turns = a.shape[1] - 1 if a is not None and a.dim() == 3 else 0 if t is None else t.shape[1]
        width = (x if a is None else a).shape[-1]
        inputs = b.shape[1] if weight is None else len(weight)
        given = [a, x, b, w, t, weight, a_index, x_index, *sums]
        targets = 0 if sums[2] is None else len(sums[2]) - 1
        sizes = (len(w), inputs, turns, width, *nodes, targets)
        passes = ("edge_convolution", "edge_convolution_nodes", "edge_convolution_edges")
        shown = [None if op == passes[2] and k == 1 and not len(r) else r for k, r in enumerate(out)]
        number = passes.index(op) if op in passes else 3
        run("edge_convolution", shown, sizes, is_double, number)
    elif op == "edge_rotate_back":
        edges, nodes, (rows, columns) = len(given[3]), len(given[5]) - 1, first.shape[1:]
        channels = given[1].shape[2]
        out = results((nodes, columns, channels), like=first.dtype)
        run(op, out, (edges, nodes, rows, columns, channels), is_double)
    elif op == "edge_rotate_back_backward":
        given, (rows, columns), channels = given[:5], given[1].shape[1:], first.shape[2]
        out = results(*(value.shape for value in given[1:4]), like=first.dtype)
        run(op, out, (len(given[4]), len(first), rows, columns, channels), is_double)
    elif op.startswith("order_moments"):
        turn, y, weight, _, _, offsets = given[-6:]
        edges, nodes, degree, channels = len(turn), len(offsets) - 1, turn.shape[1] // 3, y.shape[2]
        sums = (nodes, turn.shape[2], turn.shape[1] * channels)
        backward = op.endswith("_backward")
        out = results(*((one.shape for one in (turn, y, weight)) if backward else [sums]), like=first.dtype)
        run(op, out, (edges, nodes, degree, channels, weight.shape[1]), is_double)
    elif op.startswith("edge_rotate"):
        sums = op == "edge_rotate_sum"
        edges, nodes, channels = len(given[2]), len(given[4]) - 1, given[1].shape[2]
        rows, columns = first.shape[1:]
        if op == "edge_rotate_outer":
            columns = given[1].shape[1]
        shape = {"": (edges, rows, channels), "_sum": (nodes, columns, channels)}
        out = results(shape.get(op.removeprefix("edge_rotate"), (edges, rows, columns)), like=first.dtype)
        given = given if sums else given[:3]
        run(op, out, (edges, nodes, rows, columns, channels), is_double)
    elif op in ("edge_gather", "edge_permute"):
        (sources, stride), width = first.shape, first.shape[1]
        if op == "edge_gather":
            given, width = [*given[:2], None, given[4]], args[5]
        else:
            given.append(None)
        out = results((len(given[1]), width), like=first.dtype)
        run("rows", out, (len(given[1]), sources, width, stride), is_double, False)
    elif op.startswith("segment_weights"):
        passes, segments = op.count("_backward"), len(given[-1]) - 1
        x, like = given[-4], given[-4].dtype
        given = [None] * (8 - len(given)) + given
        out = results(*[x.shape] * (2 * passes or 1), like=like)[: passes + 1]
        out += results((segments, x.shape[1]), like=like) if passes else []
        shown = [*([None] * (passes < 2)), *out, *([None] * (2 * (passes == 0)))]
        run("weights", shown, (*x.shape, segments), is_double)
    else:
        numbers = given[-2]
        given = [None] * (4 - len(given)) + given
        second = results(numbers.shape, like=numbers.dtype) if given[0] is not None else []
        out = [*second, *results(numbers.shape, like=numbers.dtype)]
        run("softmax", out if second else [None, *out], (*numbers.shape, len(given[3]) - 1), is_double)
    return out


def check(library: ctypes.CDLL, op: str, args: Sequence[Any]) -> list[torch.Tensor]:
    """The results of the CPU's kernels; raises AssertionError if the GPU's differ."""
    found = getattr(OPS, op)(*args)
    want = [found] if isinstance(found, torch.Tensor) else list(found)
    for a, b in zip(emulated(library, op, args), want, strict=True):
        scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
        torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE.get(b.dtype, 0) * scale)
    return want


def check_wrong(library: ctypes.CDLL, sample: Any) -> None:
    """Checks that a wrong value, of the right shape, shows in results that can show it."""
    for name, (place, value) in sample.bad.items():
        if isinstance(value, torch.Tensor) and value.shape == sample.args[place].shape:
            args = [*sample.args[:place], value, *sample.args[place + 1 :]]
            numbers = [r for r in emulated(library, sample.op, args) if r.is_floating_point()]
            assert not numbers or any(r.isnan().any() for r in numbers), (sample.op, name)


def check_crystal(library: ctypes.CDLL, spread: float, dtype: torch.dtype) -> None:
    """A lattice of atoms of three types, some of them virtual, with displacements of up to `spread` A."""
    gen = torch.Generator().manual_seed(1)
    side = 2.0 * torch.arange(5, dtype=torch.float64)
    positions = torch.cartesian_prod(side, side, side)
    positions += spread * torch.rand(positions.shape, generator=gen, dtype=torch.float64)
    cell, types = 10 * torch.eye(3, dtype=torch.float64), torch.randint(-1, 3, (125,), generator=gen).int()
    pairs = ops.neighbor_list(positions, cell, True, types, 5.0, ntypes=3)
    batch = torch.zeros_like(types)
    d = ops.displacements(positions, cell[None], batch, pairs.neighbors, pairs.images, dtype)
    masked, room = torch.rand(3, 3, generator=gen) < 0.2, 9000
    for sel in (2**31 - 1, 20, 0):
        given = d, pairs.neighbors, pairs.images, pairs.counts, types, masked, 4.5, 3.0, sel, 8, 125, room
        i, j, images, _, offsets, _, counts, *_ = check(library, "neighbor_edges", given)
        check(library, "edge_reverse", (i, j, images, offsets))
        order, starts = check(library, "edge_order", (j, 125))
        of_few = torch.where(j >= 0, j // 16, -1)
        few = of_few, *check(library, "edge_order", (of_few, 8))
        for capacity in (20000, 3):
            check(library, "edge_angles", (offsets, counts, room, capacity))
        for width in (1, 4, 36, 192, 300):
            x = torch.randn(room, width, generator=gen).to(dtype)
            narrow = (width + 1) // 2
            check(library, "edge_scatter", (x, j, order, starts, None, None, width))
            check(library, "edge_scatter", (x, *few, x[:8], x[8:9], width))
            check(library, "edge_scatter", (x[:, :narrow], *few, x[:8], x[8:16], width))
            check(library, "edge_gather", (x[:125], j, order, starts, x[:, :narrow], narrow))
            check(library, "edge_gather", (x[:125], j, order, starts, None, width))
            centers = i, None, offsets
            check(library, "edge_product", (x[:125], *centers, x[125:250], j, order, starts))
            check(library, "edge_weighted_sum", (x, x[:125], j, order, starts, *centers))
            for inputs, turns in ((7, 3), (70, 5)) if sel == 20 and width == 36 else ():
                w, b, t = (
                    x[:, 0].contiguous(),
                    *(torch.randn(room, k, generator=gen).to(dtype) for k in (inputs, turns)),
                )
                weight, a = (
                    torch.randn(k, width, generator=gen).to(dtype) for k in (inputs, 125 * (1 + turns))
                )
                a, ends = a.view(125, 1 + turns, width), (*centers, j, order, starts)
                check(library, "edge_convolution", (x[:125], b, w, t, weight, *ends[3:], *ends[:3]))
                check(library, "edge_convolution_nodes", (a, b, w, t, weight, *ends))
                check(library, "edge_convolution_edges", (a, x[:125], b, w, weight, *ends))
                check(library, "edge_convolution_weight", (a[:, 0], x[:125], b, w, *ends))
        for rows, columns, channels in (
            (
                (7, 9, 32),
                (7, 9, 40),
                (10, 16, 5),
                (10, 16, 20),
                (10, 16, 64),
                (10, 16, 32),
                (4, 4, 32),
                (10, 16, 72),
                (7, 9, 128),
                (10, 16, 96),
                (13, 25, 40),
                (13, 25, 6),
                (16, 36, 12),
                (19, 49, 4),
                (1, 1, 70),
                (3, 25, 8),
            )
            if sel == 20
            else ()
        ):
            turn = torch.randn(room, rows, columns, generator=gen).to(dtype)
            y = torch.randn(room, rows, channels, generator=gen).to(dtype)
            x = torch.randn(125, columns, channels, generator=gen).to(dtype)
            weight = y[:, 0, :1].contiguous()
            for nodes in (4, 5):  # each has several warps
                some = torch.where(torch.arange(room) % 50 == 7, j % nodes, -1)
                check(library, "edge_rotate_sum", (turn, y, *ops.EdgeIndex.of(some, nodes)))
            for of in (centers, (j, order, starts)):
                check(library, "edge_rotate", (turn, x, *of))
                check(library, "edge_rotate_sum", (turn, y, *of))
                check(library, "edge_rotate_outer", (y, x, *of))
                check(library, "edge_rotate_back", (turn, y, weight, *of))
                check(library, "edge_rotate_back_backward", (x, turn, y, weight, *of))
                if rows == 3 * (rows // 3) + 1 and columns == (rows // 3 + 1) ** 2 <= 16:
                    grad = torch.randn(125, columns, rows * channels, generator=gen).to(dtype)
                    for groups in (1, 2) if channels % 2 == 0 else (1,):
                        shares = torch.randn(len(turn), groups, generator=gen).to(dtype)
                        check(library, "order_moments", (turn, y, shares, *of))
                        check(library, "order_moments_backward", (grad, turn, y, shares, *of))
        x, grad, direction = torch.randn(3, room, 5, generator=gen).to(dtype)
        check(library, "segment_softmax", (x, offsets))
        check(library, "segment_softmax_backward", (grad, x, offsets))
        check(library, "segment_softmax_backward_backward", (direction, grad, x, offsets))
        weight, nothing = torch.rand(room, 1, generator=gen).to(dtype), torch.rand(5, generator=gen).to(dtype)
        weight[::7], shares = 0, (x, weight, nothing, offsets)
        check(library, "segment_weights", shares)
        check(library, "segment_weights_backward", (grad, *shares))
        of_segments = torch.randn(125, 5, generator=gen).to(dtype)
        along = direction, grad.flip(0), of_segments
        check(library, "segment_weights_backward_backward", (*along, grad, *shares))


def main() -> None:
    with library_of("graph", __doc__) as library:
        for dtype in DTYPES:
            mine = [s for s in op_samples(dtype=dtype) if is_of_graphs(s.op)]
            for sample in mine:
                check(library, sample.op, sample.args)
                check_wrong(library, sample)
            for spread in (0.0, 0.3):
                check_crystal(library, spread, dtype)
            print(f"{dtype}: {len(mine)} samples and two crystals agree")


def is_of_graphs(op: str) -> bool:
    others = op.startswith(
        (
            *("edge_attention", "edge_convolution_own", "edge_environment", "edge_frames", "edge_layer"),
            *("edge_softmax", "edge_splines", "edge_update"),
        )
    )
    return op == "neighbor_edges" or (op.startswith(("edge_", "order_moments", "segment_")) and not others)


if __name__ == "__main__":
    main()
