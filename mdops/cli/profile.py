"""Shows where the time of a step goes. Atoms move with thermal velocities; the results are a table and a trace for
ui.perfetto.dev. For models whose kernels can be rebuilt, they show the stages of kernels that are rebuilt with a
profiler, which needs a compiler; for other models ops and kernels, by PyTorch's profiler (docs/how-to/jit.md)."""

import argparse
import os
from pathlib import Path

from mdops.cli.arguments import add_head, add_matmul, add_spline_options, require_other, require_place

HELP = "show where the time of a step goes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model file")
    add(
        "structure",
        metavar="STRUCTURE",
        nargs="?",
        help="a file that ASE reads; default: a box of --atoms",
    )
    add("--atoms", type=int, default=1536, help="number of atoms in the box")
    add("--steps", type=int, default=10, help="to record")
    add("--out", "-o", type=Path, default=Path("profile.json"), help="the trace")
    add("--device", default="cpu", help="where to compute")
    add("--dtype", choices=("float32", "float64"), default="float32", help="precision of the computation")
    add("--ops", action="store_true", help="record ops with PyTorch's profiler for any model")
    add_matmul(parser)
    add_head(parser)
    add("--skin", type=float, default=1.0, help="skin of the neighbour list, A")
    add_spline_options(parser)


def run(args: argparse.Namespace) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise PyTorch's profiler prints when it begins
    import torch

    from mdops.cli.md import read_structure
    from mdops.errors import InputError
    from mdops.files.structures import frames_file
    from mdops.jit.profile import profile
    from mdops.jit.sample_box import sample_atoms, sample_elements
    from mdops.loading import load
    from mdops.progress import StepProgress

    if args.steps < 1 or args.atoms < 1:
        raise InputError(f"--steps {args.steps}, --atoms {args.atoms}: expected 1 or more")
    require_place(args.out, "--out")
    require_other(args.out, "--out", (args.model, frames_file(args.structure or "")))
    model = load(
        args.model, head=args.head, device=args.device, dtype=args.dtype, overflow="extend", spline=args.spline,
        r_min=args.r_min, matmul=args.matmul,
    )  # fmt: skip
    atoms = (
        sample_atoms(args.atoms, sample_elements(model), model)
        if args.structure is None
        else read_structure(args.structure)
    )
    with StepProgress(0, args.steps) as progress:

        def on_step(step: int) -> None:
            if progress.is_due(step):
                progress.show(step, f"{step / progress.seconds:.3g} steps/s")

        found = profile(model, atoms, args.steps, skin=args.skin, ops=args.ops, on_step=on_step)
    found.write(args.out)
    precision = args.dtype if args.matmul == "float32" else args.matmul
    print(
        f"{len(atoms)} atoms of {', '.join(dict.fromkeys(atoms.symbols))}, {args.steps} steps, {precision}, "
        f"{args.device}, {torch.get_num_threads()} threads"
    )
    print(found.way)
    print(found.table())
    print(f"{args.out}: open it in https://ui.perfetto.dev ({len(found.spans)} spans)")
    return 0
