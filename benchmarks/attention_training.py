"""Trains a DPA-1 with two layers of attention on water, in pieces of limited time, for machines available for minutes.

    python benchmarks/attention_training.py FOLDER --train ../shared/data/water/data_0 ../shared/data/water/data_1
        ../shared/data/water/data_2 --validate ../shared/data/water/data_3 --total 600 --seconds 75
        [--device cuda] [--rate 0.002] [--batch 1] [--json FILE]

The descriptor has the sizes of DeePMD-kit's example for water (25-50-100, axis 16, two layers of width 128, 138 places
within 6 A) and the smooth form of attention, which NVE needs. The fitting net is 240-240-240; float32; everything else
is mdops' default. Each call continues from FOLDER's checkpoint for --seconds, including reading of data and capture of
graphs, and writes the next checkpoint; clock.json in FOLDER lists the pieces. The learning rate reaches its end when
all pieces together have taken --total: each call plans the number of steps again from the speed so far (the first call
times some steps before its clock starts). `finished` marks the piece that ends the training. The last line has the
errors of all validation frames and of the saved model, FOLDER/model.safetensors, for benchmarks/energy_conservation.py.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from learning_curve import shown
from machine import machine

import mdops
from mdops.data.evaluation import evaluate
from mdops.train import load_dataset
from mdops.train.config.read import parse_config
from mdops.train.config.sections import Config
from mdops.train.loop.checkpoint import checkpoints
from mdops.train.loop.trainer import Trainer
from mdops.train.report.learning_curve import Report

TIMED, SPARE = 60, 0.96  # timed steps, and the share of the time that is planned for steps
DESCRIPTOR = {
    "type": "se_atten",
    "rcut": 6.0,
    "rcut_smth": 0.5,
    "sel": 138,
    "neuron": [25, 50, 100],
    "axis_neuron": 16,
    "type_one_side": True,
    "attn": 128,
    "attn_layer": 2,
    "attn_dotr": True,
    "smooth_type_embedding": True,
    "set_davg_zero": True,
}


class TimeIsUp(Exception):
    """The piece must end and write its checkpoint."""


def configured(arguments: argparse.Namespace, steps: int) -> Config:
    training = {
        "training_data": {"systems": arguments.train, "batch_size": arguments.batch},
        "validation_data": {"systems": arguments.validate, "batch_size": 16},
        "numb_steps": steps,
        "disp_freq": 200,
        "save_freq": 10**9,  # only at the end of each piece
        "seed": 1,
    }
    model = {"type_map": ["O", "H"], "descriptor": DESCRIPTOR, "fitting_net": {"neuron": [240, 240, 240]}}
    config = parse_config({"model": model, "training": training})
    config.learning_rate.start_lr = arguments.rate
    return config


def seconds_a_step(arguments: argparse.Namespace) -> float:
    """Wall time of a step, from steps like those of the training, after some untimed steps."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Trainer(configured(arguments, 10**6), folder, device=arguments.device)
        for _ in range(arguments.timed // 3):
            trial._advance()
        start = time.perf_counter()
        for _ in range(arguments.timed):
            loss, *_ = trial.branches[""].step(trial.frames.share(0, trial.processes), 1e-9, 1.0)
        float(loss)
        return (time.perf_counter() - start) / arguments.timed


def piece(
    arguments: argparse.Namespace, steps: int, start: float
) -> tuple[Trainer, list[dict[str, float]], dict[str, Any]]:
    """Trains until the time is up, or to the end. Returns lines of its learning curve, and a description."""
    curve: list[dict[str, float]] = []

    def line(report: Report) -> None:
        curve.append(shown(report, start))

    def stop_in_time(step: int) -> None:
        if step % 20:
            return
        if arguments.device != "cpu":
            torch.cuda.synchronize()  # graphs are launched ahead of the clock
        if time.perf_counter() - start > arguments.seconds:
            raise TimeIsUp

    earlier = checkpoints(arguments.folder, "model.ckpt")
    config = configured(arguments, steps)
    trainer = Trainer(config, arguments.folder, restart=bool(earlier), device=arguments.device)
    print(trainer.potential.explain("train"), flush=True)
    first, ready = trainer.step, time.perf_counter()
    try:
        trainer.run(line, stop_in_time)
    except TimeIsUp:
        trainer.save()
    end = time.perf_counter()
    took = {"first": first, "last": trainer.step, "seconds": end - start, "of_steps": end - ready}
    return trainer, curve, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", nargs="+", required=True)
    parser.add_argument("--validate", nargs="+", required=True)
    parser.add_argument("--total", type=float, default=600.0, help="s, of all pieces")
    parser.add_argument("--seconds", type=float, default=75.0, help="of this piece")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning_rate.start_lr")
    parser.add_argument("--batch", type=int, default=1, help="frames in a batch")
    parser.add_argument(
        "--timed", type=int, default=TIMED, help="steps that are timed before the first piece"
    )
    parser.add_argument("--commit", help="where the sources are no checkout")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    clock = arguments.folder / "clock.json"
    pieces: list[dict[str, Any]] = json.loads(clock.read_text()) if clock.exists() else []
    used, done = sum(p["seconds"] for p in pieces), pieces[-1]["last"] if pieces else 0
    each = pieces[-1]["of_steps"] / (done - pieces[-1]["first"]) if pieces else seconds_a_step(arguments)
    start = time.perf_counter()
    steps = done + max(int(SPARE * (arguments.total - used) / each), 1)
    print(f"{1e3 * each:.2f} ms a step, {done} of {steps} steps done, {used:.0f} s used", flush=True)
    trainer, curve, took = piece(arguments, steps, start)
    pieces.append(took)
    clock.write_text(json.dumps(pieces, indent=1) + "\n")
    model = mdops.load(arguments.folder / "model.safetensors", device=arguments.device)
    errors = evaluate(model, load_dataset(arguments.validate, model.type_map)).errors()
    answer = {
        "machine": machine(arguments.device, arguments.commit),
        "finished": trainer.step == trainer.steps,
        "steps": trainer.step,
        "planned": trainer.steps,
        "ms_a_step": 1e3 * took["of_steps"] / max(took["last"] - took["first"], 1),
        "rate": arguments.rate,
        "batch": arguments.batch,
        "pieces": pieces,
        "force_rmse": errors["forces"].rmse,
        "energy_rmse": errors["energy"].rmse,
    }
    print(json.dumps(answer, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps({**answer, "curve": curve}, indent=1) + "\n")


if __name__ == "__main__":
    main()
