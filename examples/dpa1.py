"""DPA-1 with layers of attention: trained on four metals, fine-tuned on an alloy of two of them, and its dynamics.

python examples/dpa1.py [FOLDER]

One net of a DPA-1 serves all elements, so a model that knows two of them from other alloys needs few further frames.
EMT labels all frames here; examples/dpa1.json is the first input. The script runs these commands:

    mdops train many.json --output many
    mdops train few.json --output few --finetune many/model.safetensors --use-pretrain-script
    mdops test --model few/model.safetensors --data test.extxyz
    mdops md start.extxyz --model few/model.safetensors --ensemble nvt --temperature 600 ...
"""

import itertools
import json
import sys
import tempfile
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.data import atomic_numbers, reference_states

from mdops.cli import main

INPUT = json.loads(Path(__file__).with_suffix(".json").read_text())
MANY, FEW = INPUT["model"]["type_map"], ["Cu", "Al"]


def alloy(elements: list[str], random: np.random.Generator, rattle: float = 0.0) -> Atoms:
    """32 places of a face-centred lattice with random elements; its constant is the mean of these elements'."""
    symbols = random.choice(elements, 32)
    edges = [reference_states[atomic_numbers[symbol]]["a"] for symbol in symbols]
    atoms = bulk("Cu", a=float(np.mean(edges)), cubic=True) * (2, 2, 2)
    atoms.symbols = list(symbols)
    atoms.positions += random.normal(0, rattle, atoms.positions.shape)
    return atoms


def frames(systems: list[list[str]], count: int, seed: int) -> list[Atoms]:
    """`count` disordered crystals of each list of elements, with EMT's energies and forces."""
    random, found = np.random.default_rng(seed), []
    for elements, k in itertools.product(systems, range(count)):
        atoms = alloy(elements, random, (0.05, 0.1, 0.15)[k % 3])
        atoms.set_cell(atoms.cell * random.uniform(0.97, 1.03), scale_atoms=True)
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        # Without EMT's energies of atoms: if frames have them, the types' energies are their means.
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        found.append(atoms)
    return found


def train(folder: Path, name: str, steps: int, rate: float, *options: str, **model: object) -> Path:
    """Writes FOLDER/NAME.json, a training on FOLDER/NAME.extxyz, and runs it; returns the model's file."""
    training = {**INPUT["training"], "numb_steps": steps}
    training["training_data"] = {**training["training_data"], "systems": str(folder / f"{name}.extxyz")}
    rates = {**INPUT["learning_rate"], "start_lr": rate}
    tree = {**INPUT, "model": model or INPUT["model"], "learning_rate": rates, "training": training}
    (folder / f"{name}.json").write_text(json.dumps(tree, indent=2))
    run("train", folder / f"{name}.json", "--output", folder / name, *options)
    return folder / name / "model.safetensors"


def run(*command: object) -> None:
    print("$ mdops", *command, flush=True)
    if main([str(word) for word in command]) != 0:
        raise SystemExit(1)


def study(folder: Path, steps: int = 1500, fine_steps: int = 400, time: float = 0.5, count: int = 9) -> None:
    """The whole study: `count` frames of each pair of the metals except the last alloy's, and `time` ps of dynamics."""
    pairs = [list(pair) for pair in itertools.combinations(MANY, 2) if set(pair) != set(FEW)]
    ase.io.write(folder / "many.extxyz", frames(pairs, count, 1))
    ase.io.write(folder / "few.extxyz", frames([FEW], 12, 2))
    ase.io.write(folder / "test.extxyz", frames([FEW], 12, 3))
    many = train(folder, "many", steps, 0.01)
    # The model's options come from the file, the elements from the input. A high initial rate would undo the training.
    few = train(
        folder, "few", fine_steps, 0.001, "--finetune", str(many), "--use-pretrain-script", type_map=FEW
    )
    for model in (many, few):
        run("test", "--model", model, "--data", folder / "test.extxyz")
    ase.io.write(folder / "start.extxyz", alloy(FEW, np.random.default_rng(4)) * (2, 2, 2))
    md = ("--model", few, "--ensemble", "nvt", "--temperature", 600, "--timestep", 2, "--time", time)
    files = ("--interval", 10, "--log", folder / "md.log", "--trajectory", folder / "run.extxyz")
    run("md", folder / "start.extxyz", *md, *files)


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    place.mkdir(exist_ok=True)
    study(place)
