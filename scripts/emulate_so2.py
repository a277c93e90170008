"""Runs the GPU kernels of `so2_layer` on the CPU, thread by thread, and compares them with those of the CPU.

    python scripts/emulate_so2.py [--cuda DIR]

For changes of the kernels where there is no GPU, as scripts/emulate_attention.py is for those of attention. Every
sample of the op, and as many edges as several blocks have.
"""

import argparse
import ctypes
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts" / "gpu_emulator"))

from compile import compiled, cuda_headers  # noqa: E402

from mdops.testing import op_samples  # noqa: E402

OPS = torch.ops.mdops
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14}


def check(library: ctypes.CDLL, op: str, args: Sequence[torch.Tensor], *, plain: bool) -> float:
    """The largest error beside the CPU's op in float64; raises AssertionError where it is too large."""
    grad, x, *weights = args if op.endswith("backward") else (None, *args)
    y = torch.full(x.shape, torch.nan, dtype=x.dtype)
    tensors = [None if t is None else t.contiguous() for t in (grad, x, *weights, y)]
    pointers = [None if t is None or not t.numel() else t.data_ptr() for t in tensors]
    edges, rows, channels = x.shape
    sizes = edges, (rows - 1) // 3, channels, 70 if plain else 90
    called = (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(sizes))(*sizes)
    library.run_so2(x.dtype == torch.float64, *called)
    want = getattr(OPS, op)(*(t.double() for t in args))
    scale = float(want.abs().max())
    torch.testing.assert_close(y.double(), want, rtol=0, atol=TOLERANCE[x.dtype] * scale)
    return float((y.double() - want).abs().max()) / scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda", type=Path, help="a folder with the headers of CUDA")
    headers = cuda_headers(parser.parse_args().cuda)
    gen = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        library = compiled("so2", headers, Path(folder))
        for dtype in TOLERANCE:
            for sample in op_samples("cpu", dtype):
                if sample.op.startswith("so2_layer"):
                    off = check(library, sample.op, sample.args, plain=False)
                    print(f"{sample.op}, {tuple(sample.args[0].shape)}, {dtype}: {off:.1e}")
        for gated in (True, False):
            shapes = (305, 7, 32), (305, 7, 32), (96, 96), (64, 128), ((32, 64) if gated else (0, 0))
            grad, x, *weights = (torch.randn(shape, generator=gen) for shape in shapes)
            given = x, *(0.1 * weight for weight in weights)
            for plain in (False, True):
                for op, args in (("so2_layer", given), ("so2_layer_backward", (grad, *given))):
                    print(f"{op}, gated {gated}, plain {plain}: {check(library, op, args, plain=plain):.1e}")


if __name__ == "__main__":
    main()
