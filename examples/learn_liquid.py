"""A potential of liquid water, learned from GFN2-xTB by tblite: `mdops.learn` from Python.

pip install tblite
python examples/learn_liquid.py --out learned

It starts from two boxes of 16 molecules on a lattice, with random orientations. The first rounds of exploration
melt the lattice. A call of GFN2-xTB takes 2.5 s of one core here, so the calls take most of the time. Change `MOLECULE`
and `DENSITY` for another liquid.
"""

from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms, units
from ase.build import molecule
from study.learning import learn_as_told

MOLECULE, DENSITY = "H2O", 1.0  # g/cm3
TEMPERATURES = [300, 450]  # K
TIMESTEP = 0.5  # fs
# Small nets, quick to train
DESCRIPTOR = {"type": "se_e2_a", "rcut": 5.0, "neuron": [16, 32, 64], "axis_neuron": 8, "type_one_side": True}
NETS = {"descriptor": DESCRIPTOR, "fitting_net": {"neuron": [80, 80, 80]}}
STUDENTS = {"model": NETS, "training": {"batch_size": 4}}


def cells() -> list[Atoms]:
    """Two boxes of 16 molecules on a body-centred cubic lattice, with random orientations."""
    return [box(seed) for seed in range(2)]


def box(seed: int) -> Atoms:
    one, random = molecule(MOLECULE), np.random.default_rng(seed)
    one.positions -= one.get_center_of_mass()
    grams = 16 * one.get_masses().sum() / units.kg * 1000
    length = (grams / DENSITY * 1e24) ** (1 / 3)
    found = Atoms(cell=[length] * 3, pbc=True)
    for site in np.indices((2, 2, 2)).reshape(3, 8).T:
        for shift in (0.0, 0.5):
            turned = one.copy()
            turned.euler_rotate(*random.uniform(0, 360, 3))
            turned.positions += (site + shift) * length / 2
            found += turned
    return found


def tree(structures: Path) -> dict[str, Any]:
    """The input, as in a JSON or YAML file."""
    return {
        "teacher": {
            "type": "ase",
            "calculator": "tblite.ase.TBLite",
            "arguments": {"method": "GFN2-xTB", "verbosity": 0},
        },
        "start": {"structures": str(structures), "frames": 40, "rattle": 0.08, "strain": 0.0},
        "explore": {"temperatures": TEMPERATURES, "timestep": TIMESTEP, "steps": 40000, "interval": 400},
        "students": {"number": 3, "input": STUDENTS, "steps": 1500, "final_steps": 10000},
        "select": {"frames": 45, "fresh": 12},
        "targets": {"forces": 0.08, "frames": 24},
        "budget": {"calls": 600, "rounds": 9},
        "report": {"steps": 1000},
    }


if __name__ == "__main__":
    learn_as_told(__doc__ or "", cells(), tree)
