"""Molecular dynamics of a structure in any file that ASE reads, with checkpoints. If the run is killed, the same
command with --restart continues it, with the same results."""

import argparse
import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mdops.cli.arguments import add_run_options, file_name, model_options, require_place
from mdops.cli.restraints import add_restraints, restraints_of
from mdops.errors import InputError

if TYPE_CHECKING:
    from ase import Atoms

    from mdops.md import EnsembleSettings, Output, Summary

HELP = "run molecular dynamics"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("structure", metavar="STRUCTURE", help="a file that ASE reads; FILE@INDEX for one of its frames")
    add("--model", "-m", nargs="+", required=True, metavar="MODEL", help="model files; several: their mean")
    add("--ensemble", choices=("nve", "nvt", "npt"), default="nve", help="what is kept constant")
    add("--temperature", "-T", type=float, help="K")
    add("--timestep", type=float, default=1.0, help="fs")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, help="steps of the whole run")
    length.add_argument("--time", type=float, help="length of the whole run, ps")
    add("--thermostat", choices=("nose-hoover", "langevin"), default="nose-hoover", help="of nvt")
    add("--friction", type=float, default=2.0, help="friction of langevin, 1/ps")
    add("--tdamp", type=float, default=100.0, help="period of the Nose-Hoover chain, fs")
    add("--pressure", type=float, default=0.0, help="pressure of npt, GPa")
    add("--pdamp", type=float, default=1000.0, help="period of the barostat, fs")
    add("--flexible", action="store_true", help="npt changes the whole cell, not only its volume")
    add("--final-temperature", type=float, help="nvt, npt: temperature at the end, reached linearly, K")
    add("--final-pressure", type=float, help="npt: pressure at the end, reached linearly, GPa")
    add("--ramp-steps", type=int, help="steps until these are reached; default: all steps")
    add("--seed", type=int, default=0, help="seed of the velocities and of langevin")
    add("--new-velocities", action="store_true", help="do not use the structure's velocities")
    add("--trajectory", "-o", type=file_name, default=Path("md.traj"), help=".traj, .xyz or .extxyz")
    add(
        "--log",
        type=Path,
        help="energies, temperature, pressure as text; default: the trajectory's name with .log",
    )
    add("--plot", type=Path, nargs="?", const=Path(), metavar="FILE", help="draw temperature, energies and density of "
        "the log at the end; without FILE: the trajectory's name with .png; needs matplotlib")  # fmt: skip
    add("--guard", choices=("warn", "stop"), help="for models of mdops learn: check in each frame whether the "
        "committee differs more than in the test of the model")  # fmt: skip
    add("--checkpoint", type=Path, help="default: the trajectory's name with .restart")
    add("--checkpoint-every", type=int, default=0, help="steps; 0: depends on the number of atoms")
    add_restraints(parser)
    add_run_options(parser, interval=100, dtype="float32", skin=1.0)


def run(args: argparse.Namespace) -> int:
    from mdops.calculator import MDOps
    from mdops.md import run as run_md
    from mdops.stopping import StopSignal

    output = _output(args)
    physics = _physics(args, output.steps)
    picture = _picture(args, output)
    check_outputs(args, (output.trajectory, output.log, output.checkpoint, picture))
    atoms = read_structure(args.structure)
    atoms.calc = MDOps(args.model, skin=args.skin, guard=args.guard, **model_options(args))
    for path, model in zip(args.model, atoms.calc.models, strict=True):
        print(f"{path}: {model.explain()}", file=sys.stderr, flush=True)
    restraints = restraints_of(args, atoms)
    with StopSignal() as stop:
        summary = run_md(
            atoms, physics, output, new_velocities=args.new_velocities, restraints=restraints, stops=stop
        )
    if summary.end < output.steps:
        raise stop.stopped(
            f"wrote {output.checkpoint} after step {summary.end} of {output.steps}; the same command with "
            "--restart continues"
        )
    print(_describe(summary, output))
    if picture is not None:
        from mdops.md.plot import plot_log

        plot_log(args.log, picture)
        print(f"wrote {picture}")
    return 0


