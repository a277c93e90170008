"""Relaxes structures in a file that ASE reads, one or many at once, with or without their cells. If it is killed, the
same command with --restart continues it."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mdops.cli.arguments import add_run_options, file_name, model_options
from mdops.cli.md import check_outputs
from mdops.cli.restraints import add_restraints, restraints_of

if TYPE_CHECKING:
    from ase import Atoms

HELP = "relax structures"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "structure",
        metavar="STRUCTURE",
        help="a file that ASE reads; FILE@INDEX for one of its frames, FILE@: for all",
    )
    add("--model", "-m", nargs="+", required=True, metavar="MODEL", help="model files; several: their mean")
    add("--fmax", type=float, default=0.01, help="converged when no force is larger, eV/A")
    add("--steps", type=int, default=1000, help="largest number of steps of the whole relaxation")
    add("--cell", choices=("fixed", "volume", "all"), default="fixed", help="what part of the cell relaxes")
    add("--pressure", type=float, default=0.0, help="pressure on a cell that relaxes, GPa")
    add(
        "--output",
        "-o",
        type=file_name,
        default=Path("relaxed.extxyz"),
        help="the relaxed structures, in a format of ASE",
    )
    add("--trajectory", type=Path, help=".traj, .xyz or .extxyz: frames of the relaxation")
    add(
        "--log",
        type=Path,
        help="energy, largest force, pressure as text; default: the output's name with .log",
    )
    add("--checkpoint", type=Path, help="default: the output's name with .restart")
    add_restraints(parser)
    add_run_options(parser, interval=10, dtype="float64", skin=0.5)


def run(args: argparse.Namespace) -> int:
    from mdops.loading import load
    from mdops.md import Output, Relaxation
    from mdops.md.relax import relax
    from mdops.stopping import StopSignal

    relaxation = Relaxation(args.fmax, args.cell, args.pressure)
    output = Output(
        steps=args.steps,
        checkpoint=args.checkpoint or args.output.with_suffix(".restart"),
        interval=args.interval,
        trajectory=args.trajectory,
        log=args.log or args.output.with_suffix(".log"),
        restart=args.restart,
        overwrite=args.overwrite,
    )
    check_outputs(args, (args.output, output.trajectory, output.log, output.checkpoint))
    structures = _read(args.structure)
    models = [load(path, **model_options(args)) for path in args.model]
    for path, model in zip(args.model, models, strict=True):
        print(f"{path}: {model.explain()}", file=sys.stderr, flush=True)

    def show(line: str) -> None:
        print(line, end="", flush=True)

    restraints = [restraints_of(args, atoms) for atoms in structures]
    with StopSignal() as stop:
        found = relax(
            structures,
            models,
            relaxation,
            output,
            result=args.output,
            skin=args.skin,
            show=show,
            restraints=restraints,
            stops=stop,
        )
    if found.stopped:
        raise stop.stopped(
            f"wrote {output.checkpoint} after {found.steps.max()} steps; the same command with --restart continues"
        )
    done, all_of_them = int(found.converged.sum()), len(structures)
    of = "converged" if all_of_them == 1 else f"{done} of {all_of_them} structures converged"
    if done < all_of_them:
        of = f"not converged: {of}" if all_of_them > 1 else "not converged"
    largest = found.largest_force.max()
    print(
        f"{of} after {found.steps.max()} steps, {found.seconds:.1f} s; largest force {largest:.2g} eV/A: {args.output}"
    )
    return 0 if done == all_of_them else 1


def _read(structure: str) -> list["Atoms"]:
    from mdops.files.structures import read_named

    found = read_named(structure)
    return found if isinstance(found, list) else [found]
