"""The models of DeePMD-kit's examples for water, beside DeePMD-kit in the same run, on two cores or a GPU.

    python benchmarks/deepmd_examples.py PYTHON_WITH_DEEPMD --inputs examples/water [--atoms 192 1536]
        [--device cuda --atoms 12288] [--names dpa4 ...] [--options '{"mmax": 2}' ...] [--rounds 3]
        [--clock process_time] [--json FILE]
    python benchmarks/deepmd_examples.py PYTHON_WITH_DEEPMD --inputs examples/water --calculator [--threads 1 2]
        [--files MODEL.dp ...] [--names ...] [--rounds 9] [--json FILE]

`--inputs` is the folder `examples/water` of DeePMD-kit's repository. The sizes of descriptors and nets are those of its
inputs, except for float32, and for the cutoff and places of se_e3, 6 A and (46, 92), which its input leaves to the
data. Weights are random, with small curvature, so that atoms in the engine stay where a liquid's atoms do. Boxes have
water's density. DeePMD-kit has the same model as .pth, not compressed: `step` is its model with a given neighbour list,
as in LAMMPS, and `whole` is a call of `DeepPot`, which makes the list in PyTorch from all pairs of atoms and images
(for a large box, this does not fit into a GPU). DPA-4 cannot be frozen as .pth, so its `whole` is a call of its module.
Both return energy, forces and virial. For mdops, `step` has a given list, too, and `whole` makes it; on a GPU, `step`
is the kernels of a step in a CUDA graph, and `whole` an NVT step of the engine at 300 K, which keeps its list. Variants
are taken in turn, with medians. If other programs run, `--clock process_time` measures processor time, of all threads
together; OMP_NUM_THREADS sets their number. `--options` has options of the descriptor that replace those of the input;
each of these objects is a separate run.

With `--calculator`, times are of whole calls for small dense cells and a cluster of 12 atoms: of mdops' ASE
calculator, for positions that change a little, and of `DeepPot`, which is all that DeePMD-kit's calculator
calls. Times are milliseconds per call, the smallest of the rounds, because other programs may run. `first` loads the
file and evaluates 16 atoms. Models of `--files` run in float64.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from beside_deepmd import DeePMDKit
from descriptors import on_gpu, timed, weaken
from machine import machine

import mdops
from mdops import Potential
from mdops.calculator import MDOps
from mdops.jit.sample_box import sample_box
from mdops.models import DescriptorFitting, EnvironmentDescriptor
from mdops.models.registry import find
from mdops.system import from_atoms
from mdops.train.config.read import parse_config

INPUTS = {
    "se_e2_a": "se_e2_a/input_torch.json",
    "se_e2_r": "se_e2_r/input.json",
    "se_e3": "se_e3/input.json",
    "se_e3_tebd": "se_e3_tebd/input_torch.json",
    "hybrid": "hybrid/input.json",
    "hybrid_angles": "hybrid/input.json",
    "concat": "se_atten/input_torch.json",
    "strip": "se_atten_compressible/input.json",
    "attention": "se_atten/input_torch.json",
    "attention_strip": "se_atten_compressible/input.json",
    "linear": "linear/input_pt.json",
    "zbl": "zbl/input.json",
    "dpa2": "dpa2/input_torch_small.json",
    "dpa2_medium": "dpa2/input_torch_medium.json",
    "dpa3": "dpa3/input_torch.json",
    "dpa4": "dpa4/input.json",
    "dpa4_wide": "dpa4/input.json",
    "dpa4_groups": "dpa4/input.json",
    "dpa4c": "se_e2_a/input_torch.json",
}
_ANGULAR = {
    "type": "se_e2_a",
    "rcut": 6.0,
    "rcut_smth": 0.5,
    "sel": [46, 92],
    "neuron": [25, 50, 100],
    "seed": 1,
}
_ANGLES = {"type": "se_e3", "rcut": 4.0, "rcut_smth": 0.5, "sel": [20, 40], "neuron": [2, 4, 8], "seed": 1}
SIZES: dict[str, dict[str, Any]] = {
    "se_e3": {"rcut": 6.0, "sel": [46, 92]},
    "hybrid_angles": {"list": [_ANGULAR, _ANGLES]},
    "concat": {"attn_layer": 0},
    "attention_strip": {"attn_layer": 2},
    "dpa4_wide": {"lmax": 3, "n_blocks": 4, "channels": 64},
    "dpa4_groups": {"n_focus": 2},
}
OTHERS = {
    "dpa4c": {"type": "dpa4c", "channels": 32, "lmax": 2, "precision": "float32"}
}  # replaces the input's: Mini


@torch.no_grad()
def stir(model: torch.nn.Module) -> None:
    """Small random numbers for matrices that are zero in new models, such as those after all messages of DPA-4:
    otherwise there would be no forces."""
    random = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        if weight.dim() > 1 and not weight.any():
            weight.copy_(0.1 * torch.randn(weight.shape, generator=random))


def changed(tree: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The tree with these options; those of a section, such as DPA-3's `repflow`, are added to its others."""
    sections = {key: changed(tree[key], one) for key, one in options.items() if isinstance(one, dict)}
    return tree | options | sections


