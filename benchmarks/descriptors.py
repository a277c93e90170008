"""Time of the descriptors on spline moments: on the CPU beside autograd and DeePMD-kit, on a GPU by the engine.

    python benchmarks/descriptors.py [--atoms 192 1536] [--deepmd PYTHON] [--processor] [--json FILE]
    python benchmarks/descriptors.py --device cuda [--atoms 192 12288 98304] [--profile] [--deepmd PYTHON] [--json FILE]
                                     [--numbers-at-once N] [--layers]

Untrained models of the standard size (25-50-100, axis 16, fitting 240-240-240, 6 A), float32. `concat`: DPA-1
without attention, types concatenated to the distance. `strip`: types in a separate net, whose product fades with
distance (se_atten_v2). `many`: `concat` with 20 of the 47 elements that it knows. `radial`: se_e2_r. `attention`:
`concat` with two layers of smooth attention. `degrees` and `attention_degrees`: `concat` and `attention` with moments
to degree 3. `zbl`: `concat` with a ZBL table, with the switch of DeePMD-kit's example for water, 0.9 to 1 A.
`zbl_near`: the same with a switch within which a quarter of the box's atoms are. `hybrid`: `angular`, se_e2_a, and
se_e2_r side by side, from that example: both 6 A, and one net. `attentive`: `angular` and `attention` side by side.
`angles`: se_e3 of 2-4-8 at 6 A. `angles_tebd` and `angles_strip`: se_e3_tebd of 2-4-8 at 4 A. And se_e2_a.
Boxes have water's density.

On the CPU, times are of energy, forces and virial with a given list, all variants in turn in one run, medians. PYTHON
has DeePMD-kit, which gets the same model as .pth, with a given list (step) and making it in PyTorch (whole).
--processor measures processor time instead of wall time, for busy machines, on one thread. --in-turn takes a step of
each model after that of another, with the evaluators in use, for their ratios. On a GPU, times are of an NVT step of
0.5 fs at 300 K with lists (of ZBL from rest: a gas at 300 K does not survive so narrow a switch), the median of five
pieces of a run, and of the step's kernels in a CUDA graph, if possible, for the unchanged box; last, diamond with 158
neighbours per atom. Memory is the maximum in PyTorch. --numbers-at-once sets how many numbers the largest tensor of
attention has, and so how many atoms are computed at once. With --layers, each layer of attention is a separate op.
"""

import argparse
import contextlib
import copy
import functools
import itertools
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk
from beside_deepmd import DeePMDKit
from evaluators import training_step
from kernels import kernels_of
from machine import machine

import mdops
from mdops import Potential, zbl
from mdops.cli.sample_model import water_model
from mdops.evaluators import SIMULATE, TRAIN, Autograd
from mdops.jit.sample_box import sample_box
from mdops.md import EnsembleSettings
from mdops.md.engine import Engine
from mdops.md.motion import set_velocities
from mdops.models import DescriptorFitting, dpa1
from mdops.models.pairtab import PairTable, PairTableOptions
from mdops.models.standard import StandardOptions
from mdops.models.zbl import ZBLModel, ZBLOptions
from mdops.options import parse
from mdops.system import from_atoms
from mdops.tables import attention_tables

