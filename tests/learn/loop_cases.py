"""A tiny loop: EMT teaches two students with small nets an alloy of eight atoms a cell."""

import copy

import ase.io
from ase.build import bulk

from mdops.learn import parse_config

NETS = {
    "descriptor": {
        "type": "se_e2_a",
        "rcut": 4.5,
        "rcut_smth": 0.5,
        "neuron": [4, 8],
        "axis_neuron": 4,
        "type_one_side": True,
    },
    "fitting_net": {"neuron": [16, 16]},
}
TREE = {
    "teacher": {"type": "ase", "calculator": "ase.calculators.emt.EMT"},
    "start": {"structures": "start.extxyz", "frames": 20, "swap": True},
    "explore": {"temperatures": [300, 900], "timestep": 2.0, "steps": 40, "interval": 5},
    "students": {"number": 2, "steps": 80, "final_steps": 100, "input": {"model": NETS}},
    "select": {"frames": 5, "fresh": 3},
    "targets": {"forces": 1e-4, "frames": 5},
    "budget": {"calls": 34, "rounds": 1},
    "compute": {"processes": 1},
    "report": {"steps": 20},
}


def write_cells(folder):
    alloy = bulk("Cu", a=3.7, cubic=True) * (2, 1, 1)
    alloy.symbols[[0, 3]] = "Al"
    ase.io.write(folder / "start.extxyz", [alloy, bulk("Cu", a=3.62, cubic=True) * (2, 1, 1)])


def tiny(folder, **changes):
    """The input with keys of sections in the place of its own."""
    tree = copy.deepcopy(TREE)
    for section, keys in changes.items():
        tree[section] = {**tree[section], **keys} if isinstance(keys, dict) else keys
    return parse_config(tree, folder)
