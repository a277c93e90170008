"""Runs the GPU kernels of `harmonic_moment` on the CPU, thread by thread, and compares them with the CPU's.

    python scripts/emulate_harmonic.py [--cuda DIR]

For changes of the kernels where there is no GPU, as scripts/emulate_attention.py is for those of attention. Every
sample of these ops, wrong values among them, and atoms with many neighbours, with sums in shared memory and without.
"""

import argparse
import ctypes
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts" / "gpu_emulator"))

from compile import compiled, cuda_headers  # noqa: E402

from mdops.ops.harmonic_moment import padded_basis  # noqa: E402
from mdops.testing import op_samples  # noqa: E402

OPS = torch.ops.mdops
DTYPES = (torch.float32, torch.float64)
TOLERANCE = {torch.float32: 5e-6, torch.float64: 1e-13}
SHARED = (232448, 24 << 10)  # of an H100, and of a chip on which large sums lie in global memory


def emulated(library: ctypes.CDLL, op: str, args: Sequence[Any], shared: int) -> torch.Tensor:
    grads, rest = (args[:2], args[2:]) if op.endswith("backward") else ([None, None], args)
    d, counts, types, mask, cutoff, intervals, degree = rest
    given = [None if t is None else t.contiguous() for t in (d, counts, types, mask, *grads)]
    shape = d.shape
    if grads[0] is None:
        shape = (len(d), (degree + 1) ** 2, counts.shape[1], padded_basis(intervals))
    out = torch.full(shape, 77, dtype=d.dtype)
    pointers = [None if t is None else t.data_ptr() for t in (*given, out)]
    sizes = *d.shape[:2], counts.shape[1], intervals, degree, shared
    called = (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(sizes))(*sizes)
    library.run_harmonic(d.dtype == torch.float64, ctypes.c_double(cutoff), *called)
    return out


def check(library: ctypes.CDLL, op: str, args: Sequence[Any]) -> None:
    """Raises AssertionError where the kernels differ from the CPU's."""
    wanted = getattr(OPS, op)(*args)
    scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
    for shared in SHARED:
        found = emulated(library, op, args, shared)
        torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE[wanted.dtype] * scale)


def check_wrong(library: ctypes.CDLL, sample: Any) -> None:
    """A wrong value has to be seen."""
    for name in sample.bad.keys() & {"counts", "types"}:
        place, value = sample.bad[name]
        args = [*sample.args[:place], value, *sample.args[place + 1 :]]
        for shared in SHARED:
            assert emulated(library, sample.op, args, shared).isnan().any(), (sample.op, name)


def check_many(library: ctypes.CDLL, degree: int, intervals: int, ntypes: int, dtype: torch.dtype) -> None:
    """Atoms with up to 150 neighbours of each type, beyond the cutoff, at one place and at the atom's, too."""
    gen = torch.Generator().manual_seed(degree)
    atoms, width = 5, 150 * ntypes
    counts = torch.randint(0, 151, (atoms, ntypes), generator=gen).int()
    d = torch.randn(atoms, width, 3, generator=gen, dtype=torch.float64)
    d[0, :5], d[1, :5] = 0.0, 1.0
    types = torch.randint(-1, ntypes, (atoms,), generator=gen).int()
    mask = torch.rand(ntypes, ntypes, generator=gen) < 0.2
    args = d.to(dtype), counts, types, mask, 2.0, intervals, degree
    check(library, "harmonic_moment", args)
    shape = atoms, (degree + 1) ** 2, ntypes, padded_basis(intervals)
    grads = torch.randn(2, *shape, generator=gen, dtype=torch.float64).to(dtype)
    check(library, "harmonic_moment_backward", (*grads, *args))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda", type=Path, help="a folder with the headers of CUDA")
    headers = cuda_headers(parser.parse_args().cuda)
    with tempfile.TemporaryDirectory() as folder:
        library = compiled("harmonic", headers, Path(folder))
        for dtype in DTYPES:
            mine = [s for s in op_samples(dtype=dtype) if s.op.startswith("harmonic_moment")]
            for sample in mine:
                check(library, sample.op, sample.args)
                check_wrong(library, sample)
            for degree, intervals, ntypes in itertools.product((2, 3, 4), (20, 144), (1, 3)):
                check_many(library, degree, intervals, ntypes, dtype)
            print(f"{dtype}: {len(mine)} samples and atoms with many neighbours agree")


if __name__ == "__main__":
    main()
