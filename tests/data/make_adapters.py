"""Makes tests/data/adapters.npz: what DeePMD-kit trains of models with low-rank adapters, and some of its steps.

Needs deepmd-kit 3.2.0 with its PyTorch backend:

    python tests/data/make_adapters.py

`trained` has, for the models of reference_kinds/dpa4_* and of reference_spin/dpa4, the names of the trained weights of
the descriptor, those of the weights with adapters, and the number of trained parameters of the whole model. The steps
are of dpa4_wide and its first system, by each optimizer in `options`: the answers `<optimizer>/energy` (steps + 1,
frames) and `<optimizer>/forces` before each step and after the last, and at the end of the average of the weights,
`<optimizer>/averaged_forces`. The loss is a weighted sum of energies and forces (`weights_of`).
"""

import json
from pathlib import Path

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import load_dp_model
from deepmd.pt.model.descriptor.sezm_nn import apply_lora_to_sezm
from deepmd.pt.model.model.model import BaseModel
from deepmd.pt.optimizer.hybrid_muon import HybridMuonOptimizer
from deepmd.pt_expt.train.ema import ModelEMA

HERE = Path(__file__).parent
CASE, STEPS = "dpa4_wide", 4
OPTIONS = {"rank": 2, "alpha": 3.0, "rate": 0.01, "weight_decay": 0.1, "max_norm": 0.5, "ema_decay": 0.1}
ADAPTERS = ("A_by_l", "B_by_l", "A_m0", "B_m0", "A_m", "B_m")
DESCRIPTOR = "atomic_model.descriptor."


def adapted(path, rank, alpha=None):
    model = BaseModel.deserialize(load_dp_model(str(path))["model"])
    return apply_lora_to_sezm(model, rank=rank, alpha=alpha)


def trained_of(model):
    names, changed = [], set()
    for name, weight in model.named_parameters():
        own = [part for part in name.removeprefix(DESCRIPTOR).split(".") if part in ADAPTERS]
        if own:
            changed.add(base(name))
        elif weight.requires_grad and name.startswith(DESCRIPTOR):
            names.append(name.removeprefix(DESCRIPTOR))
    number = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {"trained": sorted(names), "adapted": sorted(changed), "number": number}


def base(name):
    """The name of the weight of an adapter."""
    found = name.removeprefix(DESCRIPTOR)
    for own in ADAPTERS:
        found = found.replace(f".{own}", ".weight" + own[1:].replace("_by_l", ""))
    return found


def weights_of(shape):
    """Of the answers in the loss."""
    return np.cos(np.arange(np.prod(shape))).reshape(shape)


def steps_of(optimizer):
    model = adapted(HERE / "reference_kinds" / CASE / "model.dp", OPTIONS["rank"], OPTIONS["alpha"])
    model.train()
    # The first matrices, in the order of the weights' names.
    random = np.random.default_rng(0)
    first = {base(name): p for name, p in model.named_parameters() if ".A_" in name}
    for name in sorted(first):
        with torch.no_grad():
            first[name].copy_(torch.from_numpy(random.normal(size=tuple(first[name].shape))))
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    weights, options = (
        [p for _, p in trained],
        {"lr": OPTIONS["rate"], "weight_decay": OPTIONS["weight_decay"]},
    )
    if optimizer == "Adam":
        rule = torch.optim.Adam(weights, **options)
    else:
        rule = HybridMuonOptimizer(weights, named_parameters=trained, enable_gram=False, **options)
    average, answers = ModelEMA(model, OPTIONS["ema_decay"]), []
    for _ in range(STEPS):
        found = evaluate(model)
        answers.append(found)
        rule.zero_grad()
        loss = sum((value * torch.from_numpy(weights_of(value.shape))).sum() for value in found)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIONS["max_norm"])
        rule.step()
        average.update(model)
    answers.append(evaluate(model))
    with average.apply_shadow(model):
        _, forces = evaluate(model)
    energy, force = (torch.stack(values).detach().numpy() for values in zip(*answers, strict=True))
    return {"energy": energy, "forces": force, "averaged_forces": forces.detach().numpy()}


def evaluate(model):
    """Energies (frames,) and forces (frames, atoms, 3) of the first system."""
    with np.load(HERE / "reference_kinds" / CASE / "systems.npz") as file:
        name = file.files[0].split("/")[0]
        positions, types, cell = (
            torch.from_numpy(file[f"{name}/{key}"]) for key in ("positions", "types", "cell")
        )
    frames = len(positions)
    found = model(positions, types.long().expand(frames, -1), box=cell.reshape(frames, 9))
    return found["energy"].reshape(frames), found["force"]


def main():
    arrays, trained = {}, {}
    folders = [*sorted((HERE / "reference_kinds").glob("dpa4_*")), HERE / "reference_spin" / "dpa4"]
    for folder in folders:
        trained[folder.name] = trained_of(adapted(folder / "model.dp", OPTIONS["rank"]))
    for optimizer in ("Adam", "HybridMuon"):
        arrays |= {f"{optimizer}/{name}": value for name, value in steps_of(optimizer).items()}
    texts = {"options": json.dumps(OPTIONS), "trained": json.dumps(trained)}
    np.savez_compressed(HERE / "adapters.npz", **texts, **arrays)


if __name__ == "__main__":
    main()
