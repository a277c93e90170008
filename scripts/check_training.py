"""Trains DeePMD-kit's example inputs with mdops and with DeePMD-kit, and compares the errors.

    python scripts/check_training.py PYTHON_WITH_DEEPMD --inputs examples/water --data water \
        [--out benchmarks/results/training_beside_deepmd.json]

`--inputs` is the folder `examples/water` of DeePMD-kit's repository, `--data` the one of its systems data_0 to data_3.
mdops reads every input*.json of every kind unchanged. Then `mdops train` and `dp --pt train` train it in separate
folders, each for several seeds. These are the first steps of the input's own training: the number of steps is reduced,
with its original rates (with so short a schedule, training would end before anything is learnt). Otherwise only the
intervals of the learning curve and of checkpoints are changed, and the seeds, which increase by 100 from run to run.
Both use one thread, or a GPU, in their default precision (float32 in mdops, float64 in DeePMD-kit).

Before this, both make some steps from the same weights, DeePMD-kit's first ones, which it writes in a training with
no steps. They use systems of one frame, so that the batches are the same, too; mdops computes in float64 and without
splines. The steps' changes of energies and forces of some frames must be the same.

mdops reads and evaluates all models of both programs, on the same frames of the system that is not used for training;
`dp test` evaluates one model of each input on the same frames, to show that DeePMD-kit finds the same. Errors are
compared as logarithms: the ratio of their geometric means over the seeds, and its 95% interval from Student's t with
the pooled deviation of the runs. Complete runs in `--work` are not repeated.
"""

import argparse
import copy
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from machine import machine  # noqa: E402

import mdops  # noqa: E402
from mdops.data.evaluation import evaluate  # noqa: E402
from mdops.errors import MDOpsError  # noqa: E402
from mdops.train import load_dataset, read_config  # noqa: E402
from mdops.train.report.learning_curve import read_curve  # noqa: E402

