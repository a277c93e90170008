"""Makes reference_spin/dpa4c with DeePMD-kit: a model with magnetic moments as vectors, as .dp and .pt, answers, and
the statistics of one of the systems, with the gate of moments open and closed.

    python tests/data/make_spin.py

for a Python that has DeePMD-kit 3.2.0 with PyTorch.
"""

import copy
import sys
from pathlib import Path

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import save_dp_model
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


def main() -> None:
    folder, draw = HERE / "reference_spin" / "dpa4c", Draw(0)
    folder.mkdir(parents=True, exist_ok=True)
    network = get_model(copy.deepcopy(SECTION)).double().eval()
    randomize(network, draw)
    arrays = {}
    for name, periodic in (("cell", True), ("free", False)):
        given = system(draw, 2, cutoffs(SECTION), periodic, False)
        given["spins"] = draw.normal(len(given["types"]), 3)
        given["spins"][0] = 0
        given |= answers(network, given)
        arrays |= {f"{name}/{key}": value for key, value in given.items()}
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
    data = {"backend": "PyTorch", "model": network.serialize(), "model_def_script": SECTION}
    save_dp_model(str(folder / "model.dp"), data)
    state = ModelWrapper(network, model_params=copy.deepcopy(SECTION)).state_dict()
    torch.save({"model": state, "optimizer": {}}, folder / "model.pt")
    np.savez_compressed(folder / "systems.npz", **arrays)


if __name__ == "__main__":
    main()
