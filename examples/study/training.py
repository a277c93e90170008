"""Trains a model on the data of `sampling`."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mdops import Potential
from mdops.train import Trainer, read_config
from mdops.train.report.progress import TrainingProgress

NETS = {  # small nets: steps are fast, and the smooth reference energies need no larger ones
    "descriptor": {"neuron": [8, 16, 32], "axis_neuron": 6, "rcut_smth": 0.5, "type_one_side": True},
    "fitting_net": {"neuron": [32, 32, 32]},
}


def write_input(
    folder: Path, type_map: list[str], cutoff: float, steps: int, batch: int, loss: Mapping[str, float]
) -> Path:
    """Writes `input.json`, DeePMD-kit's training input, for the data in the folder."""
    descriptor = {"type": "se_e2_a", "rcut": cutoff, **NETS["descriptor"]}
    tree: dict[str, Any] = {
        "model": {"type_map": type_map, "descriptor": descriptor, "fitting_net": NETS["fitting_net"]},
        "training": {
            "training_data": {"systems": str(folder / "data/training.extxyz"), "batch_size": batch},
            "validation_data": {
                "systems": str(folder / "data/validation.extxyz"),
                "batch_size": 10,
                "numb_btch": 2,
            },
            "numb_steps": steps,
            "seed": 1,
            "disp_freq": max(steps // 50, 1),
            "save_freq": max(steps // 4, 1),
            "max_ckpt_keep": 1,
        },
        "learning_rate": {"type": "exp", "start_lr": 0.01, "stop_lr": 1e-5, "smooth": True},
        "loss": dict(loss),
    }
    path = folder / "input.json"
    path.write_text(json.dumps(tree, indent=2) + "\n")
    return path


def train(input_file: Path, folder: Path) -> Potential:
    """Trains into the folder, with a progress bar: model.safetensors, lcurve.out and checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(read_config(input_file), os.fspath(folder))
    labels = {name: branch.loss.labels for name, branch in trainer.branches.items()}
    with TrainingProgress(0, trainer.steps, labels) as progress:
        return trainer.run(progress.report, progress.update).eval()
