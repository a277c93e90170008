"""Runs the GPU kernels of convolutions along edges on the CPU, thread by thread, and compares them with the CPU's
kernels.

    python scripts/emulate_edge_convolution.py [--cuda DIR]

Use it to test changes of the kernels without a GPU, like scripts/emulate_graph.py.
"""

import ctypes
import itertools
from typing import Any

import torch
from gpu_emulator.compile import library_of

from mdops.ops import EdgeIndex

OPS = torch.ops.mdops
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
NODES, NEIGHBORS = 9, 7
SIZES = [
    *((32, 3, 128), (32, 0, 128), (4, 3, 7), (35, 5, 130)),
    *((0, 3, 20), (16, 0, 40), (3, 1, 1), (40, 2, 260)),
]


def edges_of(count: int) -> tuple[EdgeIndex, EdgeIndex]:
    """Indices of centres, one of which has no edge, and of neighbours; some edges lack one or both of them."""
    gen = torch.Generator().manual_seed(count)
    i = torch.randint(0, NODES - 1, (count,), generator=gen).sort()[0].int()
    j = torch.randint(0, NEIGHBORS, (count,), generator=gen).int()
    j[::11] = -1
    i[-2:] = j[-2:] = -1
    return EdgeIndex(i, None, EdgeIndex.of(i, NODES).offsets), EdgeIndex.of(j, NEIGHBORS)


def check(library: ctypes.CDLL, sizes: tuple[int, int, int], count: int, dtype: torch.dtype) -> float:
    """The largest error of all passes; raises AssertionError if it is too large."""
    inputs, turns, width = sizes
    gen = torch.Generator().manual_seed(width)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

    of_a, of_x = edges_of(count)
    a, x = numbers(NODES, 1 + turns, width), numbers(NEIGHBORS, width)
    b, w, t, weight = numbers(count, inputs), numbers(count), numbers(count, turns), numbers(inputs, width)
    ends_a, ends_x = ([of.nodes, of.order, of.offsets] for of in (of_a, of_x))
    wanted = [
        [OPS.edge_convolution(x, b, w, t, weight, *ends_x, *ends_a)],
        [OPS.edge_convolution_nodes(a, b, w, t, weight, *ends_a, *ends_x)],
        list(OPS.edge_convolution_edges(a, x, b, w, weight, *ends_a, *ends_x)),
        [OPS.edge_convolution_weight(a[:, 0].contiguous(), x, b, w, *ends_a, *ends_x)],
    ]
    worst = 0.0
    for number, want in enumerate(wanted):
        found = [torch.full_like(one, torch.nan) for one in want]
        by: list[Any] = [None] * 6
        by[number if number < 2 else 2 : (number if number < 2 else 2) + len(found)] = found
        by = [None] * 5 + found if number == 3 else by
        by = [None if one is None or not one.numel() else one for one in by]
        of = of_x if number == 1 else of_a
        first = a[:, 0].contiguous() if number == 3 else a
        tensors: list[Any] = [first, x, b, w, t, weight, of_a.nodes, of_x.nodes, of.order, of.offsets, *by]
        pointers = [None if one is None or not one.numel() else one.data_ptr() for one in tensors]
        whole = [count, inputs, 0 if number == 3 else turns, width, NODES, NEIGHBORS]
        library.run_edge_convolution(
            dtype == torch.float64,
            number,
            (ctypes.c_void_p * len(pointers))(*pointers),
            (ctypes.c_int64 * len(whole))(*whole),
        )
        for one, other in zip(found, want, strict=True):
            scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
            torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE[dtype] * scale)
            worst = max(worst, float((one - other).abs().max()) / scale if other.numel() else 0.0)
    return worst


def main() -> None:
    with library_of("edge_convolution", __doc__) as library:
        for dtype, sizes, count in itertools.product(TOLERANCE, SIZES, (50, 400)):
            print(f"{dtype}, {sizes}, {count} edges: {check(library, sizes, count, dtype):.1e}")


if __name__ == "__main__":
    main()
