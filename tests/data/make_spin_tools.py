"""Makes reference_spin/tools with DeePMD-kit: two models of DPA-1 with virtual atoms, frames with labels, and for them
descriptors, deviations of the models, and energies of elements as change-bias finds them.

    python tests/data/make_spin_tools.py

for a Python that has DeePMD-kit 3.2.0 with PyTorch. DeePMD-kit's own commands compute neither descriptors nor
deviations of such models, so its parts are called: the model of atoms and virtual atoms, and the functions of
deviations.
"""

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import save_dp_model
from deepmd.infer.model_devi import calc_model_devi_e, calc_model_devi_f, calc_model_devi_v
from deepmd.pt.model.model import get_model

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))

from random_deepmd_models import Draw, randomize  # noqa: E402

SECTION = {
    "type_map": ["Ni", "O"],
    "descriptor": {
        "type": "se_atten",
        "sel": 60,
        "rcut": 4.0,
        "rcut_smth": 1.0,
        "neuron": [2, 4],
        "axis_neuron": 2,
        "attn_layer": 0,
        "tebd_dim": 2,
        "precision": "float64",
        "seed": 1,
    },
    "fitting_net": {"neuron": [4], "precision": "float64", "seed": 1},
    "spin": {"use_spin": [True, False], "virtual_scale": [0.314]},
}
TYPES = {"a": [0, 0, 0, 0, 1, 1, 1, 1], "b": [0, 0, 0, 0, 0, 1, 1]}
FRAMES = 2


def frames(draw: Draw, types: list[int]) -> dict[str, np.ndarray]:
    """Atoms near the points of a rock salt lattice, moments, and labels."""
    n, moments = len(types), draw.normal(FRAMES, len(types), 3)
    moments *= draw.random.uniform(0.8, 1.5, (FRAMES, n, 1)) / np.linalg.norm(moments, axis=2, keepdims=True)
    points = 2.1 * np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)[:n]
    return {
        "types": np.array(types),
        "coord": points + draw.normal(FRAMES, n, 3) / 10,
        "box": np.tile(4.2 * np.eye(3).ravel(), (FRAMES, 1)),
        "spin": moments
        * draw.random.uniform(0.8, 1.5, (FRAMES, n, 1))
        / np.linalg.norm(moments, axis=2, keepdims=True),
        "energy": draw.normal(FRAMES),
        "force": draw.normal(FRAMES, n, 3),
        "force_mag": draw.normal(FRAMES, n, 3) * (np.array(types) == 0)[:, None],
        "virial": draw.normal(FRAMES, 9),
    }


def given(one: dict[str, np.ndarray]) -> tuple[torch.Tensor, ...]:
    """Positions, types, moments and cells of all frames."""
    coord, spin, box = (torch.from_numpy(one[name]) for name in ("coord", "spin", "box"))
    return coord.flatten(1), torch.tensor(one["types"]).repeat(len(coord), 1), spin, box


def answers(network: Any, one: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    coord, types, spin, box = given(one)
    out = network(coord.requires_grad_(), types, spin.requires_grad_(), box=box)
    return {name: out[name].detach().numpy() for name in ("energy", "force", "force_mag", "virial")}


def deviations(networks: list[Any], one: dict[str, np.ndarray], real: bool) -> np.ndarray:
    """(F, 10): of virials, forces, magnetic forces, and energies; with `real`, from the labels."""
    found, n = [answers(network, one) for network in networks], len(one["types"])
    every = {name: np.array([answer[name] for answer in found]) for name in found[0]}
    labels: dict[str, Any] = dict.fromkeys(every)
    if real:
        labels |= {"virial": one["virial"] / n, "energy": one["energy"][:, None] / n}
        labels |= {name: one[name] for name in ("force", "force_mag")}
    columns = [
        *calc_model_devi_v(every["virial"] / n, labels["virial"]),
        *calc_model_devi_f(every["force"], labels["force"]),
        *calc_model_devi_f(every["force_mag"], labels["force_mag"]),
        calc_model_devi_e(every["energy"] / n, labels["energy"]),
    ]
    return np.stack([np.ravel(column) for column in columns], 1)


def descriptors(network: Any, one: dict[str, np.ndarray]) -> np.ndarray:
    """(F, n, D): of the atoms; rows of virtual atoms follow them."""
    coord, types, spin, box = given(one)
    rows, kinds = network.process_spin_input(coord.view(spin.shape), types, spin)[:2]
    found = network.backbone_model.forward_embedding(rows, kinds, box=box)["descriptor"]
    return found[:, : types.shape[1]].detach().numpy()


def changed_energies(network: Any, systems: list[dict[str, np.ndarray]], mode: str) -> np.ndarray:
    changed, data = copy.deepcopy(network), []
    for one in systems:
        coord, types, spin, box = given(one)
        counts = [len(one["types"])] * 2 + np.bincount(one["types"], minlength=2).tolist()
        data.append({
            "coord": coord.view(spin.shape), "atype": types, "spin": spin, "box": box,
            "natoms": torch.tensor([counts] * len(coord)), "energy": torch.from_numpy(one["energy"])[:, None],
            "find_energy": 1.0,
        })  # fmt: skip
    changed.change_out_bias(data, bias_adjust_mode=f"{mode}-by-statistic")
    return changed.backbone_model.atomic_model.out_bias.detach().numpy().ravel()


def main() -> None:
    draw, folder = Draw(5), HERE / "reference_spin" / "tools"
    folder.mkdir(parents=True, exist_ok=True)
    networks = []
    for k in range(2):
        networks.append(get_model(copy.deepcopy(SECTION)).double().eval())
        randomize(networks[-1], draw)
        tree = {"backend": "PyTorch", "model": networks[-1].serialize(), "model_def_script": SECTION}
        save_dp_model(str(folder / f"{k}.dp"), tree)
    systems = {name: frames(draw, types) for name, types in TYPES.items()}
    arrays = {f"{name}/{key}": value for name, one in systems.items() for key, value in one.items()}
    for name, one in systems.items():
        arrays[f"{name}/descriptor"] = descriptors(networks[0], one)
        arrays[f"{name}/deviation"] = deviations(networks, one, False)
        arrays[f"{name}/error"] = deviations(networks, one, True)
    for mode in ("change", "set"):
        arrays[f"bias/{mode}"] = changed_energies(networks[0], list(systems.values()), mode)
    np.savez_compressed(folder / "answers.npz", **arrays)


if __name__ == "__main__":
    main()