METALS = [
    "Li", "Be", "Na", "Mg", "Al", "K", "Ca", "Sc", "Ti", "V", "Cr", "Mn", "Fe", "Co", "Ni", "Cu", "Zn", "Ga",
    "Rb", "Sr", "Y", "Zr", "Nb", "Mo", "Tc", "Ru", "Rh", "Pd", "Ag", "Cd", "In", "Sn", "Cs", "Ba", "La",
    "Hf", "Ta", "W", "Re", "Os", "Ir", "Pt", "Au", "Hg", "Tl", "Pb", "Bi",
]  # fmt: skip
THERE = 20
SIZES = {
    "rcut": 6.0, "rcut_smth": 0.5, "sel": 200, "neuron": [25, 50, 100], "axis_neuron": 16, "attn_layer": 0, "seed": 1,
    "type_one_side": True, "precision": "float32",
}  # fmt: skip
RADIAL = {
    "rcut": 6.0, "rcut_smth": 0.5, "sel": [100, 200], "neuron": [25, 50, 100], "seed": 1, "precision": "float32",
}  # fmt: skip
ATTENTION = {**SIZES, "sel": 138, "attn_layer": 2, "attn": 128, "smooth_type_embedding": True}
ANGULAR = {**RADIAL, "axis_neuron": 16, "type_one_side": True}
# As in DeePMD-kit's examples for water.
ANGLES = {**RADIAL, "neuron": [2, 4, 8]}
TEBD = {**ANGLES, "rcut": 4.0, "sel": 60, "tebd_dim": 8}
DESCRIPTORS: dict[str, dict[str, Any]] = {
    "concat": {"type": "dpa1", **SIZES},
    "strip": {"type": "se_atten_v2", **SIZES},
    "many": {"type": "dpa1", **SIZES},
    "radial": {"type": "se_e2_r", **RADIAL},
    "attention": {"type": "dpa1", **ATTENTION},
    "degrees": {"type": "dpa1", **SIZES, "lmax": 3},
    "attention_degrees": {"type": "dpa1", **ATTENTION, "lmax": 3},
    "zbl": {"type": "dpa1", **SIZES},
    "zbl_near": {"type": "dpa1", **SIZES},
    "angular": {"type": "se_e2_a", **ANGULAR},
    "hybrid": {"type": "hybrid", "list": [{"type": "se_e2_a", **ANGULAR}, {"type": "se_e2_r", **RADIAL}]},
    "attentive": {"type": "hybrid", "list": [{"type": "se_e2_a", **ANGULAR}, {"type": "dpa1", **ATTENTION}]},
    "angles": {"type": "se_e3", **ANGLES},
    "angles_tebd": {"type": "se_e3_tebd", **TEBD},
    "angles_strip": {"type": "se_e3_tebd", **TEBD, "tebd_input_mode": "strip"},
}
_PIECES = 5  # number of timed parts of a run of the engine
SWITCHES = {"zbl": (0.9, 1.0), "zbl_near": (1.0, 1.62)}  # A


def model_of(name: str, elements: list[str]) -> Potential:
    """A model with random weights, the statistics of water, and small curvature, as trained nets have."""
    if name == "se_e2_a":
        return water_model(torch.float32)
    sections = {
        "type_map": elements,
        "descriptor": DESCRIPTORS[name],
        "fitting_net": {"neuron": [240, 240, 240], "seed": 1, "precision": "float32"},
    }
    model = DescriptorFitting.random(parse(StandardOptions, sections), 1, torch.float32)
    n = len(elements)
    for part in model.descriptors:
        part.set_statistics(np.zeros(n), np.tile([0.14, 0.087], (n, 1)))
    weaken(model)
    potential = Potential(
        blended(model, *SWITCHES[name]) if name in SWITCHES else model, overflow="extend"
    ).eval()
    potential.source = {"min_nbor_dist": 0.5}
    potential.use_spline()
    return potential


@torch.no_grad()
def weaken(model: DescriptorFitting) -> None:
    """Reduces the curvature of energies of random nets, to that of trained ones."""
    for net in model.fitting.nets.nets:
        if hasattr(net, "layers"):
            net.layers[-1].weight *= 0.01


