"""Checks whether early training steps depend on the origin of the random weights: mdops or DeePMD-kit.

    python scripts/check_first_weights.py PYTHON_WITH_DEEPMD --input examples/water/se_e2_r/input.json --data water \
        [--seeds 140] [--on cpu cuda] [--jobs 2] [--out benchmarks/results/first_weights.json]

DeePMD-kit makes models of the input with many seeds, without training them, on its CPU and, if requested, on a GPU,
which has different random numbers. mdops copies their weights into its own model with the statistics of the data, and
trains it: all trainings have the same statistics, order of frames, rates and program, and differ only in the first
weights. The RMSE of forces on another system are compared with the rank test of Mann and Whitney: its p is the
probability of ranks as far apart as these if the origin of the weights did not matter.

`--data` is DeePMD-kit's folder of its systems data_0 to data_3 of water. As in check_training.py, the first three are
training data, with the input's own rates, and models are evaluated on frames of the last.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import mannwhitneyu

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from check_training import VERSIONS, environment, shortened, some_frames  # noqa: E402
from machine import machine  # noqa: E402

from mdops.data.evaluation import evaluate  # noqa: E402
from mdops.io import read_model  # noqa: E402
from mdops.models import model_of_tree  # noqa: E402
from mdops.train import Trainer, load_dataset, read_config  # noqa: E402

FIRST_WEIGHTS = """
import json, sys
from deepmd.dpmodel.utils.serialization import save_dp_model
from deepmd.pt.model.model import get_model
for k, options in enumerate(json.load(sys.stdin)):
    model = get_model(options)
    save_dp_model(f"{sys.argv[1]}/{k}.dp", {"model": model.serialize(), "model_def_script": options})
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", type=Path, help="a Python with deepmd-kit and its PyTorch backend")
    parser.add_argument("--input", type=Path, required=True, help="of an energy model, whose sel are numbers")
    parser.add_argument("--data", type=Path, required=True, help="the folder of data_0 ... data_3")
    parser.add_argument("--seeds", type=int, default=140, help="trainings from weights of each origin")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--on", nargs="+", choices=("cpu", "cuda"), default=["cpu"], help="DeePMD-kit's devices"
    )
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, all on the CPU")
    parser.add_argument("--out", type=Path, help="write the result here, as JSON")
    parser.add_argument("--commit", help="of mdops, where git cannot tell")
    args = parser.parse_args()
    versions = subprocess.run(
        [args.python, "-c", VERSIONS], check=True, capture_output=True, text=True, env=environment("cpu")
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "data").symlink_to(args.data.resolve())
        tested = some_frames(work / "data" / "data_3", work / "tested", 20)
        changes = {"disp_freq": args.steps, "save_freq": args.steps, "seed": 1}
        tree = shortened(args.input, args.steps, work / "data", changes)
        for part in ("training_data", "validation_data"):
            systems = tree["training"][part]["systems"]
            tree["training"][part]["systems"] = [str(work / "data" / Path(system).name) for system in systems]
        trees = [seeded(tree, k) for k in range(args.seeds)]
        origins = {"mdops": None} | {f"deepmd, {device}": work / device for device in args.on}
        for device in args.on:
            first_weights(args.python, trees, device, work / device)
        with ProcessPoolExecutor(args.jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            errors = {
                origin: list(pool.map(partial(trained, trees, tested, weights), range(args.seeds)))
                for origin, weights in origins.items()
            }
    found = summary(errors)
    print_table(found)
    result = {
        "machine": machine(commit=args.commit),
        "deepmd": json.loads(versions),
        "input": f"{args.input.parent.name}/{args.input.name}",
        "steps": args.steps,
        "frames": 20,
        "first weights": found,
    }
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(row.get("p", 1) < 0.01 for row in found.values()) else 0


def seeded(tree: dict[str, Any], k: int) -> dict[str, Any]:
    """The input with the k-th seed of weights; the seed of the frames is unchanged."""
    tree = deepcopy(tree)
    for part in ("descriptor", "fitting_net"):
        tree["model"][part]["seed"] = 1 + 100 * k
    return tree


def first_weights(python: Path, trees: list[dict[str, Any]], device: str, folder: Path) -> None:
    """Writes DeePMD-kit's models of the inputs, made on a device: k.dp for the k-th."""
    folder.mkdir()
    options = json.dumps([tree["model"] for tree in trees])
    command = [python.absolute(), "-c", FIRST_WEIGHTS, folder]
    subprocess.run(
        command, input=options, check=True, capture_output=True, text=True, env=environment(device)
    )


def trained(trees: list[dict[str, Any]], tested: Path, weights: Path | None, k: int) -> float:
    """RMSE of the forces (eV/A) of a training from the k-th weights in the folder, or from mdops' own."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.json"
        path.write_text(json.dumps(trees[k]))
        trainer = Trainer(read_config(path), Path(folder) / "run")
        if weights is not None:
            theirs = model_of_tree(read_model(weights / f"{k}.dp").model, torch.float64)
            take_weights(trainer.potential.model, theirs)
        trainer.run(lambda _: None)
        return (
            evaluate(trainer.potential.eval(), load_dataset([str(tested)], ["O", "H"]))
            .errors()["forces"]
            .rmse
        )


def take_weights(model: torch.nn.Module, other: torch.nn.Module) -> None:
    """Copies trained parameters, but not statistics and energies of the types, which are buffers."""
    own, others = dict(model.named_parameters()), dict(other.named_parameters())
    if own.keys() != others.keys():
        raise ValueError(f"the models differ in {sorted(own.keys() ^ others.keys())}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(others[name])


def summary(errors: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """For each origin: errors, their quantiles, and p of the difference from mdops' weights."""
    found: dict[str, dict[str, Any]] = {}
    for origin, values in errors.items():
        quantiles = np.quantile(values, [0.1, 0.25, 0.5, 0.75, 0.9])
        found[origin] = {
            "quantiles 0.1 0.25 0.5 0.75 0.9, eV/A": [round(float(q), 4) for q in quantiles],
            "above 0.65 eV/A": int(np.sum(np.array(values) > 0.65)),
            "forces, eV/A": [round(value, 4) for value in values],
        }
        if origin != "mdops":
            found[origin]["p"] = round(float(mannwhitneyu(errors["mdops"], values).pvalue), 4)
    return found


def print_table(found: dict[str, dict[str, Any]]) -> None:
    print(
        f"{'first weights':<16}{'trainings':>10}{'10%':>8}{'25%':>8}{'median':>8}{'75%':>8}{'90%':>8}{'>0.65':>7}  p"
    )
    for origin, row in found.items():
        quantiles, above = row["quantiles 0.1 0.25 0.5 0.75 0.9, eV/A"], row["above 0.65 eV/A"]
        line = "".join(f"{q:8.3f}" for q in quantiles)
        print(f"{origin:<16}{len(row['forces, eV/A']):>10}{line}{above:>7}  {row.get('p', '')}")


if __name__ == "__main__":
    raise SystemExit(main())
