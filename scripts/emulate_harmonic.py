"""Runs the GPU kernels of `harmonic_sums`, `harmonic_forces` and `moment_invariants` on the CPU, thread by thread, and
compares them with the CPU's kernels.

    python scripts/emulate_harmonic.py [--cuda DIR]

Use it to test changes of the kernels without a GPU, like scripts/emulate_attention.py. It runs every
sample of these ops, also with wrong values, and atoms with many neighbours, with sums in shared memory and without.
"""

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from gpu_emulator.compile import library_of

from mdops.models.dpa4c import DPA4C, DPA4COptions
from mdops.ops.harmonic_moment import largest_functions, padded_basis
from mdops.tables.invariant_terms import invariant_terms
from mdops.testing import harmonic_tables, op_samples

OPS = torch.ops.mdops
DTYPES = (torch.float32, torch.float64)
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-13}
SHARED = (232448, 48 << 10)  # of an H100, and of a chip whose large sums are in global memory


def pointers_of(tensors: Sequence[torch.Tensor | None]) -> Any:
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    return (ctypes.c_void_p * len(pointers))(*pointers)


def invariants(library: ctypes.CDLL, op: str, args: Sequence[Any], shared: int) -> list[torch.Tensor]:
    grad, *rest = args if op.endswith("backward") else [None, *args]
    given = [t.contiguous() if isinstance(t, torch.Tensor) else t for t in (grad, *rest[:-2])]
    scalars, others, _, behind, *lists = given[1:]
    features = len(lists[2]) - 1 - sum(rest[-2:])
    shapes = [scalars.shape, others.shape]
    if grad is None:
        shapes = [(len(scalars), features + behind.shape[1])]
    out = [torch.full(shape, 77, dtype=scalars.dtype) for shape in shapes]
    rows = [size for k in (0, 3) for size in (len(lists[k + 2]) - 1, len(lists[k]))]
    sizes = (
        *rows,
        len(scalars),
        scalars.shape[1] - 2,
        others.shape[1],
        *behind.shape[::-1],
        *rest[-2:],
        shared,
    )
    called = pointers_of([*given, *out]), (ctypes.c_int64 * len(sizes))(*sizes)
    library.run_moment_invariants(scalars.dtype == torch.float64, *called)
    return out


