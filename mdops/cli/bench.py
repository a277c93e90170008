"""Measures the time of a step. Atoms move with thermal velocities, 0.5 fs per step, and neighbour lists are rebuilt
when necessary. Without a MODEL, it uses the standard net for water, untrained."""

import argparse
import math
import time
import warnings
from typing import TYPE_CHECKING

from mdops.cli.arguments import add_head, add_matmul, add_spline_options

if TYPE_CHECKING:
    from ase import Atoms

    from mdops.potential import Potential

HELP = "time the steps of a model"
TIMESTEP, TEMPERATURE = 0.5, 300.0  # fs, K


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", help="a model file")
    add("--atoms", type=int, nargs="+", default=[192, 1536, 12288], help="sizes of the boxes")
    add("--seconds", type=float, default=3.0, help="time to spend on each size, at least")
    add("--device", default="cpu", help="where to compute")
    add("--dtype", choices=("float32", "float64"), default="float32", help="precision of the computation")
    add_matmul(parser)
    add_head(parser)
    add("--skin", type=float, default=1.0, help="skin of the neighbour list, A")
    add_spline_options(parser)


def run(args: argparse.Namespace) -> int:
    import torch

    from mdops.errors import InputError

    if min(args.atoms) < 1:
        raise InputError(f"--atoms {min(args.atoms)}: a box has at least one atom")
    if not 0 < args.seconds < math.inf:
        raise InputError(f"--seconds {args.seconds}: expected more than 0")
    if args.r_min is not None and not args.r_min > 0:
        raise InputError(f"--r-min {args.r_min}: expected a positive distance in A")
    model = _model(args)
    model.require_energies("bench")
    precision = args.dtype if args.matmul == "float32" else f"{args.dtype} with products of {args.matmul}"
    print(f"{precision}, {args.device}, {torch.get_num_threads()} threads, skin {args.skin:g} A")
    print(f"a step runs by {model.explain()}")
    print(
        f"{'atoms':>8}{'ms/step':>12}{'us/atom/step':>14}{'ns/day':>10}{'steps/list':>12}{'neighbours':>12}"
    )
    from mdops.jit.sample_box import sample_atoms

    # Atoms without forces come closer to each other than real ones; the time of a step does not depend on this.
    warnings.filterwarnings("ignore", message=".*have a neighbour nearer.*")
    for count in args.atoms:
        seconds, lasts, neighbors = _measure(sample_atoms(count, model.model.elements, model), model, args)
        speed = TIMESTEP * 1e-6 * 86400 / seconds
        print(
            f"{count:8d}{1e3 * seconds:12.3f}{1e6 * seconds / count:14.3f}{speed:10.3g}{lasts:12.1f}"
            f"{neighbors:12.1f}",
            flush=True,
        )
    return 0


def _model(args: argparse.Namespace) -> "Potential":
    import torch

    from mdops._library import check_device
    from mdops.cli.sample_model import water_model
    from mdops.loading import load

    if args.model is not None:
        return load(
            args.model, head=args.head, device=args.device, dtype=args.dtype, overflow="extend", spline=args.spline,
            r_min=args.r_min, matmul=args.matmul, allow_low_bit=True,
        )  # fmt: skip
    print("without a MODEL: an untrained net of water's standard size")
    model = water_model(getattr(torch, args.dtype), spline=args.spline, r_min=args.r_min)
    model.to(check_device(args.device))
    model.use_matmul(args.matmul)
    return model


def _measure(atoms: "Atoms", model: "Potential", args: argparse.Namespace) -> tuple[float, float, float]:
    """Seconds per step, steps per neighbour list, and neighbours per atom."""
    import numpy as np
    from ase import units

    from mdops.calculator import MDOps

    calculator = atoms.calc = MDOps(model, skin=args.skin)
    speed = np.sqrt(units.kB * TEMPERATURE / atoms.get_masses())[:, None]
    move = speed * np.random.default_rng(0).standard_normal((len(atoms), 3)) * TIMESTEP * units.fs
    for _ in range(3):
        atoms.positions += move
        atoms.get_forces()
    (neighbors,) = calculator.neighbor_lists
    builds, steps, started = neighbors.builds, 0, time.perf_counter()
    while steps < 10 or time.perf_counter() - started < args.seconds:
        # Back and forth, so that the box stays similar however long this takes.
        atoms.positions += move if steps // 40 % 2 == 0 else -move
        atoms.get_forces()
        steps += 1
    seconds = (time.perf_counter() - started) / steps
    return seconds, steps / max(neighbors.builds - builds, 1), _neighbors(atoms, model)


def _neighbors(atoms: "Atoms", model: "Potential") -> float:
    """Mean number of neighbours within the cutoff."""
    from mdops.ops import neighbor_list
    from mdops.system import from_atoms

    system = from_atoms([atoms], model.type_map)
    pairs = neighbor_list(system.positions, system.cell, system.pbc, system.types, model.cutoff)
    return float(pairs.counts.sum()) / len(atoms)
