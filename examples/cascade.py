"""A collision cascade in copper: a table of the ZBL potential, a model that blends with it, and a fast atom.

python examples/cascade.py [FOLDER]

Frames of EMT train the Deep Potential (examples/cascade.json). The energy of an atom changes to that of the table if a
neighbour is closer than 2 A. Then one atom of a crystal gets 100 eV. EMT and such a short training are enough to show
the method, but not for copper's displacement energies.
"""

import json
import sys
import tempfile
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.emt import EMT

import mdops
from mdops.cli import main as command
from mdops.md import EnsembleSettings
from mdops.md.engine import Engine
from mdops.train import Trainer, parse_config

LATTICE, ENERGY, STEP = 3.61, 100.0, 0.2  # A, eV, fs


def crystal(repeat: tuple[int, int, int]) -> Atoms:
    return bulk("Cu", a=LATTICE, cubic=True) * repeat


def frames(count: int) -> list[Atoms]:
    """Crystals with small and large disorder, with EMT's energies and forces."""
    random, found = np.random.default_rng(0), []
    for k in range(count):
        atoms = crystal((2, 2, 2))
        atoms.set_cell(atoms.cell * random.uniform(0.97, 1.03), scale_atoms=True)
        atoms.positions += random.normal(0, (0.05, 0.15, 0.3)[k % 3], atoms.positions.shape)
        atoms.calc = EMT()
        atoms.get_forces()
        found.append(atoms)
    return found


def trained(folder: Path, steps: int = 200) -> Path:
    """Makes the table, the data and the model."""
    command(["zbl", str(folder / "zbl.txt"), "Cu", "--cutoff", "5", "--overwrite"])
    ase.io.write(folder / "copper.extxyz", frames(48))
    options = json.loads(Path(__file__).with_suffix(".json").read_text())
    options["model"]["use_srtab"] = str(folder / "zbl.txt")
    options["training"]["numb_steps"] = steps
    options["training"]["training_data"]["systems"] = str(folder / "copper.extxyz")
    Trainer(parse_config(options), folder).run()
    return folder / "model.safetensors"


def displaced(atoms: Atoms, sites: np.ndarray) -> int:
    """The number of lattice sites without an atom nearby: vacancies."""
    d = atoms.positions[None] - sites[:, None]
    d -= np.round(d / atoms.cell.lengths()) * atoms.cell.lengths()
    return int((np.linalg.norm(d, axis=-1).min(1) > LATTICE / 2**1.5).sum())


def cascade(model: Path, steps: int = 1000) -> dict[str, float]:
    """The smallest distance between atoms, A, the drift of the energy, eV, and the largest number of vacancies."""
    atoms = crystal((5, 5, 5))
    sites = atoms.positions.copy()
    atoms.positions += np.random.default_rng(1).normal(0, 0.05, sites.shape)
    direction = np.array([3.0, 2.0, 1.0])
    speeds = np.zeros_like(sites)
    speeds[0] = direction / np.linalg.norm(direction) * np.sqrt(2 * ENERGY / atoms.get_masses()[0])
    atoms.set_velocities(speeds)
    engine = Engine(
        atoms, mdops.load(model, dtype="float32", overflow="extend"), EnsembleSettings("nve", 0, STEP)
    )
    nearest, totals, vacancies = np.inf, [], []
    for frame in engine.run(steps, every=25):
        now = frame.atoms(atoms)
        distances = now.get_all_distances(mic=True)
        nearest = min(nearest, distances[distances > 0].min())
        totals.append(frame.energy + frame.kinetic)
        vacancies.append(displaced(now, sites))
        temperature = frame.kinetic / (1.5 * len(atoms) * units.kB)
        print(
            f"{frame.step * STEP:6.1f} fs  {temperature:7.1f} K  nearest {distances[distances > 0].min():.2f} A  "
            f"{vacancies[-1]:3d} vacancies  energy {totals[-1] - totals[0]:+.3f} eV"
        )
    return {"nearest": nearest, "drift": np.ptp(totals), "vacancies": max(vacancies)}


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    place.mkdir(exist_ok=True)
    cascade(trained(place))
