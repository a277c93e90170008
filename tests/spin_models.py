"""Small random models with magnetic moments, and a crystal for them."""

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk

from mdops import Potential
from mdops.models.registry import find
from mdops.train import parse_config

SPIN = {"use_spin": [True, False], "virtual_scale": [0.314]}
NATIVE = {"scheme": "native", "use_spin": ["Ni"]}
VECTORS = "dpa4", "dpa4c"
WEIGHTS = {"e": 1, "fr": 100, "fm": 100, "v": 0.1}
DESCRIPTORS = {
    "se_e2_a": {"type": "se_e2_a", "sel": [40, 40], "rcut": 4.5, "rcut_smth": 1.0, "neuron": [4, 8], "axis_neuron": 2},
    "dpa1": {"type": "dpa1", "sel": 160, "rcut": 4.5, "rcut_smth": 1.0, "neuron": [4, 8], "axis_neuron": 2,
             "attn_layer": 0, "tebd_dim": 4},
    "dpa3": {"type": "dpa3", "repflow": {"n_dim": 8, "e_dim": 4, "a_dim": 4, "nlayers": 2, "e_rcut": 4.0,
             "e_rcut_smth": 2.0, "e_sel": 160, "a_rcut": 3.0, "a_rcut_smth": 2.0, "a_sel": 60, "axis_neuron": 2}},
    "dpa4": {"type": "dpa4", "rcut": 3.5, "channels": 6, "n_radial": 5, "lmax": 2, "n_blocks": 1, "mixing_layers": 2},
    "dpa4_virtual": {"type": "dpa4", "sel": 80, "rcut": 3.5, "channels": 6, "n_radial": 5, "lmax": 2, "n_blocks": 1,
                     "mixing_layers": 2},
    "dpa4c": {"type": "dpa4c", "rcut": 3.5, "channels": 8, "n_radial": 5},
}  # fmt: skip


def section(descriptor: str) -> dict:
    return {
        "type_map": ["Ni", "O"],
        "descriptor": {**DESCRIPTORS[descriptor], "precision": "float64"},
        "fitting_net": {"neuron": [8, 8], "precision": "float64"},
        **({"type": "dpa4"} if DESCRIPTORS[descriptor]["type"] == "dpa4" else {}),
        "spin": NATIVE if descriptor in VECTORS else SPIN,
    }


def training_input(descriptor: str, systems: str, **training) -> dict:
    return {
        "model": section(descriptor),
        "loss": {
            "type": "ener_spin",
            **{f"{end}_pref_{name}": weight for name, weight in WEIGHTS.items() for end in ("start", "limit")},
        },
        "learning_rate": {"type": "exp", "start_lr": 5e-3, "stop_lr": 5e-4},
        "training": {
            "training_data": {"systems": [systems], "batch_size": 2},
            "numb_steps": 4, "disp_freq": 1, "seed": 1, "precision": "float64", **training,
        },
    }  # fmt: skip


def model(descriptor: str) -> Potential:
    options = parse_config(training_input(descriptor, "nowhere")).model
    made = find("model", options.KIND).random(options, 3, torch.float64)
    random = np.random.default_rng(4)
    for weights in made.parameters():  # a new model with vectors does not see moments
        if DESCRIPTORS[descriptor]["type"] in VECTORS and not weights.any():
            weights.data.copy_(torch.from_numpy(0.3 * random.normal(size=weights.shape)))
    return Potential(made, overflow="extend").eval()


def crystal(seed: int = 0) -> Atoms:
    """Nickel oxide, off its places, with moments that point anywhere."""
    random = np.random.default_rng(seed)
    atoms = bulk("NiO", "rocksalt", a=4.2, cubic=True)
    atoms = atoms[np.argsort(-atoms.numbers, kind="stable")]  # nickel first
    atoms.positions += random.normal(0, 0.1, atoms.positions.shape)
    moments = random.normal(0, 1, atoms.positions.shape)
    atoms.set_initial_magnetic_moments(1.2 * moments / np.linalg.norm(moments, axis=1, keepdims=True))
    return atoms


def energy(potential: Potential, atoms: Atoms) -> float:
    return float(potential.compute(atoms)["energy"][0])
