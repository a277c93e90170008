"""`mdops learn` for a Cu-Al alloy from EMT beside trainings on random frames of EMT's own dynamics.

    python benchmarks/learn.py --seed 0 --out FOLDER [--json FILE]

Four cells of 32 atoms, at 300 to 1,000 K and at 2,000 K, where they melt (examples/learn_alloy.py). The test has
160 frames of EMT's dynamics, ten of each cell at each temperature. First, a training on 400 random frames of
other such dynamics. Then `mdops learn` with half of these calls; its target is the error of that training
plus 10 meV/A. Then a training on as many random frames as it made calls. All have the same nets, and the last
trainings the same number of steps. The guard is tested on frames that are hotter, compressed and stretched,
and on surfaces. CPU times are of this process and its children, so they hold on a machine that others use.
"""

import argparse
import copy
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import torch
from ase import Atoms
from ase.calculators.emt import EMT
from machine import machine, report

import mdops
from mdops.applicability import USUAL
from mdops.data.dataset import load_dataset
from mdops.data.evaluation import evaluate
from mdops.learn import learn, parse_config
from mdops.learn.labels import read_frames
from mdops.learn.rounds import finished_rounds
from mdops.learn.students import answers_of, training_input
from mdops.learn.trust import rank_correlation
from mdops.train import Trainer
from mdops.train import parse_config as parse_training

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from learn_alloy import STUDENTS, TEMPERATURES, TIMESTEP, cells, tree
from study.sampling import hot_frames

TYPES = ["Cu", "Al"]
FRAMES, TESTED, ABOVE = 400, 160, 0.010  # eV/A


def cpu_seconds() -> float:
    """Of this process and of its children that ended."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def dynamics(path: Path, frames: int, seed: int) -> Path:
    """Frames of EMT's dynamics of each cell at each temperature, written once."""
    if not path.exists():
        random, found = np.random.default_rng(seed), []
        each = frames // (4 * len(TEMPERATURES))
        for cell in cells():
            for temperature in TEMPERATURES:
                found += hot_frames(
                    cell, EMT(), random, temperature=temperature, timestep=TIMESTEP, frames=each, interval=40
                )
        ase.io.write(path, [found[k] for k in random.permutation(len(found))])
    return path


def beyond(path: Path, seed: int) -> Path:
    """Frames outside of the learned domain: hotter, compressed, stretched, and surfaces."""
    if path.exists():
        return path
    random, found = np.random.default_rng(seed), []
    for cell in cells():
        for scale, temperature in ((1.0, 4000), (0.93, 1000), (1.08, 1000)):
            atoms = cell.copy()
            atoms.set_cell(scale * atoms.cell.array, scale_atoms=True)
            found += hot_frames(
                atoms, EMT(), random, temperature=temperature, timestep=TIMESTEP, frames=5, interval=20
            )
        slab = cell.copy()
        slab.set_cell(slab.cell.array + np.diag([0, 0, 8.0]))
        found += hot_frames(slab, EMT(), random, temperature=600, timestep=TIMESTEP, frames=5, interval=20)
    ase.io.write(path, found)
    return path


def train(folder: Path, data: Path, steps: int, seed: int) -> dict[str, float]:
    """A training on all frames of a file; returns errors and its CPU time."""
    began = cpu_seconds()
    given = training_input(STUDENTS, [data], TYPES, steps, seed)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "done").exists():
        Trainer(parse_training(given), folder).run()
        (folder / "done").touch()
    return {"cpu_seconds": cpu_seconds() - began}


def errors(model: Path, test: Path) -> dict[str, float]:
    found = evaluate(mdops.load(model, overflow="extend"), load_dataset(test, TYPES)).errors()
    return {"force_rmse": found["forces"].rmse, "energy_rmse": found["energy"].rmse}


