"""Makes tests/data/denoising/: a dpa4 model with the heads of DeePMD-kit's loss dens, as .dp and .pt.

Beside what it answers with and without noise, the file has the loss, and its gradients by some weights.

Needs deepmd-kit 3.2.0 with its PyTorch backend:

    python tests/data/make_denoising.py
"""

import copy
import json
from pathlib import Path

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import save_dp_model
from deepmd.pt.loss.dens import DeNSLoss
from deepmd.pt.model.model import get_model
from deepmd.pt.train.wrapper import ModelWrapper

HERE = Path(__file__).resolve().parent / "denoising"
MODEL = {
    "type": "dpa4",
    "type_map": ["Cu", "Al"],
    "descriptor": {
        "sel": 60,
        "rcut": 3.5,
        "channels": 3,
        "n_radial": 4,
        "lmax": 2,
        "n_blocks": 1,
        "mixing_layers": 1,
        "extra_node_l": 1,
        "edge_norm": False,
        "precision": "float64",
        "seed": 1,
    },
    "fitting_net": {"neuron": [4], "precision": "float64", "seed": 1},
}
LOSS = {"start_pref_e": 3.0, "limit_pref_e": 2.0, "start_pref_f": 5.0, "limit_pref_f": 1.0}
STEPS = {"starter_learning_rate": 1e-3, "dens_std": 0.05, "dens_denoising_pos_coefficient": 7.0}
RATE = 4e-4
HEADS = "dens_fitting_net."
WEIGHTS = [
    "descriptor.type_embedding.adam_type_embedding",
    HEADS + "energy_head.filter_layers.networks.0.output_layer.matrix",
    HEADS + "force_embedding.proj.weight",
    HEADS + "force_embedding.proj.bias",
    HEADS + "direct_force_head.proj.weight",
    HEADS + "denoising_head.proj.weight",
]


def new_model(rng):
    model = get_model(copy.deepcopy(MODEL)).double()
    model.set_active_mode("dens")
    own = model.atomic_model
    with torch.no_grad():
        for parameter in own.parameters():
            if not parameter.any():
                parameter.copy_(torch.from_numpy(0.5 * rng.normal(size=tuple(parameter.shape))))
        own.out_bias.copy_(torch.from_numpy(rng.normal(size=own.out_bias.shape)))
        own.out_std.fill_(0.7)
        own.dens_force_rmsd.fill_(1.3)
    return model


def main():
    rng = np.random.default_rng(5)
    model = new_model(rng)
    atoms = 8
    sites = 2.4 * np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(8, 3)
    coord = torch.from_numpy(sites + rng.uniform(-0.3, 0.3, (2, atoms, 3)))
    cell = torch.from_numpy(np.stack([np.diag([5.0, 5.5, 6.0])] * 2) + rng.uniform(-0.2, 0.2, (2, 3, 3)))
    types = torch.from_numpy(np.array([[0, 1, 1, 0, 1, 0, 0, 1]] * 2))
    label = {
        "energy": torch.from_numpy(rng.normal(size=(2, 1))),
        "force": torch.from_numpy(rng.normal(size=(2, atoms, 3))),
        "find_energy": 1.0,
        "find_force": 1.0,
    }
    moved = torch.from_numpy(rng.random((2, atoms)) < 0.5)
    shift = torch.from_numpy(rng.normal(0, STEPS["dens_std"], (2, atoms, 3))) * moved[..., None]
    inputs = {"coord": coord, "atype": types, "box": cell.reshape(2, 9)}
    given = {**inputs, "coord": coord + shift, "force_input": label["force"], "noise_mask": moved}
    arrays = {
        **{name: value.numpy() for name, value in {**inputs, "moved": moved, "shift": shift}.items()},
        **{name: label[name].numpy() for name in ("energy", "force")},
    }
    for name, one in (("clean", inputs), ("noisy", given)):
        found = model(**one)
        for key in ("energy", "atom_energy", "force", "denoising_force_norm"):
            arrays[f"{name}_{key}"] = found[key].detach().numpy()
    parameters = dict(model.atomic_model.named_parameters())
    for function in ("mae", "mse"):
        loss = DeNSLoss(loss_func=function, **LOSS, **STEPS)
        for name, noisy in (("clean", False), ("noisy", True)):
            own, mask = (given, moved) if noisy else (inputs, torch.zeros_like(moved))
            target = shift / STEPS["dens_std"]
            prepared = own, label["force"], target, mask, ~mask, noisy
            loss._prepare_dens_inputs = lambda *_, prepared=prepared, **__: prepared
            _, value, _ = loss(inputs, model, label, atoms, RATE)
            arrays[f"{name}_{function}"] = value.detach().numpy()
            gradients = torch.autograd.grad(value, [parameters[w] for w in WEIGHTS], allow_unused=True)
            for weight, gradient in zip(WEIGHTS, gradients, strict=True):
                if gradient is not None:
                    arrays[f"{name}_{function}/{weight}"] = gradient.numpy()
    HERE.mkdir(exist_ok=True)
    np.savez_compressed(HERE / "answers.npz", **arrays)
    save_dp_model(str(HERE / "model.dp"), {"backend": "PyTorch", "model": model.serialize()})
    (HERE / "definition.json").write_text(json.dumps(MODEL) + "\n")
    state = ModelWrapper(model, model_params=copy.deepcopy(MODEL)).state_dict()
    torch.save({"model": state, "optimizer": {}}, HERE / "model.pt")


if __name__ == "__main__":
    main()