def blended(net: DescriptorFitting, low: float, high: float) -> ZBLModel:
    """The net and a table, with a switch between these distances, A."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "zbl.txt"
        zbl.write_table(file, net.type_map, zbl.table(net.type_map))
        table = {"tab_file": str(file), "rcut": 6.0, "sel": SIZES["sel"]}
        part = PairTable.random(PairTableOptions(type_map=net.type_map, **table), 1, torch.float32)
    o = net.options
    options = ZBLOptions(
        type_map=net.type_map,
        descriptor=o.descriptor,
        fitting_net=o.fitting_net,
        use_srtab="",
        sw_rmin=low,
        sw_rmax=high,
    )
    return ZBLModel(options, net.type_map, *ZBLModel.no_statistics(len(net.type_map)), [net, part])


def elements_of(name: str) -> tuple[list[str], list[str]]:
    """The elements that the model knows, and those in the box."""
    return (METALS, METALS[:THERE]) if name == "many" else (["O", "H"], ["O", "H"])


def timed(run: Callable[[], Any], clock: str, calls: int) -> Callable[[], float]:
    """A function that returns the milliseconds of a call."""
    now = getattr(time, clock)

    def measured() -> float:
        start = now()
        for _ in range(calls):
            run()
        return 1e3 * (now() - start) / calls

    return measured


def medians(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn, (name, run) in itertools.product(range(rounds + 1), runs.items()):
        value = run()
        if turn:
            found[name].append(value)
    return {name: statistics.median(values) for name, values in found.items()}


def on_cpu(
    name: str, atoms: int, rounds: int, python: str | None, clock: str, folder: Path
) -> dict[str, dict[str, float]]:
    """Milliseconds of a step of simulation, and of one of training with its backward pass, by evaluator."""
    known, present = elements_of(name)
    potential, box = model_of(name, known), sample_box(atoms, present)
    system = from_atoms([box], potential.type_map)
    pairs = potential.neighbor_list(system)

    def made(kind: Any) -> Any:
        if kind is not Autograd:
            return kind(potential)
        exact = copy.deepcopy(potential)  # descriptors of angles make their splines themselves
        exact.angle_knots = [None for _ in exact.angle_knots]
        return kind(exact)

    def simulation(kind: Any) -> Callable[[], float]:
        evaluator = made(kind)
        run = torch.no_grad()(lambda: evaluator(system, pairs, check=False))
        return timed(run, clock, 1 if kind is Autograd else 5)

    def training(kind: Any) -> Callable[[], float]:
        return timed(training_step(made(kind), system, pairs), clock, 1)

    runs = {kind.name: simulation(kind) for kind in SIMULATE if kind.why_not(potential) is None}
    with contextlib.ExitStack() as stack:
        if python is not None and name != "se_e2_a":
            other = stack.enter_context(DeePMDKit(python, potential, [box], folder, clock))
            runs |= {f"deepmd {how}": functools.partial(other.milliseconds, how) for how in ("step", "whole")}
            # In the table, the fast variants are those that are used.
            runs = {kind: run for kind, run in runs.items() if kind != Autograd.name or len(runs) < 4}
        found = {"simulation": medians(runs, rounds)}
    if atoms <= 192 and python is None:
        kinds = [kind for kind in TRAIN if "cpu" in kind.devices and kind.why_not(potential) is None]
        found["training"] = medians({kind.name: training(kind) for kind in kinds}, rounds)
    return found


def in_turn(names: list[str], atoms: int, rounds: int, clock: str) -> dict[str, dict[str, float]]:
    """Milliseconds of a step of each model, and the ratio to the first one's."""

    def simulation(name: str) -> Callable[[], float]:
        known, present = elements_of(name)
        potential = model_of(name, known)
        system = from_atoms([sample_box(atoms, present)], potential.type_map)
        evaluator, pairs = potential.evaluator(), potential.neighbor_list(system)
        return timed(torch.no_grad()(lambda: evaluator(system, pairs, check=False)), clock, 1)

    found = medians({name: simulation(name) for name in names}, rounds)
    return {name: {"ms": value, "ratio": value / found[names[0]]} for name, value in found.items()}


def kernels_alone(potential: Potential, box: Atoms, profiled: bool) -> dict[str, Any]:
    """Microseconds of the kernels of a step, with a list that has a skin of 1 A; if `profiled`, also of each kernel."""
    system = from_atoms([box], potential.type_map, potential.device)
    pairs = mdops.ops.neighbor_list(
        system.positions,
        system.cell,
        system.pbc,
        system.types,
        potential.cutoff + 1.0,
        batch=system.batch,
        ntypes=len(potential.type_map),
    )
    evaluator = potential.evaluator()
    system.find_atoms_by_type(len(potential.type_map))
    evaluator(system, pairs, check=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        evaluator(system, pairs, check=False)
    graph.replay()
    torch.cuda.synchronize()
    start_of_one = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    steps, times = max(1, min(200, int(0.3 / (time.perf_counter() - start_of_one)))), []
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(steps):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / steps)
    each = {"kernels": kernels_of(graph.replay, 3)} if profiled else {}
    return {"kernels_us": statistics.median(times), **each}


def deepmd_microseconds(
    python: str, potential: Potential, box: Atoms, folder: Path, rounds: int
) -> dict[str, float | str]:
    """Times of a step with a given list, and of a whole call; or a note that there is no answer."""
    try:
        with DeePMDKit(python, potential, [box], folder) as other:
            return {
                f"deepmd_{how}_us": 1e3 * statistics.median(other.milliseconds(how) for _ in range(rounds))
                for how in ("step", "whole")
            }
    except RuntimeError as error:
        return {"deepmd": f"none: {error}"}


