"""Time of a training step, against inference of the same frame, the step's matrix products and DeePMD-kit.

    python benchmarks/training.py --systems ../shared/data/water/data_0 [--device cuda] [--batches 1 64]
                                  [--attention | --radial] [--deepmd PYTHON] [--json FILE]

The standard net (25-50-100, axis 16, fitting 240-240-240, 6 A) is trained on frames of water. With --attention, it is
DPA-1's of that size with two smooth layers of attention, 128 wide, and `gemm` is left out. With --radial, it is
se_e2_r, and `splines` is the step with autograd through spline moments. `step` is the whole
step: making the batch, energies and forces, their loss, its gradients, Adam and the average of the weights.
`inference` is energies, forces and virial of one frame with a given neighbour list, as in simulations. `gemm` is the
necessary matrix products of a step, with torch.mm into preallocated outputs, one after the other: for
each layer, and for the moments, six of the forward pass' size (training.md, "A step"). All are taken in turn, so
that a busy machine slows them equally; compare the ratios. `deepmd` is the average that DeePMD-kit prints
for the same training in float64, its default; PYTHON is a Python with DeePMD-kit. These steps are from another run:
compare only the magnitudes.

On several GPUs, each of which computes its share of every batch:

    torchrun --nproc-per-node 4 benchmarks/training.py --systems ... --device cuda --batches 256
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from machine import machine

import mdops
from mdops.evaluators import TRAIN
from mdops.train.config.read import parse_config
from mdops.train.loop.distributed import Processes, join_processes, leave_processes
from mdops.train.loop.trainer import Trainer

SEL = [46, 92]
DEEPMD_STEPS, DEEPMD_LINES = 60, 20
ATTENTION = {"type": "dpa1", "sel": 138, "attn_layer": 2, "attn": 128, "smooth_type_embedding": True}
OTHERS: dict[str, dict[str, Any]] = {"": {}, "attention": ATTENTION, "radial": {"type": "se_e2_r"}}


def training_input(
    systems: list[str], batch: int, precision: str, other: str, steps: int = 10**6
) -> dict[str, Any]:
    """A training input that DeePMD-kit also takes, except for `precision` and the average of the weights."""
    angular = {} if other == "radial" else {"axis_neuron": 16, "type_one_side": True}
    return {
        "model": {
            "type_map": ["O", "H"],
            "descriptor": {
                "type": "se_e2_a",
                "rcut": 6.0,
                "rcut_smth": 0.5,
                "sel": SEL,
                "neuron": [25, 50, 100],
                "seed": 1,
                **angular,
                **OTHERS[other],
            },
            "fitting_net": {"neuron": [240, 240, 240], "seed": 1},
        },
        "learning_rate": {"type": "exp", "start_lr": 1e-3, "stop_lr": 1e-8, "decay_steps": 5000},
        "loss": {"type": "ener"},
        "training": {
            "training_data": {"systems": systems, "batch_size": batch if batch == 1 else f"mixed:{batch}"},
            "numb_steps": steps,
            "disp_freq": steps,
            "save_freq": steps,
            "seed": 1,
            "precision": precision,
            "enable_ema": True,
        },
    }


def trainer(systems: list[str], batch: int, precision: str, device: str, other: str) -> Trainer:
    training = Trainer(
        parse_config(training_input(systems, batch, precision, other)), tempfile.mkdtemp(), device=device
    )
    largest = training.frames.sampler.largest
    if largest != batch:  # an epoch is divided into equal batches, so the timed batch would be smaller
        raise SystemExit(
            f"batches of {batch}: the frames of the systems make batches of {largest}; give others"
        )
    return training


def inference(training: Trainer, folder: Path) -> Callable[[], Any]:
    """Energies, forces and virial of the first frame with the current model."""
    path = folder / "model.safetensors"
    training.potential.save(path)
    model = mdops.load(path, dtype=training.potential.dtype, device=str(training.device))
    frames = training.frames
    batch = frames.batch(frames.share(0, training.processes), training.device)
    return lambda: model.evaluate(batch.system, batch.neighbors)


def by_splines(systems: list[str], batch: int, precision: str, device: str) -> Callable[[], Any]:
    """The same step with autograd."""
    faster = [mock.patch.object(kind, "why_not", return_value="not here") for kind in TRAIN[:2]]
    with faster[0], faster[1]:
        training = trainer(systems, batch, precision, device, "radial")

    def step() -> None:
        with faster[0], faster[1]:
            training._advance()

    return step


def products(training: Trainer, batch: int) -> Callable[[], None]:
    """The matrix products of a step."""
    potential, frames = training.potential, training.frames
    d, grid = potential.model.descriptor, potential.grid
    assert grid is not None
    tables, components = d.ntypes * (grid.intervals + 5), d.columns
    shapes = []
    for kind, share in enumerate(frames.data.composition()[0]):
        n = int(share) * batch
        pairs = [(components * n, tables, d.channels)]
        pairs += [(n, layer.inputs, layer.outputs) for layer in potential.model.fitting.net(kind).layers[:-1]]
        for rows, inputs, outputs in pairs:
            shapes += [(rows, inputs, outputs), (rows, outputs, inputs), (inputs, rows, outputs)] * 2
    like = {"dtype": potential.dtype, "device": training.device}
    work = [
        (torch.rand(m, k, **like), torch.rand(k, c, **like), torch.empty(m, c, **like)) for m, k, c in shapes
    ]

    def run() -> None:
        for a, b, out in work:
            torch.mm(a, b, out=out)

    return run


def seconds_each(
    functions: dict[str, Callable[[], Any]], repeat: int, calls: int, device: str
) -> dict[str, float]:
    """Median seconds per call of each, with `calls` calls timed together, in turn."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeat):
        for name, function in functions.items():
            function()
            _wait(device)
            start = time.perf_counter()
            for _ in range(calls):
                function()
            _wait(device)
            times[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(values) for name, values in times.items()}


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def measure(
    systems: list[str], batch: int, precision: str, device: str, repeat: int, other: str
) -> dict[str, Any]:
    training = trainer(systems, batch, precision, device, other)
    if training.processes.count > 1:
        return scaling(training, batch, precision, device, repeat)
    with tempfile.TemporaryDirectory() as folder:
        functions = {
            "step": training._advance,
            "inference": inference(training, Path(folder)),
        }
        if other != "attention":
            functions["gemm"] = products(training, batch)
        if other == "radial":
            functions["splines"] = by_splines(systems, batch, precision, device)
        for function in functions.values():
            for _ in range(3):
                function()
        calls = (200 if device != "cpu" else 10) // (10 if other == "attention" else 1)
        times = seconds_each(functions, repeat, calls, device)
    return {
        "precision": precision,
        "batch": batch,
        "atoms": int(training.frames.data.sizes()[0]) * batch,
        **{f"{name}_ms": 1e3 * value for name, value in times.items()},
        "step/inference": times["step"] / times["inference"],
        **({"splines/step": times["splines"] / times["step"]} if "splines" in times else {}),
        **({"step/gemm": times["step"] / times["gemm"]} if "gemm" in times else {}),
        "frames/s": batch / times["step"],
    }


