"""From nothing to a simulation: a Cu-Al alloy, labelled by ASE's EMT. `make demo` runs it, in a few minutes.

Makes frames of hot, strained crystals of many compositions, trains a model on them, tests it on runs that were not in
the training data, and simulates an alloy with the model and with EMT itself. demo/report.html shows the results.
"""

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from study.sampling import hot_frames, hot_velocities
from study.study import Study, parse_arguments, run_study

TIMESTEP = 2.0  # fs
TEMPERATURE = 900.0  # K, of the dynamics
LOSS = {
    "start_pref_e": 0.02,
    "limit_pref_e": 20,
    "start_pref_f": 1000,
    "limit_pref_f": 100,
    "start_pref_v": 0.02,
    "limit_pref_v": 1,
}


def alloy(aluminium: float, cells: int, random: np.random.Generator, strain: float = 0.0) -> Atoms:
    """A random fcc alloy; `strain` is the deviation of the cell's random strains."""
    atoms = bulk("Cu", "fcc", a=3.62 + 0.43 * aluminium, cubic=True).repeat(cells)
    atoms.symbols[random.permutation(len(atoms))[: round(aluminium * len(atoms))]] = "Al"
    strains = random.normal(0, strain, (3, 3))
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + (strains + strains.T) / 2), scale_atoms=True)
    return atoms


def sample(runs: int, frames: int = 5) -> list[list[Atoms]]:
    """Frames of runs at random compositions, strains of some 3 % and 300 to 1500 K; 32 atoms each."""
    random = np.random.default_rng(1)
    return [
        list(
            hot_frames(
                alloy(random.uniform(), 2, random, strain=0.03),
                EMT(),
                random,
                temperature=random.uniform(300, 1500),
                timestep=TIMESTEP,
                frames=frames,
            )
        )
        for _ in range(runs)
    ]


def start() -> Atoms:
    """A crystal with a third of aluminium; half of its kinetic energy will become potential energy."""
    random = np.random.default_rng(2)
    atoms = alloy(1 / 3, 3, random)
    hot_velocities(atoms, 2 * TEMPERATURE, random)
    return atoms


def main() -> None:
    args = parse_arguments(__doc__, out="demo", runs=80, training_steps=5000, steps=2000)
    atoms = start()
    study = Study(
        title="A Cu-Al alloy, from EMT to a Deep Potential",
        text=f"A Deep Potential learned the energies, forces and stresses of ASE's EMT on crystals of 32 atoms "
        f"at 300 to 1500 K, from pure copper to pure aluminium. Here it meets runs that it never saw, then "
        f"simulates {len(atoms)} atoms of {atoms.get_chemical_formula()} beside EMT itself.",
        reference="EMT",
        calculator=EMT,
        sample=lambda: sample(args.runs),
        start=atoms,
        timestep=TIMESTEP,
        steps=args.steps,
        type_map=["Cu", "Al"],
        cutoff=6.0,
        training_steps=args.training_steps,
        batch=4,
        loss=LOSS,
        reach=5.4,
        width=0.05,
        temperature=TEMPERATURE,
    )
    run_study(study, args.out)


if __name__ == "__main__":
    main()