def model_of(name: str, folder: Path, **options: Any) -> Potential:
    """A model with random weights and the statistics of water. Options replace those of the input's descriptor or,
    under that name, of its section `fitting_net`."""
    file = folder / INPUTS[name]
    tree = json.loads(file.read_text())
    model = tree["model"]
    for one in model.get("models", [model]):
        one["descriptor"] = OTHERS.get(name) or one["descriptor"] | SIZES.get(name, {})
        one["fitting_net"] |= options.get("fitting_net", {})
        one["descriptor"] = changed(
            one["descriptor"], {key: value for key, value in options.items() if key != "fitting_net"}
        )
        for part in (one["descriptor"], *one["descriptor"].get("list", ()), one["fitting_net"]):
            if part.get("type") != "hybrid":
                part["precision"] = "float32"
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


def small_cells(elements: list[str]) -> dict[str, Atoms]:
    """Dense cells, the smallest with sides of a third of the cutoff, and a cluster."""
    found = {f"{n} atoms": sample_box(n, elements[:2]) for n in (16, 1, 8, 64)}
    found["cluster of 12"] = sample_box(12, elements[:2])
    found["cluster of 12"].pbc, found["cluster of 12"].cell = False, None
    return found


def milliseconds_of_calls(
    potential: Potential, other: DeePMDKit, cells: list[Atoms], rounds: int, clock: str
) -> list[dict[str, float]]:
    """Times of both programs for each cell."""
    random = np.random.default_rng(1)
    now = getattr(time, clock)
    found = []
    for number, atoms in enumerate(cells):
        calculator = MDOps(potential)

        def call(atoms: Atoms = atoms, calculator: MDOps = calculator) -> float:
            atoms.positions += 1e-4 * random.normal(size=atoms.positions.shape)
            start = now()
            calculator.calculate(atoms, ["energy", "forces", "stress"])
            return 1e3 * (now() - start)

        call()
        ours, others = [], []
        for _ in range(
            rounds
        ):  # the first call after one of the other program finds the other's data in the caches
            ours.append(min([call() for _ in range(5)]))
            others.append(min([other.milliseconds("whole", number) for _ in range(3)]))
        found.append({"mdops": _rounded(min(ours)), "deepmd": _rounded(min(others))})
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def first_call(file: Path, atoms: Atoms, dtype: torch.dtype, clock: str) -> float:
    """Milliseconds to load a file and to evaluate these atoms."""
    start = getattr(time, clock)()
    MDOps(file, dtype=dtype, overflow="extend").calculate(atoms, ["energy", "forces", "stress"])
    return 1e3 * (getattr(time, clock)() - start)


def of_calculators(
    python: str, potential: Potential, file: Path | None, threads: list[int], rounds: int, clock: str
) -> dict[str, Any]:
    """Times for a model, and for its file if it comes from one."""
    cells = small_cells(potential.type_map)
    results: dict[str, Any] = {"evaluator": potential.explain().partition(":")[0], "ms": {}}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.dp"
        potential.save(model)
        torch.set_num_threads(threads[0])
        first = first_call(file or model, cells["16 atoms"], potential.dtype, clock)
        with DeePMDKit(python, potential, list(cells.values()), Path(folder), clock) as other:
            results["first"] = {"mdops": _rounded(first), "deepmd": _rounded(other.milliseconds("first"))}
            for count in threads:
                torch.set_num_threads(count)
                other.use_threads(count)
                rows = milliseconds_of_calls(potential, other, list(cells.values()), rounds, clock)
                results["ms"][f"{count} threads"] = dict(zip(cells, rows, strict=True))
    return results


def print_calls(name: str, row: dict[str, Any]) -> None:
    times = {"first": row["first"], **{f"{t}, {c}": v for t, of in row["ms"].items() for c, v in of.items()}}
    told = (f"{k}: {v['mdops']} and {v['deepmd']} ({v['deepmd'] / v['mdops']:.1f})" for k, v in times.items())
    print(name, f"({row['evaluator']})", *told, sep="\n  ", flush=True)


def microseconds(
    potential: Potential, boxes: list[Atoms], other: DeePMDKit | None, rounds: int, clock: str
) -> list[dict[str, float]]:
    """Time per atom, for each box and variant."""
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
    parser.add_argument("--names", nargs="*", choices=[*INPUTS], default=[*INPUTS])
    parser.add_argument("--options", type=json.loads, nargs="+", default=[{}], help="as JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=["perf_counter", "process_time"], default="perf_counter")
    parser.add_argument("--calculator", action="store_true")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--files", type=Path, nargs="+", default=[])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {
        "machine": machine(args.device),
        "unit": "ms" if args.calculator else "us/atom",
        "clock": args.clock,
        "runs": {},
    }
    if args.calculator:
        files = {file.stem: file for file in args.files}
        for name in (*args.names, *files):
            file = files.get(name)
            potential = (
                mdops.load(file, dtype="float64", overflow="extend") if file else model_of(name, args.inputs)
            )
            found = of_calculators(args.python, potential, file, args.threads, args.rounds, args.clock)
            results["runs"][name] = found
            print_calls(name, found)
            if args.json:
                args.json.write_text(json.dumps(results, indent=1) + "\n")
        return
    for options in args.options:
        for found in of_options(args, options):
            results["runs"] |= found
            if args.json:
                args.json.write_text(json.dumps(results, indent=1) + "\n")


def of_options(args: argparse.Namespace, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the results of one model after the other."""
    more = "".join(f", {name} {json.dumps(value)}" for name, value in options.items())
    models = {f"{name}{more}": model_of(name, args.inputs, **options) for name in args.names}
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
            with contextlib.suppress(RuntimeError):  # its reason is printed below
                other.wait()
        for name, potential in models.items():
            given = potential.to(args.device), boxes, others[name], args.rounds, args.clock
            yield one_model(name, *given)


if __name__ == "__main__":
    main()
