"""Runs the GPU kernels of attention among edges on the CPU, thread by thread, and compares them with the CPU's kernels.

    python scripts/emulate_edge_attention.py [--cuda DIR]

Use it to test changes of the kernels without a GPU, like scripts/emulate_graph.py.
"""

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from gpu_emulator.compile import library_of

from mdops import ops  # noqa: F401  (registers them)

OPS = torch.ops.mdops
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
SHARED = 232448  # bytes that a block of an H100 may use


def tensors(lengths: Sequence[int], heads: int, keys: int, values: int, dtype: torch.dtype) -> list[Any]:
    """Directions, the gradient, and the arguments; two rows have no atom."""
    gen, rows = torch.Generator().manual_seed(sum(lengths)), sum(lengths) + 2

    def numbers(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=gen, dtype=torch.float64) / shape[-1] ** 0.5).to(dtype)

    shapes = (rows, heads, keys), (rows, values), (rows, 3), (rows,)
    along, given = ([numbers(*shape) for shape in shapes] for _ in range(2))
    given[3] = torch.rand(rows, generator=gen, dtype=torch.float64).to(dtype)
    absent = torch.arange(len(lengths)).to(dtype)
    ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    return [*along, numbers(rows, heads, values), *given, absent, ends]


def emulated(
    library: ctypes.CDLL, given: Sequence[Any], gated: bool, longest: int, shared: int, name: str
) -> list[torch.Tensor]:
    """The results of the op of that name, in memory that contains no useful numbers."""
    all_of = {"edge_attention": 5, "edge_attention_backward": 4, "edge_attention_backward_backward": 0}
    used = [None if k < all_of[name] else tensor for k, tensor in enumerate(given)]
    q, x = given[5:7]
    out: list[Any] = [torch.full_like(value, torch.nan) for value in given[4:9]]
    out[1:] = [None] * 4 if name == "edge_attention" else out[1:]
    out[0] = None if name == "edge_attention_backward" else out[0]
    pointers = [None if t is None else t.data_ptr() for t in (*used, *out)]
    sizes = len(q), q.shape[1], q.shape[2], x.shape[1], len(given[9]), longest, shared
    called = (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(sizes))(*sizes)
    library.run_edge_attention(q.dtype == torch.float64, gated, ctypes.c_double(20.0), *called)
    return [value for value in out if value is not None]


def check(library: ctypes.CDLL, given: Sequence[Any], gated: bool, longest: int, shared: int) -> float:
    """The largest error of all passes; raises AssertionError if it is too large."""
    worst = 0.0
    for name, first in (
        ("edge_attention", 5),
        ("edge_attention_backward", 4),
        ("edge_attention_backward_backward", 0),
    ):
        want = getattr(OPS, name)(*given[first:], 20.0, gated, longest)
        want = [want] if isinstance(want, torch.Tensor) else list(want)
        for a, b in zip(emulated(library, given, gated, longest, shared, name), want, strict=True):
            scale = max(1.0, float(b.abs().max()))
            torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE[b.dtype] * scale)
            worst = max(worst, float((a - b).abs().max()) / scale)
    return worst


def main() -> None:
    usual, many = [0, 26, 1, 48, 0, 33], [3, 60, 0, 50]
    with library_of("edge_attention", __doc__) as library:
        for dtype, (heads, keys, values), gated in itertools.product(
            TOLERANCE, ((4, 32, 32), (5, 7, 10), (1, 40, 43)), (True, False)
        ):
            for lengths, longest, shared in ((usual, 48, SHARED), (many, 80, SHARED), (many, 80, 40000)):
                given = tensors(lengths, heads, keys, values, dtype)
                error = check(library, given, gated, longest, shared)
                print(f"{dtype}, {heads} heads, {keys}, {values}, up to {longest}, {shared}: {error:.1e}")


if __name__ == "__main__":
    main()
