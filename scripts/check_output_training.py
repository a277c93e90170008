"""Trains with every kind of loss with mdops and with DeePMD-kit: DeePMD-kit's example inputs, and variants of them.

    python scripts/check_output_training.py PYTHON_WITH_DEEPMD --examples examples \
        [--tensorflow] [--small] [--out benchmarks/results/output_training_beside_deepmd.json]

`--examples` is the folder of that name in DeePMD-kit's repository. With `--tensorflow`, its TensorFlow backend trains.
With `--small`, nets are narrower and cutoffs shorter (`SMALL`), for inputs with steps that take DeePMD-kit seconds.
For each input, three things are compared:

- the averages and deviations of the types at the start of a training on all of its data;
- changes of the results by a few steps from the same weights, on systems of two frames, so that the batches are the
  same; mdops computes in float64 and without splines;
- errors on the validation data, or on the training data if there is none, after the first steps of the input's own
  training with several seeds. mdops computes in float32, DeePMD-kit in float64, each on one thread.
"""

import argparse
import copy
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts")]

from check_training import STUDENT, VERSIONS, environment, raised_seeds  # noqa: E402
from machine import machine  # noqa: E402

import mdops  # noqa: E402
from mdops.data.evaluation import evaluate  # noqa: E402
from mdops.data.labels import labels_of  # noqa: E402
from mdops.train import load_dataset, parse_config  # noqa: E402
from mdops.train.loop.factories import make_loss  # noqa: E402

# With the number of steps of each. The part after # names one of VARIANTS; --inputs takes any of these with any input.
INPUTS = {
    "water_tensor/dipole/dipole_input_torch.json": 200,
    "water_tensor/polar/polar_input_torch.json": 200,
    "dos/train/input_torch.json": 200,
    "property/train/input_torch.json": 200,
    "population/train/input_torch.json": 200,
    "hessian/single_task/input.json": 100,
    "hessian/single_task/input.json#begins": 100,
    "spin/se_e2_a/input_torch.json": 200,
    "fparam/train/input.json": 200,
    "fparam/train/input_aparam.json": 200,
    "water/dplr/train/ener.json#virials": 200,
    "water/dplr/train/ener.json#absolute": 200,
    "water/dplr/train/ener.json#huber": 200,
    "water/dplr/train/ener.json#lengths": 200,
    "water/dplr/train/ener.json#huber_lengths": 200,
    "water/dplr/train/ener.json#intensive": 200,
    "water/dplr/train/ener.json#forces": 200,
}
# Not trained by DeePMD-kit's PyTorch backend.
BY_TENSORFLOW = {
    "dprc/pairwise/input.json": 200,
    "dprc/normal/input.json": 100,
    "dprc/generalized_force/input.json": 100,
    "water/se_e2_a_tebd/input.json": 100,
    "zinc_protein/zinc_se_a_mask.json": 20,
}
_VIRIALS = {"start_pref_v": 0.02, "limit_pref_v": 1.0}
# Changes of the section `loss`. These inputs are without their modifier, which DeePMD-kit's PyTorch backend lacks.
VARIANTS: dict[str, dict[str, Any]] = {
    "virials": _VIRIALS,
    "absolute": {**_VIRIALS, "loss_func": "mae"},
    "huber": {**_VIRIALS, "use_huber": True, "huber_delta": 0.05},
    "lengths": {**_VIRIALS, "loss_func": "mae", "f_use_norm": True},
    "huber_lengths": {**_VIRIALS, "use_huber": True, "huber_delta": 0.05, "f_use_norm": True},
    "intensive": {**_VIRIALS, "intensive_ener_virial": True},
    "forces": {"start_pref_e": 0, "limit_pref_e": 0},
    **{name: {"loss_func": name} for name in ("mse", "mae", "rmse", "mape", "smooth_mae")},
    "begins": {"limit_pref_h": 0},  # with Hessians, whose weight decreases
}
# Here DeePMD-kit's PyTorch backend leaves energies of types zero; its TensorFlow backend and mdops fit them.
WITHOUT_AVERAGES = {"forces"}
# Changes of the section `model` with --small.
SMALL: dict[str, dict[str, Any]] = {
    "population/train/input_torch.json": {
        "descriptor": {
            "repflow": {
                "n_dim": 24, "e_dim": 16, "a_dim": 8, "nlayers": 2, "e_rcut": 4.0, "e_rcut_smth": 3.5, "e_sel": 40,
                "a_rcut": 3.0, "a_rcut_smth": 2.5, "a_sel": 16,
            }
        },
        "fitting_net": {"neuron": [48, 48]},
    },
    "hessian/single_task/input.json": {
        "descriptor": {
            "repinit": {"neuron": [8, 16], "axis_neuron": 4, "use_three_body": False},
            "repformer": {"nlayers": 2, "g1_dim": 24, "g2_dim": 8},
        },
        "fitting_net": {"neuron": [32, 32]},
    },
    "spin/se_e2_a/input_torch.json": {
        "descriptor": {"rcut": 4.5, "rcut_smth": 3.5, "neuron": [8, 16], "axis_neuron": 4},
        "fitting_net": {"neuron": [48, 48]},
    },
    "water/dplr/train/ener.json": {
        "descriptor": {"rcut": 4.0, "sel": [24, 48], "neuron": [8, 16], "axis_neuron": 4},
        "fitting_net": {"neuron": [48, 48]},
    },
}  # fmt: skip
LIMIT, LIMIT_OF_TENSORFLOW, LARGE = 1e-5, 1e-3, 1e8
SAME_STEPS, FRAMES = 4, 2  # all frames are in a batch: DeePMD-kit computes a deviation of properties


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", type=Path, help="a Python with deepmd-kit and its PyTorch backend")
    parser.add_argument("--examples", type=Path, required=True, help="DeePMD-kit's folder examples")
    parser.add_argument("--inputs", nargs="+", help="files below it")
    parser.add_argument("--tensorflow", action="store_true", help="by DeePMD-kit's TensorFlow backend")
    parser.add_argument("--small", action="store_true", help="narrower nets and shorter cutoffs")
    parser.add_argument("--steps", type=int, help="of every input; else as many as the script has for it")
    parser.add_argument(
        "--seeds", type=int, default=3, help="runs of each; 0: only steps from the same weights"
    )
    parser.add_argument("--work", type=Path, default=Path("output_training"), help="a folder for all runs")
    parser.add_argument(
        "--out", type=Path, help="write the result here, as JSON; inputs in it that were not run stay"
    )
    parser.add_argument("--commit", help="of mdops, where git cannot tell")
    args = parser.parse_args()
    asked = VERSIONS.replace("torch", "tensorflow") if args.tensorflow else VERSIONS
    versions = subprocess.run([args.python, "-c", asked], check=True, capture_output=True, text=True).stdout
    args.work = args.work.absolute()
    rows = [compare(args, name) for name in args.inputs or (BY_TENSORFLOW if args.tensorflow else INPUTS)]
    if args.out:
        before = json.loads(args.out.read_text())["inputs"] if args.out.exists() else []
        found = {row["input"]: row for row in before + rows}
        head = {
            "backend": "TensorFlow" if args.tensorflow else "PyTorch",
            **({"small": SMALL} if args.small else {}),
            "machine": machine("cpu", args.commit) | {"threads": 1, "python": platform.python_version()},
            "deepmd": json.loads(versions.splitlines()[-1]),
            "same start": {"steps": SAME_STEPS, "limit": limit(args)},
            "inputs": list(found.values()),
        }
        args.out.write_text(json.dumps(head, indent=1) + "\n")
    return 1 if any(row["failed"] for row in rows) else 0


