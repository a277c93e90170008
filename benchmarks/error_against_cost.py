"""Error against the cost of a step: each kind of model trained for the same time, tested, and timed in dynamics.

    python benchmarks/error_against_cost.py --inputs examples/water --kinds se_e2_a dpa3 --seconds 600
        [--together] [--device cuda] [--atoms 1536] [--models FOLDER] [--json FILE]
    python benchmarks/error_against_cost.py --merge FILE... [--json FILE] [--plot FILE]

`--inputs` is the folder `examples/water` of DeePMD-kit's repository, with its data: data_0 to data_2 are for training,
one frame per batch, and all frames of data_3 for the test. Models are those of its inputs in float32. DPA-2, DPA-3 and
DPA-4 keep their inputs' loss, optimizer and learning rate; the others have mdops' own. DPA-4C has the size Mini. The
number of steps is what fits into the time, from some steps timed before. Costs are those of an NVE step in the engine
at 300 K, for the first frame of data_3, repeated. --merge draws the files of several runs in one picture. --together
times the steps of one kind after the other, and then trains all kinds at the same time, each in its own process and
with as many steps as fit into the time when it runs alone. Kinds are distributed over the GPUs; after
`nvidia-cuda-mps-control -d`, kernels of several processes run at once on a GPU. Without --seconds or --steps, the
models of an earlier run in --models are tested again.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from cuda_inference import repeated, structure
from deepmd_examples import INPUTS as EXAMPLES
from deepmd_examples import SIZES
from machine import machine, parser_of
from message_passing_gpu import engine_step

import mdops
from mdops.data.evaluation import evaluate
from mdops.train import load_dataset
from mdops.train.config.read import parse_config
from mdops.train.config.sections import Config
from mdops.train.loop.trainer import Trainer

INPUTS = {
    "se_e2_a": "se_e2_a/input_torch.json",
    "dpa1": "se_atten/input_torch.json",
    "dpa1_no_attention": "se_atten_compressible/input.json",
    "dpa4c": "dpa4/input.json",
    **{kind: file for kind, file in EXAMPLES.items() if kind not in ("zbl", "dpa2_medium")},
    "dpa3_three_layers": EXAMPLES["dpa3"],
}
# A DPA-3 that takes a quarter of the time, the teacher of docs/notes/learning.md.
THREE_LAYERS = {"nlayers": 3, "e_rcut": 5.0, "e_rcut_smth": 4.0, "e_sel": 90,
                "a_rcut": 3.5, "a_rcut_smth": 3.0, "a_sel": 36}  # fmt: skip
LABELS = {"dpa1": "DPA-1, 2 layers of attention", "dpa1_no_attention": "DPA-1, no attention", "dpa2": "DPA-2 small",
          "dpa3_three_layers": "DPA-3, 3 layers",
          "dpa3": "DPA-3", "dpa4": "DPA-4 Mini", "dpa4c": "DPA-4C Mini"}  # fmt: skip
OWN_RECIPE = {"dpa2", "dpa3", "dpa3_three_layers", "dpa4"}
DPA4C = {"type": "dpa4c", "channels": 32, "lmax": 2, "radial_modes": 0, "rcut": 6.0}
DPA4C_NET = {"neuron": [192, 192, 192], "activation_function": "silu", "resnet_dt": False}
TIMED, SPARE, STARTS = 60, 0.93, 30


def configured(inputs: Path, kind: str, steps: int) -> Config:
    tree: dict[str, Any] = json.loads((inputs / INPUTS[kind]).read_text())
    model = tree["model"]
    if kind == "dpa4c":
        model = {"type_map": model["type_map"], "descriptor": DPA4C, "fitting_net": DPA4C_NET}
    model["descriptor"] |= SIZES.get(kind, {})
    if kind == "dpa3_three_layers":
        model["descriptor"]["repflow"] |= THREE_LAYERS
    for part in (model["descriptor"], *model["descriptor"].get("list", ()), model["fitting_net"]):
        if part.get("type") != "hybrid":
            part["precision"] = "float32"
    data = inputs / "data"
    training = {
        "training_data": {"systems": [str(data / f"data_{i}") for i in range(3)], "batch_size": 1},
        "validation_data": {"systems": [str(data / "data_3")], "batch_size": 16},
        "numb_steps": steps,
        "disp_freq": max(1, steps // 40),
        "save_freq": steps,
        "seed": 1,
    }
    found = {"model": model, "training": training}
    if kind in OWN_RECIPE:
        kept = ("gradient_max_norm", "enable_ema", "ema_decay")
        training |= {name: tree["training"][name] for name in kept if name in tree["training"]}
        found |= {name: tree[name] for name in ("learning_rate", "loss", "optimizer") if name in tree}
        if "decay_steps" in found["learning_rate"]:
            found["learning_rate"]["decay_steps"] = max(1, steps // 200)
    return parse_config(found)


def planned_steps(inputs: Path, kind: str, folder: Path, seconds: float, device: str) -> int:
    trial = Trainer(configured(inputs, kind, 10**6), folder, device=device)
    for _ in range(STARTS):
        trial._advance()
    start = time.perf_counter()
    for _ in range(TIMED):
        trial._advance()
    if device != "cpu":
        torch.cuda.synchronize()
    return max(int(SPARE * seconds * TIMED / (time.perf_counter() - start)), 100)


def train(args: argparse.Namespace, kind: str) -> None:
    folder = args.models / kind
    folder.mkdir(parents=True, exist_ok=True)
    steps = args.steps or planned_steps(args.inputs, kind, folder / "trial", args.seconds, args.device)
    start = time.perf_counter()
    Trainer(configured(args.inputs, kind, steps), folder, device=args.device).run(lambda report: None)
    cost = {"steps": steps, "seconds": time.perf_counter() - start}
    (folder / "cost.json").write_text(json.dumps(cost))


def train_together(args: argparse.Namespace) -> None:
    """Trains each kind with as many steps as fit into the time when it runs alone; sharing a GPU takes longer."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = given.split(",") if given else [str(i) for i in range(torch.cuda.device_count())]
    turns = itertools.cycle(gpus or [""])
    options = []
    for kind in args.kinds:
        trial = args.models / kind / "trial"
        steps = args.steps or planned_steps(args.inputs, kind, trial, args.seconds, args.device)
        given_on = {"inputs": args.inputs, "models": args.models, "device": args.device, "steps": steps}
        options.append(["--kinds", kind, "--only-train", *(f"--{name}={x}" for name, x in given_on.items())])
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *each], env={**os.environ, "CUDA_VISIBLE_DEVICES": next(turns)}
        )
        for each in options
    ]
    if any([process.wait() for process in processes]):
        raise SystemExit("a training failed")


