"""Prints the largest number of neighbours within a cutoff, for which a model's sel needs room, and the closest pair of
structures."""

import argparse

from mdops.cli.arguments import add_type_map

HELP = "count the neighbours in structures"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--system", "-s", nargs="+", default=["."], metavar="SYSTEM",
        help="systems of DeePMD-kit, folders of them, and files that ASE reads")  # fmt: skip
    add("--rcut", "-r", type=float, required=True, metavar="A", help="the cutoff")
    add_type_map(parser)
    add("--mixed-type", "--one-type", action="store_true", help="count neighbours of all types together")


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from mdops.data.dataset import elements_of, load_dataset
    from mdops.data.neighbor_lists import PairLists
    from mdops.data.statistics import neighbor_statistics
    from mdops.errors import InputError

    if not 0 < args.rcut < np.inf:
        raise InputError(f"--rcut {args.rcut}: expected a positive distance, A")
    type_map = args.type_map or elements_of(args.system)
    data = load_dataset(args.system, type_map, labelled=False)
    found = neighbor_statistics(data, PairLists(data, args.rcut))
    if args.type_map is None:
        print(f"type_map: {' '.join(type_map)}")
    if not any(found.most):
        raise InputError(f"no two atoms are within {args.rcut:g} A of each other")
    print(f"min_nbor_dist: {found.nearest:f}")
    most = [found.together] if args.mixed_type else found.most
    print(f"max_nbor_size: {np.array(most)}")
    return 0
