"""Runs two GPU kernels of `linear` and `degree_linear` on the CPU, thread by thread, and compares them with float64.
They are the kernel with float16 parts, and the kernel for small products.

    python scripts/emulate_linear.py [--cuda DIR]

Use it to test changes of the kernels without a GPU, like scripts/emulate_attention.py.
"""

import ctypes
import itertools

import torch
from gpu_emulator.compile import library_of

TOLERANCE = 3e-7  # relative to the sums of absolute values
SIZES = (  # rows, coefficients, depth, columns
    (800, 1, 64, 64),
    (771, 1, 100, 27),
    (70, 9, 32, 96),
    (66, 16, 64, 192),
    (65, 4, 164, 40),
    (790, 1, 20, 33),
    (65, 4, 900, 64),
)
SMALL = ((1, 2, 3), (32, 16, 32), (33, 17, 70), (100, 300, 9), (70, 61, 130))  # rows, depth, columns


def main() -> None:
    gen = torch.Generator().manual_seed(0)
    with library_of("linear", __doc__, "-DMDOPS_HOPPER", "-D__CUDA_ARCH_FEAT_SM90_ALL") as library:
        for (rows, count, depth, columns), transposed in itertools.product(SIZES, (False, True)):
            degrees = round(count**0.5)
            x = torch.randn(rows, count, depth, generator=gen) * 10 ** torch.randn(rows, 1, 1, generator=gen)
            weight = torch.randn(degrees, depth, columns, generator=gen)
            given = (weight.mT if transposed else weight).contiguous()
            y = torch.full((rows, count, columns), torch.nan)
            pointers = [None if t is None else t.data_ptr() for t in (x, given, y)]
            sizes = rows, count, depth, columns, transposed
            library.run_product((ctypes.c_void_p * 3)(*pointers), (ctypes.c_int64 * 5)(*sizes))
            of_each = torch.cat(
                [weight[k : k + 1].expand(2 * k + 1, -1, -1) for k in range(degrees)]
            ).double()
            want = torch.einsum("ndi,dio->ndo", x.double(), of_each)
            scale = torch.einsum("ndi,dio->ndo", x.double().abs(), of_each.abs())
            error = float(((y - want).abs() / scale).max())
            print(f"{rows} x {count} x {depth} x {columns} {transposed} {error:.1e}", flush=True)
            assert error < TOLERANCE
        for (rows, depth, columns), of_a, of_b in itertools.product(SMALL, (False, True), (False, True)):
            a, b = torch.randn(rows, depth, generator=gen), torch.randn(depth, columns, generator=gen)
            bias, y = torch.randn(columns, generator=gen), torch.full((rows, columns), torch.nan)
            given = (a.mT if of_a else a).contiguous(), (b.mT if of_b else b).contiguous(), y, bias
            sizes = rows, depth, columns, of_a, of_b
            pointers = [t.data_ptr() for t in given]
            library.run_small((ctypes.c_void_p * 4)(*pointers), (ctypes.c_int64 * 5)(*sizes))
            scale = a.double().abs() @ b.double().abs() + bias.abs()
            error = float(((y - a.double() @ b.double() - bias).abs() / scale).max())
            print(f"small {rows} x {depth} x {columns} {of_a} {of_b} {error:.1e}", flush=True)
            assert error < TOLERANCE


if __name__ == "__main__":
    main()