def measure(args: argparse.Namespace, kind: str) -> dict[str, Any]:
    folder = args.models / kind
    model = mdops.load(folder / "model.safetensors", device=args.device, overflow="extend")
    errors = evaluate(model, load_dataset([args.inputs / "data" / "data_3"], model.type_map)).errors()
    box = repeated(structure(["O", "H"], folder=args.inputs / "data" / "data_3"), args.atoms)
    ms = engine_step(model, box)["engine_ms"]
    found = {
        "kind": kind,
        **json.loads((folder / "cost.json").read_text()),
        "force_rmse": errors["forces"].rmse,
        "energy_rmse": errors["energy"].rmse,
        "atoms": len(box),
        "us_per_atom": 1e3 * ms / len(box),
    }
    print(found, flush=True)
    return found


def plot(results: list[dict[str, Any]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for row in results:
        place = row["us_per_atom"], 1e3 * row["force_rmse"]
        axes.plot(*place, "o", color="tab:blue")
        label = LABELS.get(row["kind"], row["kind"])
        axes.annotate(label, place, xytext=(5, 4), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="a step of dynamics, us an atom", ylabel="force RMSE, meV/A",
             title="Water, frames that were not trained on")  # fmt: skip
    axes.margins(x=0.18, y=0.12)
    axes.grid(which="both", alpha=0.25)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--inputs", type=Path)
    parser.add_argument("--kinds", nargs="+", choices=INPUTS, default=list(INPUTS))
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float)
    length.add_argument("--steps", type=int, help="the same number for each kind")
    parser.add_argument("--together", action="store_true", help="train all kinds at once")
    parser.add_argument("--only-train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--atoms", type=int, default=1536)
    parser.add_argument("--models", type=Path, default=Path("error_against_cost"))
    parser.add_argument("--commit", help="of the measured source, recorded as it is")
    parser.add_argument("--merge", nargs="+", type=Path, help="files of earlier runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if args.merge:
        files = [json.loads(file.read_text()) for file in args.merge]
        found = {
            "machine": files[0]["machine"],
            "results": [row for file in files for row in file["results"]],
        }
    else:
        if args.inputs is None:
            parser.error("--inputs is missing")
        found = {"machine": machine(args.device, args.commit), "results": []}
        if args.together:
            found["trained at once"] = args.kinds
    trains = not args.merge and bool(args.seconds or args.steps)
    if trains and args.together:
        train_together(args)
    for kind in [] if args.merge else args.kinds:
        if trains and not args.together:
            train(args, kind)
        if args.only_train:
            continue
        found["results"].append(measure(args, kind))
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    if args.plot:
        plot(found["results"], args.plot)


if __name__ == "__main__":
    main()