def emulated(library: ctypes.CDLL, op: str, args: Sequence[Any], shared: int) -> list[torch.Tensor]:
    if op.startswith("moment_invariants"):
        return invariants(library, op, args, shared)
    grads, rest = (args[:2], args[2:]) if op.endswith(("backward", "forces")) else ([None, None], args)
    more, rest = (rest[:5], rest[5:]) if op.endswith("forces") else ((0,), rest)
    listed = [value for value in rest if isinstance(value, torch.Tensor)]
    cutoff, intervals, degree, seconds = rest[len(listed) :]
    d, counts, _, _, *tables = listed
    given = [None if t is None else t.contiguous() for t in (*listed, *grads, *more[:-1])]
    widths = tables[0].shape[2], seconds, tables[3].shape[4]
    shapes, dtypes = [d.shape], [d.dtype]
    if grads[0] is None:
        shapes = [(len(d), widths[0] + 2), (len(d), (degree + 1) ** 2, seconds), (len(d),), (len(d),)]
        dtypes = [d.dtype, d.dtype, torch.int32, d.dtype]
    elif more[-1]:
        shapes, dtypes = [(len(d), 3), (more[-1], 3, 3)], [torch.float64, torch.float64]
    out = [torch.full(shape, 77, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    sizes = *d.shape[:2], counts.shape[1], intervals, degree, shared, *widths, more[-1]
    called = pointers_of([*given, *out]), (ctypes.c_int64 * len(sizes))(*sizes)
    library.run_harmonic.restype = ctypes.c_bool
    done = library.run_harmonic(d.dtype == torch.float64, ctypes.c_double(cutoff), *called)
    return out if done else []


def check(library: ctypes.CDLL, op: str, args: Sequence[Any]) -> None:
    """Raises AssertionError if the kernels differ from the CPU's."""
    wanted = getattr(OPS, op)(*args)
    every = [wanted] if isinstance(wanted, torch.Tensor) else wanted
    for shared in SHARED:
        made = emulated(library, op, args, shared)
        for found, want in zip(made, every if made else [], strict=True):
            scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
            dtype = args[0].dtype if op == "harmonic_forces" else want.dtype
            torch.testing.assert_close(found, want, rtol=0, atol=TOLERANCE.get(dtype, 0) * scale)


def check_wrong(library: ctypes.CDLL, sample: Any) -> None:
    """Checks that a wrong value shows in the results."""
    for name in sample.bad.keys() & {"counts", "types", "forth_index", "neighbors"}:
        if name != "counts" and sample.op == "moment_invariants_backward":
            continue  # not used there
        place, value = sample.bad[name]
        args = [*sample.args[:place], value, *sample.args[place + 1 :]]
        for shared in SHARED:
            found = emulated(library, sample.op, args, shared)
            assert not found or found[0].isnan().any(), (sample.op, name)


def check_many(library: ctypes.CDLL, degree: int, intervals: int, ntypes: int, dtype: torch.dtype) -> None:
    """Atoms with up to 150 neighbours of each type, also beyond the cutoff, at one place and at the atom's place."""
    gen = torch.Generator().manual_seed(degree)
    atoms, width = 5, 150 * ntypes
    counts = torch.randint(0, 151, (atoms, ntypes), generator=gen).int()
    d = torch.randn(atoms, width, 3, generator=gen, dtype=torch.float64)
    d[0, :5], d[1, :5] = 0.0, 1.0
    types = torch.randint(-1, ntypes, (atoms,), generator=gen).int()
    mask = torch.rand(ntypes, ntypes, generator=gen) < 0.2
    listed, row = (d.to(dtype), counts, types, mask), padded_basis(intervals)
    for functions, seconds in (
        (8, 4),
        (16, 4),
        (32, 8),
        ({2: 34, 3: 130, 4: 34}[degree], {2: 4, 3: 16, 4: 8}[degree]),
    ):
        knots = torch.randn(ntypes, functions, ntypes, row, generator=gen, dtype=torch.float64).to(dtype)
        tables = harmonic_tables(knots, intervals, seconds, 2.0)
        sums = *listed, *tables, 2.0, intervals, degree, seconds
        check(library, "harmonic_sums", sums)
        grads = [
            torch.randn(atoms, *more, generator=gen).to(dtype)
            for more in ((functions + 2,), ((degree + 1) ** 2, seconds))
        ]
        check(library, "harmonic_sums_backward", (*grads, *sums))
        d[0, :5] = 0.3  # the number of neighbours at one place has no limit
        sums = d.to(dtype), *sums[1:]
        nearest = OPS.harmonic_sums(*sums)[3]
        for systems in (1, 2):
            batch = torch.randint(0, systems, (atoms,), generator=gen).int()
            neighbors = torch.randint(-1, atoms, (atoms, width), generator=gen).int()
            more = largest_functions(*tables[1:3]), nearest, batch, neighbors, systems
            check(library, "harmonic_forces", (*grads, *more, *sums))


def check_features(library: ctypes.CDLL, channels: int, lmax: int, dtype: torch.dtype) -> None:
    """Features of more atoms than a block has."""
    gen = torch.Generator().manual_seed(channels)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

    d = DPA4C.random(DPA4COptions(rcut=5.0, channels=channels, lmax=lmax), ["Cu", "Al"], [0], dtype)
    behind, forth, back, *counts = invariant_terms(d)
    scalars = torch.cat([numbers(45, channels), numbers(45, 2).abs()], 1)
    others = numbers(45, (lmax + 1) ** 2 * d.invariants.channels[1])
    types = torch.randint(-1, 2, (45,), generator=gen).int()
    args = scalars, others, types, behind, *forth, *back, *counts
    check(library, "moment_invariants", args)
    check(library, "moment_invariants_backward", (numbers(45, d.width), *args))


def main() -> None:
    with library_of("harmonic", __doc__) as library:
        for dtype in DTYPES:
            mine = [
                s
                for s in op_samples(dtype=dtype)
                if s.op.startswith(("harmonic_sums", "harmonic_forces", "moment_invariants"))
            ]
            for sample in mine:
                check(library, sample.op, sample.args)
                check_wrong(library, sample)
            for degree, intervals, ntypes in itertools.product((2, 3, 4), (20, 144), (1, 3)):
                check_many(library, degree, intervals, ntypes, dtype)
            for channels, lmax in ((8, 2), (16, 4), (64, 3)):
                check_features(library, channels, lmax, dtype)
            print(f"{dtype}: {len(mine)} samples and atoms with many neighbours agree")


if __name__ == "__main__":
    main()
