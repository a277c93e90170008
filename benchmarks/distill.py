"""A large model distilled by `mdops learn`: errors against the teacher and against DFT, and the speed of both.

    mdops learn distill.yaml -o FOLDER/learned     # as examples/learn_distill.yaml
    python benchmarks/distill.py --teacher dpa3.pt --learned FOLDER/learned --test data_3 [--direct MODEL] [--json FILE]

The test has frames with DFT labels. The student's results are compared with these labels and with the
teacher's results for the same frames. `--direct` is a model of the student's kind that was trained on the DFT
labels on which the teacher was trained. Times are processor times of energy, forces and virial with the calculator,
teacher and student in turn; the smallest of each counts, so they hold on a machine that others use. With `--device
cuda`, steps of NVE in the engine are timed, too, for a frame repeated to `--atoms` or more.
"""

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ase import Atoms
from cuda_inference import repeated
from machine import machine, report
from message_passing_gpu import engine_step

from mdops.calculator import MDOps
from mdops.data.dataset import load_dataset
from mdops.data.evaluation import Evaluation, evaluate
from mdops.learn.rounds import finished_rounds
from mdops.loading import load

REPEATS = 5


def errors(found: Evaluation) -> dict[str, float]:
    of = found.errors()
    return {"force_rmse": of["forces"].rmse, "energy_rmse": of["energy"].rmse}


def against(found: Evaluation, other: Evaluation) -> dict[str, float]:
    """Errors of results, with another model's results as labels."""
    labels = {name: other.predictions.get(name, label) for name, label in found.data.labels.items()}
    return errors(replace(found, data=replace(found.data, labels=labels)))


def seconds(models: dict[str, MDOps], atoms: Atoms) -> dict[str, float]:
    """The smallest processor time of energy, forces and stress of each, taken in turn."""
    least = dict.fromkeys(models, float("inf"))
    for repeat in range(REPEATS + 1):
        for name, model in models.items():
            atoms.rattle(0.01, seed=repeat)
            began = time.process_time()
            model.calculate(atoms, ["energy", "forces", "stress"])
            if repeat:  # the first call includes preparations
                least[name] = min(least[name], time.process_time() - began)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--learned", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--direct", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--atoms", type=int, default=1536)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    files = {"teacher": args.teacher, "student": args.learned / "model.safetensors"}
    if args.direct:
        files["trained on DFT itself"] = args.direct
    models = {name: load(path, overflow="extend") for name, path in files.items()}
    data = load_dataset(args.test, models["student"].model.type_map)
    found = {name: evaluate(model, data) for name, model in models.items()}
    rounds = finished_rounds(args.learned)
    atoms = Atoms(
        [data.type_map[t] for t in data.types[: data.offsets[1]]],
        data.positions[: data.offsets[1]],
        cell=data.cell[0],
        pbc=data.pbc[0],
    )
    steps = {}
    if args.device == "cuda":
        box = repeated(atoms, args.atoms)
        for name in ("teacher", "student"):
            model = load(files[name], device="cuda", overflow="extend")
            steps[name] = 1e3 * engine_step(model, box)["engine_ms"] / len(box)
    times = seconds({name: MDOps(models[name]) for name in ("teacher", "student")}, atoms)
    answer: dict[str, Any] = {
        "machine": machine(args.device) | {"load": os.getloadavg()[0]},
        "learn": {
            "calls": sum(s.calls for _, s in rounds),
            "minutes": sum(sum(s.seconds.values()) for _, s in rounds) / 60,
            "processor minutes": sum(s.cpu_seconds for _, s in rounds) / 60,
            "errors on fresh frames, round by round": [s.errors for _, s in rounds if s.errors],
        },
        "frames": len(data),
        "against DFT": {name: errors(e) for name, e in found.items()},
        "student against the teacher": against(found["student"], found["teacher"]),
        "microseconds of processor time an atom": {
            name: 1e6 * value / len(atoms) for name, value in times.items()
        },
        "microseconds an atom of a step on the GPU": steps,
    }
    report(answer, args.json)


if __name__ == "__main__":
    main()
