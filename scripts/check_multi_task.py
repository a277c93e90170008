"""Trains two models that share a descriptor and a fitting with mdops and with DeePMD-kit, from the same weights.

    python scripts/check_multi_task.py PYTHON_WITH_DEEPMD --data DIR

`--data` has systems of water, data_0 and data_1, of which one frame each is used, so that the batches are the same.
Both programs make a few steps of the first model. mdops starts with DeePMD-kit's first weights, computes
in float64 and uses no splines. The script prints the differences of the data's statistics in both models, and of
the steps' changes of the results of both.
"""

import argparse
import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts")]

from check_output_training import some_frames_of, train  # noqa: E402

import mdops  # noqa: E402
from mdops.data.evaluation import evaluate  # noqa: E402
from mdops.train import load_dataset  # noqa: E402

STEPS, LIMIT = 4, 1e-5
NAMES = ("one", "two")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", type=Path, help="a Python with deepmd-kit and its PyTorch backend")
    parser.add_argument("--data", type=Path, required=True, help="a folder of data_0 and data_1")
    parser.add_argument("--work", type=Path, default=Path("multi_task"), help="a folder for all runs")
    args = parser.parse_args()
    args.work = args.work.absolute()
    frames = [some_frames_of(args.data / f"data_{k}", args.work / f"data_{k}", 1) for k in range(2)]
    given = tree(frames)
    first = train(args, "deepmd", args.work / "first", with_steps(given, 0))["model"]
    theirs = train(args, "deepmd", args.work / "same", with_steps(given, STEPS))["model"]
    own = with_steps(given, STEPS)
    own["training"] |= {"precision": "float64", "spline": False}
    mine = Path(train(args, "mdops", args.work / "same", own, "--init-model", first)["model"]).parent
    new = Path(train(args, "mdops", args.work / "new", with_rate(own, 1e-300))["model"]).parent
    result: dict[str, Any] = {}
    for name in NAMES:
        begun, stepped = (mdops.load(m, head=name, dtype="float64", spline=False) for m in (first, theirs))
        of_mine, of_new = (
            mdops.load(m / name / "model.safetensors", dtype="float64", spline=False) for m in (mine, new)
        )
        result[name] = {
            "statistics": statistics(of_new.model, begun.model),
            "steps": changes([evaluated(m, frames[0]) for m in (of_mine, stepped, begun)]),
        }
    print(json.dumps(result, indent=1))
    return 1 if max(value for row in result.values() for value in row.values()) > LIMIT else 0


def tree(frames: list[Path]) -> dict[str, Any]:
    """The input, without the number of steps."""
    shared = {
        "types": ["O", "H"],
        "descriptor": {
            "type": "se_atten_v2", "rcut": 6.0, "rcut_smth": 0.5, "sel": 138, "neuron": [10, 20], "axis_neuron": 4,
            "attn_layer": 0, "tebd_dim": 4, "seed": 1, "precision": "float64",
        },
        "fitting": {"neuron": [20, 20], "seed": 1, "precision": "float64", "dim_case_embd": 2},
    }  # fmt: skip
    model = {"type_map": "types", "descriptor": "descriptor", "fitting_net": "fitting"}
    loss = {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1}
    return {
        "model": {"shared_dict": shared, "model_dict": {name: dict(model) for name in NAMES}},
        "loss_dict": {name: dict(loss) for name in NAMES},
        "learning_rate": {"type": "exp", "start_lr": 1e-3, "stop_lr": 1e-8, "decay_steps": 5000, "decay_rate": 0.9},
        "training": {
            "data_dict": {
                name: {"training_data": {"systems": [str(path)], "batch_size": 1}}
                for name, path in zip(NAMES, frames, strict=True)
            },
            "model_prob": {"one": 1.0, "two": 0.0},
            "seed": 1,
            "disp_freq": 1,
            "save_freq": STEPS,
        },
    }  # fmt: skip


def with_steps(tree: dict[str, Any], steps: int) -> dict[str, Any]:
    tree = copy.deepcopy(tree)
    tree["training"]["numb_steps"] = steps
    return tree


def with_rate(tree: dict[str, Any], rate: float) -> dict[str, Any]:
    tree = copy.deepcopy(tree)
    tree["learning_rate"] = {"type": "exp", "start_lr": rate, "stop_lr": rate}
    return tree


def statistics(own: Any, other: Any) -> float:
    """Differences of the descriptor's averages and deviations and the types' averages, relative to the largest."""
    pairs = [(own.descriptor.mean, other.descriptor.mean), (own.descriptor.std, other.descriptor.std),
             (own.out_bias, other.out_bias)]  # fmt: skip
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def evaluated(model: Any, system: Path) -> np.ndarray:
    found = evaluate(model, load_dataset([str(system)], model.type_map)).predictions
    return np.concatenate([found["energy"].ravel(), found["forces"].ravel()])


def changes(answers: list[np.ndarray]) -> float:
    """Difference between the programs' changes in the steps; 0 if the steps change nothing."""
    own, other, begun = answers
    moved = float(np.linalg.norm(other - begun))
    return float(np.linalg.norm(own - other)) / moved if moved else 0.0


if __name__ == "__main__":
    raise SystemExit(main())
