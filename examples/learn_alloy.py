"""A potential of a Cu-Al alloy, from 300 K to the liquid, learned from ASE's EMT: `mdops.learn` from Python.

python examples/learn_alloy.py --out learned

It starts from four crystals of 32 atoms. The committee explores with its own dynamics, and EMT labels the structures of
which it is unsure. learned/report.html says how good the potential is, and where. Takes five minutes on two cores.
"""

from pathlib import Path
from typing import Any

from ase import Atoms
from ase.build import bulk
from study.learning import learn_as_told

TEMPERATURES = [300, 600, 1000, 2000]  # K; at the last one the crystals melt
TIMESTEP = 2.0  # fs
# Small nets: steps are fast, and the smooth reference energies need no larger ones
DESCRIPTOR = {"type": "se_e2_a", "rcut": 6.0, "neuron": [8, 16, 32], "axis_neuron": 6, "type_one_side": True}
NETS = {"descriptor": DESCRIPTOR, "fitting_net": {"neuron": [32, 32, 32]}}
STUDENTS = {"model": NETS, "training": {"batch_size": 4}}


def cells() -> list[Atoms]:
    """Copper, aluminium, and two ordered alloys, 32 atoms each."""
    found = []
    for aluminium, constant in (([], 3.61), ([0], 3.70), ([0, 1], 3.85), ([0, 1, 2, 3], 4.0)):
        atoms = bulk("Cu", a=constant, cubic=True)
        atoms.symbols[aluminium] = "Al"
        found.append(atoms * 2)
    return found


def tree(structures: Path) -> dict[str, Any]:
    """The input, as in a JSON or YAML file."""
    return {
        "teacher": {"type": "ase", "calculator": "ase.calculators.emt.EMT"},
        "start": {"structures": str(structures), "frames": 40},
        "explore": {"temperatures": TEMPERATURES, "timestep": TIMESTEP, "steps": 1000, "interval": 20},
        "students": {"input": STUDENTS, "steps": 1000, "final_steps": 4000},
        "select": {"frames": 30, "fresh": 10},
        "targets": {"forces": 0.03, "frames": 40},
        "budget": {"calls": 200, "rounds": 3},
        "report": {"steps": 1000},
    }


if __name__ == "__main__":
    learn_as_told(__doc__ or "", cells(), tree)