def on_gpu(potential: Potential, box: Atoms, profiled: bool) -> dict[str, Any]:
    """Microseconds of an NVT step by the engine, and of `kernels_alone`."""
    n = len(box)
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        captures = potential.evaluator().captures
        kernels = kernels_alone(potential, box, profiled) if captures else {"kernels_us": float("nan")}
    physics, moving = EnsembleSettings("nvt", 300, 0.5), box.copy()
    if not isinstance(potential.model, ZBLModel):
        set_velocities(moving, physics, np.random.default_rng(0), anew=True)
    engine = Engine(moving, potential, physics)
    # More steps for few atoms, because they are short. Many atoms would leave their box's structure in so many.
    most = 400 if n < 1000 else 80
    steps = max(10, min(most, int(3e6 / kernels["kernels_us"] / _PIECES))) if captures else 20
    list(engine.run(min(60, steps)))
    # The median ignores pieces in which a row of the list overflowed and graphs were captured again.
    builds, times = engine.builds, []
    for _ in range(_PIECES):
        start = time.perf_counter()
        list(engine.run(steps))
        times.append(1e6 * (time.perf_counter() - start) / steps)
    step = statistics.median(times)
    return {
        "atoms": n,
        "step_us": step,
        **kernels,
        "steps_per_list": _PIECES * steps / (engine.builds - builds),
        "repeats": engine.repeats,
        "us_per_atom": step / n,
        "atoms_per_ms": 1e3 * n / step,
        "gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def diamond(atoms: int) -> Atoms:
    """Diamond with 158 neighbours within 6 A."""
    times = round((atoms / 8) ** (1 / 3))
    found = bulk("C", "diamond", a=3.567, cubic=True) * (times, times, times)
    found.rattle(0.01, seed=1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--atoms", type=int, nargs="+")
    parser.add_argument("--models", nargs="+", default=["se_e2_a", *DESCRIPTORS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deepmd", metavar="PYTHON")
    parser.add_argument("--deepmd-models", type=Path, metavar="FOLDER", help="where their files stay")
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--in-turn", action="store_true")
    parser.add_argument("--profile", action="store_true", help="on a GPU, each kernel's time, too")
    parser.add_argument("--numbers-at-once", type=int, default=dpa1._NUMBERS_ON_GPU)
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    dpa1._NUMBERS_ON_GPU = args.numbers_at_once
    if args.layers:
        attention_tables.joined = lambda *_: None
    warnings.simplefilter("ignore")
    clock = "process_time" if args.processor else "perf_counter"
    if args.processor:
        torch.set_num_threads(1)
    results: dict[str, Any] = {"machine": machine(args.device), "clock": clock, "runs": {}}
    gpu = args.device != "cpu"
    for atoms in (args.atoms or [192, 1536]) if args.in_turn else []:
        found = in_turn(args.models, atoms, args.rounds, clock)
        results["runs"][str(atoms)] = found
        print(f"{atoms} atoms:", json.dumps(found), flush=True)
    if args.in_turn:
        args.models = []
    models = Path(tempfile.mkdtemp()) if args.deepmd_models is None else args.deepmd_models
    for name in args.models:
        folder = models / name
        folder.mkdir(parents=True, exist_ok=True)
        for atoms in args.atoms or ([192, 12288, 98304] if gpu else [192, 1536]):
            if gpu:
                known, present = elements_of(name)
                potential, box = model_of(name, known).to(args.device), sample_box(atoms, present)
                found: Any = on_gpu(potential, box, args.profile)
                if args.deepmd:
                    found |= deepmd_microseconds(args.deepmd, potential, box, folder, args.rounds)
            else:
                found = on_cpu(name, atoms, args.rounds, args.deepmd, clock, folder)
            results["runs"][f"{name}, {atoms}"] = found
            print(f"{name}, {atoms} atoms:", json.dumps(found), flush=True)
    if gpu:
        for name in {"concat", "strip"} & set(args.models) if args.atoms is None else ():
            found = on_gpu(model_of(name, ["C"]).to(args.device), diamond(97_336), args.profile)
            results["runs"][f"{name}, diamond"] = found
            print(f"{name}, diamond:", json.dumps(found), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
