"""Makes tests/data/muon.npz: weights after steps of DeePMD-kit's HybridMuon and AdaMuon with given gradients, by sets
of options.

Needs deepmd-kit 3.2.0 with its PyTorch backend, and a C++ compiler, with which PyTorch compiles for it:

    python tests/data/make_muon.py

`<set>/<weight>/start`, `<set>/<weight>/gradients` (steps, ...) and `<set>/<weight>/end` are float32; `table` is a
weight that goes by Adam by its name.
"""

import json
from pathlib import Path

import numpy as np
import torch
from deepmd.pt.optimizer.adamuon import AdaMuonOptimizer
from deepmd.pt.optimizer.hybrid_muon import HybridMuonOptimizer

SHAPES = {
    "wide": (4, 9),
    "tall": (12, 5),
    "square": (6, 6),
    "other": (6, 6),
    "column": (7, 1),
    "vector": (5,),
    "slices": (3, 4, 6),
    "table": (3, 5),
}
STEPS, RATE = 5, 0.02
SETS = {
    "default": {},
    "plain": {"enable_gram": False, "magma_muon": False, "weight_decay": 0.0},
    "flat": {"muon_mode": "flat", "lr_adjust": 8.0, "adam_beta1": 0.8, "adam_beta2": 0.97, "momentum": 0.9},
    "2d": {"muon_mode": "2d", "lr_adjust_coeff": 0.2, "weight_decay": 0.1},
    "ada": {},
    "ada-unadjusted": {"lr_adjust": 0.0, "weight_decay": 0.1, "momentum": 0.8, "lr_adjust_coeff": 0.5},
}


def main():
    random, arrays = np.random.default_rng(0), {}
    for name, options in SETS.items():
        start = {key: random.normal(size=shape).astype(np.float32) for key, shape in SHAPES.items()}
        weights = {key: torch.nn.Parameter(torch.from_numpy(value.copy())) for key, value in start.items()}
        given = dict(options)
        betas = given.pop("adam_beta1", 0.9), given.pop("adam_beta2", 0.95)
        names = [("adam_table" if key == "table" else key, p) for key, p in weights.items()]
        if name.startswith("ada"):
            optimizer = AdaMuonOptimizer(weights.values(), lr=RATE, adam_betas=betas, **given)
        else:
            optimizer = HybridMuonOptimizer(
                weights.values(), lr=RATE, adam_betas=betas, named_parameters=names, **given
            )
        gradients = {key: [] for key in SHAPES}
        for step in range(STEPS):
            for key, p in weights.items():
                p.grad = torch.from_numpy((10.0**-step * random.normal(size=p.shape)).astype(np.float32))
                gradients[key].append(p.grad.numpy().copy())
            optimizer.step()
        for key in SHAPES:
            arrays[f"{name}/{key}/start"] = start[key]
            arrays[f"{name}/{key}/gradients"] = np.array(gradients[key])
            arrays[f"{name}/{key}/end"] = weights[key].detach().numpy()
    options = json.dumps({"rate": RATE, "sets": SETS})
    np.savez_compressed(Path(__file__).parent / "muon.npz", options=options, **arrays)


if __name__ == "__main__":
    main()
