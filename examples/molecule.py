"""From quantum chemistry to a simulation: benzene, labelled by GFN2-xTB.

pip install tblite
python examples/molecule.py

The same as demo.py, for a molecule and with a calculator that is worth replacing. It takes a few minutes.
"""

import os

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # tblite reads it when it is imported; twelve atoms are too few for two threads

import numpy as np
from ase import Atoms
from ase.build import molecule
from study.sampling import hot_frames, hot_velocities
from study.study import Study, parse_arguments, run_study

try:
    from tblite.ase import TBLite
except ImportError as error:
    raise SystemExit(f"This example needs tblite: pip install tblite ({error})") from None

TEMPERATURE = 400.0  # K, of the dynamics
LOSS = {"start_pref_e": 0.02, "limit_pref_e": 20, "start_pref_f": 1000, "limit_pref_f": 100}


def calculator() -> TBLite:
    return TBLite(method="GFN2-xTB", verbosity=0)


def sample(runs: int) -> list[list[Atoms]]:
    """Frames of benzene at 200 to 700 K."""
    random = np.random.default_rng(1)
    return [
        list(
            hot_frames(
                molecule("C6H6"),
                calculator(),
                random,
                temperature=random.uniform(200, 700),
                timestep=0.5,
                frames=10,
                interval=20,
            )
        )
        for _ in range(runs)
    ]


def start() -> Atoms:
    """The molecule; half of its kinetic energy will become potential energy."""
    atoms = molecule("C6H6")
    hot_velocities(atoms, 2 * TEMPERATURE, np.random.default_rng(2))
    return atoms


def main() -> None:
    args = parse_arguments(__doc__, out="demo/benzene", runs=50, training_steps=6000, steps=10000)
    study = Study(
        title="Benzene, from GFN2-xTB to a Deep Potential",
        text="A Deep Potential learned the energies and forces of the semi-empirical method GFN2-xTB on a molecule "
        "of benzene at 200 to 700 K. Here it meets runs that it never saw, then simulates the molecule beside "
        "GFN2-xTB itself.",
        reference="GFN2-xTB",
        calculator=calculator,
        sample=lambda: sample(args.runs),
        start=start(),
        timestep=0.5,
        steps=args.steps,
        type_map=["H", "C"],
        cutoff=6.0,
        training_steps=args.training_steps,
        batch=8,
        loss=LOSS,
        reach=5.5,
        width=0.04,
        temperature=TEMPERATURE,
    )
    run_study(study, args.out)


if __name__ == "__main__":
    main()