def taught(out: Path, target: float, seed: int) -> dict[str, Any]:
    """The loop with this target, its cost, and its errors on the test frames in each round."""
    folder = out / "learned"
    folder.mkdir(exist_ok=True)
    ase.io.write(folder / "start.extxyz", cells())
    given = copy.deepcopy(tree(folder.absolute() / "start.extxyz"))
    given["seed"] = seed
    given["targets"]["forces"] = target
    began, cpu = time.perf_counter(), cpu_seconds()
    result = learn(parse_config(given), folder)
    wall, spent = time.perf_counter() - began, cpu_seconds() - cpu
    rounds = finished_rounds(folder)
    return {
        "target": target,
        "reached": result.reached,
        "calls": result.calls,
        "labels of the last training": rounds[-1][1].labels,
        "wall_seconds": wall,
        "cpu_seconds": spent + sum(s.cpu_seconds for _, s in rounds),
        "own fresh frames": result.errors,
        "rounds": [
            {"kind": s.kind, "labels": s.labels, "calls": s.calls, "errors": s.errors, "stopped": s.stopped,
             "runs": s.runs, "seconds": s.seconds}
            for _, s in rounds
        ],
    }  # fmt: skip


def guarded(folder: Path, test: Path, outside: Path, target: float) -> dict[str, Any]:
    """How well the committee's deviation predicts errors, within the domain and outside."""
    names = ["model.safetensors", *sorted(p.name for p in folder.glob("committee-*.safetensors"))]
    models = [mdops.load(folder / name, overflow="extend") for name in names]
    rounds = finished_rounds(folder)
    explored = [f for path in (rounds[-1][0].folder / "explored").glob("*.extxyz") for f in read_frames(path)]
    visited, found = np.array([frame.info["deviation"] for frame in explored]), dict[str, Any]()
    levels = {"usual": float(np.quantile(visited, USUAL)), "largest": float(visited.max())}
    parts = {
        name: answers_of(models, load_dataset(path, TYPES))
        for name, path in (("within", test), ("beyond", outside))
    }
    both = [
        np.concatenate(values)
        for values in zip(*((a.deviation, a.frame_errors(0)) for a in parts.values()), strict=True)
    ]
    for name, (deviation, error) in {
        **{name: (a.deviation, a.frame_errors(0)) for name, a in parts.items()}, "both": both
    }.items():  # fmt: skip
        bad = error > target
        found[name] = {
            "frames": len(error),
            "rank correlation": rank_correlation(deviation, error),
            "above the target": int(bad.sum()),
            **{
                f"of these above the {n} deviation": share(deviation[bad], level)
                for n, level in levels.items()
            },
            **{
                f"others above the {n} deviation": share(deviation[~bad], level)
                for n, level in levels.items()
            },
        }
    return {"levels": levels, **found}


def share(deviation: np.ndarray, level: float) -> float | None:
    return float((deviation > level).mean()) if deviation.size else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    out, seed = args.out, args.seed
    out.mkdir(parents=True, exist_ok=True)
    pool = dynamics(out / "random.extxyz", FRAMES, 100 + seed)
    test = dynamics(out / "test.extxyz", TESTED, 200 + seed)
    outside = beyond(out / "beyond.extxyz", 300 + seed)
    steps = tree(out)["students"]["final_steps"]
    answer: dict[str, Any] = {"machine": machine() | {"load": os.getloadavg()[0]}, "seed": seed}
    cost = train(out / "all", pool, steps, seed)
    answer["400 random frames"] = errors(out / "all/model.safetensors", test) | cost
    target = answer["400 random frames"]["force_rmse"] + ABOVE
    answer["learn"] = taught(out, target, seed)
    answer["learn"] |= errors(out / "learned/model.safetensors", test)
    calls = answer["learn"]["calls"]
    fewer: list[Atoms] = read_frames(pool)[:calls]
    ase.io.write(out / "fewer.extxyz", fewer)
    cost = train(out / f"random-{calls}", out / "fewer.extxyz", steps, seed)
    answer[f"{calls} random frames"] = errors(out / f"random-{calls}" / "model.safetensors", test) | cost
    answer["guard"] = guarded(out / "learned", test, outside, target)
    report(answer, args.json)


if __name__ == "__main__":
    main()