# With the number of steps of each: with attention, or triples of atoms, a step takes DeePMD-kit seconds.
KINDS = {
    "se_e2_a": 200,
    "se_e2_r": 200,
    "se_e3": 60,
    "se_e3_tebd": 100,
    "hybrid": 200,
    "se_atten": 40,
    "se_atten_compressible": 100,
    "se_atten_dpa1_compat": 40,
    "zbl": 100,
    "linear": 100,
}
QUANTITIES = {"energy": "eV/atom", "forces": "eV/A"}
SAME_STEPS, SAME_LIMIT = 4, 1e-5  # Adam divides gradients by their size, which amplifies rounding
POINTS = 10  # of the learning curves
STUDENT = {2: 4.303, 4: 2.776, 6: 2.447, 8: 2.306, 10: 2.228}  # two-sided 95%, by degrees of freedom
VERSIONS = """
import json, deepmd, torch, numpy
print(json.dumps({"deepmd-kit": deepmd.__version__, "torch": torch.__version__, "numpy": numpy.__version__}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", type=Path, help="a Python with deepmd-kit and its PyTorch backend")
    parser.add_argument("--inputs", type=Path, required=True, help="DeePMD-kit's folder examples/water")
    parser.add_argument("--data", type=Path, required=True, help="the folder of data_0 ... data_3")
    parser.add_argument(
        "--kinds", nargs="+", default=[*KINDS], help="folders of inputs, or single ones: zbl/input.json"
    )
    parser.add_argument("--steps", type=int, help="of every input; else as many as the script has for a kind")
    parser.add_argument(
        "--seeds", type=int, default=3, help="runs of each; 0: only steps from the same weights"
    )
    parser.add_argument(
        "--no-same-start",
        action="store_true",
        help="no steps from the same weights; --out keeps those it has",
    )
    parser.add_argument("--frames", type=int, default=20, help="to evaluate the models on")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of all trainings")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument(
        "--work", type=Path, default=Path("training_beside_deepmd"), help="a folder for all runs"
    )
    parser.add_argument(
        "--out", type=Path, help="write the result here, as JSON; inputs in it that were not run stay"
    )
    parser.add_argument("--commit", help="of mdops, where git cannot tell")
    args = parser.parse_args()
    if args.seeds and 2 * args.seeds - 2 not in STUDENT:
        parser.error("--seeds: from two on the noise is known; up to 6")
    args.work.mkdir(parents=True, exist_ok=True)
    data = args.work / "data"
    if not data.exists():
        data.symlink_to(args.data.resolve())
    for k in range(4):
        some_frames(data / "data_0", args.work / "one_frame" / f"data_{k}", 1)
    tested = some_frames(data / "data_3", args.work / f"tested-{args.frames}", args.frames)
    folders = [(kind if kind.endswith(".json") else f"{kind}/input*.json") for kind in args.kinds]
    paths = [path for pattern in folders for path in sorted(args.inputs.glob(pattern))]
    if not paths:
        parser.error(f"--inputs {args.inputs}: has no inputs of {', '.join(args.kinds)}")
    versions = subprocess.run(
        [args.python, "-c", VERSIONS], check=True, capture_output=True, text=True
    ).stdout
    args.turns = threading.Semaphore(args.jobs)
    with ThreadPoolExecutor(min(args.jobs, len(paths))) as pool:
        rows = list(pool.map(lambda path: compare(args, path, tested), paths))
    if args.out:
        head = {
            "machine": machine(args.device, args.commit)
            | {"threads": 1, "python": platform.python_version()},
            "deepmd": json.loads(versions.splitlines()[-1]),
            "same start": {"steps": SAME_STEPS, "limit": SAME_LIMIT},
            "frames": args.frames,
        }
        before = json.loads(args.out.read_text())["inputs"] if args.out.exists() else []
        found = {row["input"]: row for row in before}
        for row in rows:
            kept = found.get(row["input"], {}).get("same start") if args.no_same_start else None
            found[row["input"]] = row | ({"same start": kept} if kept else {})
        lines = ",\n  ".join(json.dumps(found[name]) for name in sorted(found))
        args.out.write_text(json.dumps(head, indent=1)[:-2] + f',\n "inputs": [\n  {lines}\n ]\n}}\n')
    print_table(rows)
    return 1 if any(row["failed"] for row in rows) else 0


def environment(device: str) -> dict[str, str]:
    """One thread and one process; DeePMD-kit uses a GPU if it finds one."""
    names = ("OMP_NUM_THREADS", "DP_INTRA_OP_PARALLELISM_THREADS", "DP_INTER_OP_PARALLELISM_THREADS")
    gpus = {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    return os.environ | dict.fromkeys(names, "1") | {"NUM_WORKERS": "0"} | gpus


def some_frames(source: Path, folder: Path, frames: int) -> Path:
    """A system of some frames of another one, evenly spaced."""
    if folder.exists():
        return folder
    (folder / "set.000").mkdir(parents=True)
    for name in ("type.raw", "type_map.raw"):
        shutil.copy(source / name, folder)
    for path in sorted((source / "set.000").glob("*.npy")):
        values = np.load(path)
        np.save(folder / "set.000" / path.name, values[np.linspace(0, len(values) - 1, frames).astype(int)])
    return folder


def compare(args: argparse.Namespace, path: Path, tested: Path) -> dict[str, Any]:
    """All runs of an input: a row of the result."""
    kind = path.parent.name
    steps = args.steps or KINDS.get(kind, 100)
    row: dict[str, Any] = {"input": f"{kind}/{path.name}", "unchanged": as_it_is(path)}
    row |= {"refused": {}, "failed": False} if args.no_same_start else same_start(args, path)
    if row["refused"] or not args.seeds:
        print(json.dumps(row), flush=True)
        return row
    changes = {"disp_freq": max(steps // POINTS, 1), "save_freq": steps}
    whole = shortened(path, steps, args.work / "data", changes)

    def one(program: str, seed: int) -> dict[str, Any]:
        return train(args, program, path, f"{steps}-{seed}", raised_seeds(whole, 100 * seed))

    with ThreadPoolExecutor(args.jobs) as pool:
        futures = {p: [pool.submit(one, p, seed) for seed in range(args.seeds)] for p in ("mdops", "deepmd")}
        runs = {program: [run.result() for run in of_program] for program, of_program in futures.items()}
    errors = {
        program: [errors_of(args, run["model"], tested) for run in done] for program, done in runs.items()
    }
    row |= {
        "steps": steps,
        "seconds": {
            program: round(float(np.median([run["seconds"] for run in done])), 1)
            for program, done in runs.items()
        },
        "errors": errors,
        "ratio": {name: ratio(errors, name) for name in QUANTITIES},
        "learning curve": {program: curve(done) for program, done in runs.items()},
        "dp test": dp_test(args, runs["deepmd"][-1]["model"], tested, args.frames),
    }
    row["failed"] |= any(low > 1 for _, low, _ in row["ratio"].values())  # more than noise
    print(json.dumps(row), flush=True)
    return row


def same_start(args: argparse.Namespace, path: Path) -> dict[str, Any]:
    """The relative difference of both programs' changes from the same weights; or which one refuses the input."""
    tree = shortened(
        path, SAME_STEPS, args.work / "one_frame", {"disp_freq": SAME_STEPS, "save_freq": SAME_STEPS}
    )
    no_steps = copy.deepcopy(tree)
    no_steps["training"] = {**tree["training"], "numb_steps": 0}
    no_steps["training"].pop("num_epoch", None)
    first = train(args, "deepmd", path, "first", no_steps, systems="one_frame")
    theirs = (
        first
        if "refused" in first
        else train(args, "deepmd", path, f"same-{SAME_STEPS}", tree, systems="one_frame")
    )
    tree = copy.deepcopy(tree)
    tree["training"] |= {"precision": "float64", "spline": False}
    options = () if "refused" in theirs else ("--init-model", first["model"])
    own = train(args, "mdops", path, f"same-{SAME_STEPS}", tree, *options, systems="one_frame")
    refused = {p: run["refused"] for p, run in (("mdops", own), ("deepmd", theirs)) if "refused" in run}
    if refused:
        return {"refused": refused, "failed": len(refused) == 1}
    tested = some_frames(args.work / "data/data_3", args.work / "tested-2", 2)
    a, b, begun = (answers(model, tested) for model in (own["model"], theirs["model"], first["model"]))
    apart = {
        name: float(np.linalg.norm(a[name] - b[name]) / np.linalg.norm(b[name] - begun[name]))
        for name in QUANTITIES
    }
    return {"refused": {}, "same start": apart, "failed": not max(apart.values()) <= SAME_LIMIT}


