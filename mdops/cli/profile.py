"""Where the time of a step goes: kernels are built once more with a profiler, atoms fly along thermal velocities, and a
trace for ui.perfetto.dev and a table of stages tell what took how long. Needs a compiler (docs/jit.md)."""

import argparse
from pathlib import Path

from mdops.cli.arguments import add_spline_options

HELP = "show where the time of a step goes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model file")
    add(
        "structure",
        metavar="STRUCTURE",
        nargs="?",
        help="a file that ASE reads; without one a box of --atoms",
    )
    add("--atoms", type=int, default=1536, help="of the box")
    add("--steps", type=int, default=10, help="to record")
    add("--out", "-o", type=Path, default=Path("profile.json"), help="the trace")
    add("--device", default="cpu", help="where to compute")
    add("--dtype", choices=("float32", "float64"), default="float32", help="of the computation")
    add("--matmul", choices=("float32", "tf32"), default="float32", help="accuracy of matrix products")
    add("--skin", type=float, default=1.0, help="of the neighbour list, A")
    add_spline_options(parser)


def run(args: argparse.Namespace) -> int:
    import torch

    from mdops import load
    from mdops.cli.md import read_structure
    from mdops.cli.sample_model import sample_box
    from mdops.errors import InputError
    from mdops.jit.profile import profile

    if args.steps < 1 or args.atoms < 1:
        raise InputError(f"--steps {args.steps}, --atoms {args.atoms}: expected 1 or more")
    model = load(
        args.model, device=args.device, dtype=args.dtype, overflow="extend", spline=args.spline, r_min=args.r_min,
        matmul=args.matmul,
    )  # fmt: skip
    atoms = (
        sample_box(args.atoms, model.type_map) if args.structure is None else read_structure(args.structure)
    )
    found = profile(model, atoms, args.steps, skin=args.skin)
    found.write(args.out)
    print(
        f"{len(atoms)} atoms, {args.steps} steps, {args.dtype}, {args.device}, {torch.get_num_threads()} threads"
    )
    print(found.table())
    print(f"{args.out}: open it in https://ui.perfetto.dev ({len(found.spans)} spans, kernels {found.key})")
    return 0