def scaling(training: Trainer, batch: int, precision: str, device: str, repeat: int) -> dict[str, Any]:
    """Times of the step in several processes."""
    for _ in range(3):
        training._advance()
    (step,) = seconds_each({"step": training._advance}, repeat, 100, device).values()
    shared = {"processes": training.processes.count, "precision": precision, "batch": batch}
    return {**shared, "step_ms": 1e3 * step, "frames/s": batch / step}


def deepmd_ms(python: Path, systems: list[str], other: str) -> float:
    """DeePMD-kit's own average of a step, ms."""
    tree = training_input([str(Path(s).resolve()) for s in systems], 1, "float64", other, DEEPMD_STEPS)
    del tree["training"]["precision"], tree["training"]["enable_ema"]
    tree["training"] |= {"disp_freq": DEEPMD_LINES}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "input.json").write_text(json.dumps(tree))
        command = [str(python.absolute().parent / "dp"), "--pt", "train", "input.json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = re.findall(r"average training time: ([\d.]+) s/batch", done.stdout + done.stderr)
    if not found:
        raise SystemExit(f"DeePMD-kit printed no time:\n{(done.stdout + done.stderr)[-2000:]}")
    return 1e3 * float(found[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--systems", nargs="+", required=True, help="of water, DeePMD-kit's format")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precisions", nargs="+", default=["float32", "float64"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--attention", action="store_true", help="DPA-1 with layers of attention")
    kinds.add_argument("--radial", action="store_true", help="se_e2_r")
    parser.add_argument("--deepmd", type=Path, help="a Python that has DeePMD-kit")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--commit", help="where the sources are no checkout")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    other = "attention" if arguments.attention else "radial" if arguments.radial else ""
    device = str(join_processes(arguments.device))
    is_first = Processes.current().is_first
    host = machine(device, arguments.commit)
    print(host)
    results = []
    for precision in arguments.precisions:
        for batch in arguments.batches:
            row = measure(arguments.systems, batch, precision, device, arguments.repeat, other)
            results.append(row)
            print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    answer: dict[str, Any] = {"machine": host, "results": results}
    if arguments.deepmd:
        answer["deepmd_float64_ms"] = deepmd_ms(arguments.deepmd, arguments.systems, other)
        print(f"DeePMD-kit, float64: {answer['deepmd_float64_ms']:.1f} ms")
    if arguments.json and is_first:
        arguments.json.write_text(json.dumps(answer, indent=1) + "\n")
    leave_processes()


if __name__ == "__main__":
    main()