def answers(model: str, system: Path) -> dict[str, np.ndarray]:
    """Energies and forces of a model in float64."""
    potential = mdops.load(model, overflow="truncate", dtype="float64", spline=False)
    found = evaluate(potential, load_dataset([str(system)], potential.type_map)).predictions
    return {name: found[name] for name in QUANTITIES}


def as_it_is(path: Path) -> dict[str, Any]:
    """mdops' result for the unchanged input."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            read_config(path)
        except MDOpsError as error:
            return {"refused": str(error).removeprefix(f"{path}: ")}
    return {"warnings": [str(warning.message) for warning in raised]}


def shortened(path: Path, steps: int, systems: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """The input with another number of steps, its original rates, and these changes in `training`."""
    tree = json.loads(path.read_text())
    training, rate = tree["training"], tree["learning_rate"]
    frames = sum(len(np.load(box)) for system in training["training_data"]["systems"]
                 for box in (systems / Path(system).name).glob("set.*/box.npy"))  # fmt: skip
    if "num_epoch" in training:  # for all frames, one in a batch
        whole = training["num_epoch"] * frames
        training["num_epoch"] = steps / frames
    else:
        whole = training["numb_steps"]
        training["numb_steps"] = steps
    if whole > 0:
        rate["decay_rate"] = (rate["stop_lr"] / rate["start_lr"]) ** (rate["decay_steps"] / whole)
    training |= changes
    return tree


def raised_seeds(tree: Any, by: int) -> Any:
    if isinstance(tree, list):
        return [raised_seeds(part, by) for part in tree]
    if not isinstance(tree, dict):
        return tree
    return {key: value + by if key == "seed" else raised_seeds(value, by) for key, value in tree.items()}


def train(
    args: argparse.Namespace,
    program: str,
    path: Path,
    name: str,
    tree: dict[str, Any],
    *options: str,
    systems: str = "data",
) -> dict[str, Any]:
    """The path of a run's model, and its time; or the reason why it was refused."""
    parent = args.work / f"of_{systems}"
    folder = parent / f"{path.parent.name}-{path.stem}-{name}-{program}"
    found = folder / "run.json"
    if found.exists():
        return json.loads(found.read_text())
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns("*.json"))
    if not (parent / "data").exists():
        (parent / "data").symlink_to((args.work / systems).resolve())
    (folder / "input.json").write_text(json.dumps(tree, indent=1))
    command = [sys.executable, "-m", "mdops", "train", "--device", args.device, *options]
    if program == "deepmd":
        command = [args.python.absolute(), "-m", "deepmd", "--pt", "train"]
        if '"auto"' not in json.dumps(tree["model"]):
            command.append("--skip-neighbor-stat")  # statistics for people; a sel that is "auto" needs them
    with args.turns:
        start = time.perf_counter()
        done = subprocess.run(
            [*command, "input.json"], cwd=folder, env=environment(args.device), capture_output=True, text=True
        )
    (folder / "log").write_text(done.stdout + done.stderr)
    model = folder / ("model.safetensors" if program == "mdops" else "model.ckpt.pt")
    run: dict[str, Any] = {"model": str(model.absolute()), "seconds": time.perf_counter() - start}
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        run["refused"] = lines[-1].strip()[:400] if lines else f"exit status {done.returncode}"
    found.write_text(json.dumps(run))
    return run


