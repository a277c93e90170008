"""Small training data, made on the spot and written as systems of DeePMD-kit, and small models to train."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from ase.build import bulk
from ase.calculators import emt

from mdops.train.config.read import parse_config
from mdops.train.loop.trainer import Trainer
from mdops.train.model.random import random_potential

SHARED = Path(__file__).parents[3] / "shared"
EMT = Path(__file__).parents[1] / "data" / "training" / "emt"  # 20 frames of 32 atoms, Cu and Al


@contextmanager
def interrupted(step):
    """Trainings are interrupted before the step after this one."""
    advance = Trainer._advance

    def stopped(self):
        if self.step == step:
            raise KeyboardInterrupt
        return advance(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_advance", stopped)
        yield


def stop_after(step):
    """For `Trainer.run`: stops it there."""

    def stop(report):
        if report.step >= step:
            raise KeyboardInterrupt

    return stop


def alloy(frames, seed=0, repeat=(2, 1, 1), rattle=0.05):
    """Rattled Cu-Al crystals with EMT's energies, forces and stresses."""
    rng = np.random.default_rng(seed)
    structures = []
    for _ in range(frames):
        atoms = bulk("Cu", cubic=True, a=3.8) * repeat
        atoms.symbols[::3] = "Al"
        atoms.positions += rng.normal(0, rattle, atoms.positions.shape)
        atoms.calc = emt.EMT()
        atoms.get_forces(), atoms.get_stress()
        structures.append(atoms)
    return structures


def write_system(folder, structures, type_map=("Al", "Cu"), sets=1):
    """A system of DeePMD-kit of structures of one composition; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    symbols = structures[0].get_chemical_symbols()
    (folder / "type.raw").write_text("\n".join(str(type_map.index(s)) for s in symbols) + "\n")
    (folder / "type_map.raw").write_text("\n".join(type_map) + "\n")
    for k, part in enumerate(np.array_split(np.arange(len(structures)), sets)):
        place = folder / f"set.{k:03d}"
        place.mkdir()
        chosen = [structures[i] for i in part]
        results = [atoms.calc.results for atoms in chosen]
        np.save(place / "coord.npy", [atoms.positions.ravel() for atoms in chosen])
        np.save(place / "box.npy", [atoms.cell.array.ravel() for atoms in chosen])
        np.save(place / "energy.npy", [r["energy"] for r in results])
        np.save(place / "force.npy", [r["forces"].ravel() for r in results])
        virial = [-a.get_volume() * a.get_stress(voigt=False).ravel() for a in chosen]
        np.save(place / "virial.npy", virial)
    return folder


def write_two_sizes(folder, frames, lacking):
    """Systems of two sizes, of so many frames, each without one kind of label."""
    for k, (name, label) in enumerate(zip(("one", "two"), lacking, strict=True)):
        write_system(folder / name, alloy(frames[k], seed=k, repeat=(2 - k, 1, 1)), ("Cu", "Al"))
        (folder / name / "set.000" / f"{label}.npy").unlink()


def small_config(*, descriptor=None, fitting=None, model=None, training=None, **sections):
    """The training input of a small model of EMT, each section with more keys, or other values; None: without that of
    the descriptor."""
    usual = {"rcut": 4.0, "rcut_smth": 2.0, "neuron": [4, 8], "axis_neuron": 3}
    keys = {**usual, **(descriptor or {})}
    parts = {
        "type_map": ["Cu", "Al"],
        "descriptor": {name: value for name, value in keys.items() if value is not None},
        "fitting_net": {"neuron": [12, 12], **(fitting or {})},
        **(model or {}),
    }
    data = {"systems": str(EMT), "batch_size": 2}
    return parse_config(
        {
            "model": parts,
            "training": {"training_data": data, "numb_steps": 10, **(training or {})},
            **sections,
        }
    )


def new_model(config, data, lists, *, seed=3, dtype=torch.float64):
    """The model that a training of this input begins with, in exact mode."""
    return random_potential(config, data, lists, seed=seed, dtype=dtype)
