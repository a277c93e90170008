"""Writes the deviations between several models' energies, forces and virials, in DeePMD-kit's format model_devi.out."""

import argparse
import math
from pathlib import Path

from mdops.cli.arguments import add_device, add_head, add_spline_options, require_other, require_place
from mdops.errors import InputError

HELP = "compute the deviation of several models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--models", "-m", nargs="+", required=True, metavar="MODEL", help="two model files or more")
    add("--system", "-s", nargs="+", default=["."], metavar="SYSTEM",
        help="systems of DeePMD-kit, folders of them, and files that ASE reads")  # fmt: skip
    add("--output", "-o", type=Path, default="model_devi.out", metavar="FILE",
        help="the output; a table for each system is appended")  # fmt: skip
    add(
        "--frequency", "-f", type=int, default=1, metavar="STEPS", help="steps between two frames of a system"
    )
    add("--real_error", action="store_true", help="the error against the labels, instead of the deviation")
    add("--atomic", action="store_true", help="also the deviation of each atom's force")
    add(
        "--relative",
        type=float,
        metavar="EV_A",
        help="divide deviations of forces by the forces' lengths plus this, eV/A",
    )
    add(
        "--relative_v",
        type=float,
        metavar="EV",
        help="divide deviations of virials by the virials' lengths plus this, eV per atom",
    )
    add_device(parser)
    add_head(parser)
    add("--dtype", choices=("float32", "float64"), default="float64", help="precision of the computation")
    add_spline_options(parser)


def run(args: argparse.Namespace) -> int:
    from mdops.data.evaluation import load_for
    from mdops.deepmd.model_devi import model_deviation, write_model_devi
    from mdops.loading import load

    if len(args.models) < 2 and not args.real_error:
        raise InputError("a deviation needs several models: give at least two")
    for name in ("relative", "relative_v"):
        value = getattr(args, name)
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"--{name} {value}: expected a number that is not negative")
    if args.frequency < 1:
        raise InputError(f"--frequency {args.frequency}: expected 1 step or more")
    require_place(args.output, "--output")
    require_other(args.output, "--output", (*args.models, *args.system))
    models = [
        load(
            path, head=args.head, device=args.device, dtype=args.dtype, spline=args.spline, r_min=args.r_min,
            overflow=args.overflow,
        )
        for path in args.models
    ]  # fmt: skip
    data = load_for(models[0], args.system, labelled=False)
    found = model_deviation(
        models, data, real_error=args.real_error, relative=args.relative, relative_v=args.relative_v
    )
    write_model_devi(args.output, found, frequency=args.frequency, atomic=args.atomic)
    largest = found.table()[:, 3]
    what = "error" if args.real_error else "deviation"
    print(
        f"wrote {args.output}: {len(data)} frames of {len(data.systems)} systems; largest {what} of a force: maximum "
        f"{largest.max():.4g}, median {sorted(largest)[len(largest) // 2]:.4g}"
        f"{' eV/A' if args.relative is None else ''}"
    )
    return 0
