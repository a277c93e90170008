"""Runs the GPU kernels of `so2_layer`, `so2_messages`, `grid_product` and `order_mix` on the CPU, thread by thread, and
compares them with the CPU's kernels.

    python scripts/emulate_so2.py [--cuda DIR]

Use it to test changes of the kernels without a GPU, like scripts/emulate_attention.py. It runs every
sample of these ops, and as many rows as several blocks have.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from gpu_emulator.compile import library_of

from mdops.ops import EdgeIndex
from mdops.testing import op_samples, within_groups

OPS = torch.ops.mdops
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14}
ONE_PRODUCT = 2e-3  # for numbers of 11 bits


SHARED = 232448, 166912  # bytes of shared memory: of GPUs that keep weights in two parts there, or not


def check(
    library: ctypes.CDLL,
    op: str,
    args: Sequence[torch.Tensor],
    *,
    plain: bool,
    shared: int = SHARED[0],
    parts: int = 2,
) -> float:
    """The largest error against the CPU's op in float64; raises AssertionError if it is too large."""
    grad, x, *weights, _, groups, result = args if op.endswith("backward") else (None, *args, None)
    y = torch.full(x.shape, torch.nan, dtype=x.dtype)
    tensors = [None if t is None else t.contiguous() for t in (grad, x, *weights, result, y)]
    pointers = [None if t is None or not t.numel() else t.data_ptr() for t in tensors]
    edges, rows, channels = x.shape
    sizes = edges, (rows - 1) // 3, channels, 70 if plain else 90, shared, parts, groups
    called = (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(sizes))(*sizes)
    library.run_so2(x.dtype == torch.float64, *called)
    want = getattr(OPS, op)(*(t.double() if isinstance(t, torch.Tensor) else t for t in args))
    scale = float(want.abs().max())
    tolerance = TOLERANCE[x.dtype] if parts == 2 else ONE_PRODUCT
    torch.testing.assert_close(y.double(), want, rtol=0, atol=tolerance * scale)
    return float((y.double() - want).abs().max()) / scale


