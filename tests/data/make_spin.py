"""Makes reference_spin/dpa4c and reference_spin/dpa4_virtual with DeePMD-kit: models with magnetic moments, as vectors
and as virtual atoms, as .dp and .pt, and answers. Of DPA-4C there are also the statistics of one of the systems, with
the gate of moments open and closed.

    python tests/data/make_spin.py

for a Python that has DeePMD-kit 3.2.0 with PyTorch.
"""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import save_dp_model
from deepmd.pt.model.model import get_model as get_pytorch_model
from deepmd.pt.train.wrapper import ModelWrapper as PyTorchWrapper
from deepmd.pt_expt.model.get_model import get_model
from deepmd.pt_expt.train.wrapper import ModelWrapper

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))

from random_deepmd_models import Draw, answers, cutoffs, randomize, system  # noqa: E402

SECTION = {
    "type_map": ["Ni", "O"],
    "descriptor": {
        "type": "dpa4c",
        "rcut": 4.0,
        "channels": 8,
        "n_radial": 4,
        "radial_modes": 1,
        "precision": "float64",
        "seed": 1,
    },
    "fitting_net": {"neuron": [8], "precision": "float64", "seed": 1},
    "spin": {"scheme": "native", "use_spin": ["Ni"]},
}
VIRTUAL = {
    "type": "dpa4",
    "type_map": ["Ni", "O"],
    "descriptor": {
        "rcut": 3.5,
        "sel": [9],
        "channels": 4,
        "n_radial": 3,
        "lmax": 2,
        "n_blocks": 1,
        "mixing_layers": 2,
        "exclude_types": [[1, 1]],
        "precision": "float64",
        "seed": 1,
    },
    "fitting_net": {"neuron": [8], "precision": "float64", "seed": 1},
    "bridging_method": "zbl",
    "bridging_r_inner": 0.2,
    "bridging_r_outer": 0.5,
    "spin": {"scheme": "deepspin", "use_spin": ["Ni"], "virtual_scale": [0.314]},
}


def answered(
    network: Any, draw: Draw, section: dict[str, Any], change: Callable[[dict[str, Any]], None]
) -> dict[str, np.ndarray]:
    """Two systems with answers."""
    arrays = {}
    for name, periodic in (("cell", True), ("free", False)):
        given = system(draw, 2, cutoffs(section), periodic, False)
        given["spins"] = draw.normal(len(given["types"]), 3)
        change(given)
        given |= answers(network, given)
        arrays |= {f"{name}/{key}": value for key, value in given.items()}
    return arrays


def with_zero(given: dict[str, Any]) -> None:
    given["spins"][0] = 0


def with_small(given: dict[str, Any]) -> None:
    """A virtual atom so near to its atom that they are no neighbours."""
    given["spins"][np.flatnonzero(given["types"] == 0)[0]] = [0, 0, 1e-6]


def write(
    folder: Path, network: Any, section: dict[str, Any], wrapper: Any, arrays: dict[str, np.ndarray]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = {"backend": "PyTorch", "model": network.serialize(), "model_def_script": section}
    save_dp_model(str(folder / "model.dp"), data)
    state = wrapper(network, model_params=copy.deepcopy(section)).state_dict()
    torch.save({"model": state, "optimizer": {}}, folder / "model.pt")
    np.savez_compressed(folder / "systems.npz", **arrays)


def make_virtual() -> None:
    draw = Draw(12)
    network = get_pytorch_model(copy.deepcopy(VIRTUAL)).double().eval()
    randomize(network, draw)
    arrays = answered(network, draw, VIRTUAL, with_small)
    write(HERE / "reference_spin" / "dpa4_virtual", network, VIRTUAL, PyTorchWrapper, arrays)


def main() -> None:
    make_virtual()
    folder, draw = HERE / "reference_spin" / "dpa4c", Draw(0)
    folder.mkdir(parents=True, exist_ok=True)
    network = get_model(copy.deepcopy(SECTION)).double().eval()
    randomize(network, draw)
    arrays = answered(network, draw, SECTION, with_zero)
    descriptor = network.atomic_model.descriptor
    saved = copy.deepcopy(descriptor.state_dict())
    one = {
        name: arrays[f"cell/{key}"][None]
        for name, key in (("coord", "positions"), ("spin", "spins"), ("box", "cell"))
    }
    one |= {"atype": arrays["cell/types"][None], "natoms": np.zeros((1, 4), int)}
    found = {}
    for state, gate in (("open", saved["spin.spin_gate"]), ("closed", torch.zeros(1))):
        with torch.no_grad():
            descriptor.spin.spin_gate.copy_(gate)
        descriptor.compute_input_stats([{name: torch.from_numpy(value) for name, value in one.items()}])
        for name, value in (
            ("mean", descriptor.mean),
            ("stddev", descriptor.stddev),
            ("reference", descriptor.spin.spin_reference),
        ):
            found[f"{state}/{name}"] = value.detach().numpy().copy()
    np.savez_compressed(folder / "statistics.npz", **found)
    descriptor.load_state_dict(saved)
    write(folder, network, SECTION, ModelWrapper, arrays)


if __name__ == "__main__":
    main()