def limit(args: argparse.Namespace) -> float:
    return LIMIT_OF_TENSORFLOW if args.tensorflow else LIMIT


def compare(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """A row of the result."""
    place, _, variant = name.partition("#")
    path = args.examples / place
    tree, folder = json.loads(path.read_text()), args.work / re.sub("[/#]|[.]json", "-", name)
    if variant:
        tree["loss"] |= VARIANTS[variant]
        tree["model"].pop("modifier", None)
    if args.small:
        tree["model"] = merged(tree["model"], SMALL.get(place, {}))
    for section in ("training_data", "validation_data"):
        data = tree["training"].get(section)
        if data:
            given = [data["systems"]] if isinstance(data["systems"], str) else data["systems"]
            found = [(path.parent / system).resolve() for system in given]
            data["systems"] = [str(in_rows(system, args.work / "in_rows" / system.name)) for system in found]
    tree["model"].setdefault("type_map", parse_config(tree).model.type_map)  # DeePMD-kit needs it
    row: dict[str, Any] = {"input": name, "failed": False}
    if variant not in WITHOUT_AVERAGES:
        row["statistics"] = statistics(args, folder / "statistics", tree)
    row["same start"] = {
        Path(system).name: same_start(args, folder / Path(system).name, tree, Path(system))
        for system in tree["training"]["training_data"]["systems"]
        if is_learned_from(tree, system)
    }
    row["failed"] = max(row.get("statistics", 0.0), *row["same start"].values()) > limit(args)
    if args.seeds:
        row |= errors(args, folder, tree, args.steps or (INPUTS | BY_TENSORFLOW).get(name, 100))
        row["failed"] |= any(low > 1 for _, low, _ in row["ratio"].values())
    print(json.dumps(row), flush=True)
    return row


def in_rows(system: Path, folder: Path) -> Path:
    """The system, or, if a file of it has all frames in one row (`fparam`), a copy with a row for each frame, because
    DeePMD-kit's PyTorch backend does not read the other form."""
    arrays = {path: np.load(path) for path in system.glob("set.*/*.npy")}
    frames = {path.parent: len(array) for path, array in arrays.items() if path.name == "coord.npy"}
    if all(len(array) == frames[path.parent] for path, array in arrays.items()):
        return system
    shutil.copytree(system, folder, dirs_exist_ok=True)
    for path, array in arrays.items():
        np.save(folder / path.relative_to(system), array.reshape(frames[path.parent], -1))
    return folder


def merged(section: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A section with some of its keys changed, also of the sections in it."""
    return section | {
        key: merged(section[key], value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }


def statistics(args: argparse.Namespace, folder: Path, tree: dict[str, Any]) -> float:
    """The difference of the first averages and deviations of the types, relative to the largest."""
    found = []
    for program in ("mdops", "deepmd"):
        steps = 1 if program == "mdops" else 0
        own = changed(tree, {"numb_steps": steps, "save_freq": 1})
        # Use all frames; DeePMD-kit would choose some at random. Its TensorFlow backend keeps every batch in memory.
        own["model"]["data_stat_nbatch"] = 320 if args.tensorflow else 10**6
        own["learning_rate"] = {"type": "exp", "start_lr": 1e-30, "stop_lr": 1e-31}
        found.append(averages(load(train(args, program, folder, own)["model"]).model, args.tensorflow))
    pairs = zip(*found, strict=True)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs)


def averages(model: Any, tensorflow: bool) -> list[np.ndarray]:
    """Averages of the types, and their deviations; a TensorFlow graph only has averages, in the fitting."""
    of_models = [(one.out_bias, one.fitting.bias) for one in model.with_averages]
    biases = [(bias + own.view_as(bias)).detach().numpy() for bias, own in of_models]
    deviations = [] if tensorflow or len(biases) > 1 else [model.out_std.numpy()]
    return [*biases, *deviations]


def is_learned_from(tree: dict[str, Any], system: str) -> bool:
    """Whether a system has labels for the loss of the input."""
    config = parse_config(tree)
    loss = make_loss(config)
    data = load_dataset(system, config.model.type_map, known=loss.labels)
    return any(data.has(name) for name in loss.terms)


def same_start(args: argparse.Namespace, folder: Path, tree: dict[str, Any], system: Path) -> float:
    """The relative difference of both programs' changes in steps from the same weights."""
    few = some_frames_of(system, folder / "frames", FRAMES)
    tree = changed(tree, {"numb_steps": SAME_STEPS, "save_freq": SAME_STEPS})
    tree["training"].pop("validation_data", None)
    if args.tensorflow:
        # Its nets compute in the precision of their weights, and it saves what it displays. Its Adam adds epsilon
        # before the correction for the first steps, which is negligible for large gradients.
        tree["loss"] = {k: v * LARGE if "_pref_" in k else v for k, v in tree["loss"].items()}
        tree["model"] = in_double(tree["model"])
        tree["model"].get("type_embedding", {}).setdefault("seed", 1)
        tree["training"]["disp_freq"] = SAME_STEPS
    tree["training"]["training_data"] |= {"systems": [str(few)], "batch_size": FRAMES}
    first = train(args, "deepmd", folder / "first", changed(tree, {"numb_steps": 0}))
    theirs = train(args, "deepmd", folder / "same", tree)
    own = changed(tree, {"precision": "float64", "spline": False})
    names_differ = ["--use-pretrain-script"] if args.tensorflow else []  # for options of a graph
    own = train(args, "mdops", folder / "same", own, "--init-model", first["model"], *names_differ)
    a, b, begun = (answers(run["model"], few) for run in (own, theirs, first))
    return max(float(np.linalg.norm(a[n] - b[n]) / np.linalg.norm(b[n] - begun[n])) for n in a)


def in_double(section: Any) -> Any:
    """The section with every precision float64."""
    if isinstance(section, list):
        return [in_double(value) for value in section]
    if not isinstance(section, dict):
        return section
    return {name: "float64" if name == "precision" else in_double(value) for name, value in section.items()}


def errors(args: argparse.Namespace, folder: Path, tree: dict[str, Any], steps: int) -> dict[str, Any]:
    """RMSEs of both programs' models after the same steps."""
    data = tree["training"].get("validation_data") or tree["training"]["training_data"]
    found: dict[str, list[dict[str, float]]] = {"mdops": [], "deepmd": []}
    seconds: dict[str, list[float]] = {"mdops": [], "deepmd": []}
    for seed in range(args.seeds):
        own = raised_seeds(changed(tree, {"numb_steps": steps, "save_freq": steps}), 100 * seed)
        for program in found:
            run = train(args, program, folder / f"{steps}-{seed}", own)
            found[program].append(measured(run["model"], data["systems"]))
            seconds[program].append(run["seconds"])
    ratios = {name: ratio(found, name) for name in found["mdops"][0]}
    middle = {program: round(float(np.median(times)), 1) for program, times in seconds.items()}
    return {"steps": steps, "seconds": middle, "errors": found, "ratio": ratios}


def ratio(found: dict[str, list[dict[str, float]]], name: str) -> tuple[float, float, float]:
    """mdops' error over DeePMD-kit's, geometric means, with the 95% interval."""
    logs = [np.log([run[name] for run in found[program]]) for program in ("mdops", "deepmd")]
    n = len(logs[0])
    middle = logs[0].mean() - logs[1].mean()
    width = STUDENT[2 * n - 2] * np.sqrt((logs[0].var(ddof=1) + logs[1].var(ddof=1)) / n)
    return tuple(round(float(np.exp(value)), 3) for value in (middle, middle - width, middle + width))


def changed(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The input with these changes in `training`, with its original rates."""
    tree = copy.deepcopy(tree)
    training, rate = tree["training"], tree["learning_rate"]
    before = training.pop("stop_batch", None) or training.get("numb_steps")
    if "decay_rate" not in rate and before > SAME_STEPS:
        decay, stop = rate.get("decay_steps", 5000), rate.get("stop_lr", 1e-8)
        rate["decay_rate"] = (stop / rate["start_lr"]) ** (decay / max(before, decay))
    training |= {"numb_steps": before} | changes
    return tree


def some_frames_of(system: Path, folder: Path, frames: int) -> Path:
    """A system of the first frames of another one, with its periodicity."""
    if not folder.exists():
        first = min(system.glob("set.*"))
        (folder / first.name).mkdir(parents=True)
        for path in system.iterdir():
            if path.is_file():
                shutil.copy(path, folder)
        for path in first.glob("*.npy"):
            np.save(folder / first.name / path.name, np.load(path)[:frames])
    return folder


def train(
    args: argparse.Namespace, program: str, folder: Path, tree: dict[str, Any], *options: str
) -> dict[str, Any]:
    """The path of a run's model, and its time. Raises RuntimeError if the program refuses the input."""
    folder = folder / program
    found = folder / "run.json"
    if found.exists():
        return json.loads(found.read_text())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "input.json").write_text(json.dumps(tree, indent=1))
    command = [sys.executable, "-m", "mdops", "train", *options]
    if program == "deepmd":
        deepmd = [str(args.python.absolute()), "-m", "deepmd", "--tf" if args.tensorflow else "--pt"]
        command = [*deepmd, "train", "--skip-neighbor-stat"]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "input.json"],
        cwd=folder,
        env=environment("cpu")
        | {"PYTHONPATH": paths if program == "mdops" else os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
    )
    (folder / "log").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError(f"{folder}: {program} refuses it: {done.stderr.strip().splitlines()[-1]}")
    seconds = time.perf_counter() - start
    model = folder / ("model.safetensors" if program == "mdops" else "model.ckpt.pt")
    if program == "deepmd" and args.tensorflow:
        model = folder / "model.pb"
        subprocess.run([*deepmd, "freeze", "-o", model.name], cwd=folder, check=True, capture_output=True)
    run = {"model": str(model), "seconds": seconds}
    found.write_text(json.dumps(run))
    return run


def load(model: str) -> mdops.Potential:
    return mdops.load(model, overflow="truncate", dtype="float64", spline=False)


def evaluated(model: str, systems: list[str]) -> Any:
    potential = load(model)
    known = labels_of(potential.model.outputs, potential.model.spin is not None)
    return evaluate(potential, load_dataset(systems, potential.type_map, known=known))


def answers(model: str, system: Path) -> dict[str, np.ndarray]:
    """Results of a model, in float64."""
    return evaluated(model, [str(system)]).predictions


def measured(model: str, systems: list[str]) -> dict[str, float]:
    """RMSEs of a model, in float64."""
    return {name: error.rmse for name, error in evaluated(model, systems).errors().items()}


if __name__ == "__main__":
    raise SystemExit(main())