def check_messages(library: ctypes.CDLL, grad: torch.Tensor, args: Sequence[Any], parts: int) -> list[float]:
    """The same for messages by one kernel: errors of their sums, and of each gradient. For the gradients, a GPU keeps
    the results of the last layer; a CPU keeps other values."""

    def exact(value: Any) -> Any:
        if isinstance(value, list):
            return [exact(one) for one in value]
        return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    *given, _ = args
    vectors, _, x, *_ = given
    *edges, weights, both, gates = given
    whole = list(map(exact, args))
    sums, kept = OPS.so2_messages(*whole)
    gradients = OPS.so2_messages_backward(exact(grad), kept, *whole)
    found = [torch.full(one.shape, torch.nan) for one in (sums, *gradients)]
    y = torch.full((len(vectors), 7, x.shape[2]), torch.nan)
    sizes = len(vectors), len(x), 2, x.shape[2], parts, len(weights), len(given[9]) - 1
    for by, results in ((None, [found[0], *[None] * 4]), (grad, [None, *found[1:]])):
        tensors = [*edges, by, y, *results, *weights, *both, *gates, None]
        pointers = [None if t is None else t.data_ptr() for t in tensors]
        library.run_so2_messages(
            (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(sizes))(*sizes)
        )
    tolerance, off = TOLERANCE[x.dtype] if parts == 2 else ONE_PRODUCT, []
    for own, other in zip(found, (sums, *gradients), strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(own.double(), other, rtol=0, atol=tolerance * scale)
        off.append(float((own.double() - other).abs().max()) / scale)
    return off


def check_grid(library: ctypes.CDLL, args: Sequence[Any]) -> float:
    """The same for products at points."""
    a, b, out, u, v = (t.contiguous() for t in args[:5])
    y = torch.full((u.shape[0], out.shape[1], u.shape[2]), torch.nan, dtype=u.dtype)
    sizes = len(a), a.shape[1], b.shape[1], out.shape[1], u.shape[0], u.shape[2], any(args[5:])
    pointers = (ctypes.c_void_p * 6)(*(t.data_ptr() for t in (a, b, out, u, v, y)))
    library.run_grid_product(u.dtype == torch.float64, pointers, (ctypes.c_int64 * len(sizes))(*sizes))
    want = OPS.grid_product(*(t.double() for t in args[:5]), *args[5:])
    scale = float(want.abs().max())
    torch.testing.assert_close(y.double(), want, rtol=0, atol=TOLERANCE[u.dtype] * scale)
    return float((y.double() - want).abs().max()) / scale


def check_orders(library: ctypes.CDLL, op: str, args: Sequence[Any]) -> float:
    """The same for mixed degrees."""
    first, x, degree, *transposed = args
    want = getattr(OPS, op)(*args)
    y = torch.full(want.shape, torch.nan, dtype=x.dtype)
    order = next(m for m in range(degree + 1) if x.shape[1] == (degree + 1) * (2 * m + 1) - m * (m + 1))
    sizes = x.shape[0], degree, order, x.shape[2], int(any(transposed))
    pointers = (ctypes.c_void_p * 3)(*(t.data_ptr() for t in (first, x, y)))
    called = pointers, (ctypes.c_int64 * len(sizes))(*sizes)
    library.run_order_mix(x.dtype == torch.float64, op.endswith("outer"), *called)
    torch.testing.assert_close(y, want, rtol=0, atol=TOLERANCE[x.dtype] * 10)
    return float((y - want).abs().max())


def messages_of(edges: int, layers: int, nodes: int, gen: torch.Generator) -> tuple[Any, ...]:
    """A call of the op on messages with 32 channels; some edges have no nodes."""
    draw = functools.partial(torch.randn, generator=gen)
    shapes = ((96, 96), layers), ((64, 128), layers), ((32, 64), layers - 1)
    lists = [[0.1 * draw(*shape) for _ in range(count)] for shape, count in shapes]
    centers = torch.randint(0, nodes, (edges,), generator=gen).sort().values.int()
    centers[edges - edges // 9 :] = -1
    neighbors = torch.randint(0, nodes, (edges,), generator=gen).int()
    neighbors[edges - edges // 9 :] = -1
    of_center = EdgeIndex(centers, None, EdgeIndex.of(centers, nodes).offsets)
    x, weight = draw(nodes, 9, 32), draw(edges, 1)
    given = (
        draw(edges, 3),
        0.5 * draw(edges, 13),
        x,
        weight,
        *EdgeIndex.of(neighbors, nodes),
        *of_center,
    )
    return *given, *lists, "float32"


def main() -> None:
    gen = torch.Generator().manual_seed(0)
    with library_of("so2", __doc__, "-DMDOPS_HOPPER", "-D__CUDA_ARCH_FEAT_SM90_ALL") as library:
        for dtype in TOLERANCE:
            for sample in op_samples("cpu", dtype):
                if sample.op in ("so2_layer", "so2_layer_backward"):
                    off = check(library, sample.op, sample.args, plain=False)
                    print(f"{sample.op}, {tuple(sample.args[0].shape)}, {dtype}: {off:.1e}")
                if sample.op.startswith("order_mix"):
                    off = check_orders(library, sample.op, sample.args)
                    print(f"{sample.op}, {dtype}: {off:.1e}")
                if sample.op == "grid_product":
                    print(f"{sample.op}, {dtype}: {check_grid(library, sample.args):.1e}")
        for edges, layers, nodes in ((70, 2, 3), (460, 3, 20), (129, 4, 60), (700, 3, 2)):
            args = messages_of(edges, layers, nodes, gen)
            grad = torch.randn(nodes, 9, 32, generator=gen)
            for parts in (2, 1):
                found = ", ".join(f"{one:.1e}" for one in check_messages(library, grad, args, parts))
                print(f"so2_messages, {edges} edges, {layers} layers, {parts} parts: {found}", flush=True)
        for points, columns in ((112, 27), (200, 48), (364, 75), (50, 16), (190, 49)):
            for by_angles in (False, True) if columns in (27, 48, 75) else (False,):
                shapes = *((points, columns),) * 3, *((5, columns, 40),) * 2
                grid = *(torch.randn(shape, generator=gen) for shape in shapes), by_angles
                off = check_grid(library, grid)
                print(f"grid_product of {points} points, {columns} columns, by angles {by_angles}: {off:.1e}")
        for edges, degrees, channels, groups in (
            *((305, degrees, 32, 1) for degrees in (2, 1, 3)),
            (300, 1, 64, 1),
            (140, 2, 64, 1),
            (203, 3, 64, 1),
            (203, 3, 64, 2),
        ):
            middle, side = (degrees + 1) * channels, degrees * channels
            for gated in (True, False):
                shapes = (edges, 3 * degrees + 1, channels), (middle, middle), (side, 2 * side)
                gates = (channels, side) if gated else (0, 0)
                x, *weights = (torch.randn(shape, generator=gen) for shape in (*shapes, gates))
                weights = [0.1 * within_groups(weight, channels, groups) for weight in weights]
                given = x, *weights, "float32", groups
                results = torch.randn(x.shape, generator=gen), *given, OPS.so2_layer(*given)
                ways = (
                    (False, SHARED[0], 2),
                    (False, SHARED[0], 1),
                    (False, SHARED[1], 2),
                    (True, SHARED[0], 2),
                )
                for plain, shared, parts in ways if channels == 32 else ways[:2]:
                    for op, args in (("so2_layer", given), ("so2_layer_backward", results)):
                        off = check(library, op, args, plain=plain, shared=shared, parts=parts)
                        how = f"gated {gated}, plain {plain}, {shared} bytes, {parts} parts, {groups} groups"
                        print(f"{op}, {degrees} x {channels}, {how}: {off:.1e}")


if __name__ == "__main__":
    main()