def errors_of(args: argparse.Namespace, model: str, system: Path) -> dict[str, float]:
    """RMSE of a model on the frames, from mdops; cached beside the model."""
    path = Path(model).with_name(f"errors-{len(np.load(system / 'set.000/box.npy'))}.json")
    if not path.exists():
        potential = mdops.load(model, overflow="truncate", device=args.device)
        found = evaluate(potential, load_dataset([str(system)], potential.type_map)).errors()
        path.write_text(json.dumps({name: found[name].rmse for name in QUANTITIES}))
    return json.loads(path.read_text())


def ratio(errors: dict[str, list[dict[str, float]]], name: str) -> tuple[float, float, float]:
    """mdops' error over DeePMD-kit's, and the ends of its 95% interval."""
    own, other = (np.log([run[name] for run in errors[program]]) for program in ("mdops", "deepmd"))
    n = len(own)
    middle = own.mean() - other.mean()
    spread = STUDENT[2 * n - 2] * math.sqrt((own.var(ddof=1) + other.var(ddof=1)) / n)
    return float(np.exp(middle)), float(np.exp(middle - spread)), float(np.exp(middle + spread))


def curve(runs: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Geometric means over the runs of the errors in the programs' learning curves."""
    curves = [read_curve(Path(run["model"]).with_name("lcurve.out")) for run in runs]
    found = {"step": curves[0]["step"].tolist()}
    for name in ("rmse_e_trn", "rmse_f_trn", "rmse_e_val", "rmse_f_val"):
        if all(name in c for c in curves):
            means = np.exp(np.mean([np.log(c[name]) for c in curves], axis=0))
            found[name] = [float(f"{value:.4g}") for value in means]
    return found


def dp_test(args: argparse.Namespace, model: str, system: Path, frames: int) -> dict[str, float]:
    """The errors from DeePMD-kit's own test of its model on the same frames."""
    found, path = {}, Path(model).with_name("dp_test.log")
    if not path.exists():
        command = [args.python.absolute(), "-m", "deepmd", "--pt", "test", "-m", model]
        done = subprocess.run([*command, "-s", system.absolute(), "-n", str(frames)],
                              env=environment(args.device), capture_output=True, text=True)  # fmt: skip
        path.write_text(done.stdout + done.stderr)
    for line in path.read_text().splitlines():
        for name, words in (("energy", "Energy RMSE/Natoms"), ("forces", "Force  RMSE")):
            if words in line and name not in found:
                found[name] = float(line.split(":")[-1].split()[0])
    return found


def print_table(rows: list[dict[str, Any]]) -> None:
    print(
        "\nmdops / DeePMD-kit, and the ratio with its 95% interval; same start: apart, of what the steps change"
    )
    print(
        f"{'input':<36}{'same start':>20}{'steps':>6}{'energy, meV/atom':>18}  {'ratio':<20}{'forces, eV/A':>14}  ratio"
    )
    for row in rows:
        for program, message in row["refused"].items():
            print(f"{row['input']:<36}{program} refuses it: {message}")
        if row["refused"]:
            continue
        apart = [f"{row['same start'][name]:.1e}" for name in QUANTITIES if "same start" in row]
        line = f"{row['input']:<36}" + " / ".join(apart).rjust(20)
        if "errors" in row:
            line += f"{row['steps']:>6}"
            for name, factor, width in (("energy", 1e3, 18), ("forces", 1, 14)):
                both = [
                    factor * np.exp(np.mean([np.log(run[name]) for run in row["errors"][program]]))
                    for program in ("mdops", "deepmd")
                ]
                middle, low, high = row["ratio"][name]
                line += f"{both[0]:.3g} / {both[1]:.3g}".rjust(width)
                line += f"  {middle:.2f} ({low:.2f}, {high:.2f})".ljust(22)
        print(line + ("  worse" if row["failed"] else ""))


if __name__ == "__main__":
    raise SystemExit(main())
