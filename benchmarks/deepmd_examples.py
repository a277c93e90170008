"""The models of DeePMD-kit's examples for water, beside DeePMD-kit in the same run, on two cores or a GPU.

    python benchmarks/deepmd_examples.py PYTHON_WITH_DEEPMD --inputs examples/water [--atoms 192 1536]
        [--device cuda --atoms 12288] [--names se_e3 ...] [--rounds 3] [--clock process_time] [--json FILE]

`--inputs` is the folder `examples/water` of DeePMD-kit's repository: sizes of descriptors and nets are those of its
inputs, but for float32 and se_e3's cutoff and places, 6 A and (46, 92), which its input leaves to the data. Weights are
random, with little curvature, so that an engine's atoms stay where a liquid's do; boxes have water's density.
DeePMD-kit has the same model as .pth, not compressed: `step` is its model with the neighbour list given, as by LAMMPS,
and `whole` is a call of `DeepPot`, which makes the list in PyTorch, from all pairs of atoms and images: that of
a large box does not fit into a GPU. Of DPA-4, which it does not freeze as .pth, `whole` is a call of its module. Both
answer with energy, forces and virial. Of mdops `step` has the list given, too, and `whole` makes it; on a GPU `step` is
the kernels of one, in a CUDA graph, and `whole` an NVT step of the engine at 300 K, which keeps its list. Ways in turn,
medians. Where others compute, too, `--clock process_time` counts the time of the processors, of all threads together;
OMP_NUM_THREADS sets their number.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from beside_deepmd import DeePMDKit
from descriptors import on_gpu, timed, weaken
from machine import machine

from mdops import Potential
from mdops.jit.sample_box import sample_box
from mdops.models import DescriptorFitting, EnvironmentDescriptor
from mdops.models.registry import find
from mdops.system import from_atoms
from mdops.train.config.read import parse_config

INPUTS = {
    "se_e2_r": "se_e2_r/input.json",
    "se_e3": "se_e3/input.json",
    "se_e3_tebd": "se_e3_tebd/input_torch.json",
    "hybrid": "hybrid/input.json",
    "zbl": "zbl/input.json",
    "dpa2": "dpa2/input_torch_small.json",
    "dpa2_medium": "dpa2/input_torch_medium.json",
    "dpa3": "dpa3/input_torch.json",
    "dpa4": "dpa4/input.json",
    "dpa4_wide": "dpa4/input.json",
}
SIZES = {
    "se_e3": {"rcut": 6.0, "sel": [46, 92]},
    "dpa4_wide": {"lmax": 3, "n_blocks": 4, "channels": 64},
}


@torch.no_grad()
def stir(model: torch.nn.Module) -> None:
    """Small random numbers for matrices that new models begin with as zeros, such as those behind all messages of
    DPA-4: there would be no forces."""
    random = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        if weight.dim() > 1 and not weight.any():
            weight.copy_(0.1 * torch.randn(weight.shape, generator=random))


def model_of(name: str, folder: Path) -> Potential:
    """With random weights, and the statistics of water."""
    file = folder / INPUTS[name]
    tree = json.loads(file.read_text())
    model = tree["model"]
    for part in (model["descriptor"], *model["descriptor"].get("list", ()), model["fitting_net"]):
        if part.get("type") != "hybrid":
            part["precision"] = "float32"
    model["descriptor"] |= SIZES.get(name, {})
    if "use_srtab" in model:
        model["use_srtab"] = str((file.parent / model["use_srtab"]).resolve())
    options = parse_config(tree).model
    found: Any = find("model", options.KIND).random(options, 1, torch.float32)
    stir(found)
    n = len(model["type_map"])
    for part in found.modules():
        if isinstance(part, EnvironmentDescriptor):
            part.set_statistics(np.zeros(n), np.tile([0.14, 0.087], (n, 1)))
    for one in (found, *getattr(found, "models", ())):
        if isinstance(one, DescriptorFitting):
            weaken(one)
    potential = Potential(found, overflow="extend").eval()
    potential.source = {"min_nbor_dist": 0.5}
    potential.use_spline()
    return potential


def cpu_runs(potential: Potential, box: Atoms, clock: str) -> dict[str, Callable[[], float]]:
    system = from_atoms([box], potential.type_map)
    evaluator, given = potential.evaluator(), potential.neighbor_list(system)

    @torch.no_grad()
    def step(pairs: Any = None) -> None:
        evaluator(system, potential.neighbor_list(system) if pairs is None else pairs, check=False)

    return {
        "mdops step": timed(lambda: step(given), clock, 10),
        "mdops whole": timed(step, clock, 10),
    }


def microseconds(
    potential: Potential, boxes: list[Atoms], other: DeePMDKit | None, rounds: int, clock: str
) -> list[dict[str, float]]:
    """An atom, of each box and way."""
    found = []
    for number, box in enumerate(boxes):
        gpu = potential.device.type == "cuda"
        runs = {} if gpu else cpu_runs(potential, box, clock)
        if other is not None:
            for how in ("step", "whole"):
                runs[f"deepmd {how}"] = lambda how=how, number=number: other.milliseconds(how, number)
        times: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(rounds + 1):
            for name, run in runs.items():
                value = run()
                if turn:
                    times[name].append(value)
        own = on_gpu(potential, box, False) if gpu else {}
        ours = {"mdops step": own["kernels_us"], "mdops whole": own["step_us"]} if gpu else {}
        ours |= {name: 1e3 * statistics.median(values) for name, values in times.items()}
        answered = {name: value for name, value in ours.items() if value == value}
        found.append({name: float(f"{value / len(box):.4g}") for name, value in answered.items()})
    return found


def one_model(
    name: str, potential: Potential, boxes: list[Atoms], other: DeePMDKit, rounds: int, clock: str
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    try:
        other.warm_up()
        rows = microseconds(potential, boxes, other, rounds, clock)
    except RuntimeError as error:
        results[f"{name}, DeePMD-kit"] = str(error)
        print(error, flush=True)
        rows = microseconds(potential, boxes, None, rounds, clock)
    other.end()
    for box, row in zip(boxes, rows, strict=True):
        results[f"{name}, {len(box)}"] = row
        ratios = [
            f"{how} {row[f'deepmd {how}'] / row['mdops whole']:.1f}"
            for how in ("step", "whole")
            if f"deepmd {how}" in row
        ]
        print(f"{name}, {len(box)} atoms:", json.dumps(row), *ratios, flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python")
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 1536])
    parser.add_argument("--names", nargs="+", choices=[*INPUTS], default=[*INPUTS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=["perf_counter", "process_time"], default="perf_counter")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {
        "machine": machine(args.device),
        "unit": "us/atom",
        "clock": args.clock,
        "runs": {},
    }
    models = {name: model_of(name, args.inputs) for name in args.names}
    boxes = [sample_box(n, ["O", "H"]) for n in args.atoms]
    with contextlib.ExitStack() as stack:
        others = {
            name: DeePMDKit(
                args.python,
                potential,
                boxes,
                Path(stack.enter_context(tempfile.TemporaryDirectory())),
                args.clock,
            )
            for name, potential in models.items()
        }
        for other in others.values():
            stack.callback(other.end)
            with contextlib.suppress(RuntimeError):  # which is told below
                other.wait()
        for name, potential in models.items():
            results["runs"] |= one_model(
                name, potential.to(args.device), boxes, others[name], args.rounds, args.clock
            )
            if args.json:
                args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
