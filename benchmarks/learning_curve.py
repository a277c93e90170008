"""The accuracy of a training against wall time: errors on validation frames.

    python benchmarks/learning_curve.py --train ../shared/data/water/data_0 ../shared/data/water/data_1
        ../shared/data/water/data_2 --validate ../shared/data/water/data_3 --seconds 600
        [--device cuda] [--recipe deepmd --steps 15000 --curve ../shared/reference/water_se_a/lcurve.out]
        [--rate 0.002] [--smoothing 0] [--model FILE] [--json FILE] [--plot FILE]

The standard net (25-50-100, axis 16, fitting 240-240-240, 6 A), one frame per batch, float32. `--recipe mdops` leaves
out the sections learning_rate, loss and optimizer of the input, so that mdops' own are used; `--recipe deepmd` uses
those of DeePMD-kit's water example. The clock starts with the reading of data; the time of validations is
included. With --seconds, the number of steps is what fits into it: some steps are timed before the clock starts,
because the learning rate depends on that number. The last line has the errors of all validation frames with the saved
model, and the intervals of its splines in simulations. --rate and --smoothing replace the recipe's
learning_rate.start_lr and training.smoothing. --curve draws another lcurve.out against steps.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine

import mdops
from mdops.data.evaluation import evaluate
from mdops.train import load_dataset
from mdops.train.config.read import parse_config
from mdops.train.config.sections import Config
from mdops.train.loop.trainer import Trainer
from mdops.train.report.learning_curve import Report, read_curve

TIMED, SPARE = 60, 0.95  # timed steps, and the share of the time that is planned for steps
LINES = 80
RECIPES: dict[str, dict[str, Any]] = {
    "mdops": {},
    "deepmd": {
        "learning_rate": {"type": "exp", "start_lr": 1e-3, "stop_lr": 3.51e-8, "decay_steps": 500},
        "loss": {
            "type": "ener",
            "start_pref_e": 0.02,
            "limit_pref_e": 1,
            "start_pref_f": 1000,
            "limit_pref_f": 1,
        },
        "optimizer": {"type": "Adam"},
    },
}


def training_input(arguments: argparse.Namespace, steps: int) -> dict[str, Any]:
    training = {
        "training_data": {"systems": arguments.train, "batch_size": 1},
        "validation_data": {"systems": arguments.validate, "batch_size": 16},
        "numb_steps": steps,
        "disp_freq": max(1, min(steps // LINES, 200)),
        "save_freq": steps,
        "seed": arguments.seed,
    }
    descriptor = {
        "type": "se_e2_a",
        "rcut": 6.0,
        "rcut_smth": 0.5,
        "sel": [46, 92],
        "neuron": [25, 50, 100],
        "axis_neuron": 16,
        "type_one_side": True,
    }
    model = {"type_map": ["O", "H"], "descriptor": descriptor, "fitting_net": {"neuron": [240, 240, 240]}}
    return {"model": model, "training": training, **RECIPES[arguments.recipe]}


def configured(arguments: argparse.Namespace, steps: int) -> Config:
    config = parse_config(training_input(arguments, steps))
    if arguments.rate is not None:
        config.learning_rate.start_lr = arguments.rate
    if arguments.smoothing is not None:
        config.training.smoothing = arguments.smoothing
    return config


def planned_steps(arguments: argparse.Namespace) -> int:
    """The number of steps that fits into the time."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Trainer(configured(arguments, 10**6), folder, device=arguments.device)
        for _ in range(TIMED // 3):
            trial._advance()
        start = time.perf_counter()
        for _ in range(TIMED):
            float(trial.branches[""].step(trial.frames.share(0, trial.processes), 1e-9, 1.0)[0])
        each = (time.perf_counter() - start) / TIMED
    return max(int(SPARE * arguments.seconds / each), 100)


def shown(report: Report, start: float) -> dict[str, float]:
    """A row of the curve, printed."""
    validation = report.validation or {}
    row = {
        "step": report.step,
        "seconds": time.perf_counter() - start,
        "force_rmse": validation["forces"],
        "energy_rmse": validation["energy"],
        "rate": report.rate,
    }
    print("  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    return row


def train(arguments: argparse.Namespace, steps: int) -> tuple[list[dict[str, float]], dict[str, float]]:
    """The curve, and the errors of the saved model on all validation frames."""
    curve: list[dict[str, float]] = []
    start = time.perf_counter()

    def line(report: Report) -> None:
        curve.append(shown(report, start))

    with tempfile.TemporaryDirectory() as folder:
        Trainer(configured(arguments, steps), folder, device=arguments.device).run(line)
        seconds = time.perf_counter() - start
        model = mdops.load(Path(folder, "model.safetensors"))
        if arguments.model:
            model.save(arguments.model)
    errors = evaluate(model, load_dataset(arguments.validate, model.type_map)).errors()
    return curve, {
        "steps": steps,
        "seconds": seconds,
        "force_rmse": errors["forces"].rmse,
        "force_mae": errors["forces"].mae,
        "energy_rmse": errors["energy"].rmse,
        "intervals": model.grid.intervals if model.grid else 0,
    }


def time_to(curve: list[dict[str, float]], force_rmse: float) -> float | None:
    """Seconds until the validation error was first that small."""
    return next((row["seconds"] for row in curve if row["force_rmse"] <= force_rmse), None)


def plot(curve: list[dict[str, float]], other: Path | None, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    key, label = ("seconds", "seconds") if other is None else ("step", "steps")
    axes.loglog([r[key] for r in curve], [1e3 * r["force_rmse"] for r in curve], label="mdops")
    if other is not None:
        theirs = read_curve(other)
        axes.loglog(theirs["step"], 1e3 * theirs["rmse_f_val"], label="DeePMD-kit")
    axes.set(xlabel=label, ylabel="force RMSE, meV/A", title="Water, frames not trained on")
    axes.grid(which="both", alpha=0.25)
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--train", nargs="+", required=True)
    parser.add_argument("--validate", nargs="+", required=True)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--seconds", type=float)
    length.add_argument("--steps", type=int)
    parser.add_argument("--recipe", choices=RECIPES, default="mdops")
    parser.add_argument("--rate", type=float, help="learning_rate.start_lr")
    parser.add_argument("--smoothing", type=float, help="training.smoothing")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--curve", type=Path, help="another lcurve.out to compare with")
    parser.add_argument("--commit", help="where the sources are no checkout")
    parser.add_argument("--model", type=Path, help="where to save the model")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    host = machine(arguments.device, arguments.commit)
    print(host)
    curve, final = train(arguments, arguments.steps or planned_steps(arguments))
    changes = {name: getattr(arguments, name) for name in ("rate", "smoothing")}
    answer: dict[str, Any] = {"machine": host, "recipe": arguments.recipe, **changes, "final": final}
    answer["seconds_to"] = {str(level): time_to(curve, level) for level in (0.137, 0.1, 0.07, 0.06)}
    if arguments.curve:
        theirs = read_curve(arguments.curve)
        ours = np.interp(theirs["step"], [r["step"] for r in curve], [r["force_rmse"] for r in curve])
        answer["over_deepmd_kit"] = dict(
            zip(map(int, theirs["step"]), (ours / theirs["rmse_f_val"]).tolist(), strict=True)
        )
    print(json.dumps(answer, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps({**answer, "curve": curve}, indent=1) + "\n")
    if arguments.plot:
        plot(curve, arguments.curve, arguments.plot)


if __name__ == "__main__":
    main()
