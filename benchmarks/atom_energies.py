"""The effect of training on atoms' energies on total energies and forces: crystals of Cu and Al, labelled by ASE's EMT.

    python benchmarks/atom_energies.py [--steps 2000] [--seeds 3] [--json FILE]

EMT gives each atom an energy. Every seed trains twice on the same 60 frames with mdops' defaults (one thread): without
and with atoms' energies, whose `start_pref_ae` and `limit_pref_ae` are the total energy's. Errors are RMSE of 20 other
frames.
"""

import argparse
import json
import statistics
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.io import write
from machine import machine

from mdops import load
from mdops.data.evaluation import evaluate
from mdops.train import Trainer, load_dataset, parse_config
from mdops.train.config.defaults import LOSS, data_input

TRAINED, TESTED = 60, 20


def crystal(random: np.random.Generator) -> Atoms:
    atoms = bulk("Cu", cubic=True, a=3.8).repeat(2)
    atoms.symbols[random.random(len(atoms)) < 0.5] = "Al"
    strain = random.normal(0, 0.02, (3, 3))
    atoms.set_cell(atoms.cell @ (np.eye(3) + strain + strain.T), scale_atoms=True)
    atoms.positions += random.normal(0, 0.1, atoms.positions.shape)
    atoms.calc = EMT()
    atoms.get_forces(), atoms.get_stress()
    return atoms


def errors(folder: Path, steps: int, seed: int, *, with_atoms: bool) -> dict[str, float]:
    """RMSE of energies (eV/atom), forces (eV/A) and virials (eV/atom)."""
    tree = data_input([str(folder / "train.extxyz")], ["Cu", "Al"], steps=steps)
    tree["training"]["seed"] = seed
    of_atoms = {f"{end}_pref_ae": LOSS[f"{end}_pref_e"] for end in ("start", "limit")}
    tree["loss"] = {**LOSS, **(of_atoms if with_atoms else {})}
    run = folder / f"{seed}-{with_atoms}"
    Trainer(parse_config(tree), run).run()
    potential = load(run / "model.safetensors")
    found = evaluate(potential, load_dataset(str(folder / "test.extxyz"), ["Cu", "Al"])).errors()
    return {name: found[name].rmse for name in ("energy", "forces", "virial")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results = {"machine": machine("cpu"), "steps": args.steps, "without": [], "with": []}
    with tempfile.TemporaryDirectory() as name:
        random, folder = np.random.default_rng(1), Path(name)
        write(folder / "train.extxyz", [crystal(random) for _ in range(TRAINED)])
        write(folder / "test.extxyz", [crystal(random) for _ in range(TESTED)])
        for seed in range(1, args.seeds + 1):
            for key in ("without", "with"):
                results[key].append(errors(folder, args.steps, seed, with_atoms=key == "with"))
                print(seed, key, results[key][-1], flush=True)
            if args.json:
                args.json.write_text(json.dumps(results, indent=1) + "\n")
    for label in ("energy", "forces", "virial"):
        means = [statistics.mean(row[label] for row in results[key]) for key in ("without", "with")]
        print(f"{label}: {means[0]:.4g} without, {means[1]:.4g} with")


if __name__ == "__main__":
    main()