def _picture(args: argparse.Namespace, output: "Output") -> Path | None:
    """The picture's path for --plot. Raises InputError before the run if it cannot be drawn."""
    from mdops.md.options import same_file
    from mdops.plots import require_picture

    if args.plot is None:
        return None
    picture: Path = args.trajectory.with_suffix(".png") if args.plot == Path() else args.plot
    for path in (output.trajectory, output.log, output.checkpoint):
        if path is not None and same_file(path, picture):
            raise InputError(f"--plot {picture}: is the name of another file of the run")
    require_picture(picture)
    require_place(picture, "--plot")
    return picture


def _physics(args: argparse.Namespace, steps: int) -> "EnsembleSettings":
    from mdops.md import EnsembleSettings

    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(EnsembleSettings)}
    ramps = args.final_temperature is not None or args.final_pressure is not None
    if values["ramp_steps"] is None:
        values["ramp_steps"] = steps if ramps else 0
    return EnsembleSettings(**values)


def _output(args: argparse.Namespace) -> "Output":
    from mdops.md import Output

    if not 0 < args.timestep < math.inf:
        raise InputError(f"--timestep {args.timestep}: expected fs, more than 0")
    if args.time is not None and not math.isfinite(1000 * args.time / args.timestep):
        raise InputError(f"--time {args.time}: expected ps")
    steps = args.steps if args.time is None else round(args.time * 1000 / args.timestep)
    args.log = args.log or args.trajectory.with_suffix(".log")
    return Output(
        steps=steps,
        checkpoint=args.checkpoint or args.trajectory.with_suffix(".restart"),
        interval=args.interval,
        trajectory=args.trajectory,
        log=args.log,
        restart=args.restart,
        overwrite=args.overwrite,
    )


def check_outputs(args: argparse.Namespace, paths: Iterable[Path | None]) -> None:
    """Raises InputError if the run would overwrite the structure or a model, for which --overwrite is not meant, or the
    file to which the shell redirects the output."""
    inputs = [Path(args.structure.split("@")[0]), *map(Path, args.model)]
    printed = []
    for stream in (1, 2):
        with contextlib.suppress(OSError):  # a shell may have closed it
            printed.append(os.fstat(stream))
    for path in paths:
        if path is None or not path.is_file():
            continue
        if any(source.exists() and path.samefile(source) for source in inputs):
            raise InputError(f"{path} is the input of the run: give the output another name")
        if any(os.path.samestat(path.stat(), stream) for stream in printed):
            raise InputError(
                f"{path} is where the shell redirects the output of this command (> or 2>), and also a file "
                "of the run: rename one of them, for example with --log FILE"
            )


def read_structure(structure: str) -> "Atoms":
    """The atoms of a file that ASE reads; raises InputError if there is not exactly one frame."""
    from mdops.files.structures import read_named

    atoms = read_named(structure)
    if isinstance(atoms, list):
        raise InputError(
            f"{structure} names several frames; choose one, as in FILE@0 (from Python, mdops.md.BatchEngine "
            "simulates many)"
        )
    return atoms


def _describe(summary: "Summary", output: "Output") -> str:
    if output.steps == 0:
        return "0 steps: the structure was computed, and nothing moved"
    drift = "" if summary.drift is None else f", conserved energy {1000 * summary.drift:+.4f} meV/atom"
    of = "" if summary.steps in (0, output.steps) else f" of all {output.steps} steps"
    means = f"mean temperature{of} {summary.temperature:.1f} K{drift}"
    if summary.steps == 0:
        return f"the run was complete: {output.steps} steps; {means}"
    return f"{summary.steps} steps in {summary.seconds:.1f} s, {summary.ns_per_day:.3g} ns/day; {means}"
