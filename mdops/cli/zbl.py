"""Writes a table of the universal potential of Ziegler, Biersack and Littmark (ZBL) for the pairs of some elements, in
the format of DeePMD-kit and mdops: for `use_srtab` or `tab_file` in a training input. Give the elements in the order of
the model's type_map."""

import argparse
from pathlib import Path

from mdops.cli.arguments import add_overwrite, require_absent

HELP = "make a table of the ZBL potential, for short distances"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("output", type=Path, metavar="OUT", help="the text file to write")
    parser.add_argument("elements", nargs="+", metavar="ELEMENT", help="in the order of the model's type_map")
    parser.add_argument(
        "--step", type=float, default=0.01, metavar="A", help="distance between rows; also the first distance"
    )
    parser.add_argument(
        "--cutoff", type=float, default=6.0, metavar="A", help="distance at which the energies become zero"
    )
    parser.add_argument(
        "--smooth-from",
        type=float,
        metavar="A",
        help="distance from which a quintic takes the energies to zero; None: 0.8 of the cutoff",
    )
    add_overwrite(parser)


def run(args: argparse.Namespace) -> int:
    from mdops.zbl import table, write_table

    require_absent(args.output, overwrite=args.overwrite)
    rows = table(args.elements, args.step, args.cutoff, args.smooth_from)
    write_table(args.output, args.elements, rows)
    print(
        f"wrote {args.output}: {len(rows):,} distances from {rows[0, 0]:g} to {rows[-1, 0]:g} A, "
        f"{rows.shape[1] - 1} pairs of {', '.join(args.elements)}"
    )
    return 0
