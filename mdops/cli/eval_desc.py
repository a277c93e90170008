"""Writes the descriptors of the atoms of structures to NumPy files, OUTPUT/SYSTEM.npy: (frames, atoms, numbers)."""

import argparse
import io
from pathlib import Path

from mdops.cli.arguments import add_device, add_head, add_systems, require_kind, systems_of
from mdops.errors import InputError

HELP = "compute the descriptors of atoms"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", "-m", required=True, metavar="MODEL", help="a model file")
    add_systems(parser)
    add("--output", "-o", type=Path, default="desc", metavar="FOLDER", help="folder of the files")
    add("--dtype", choices=("fp32", "fp64", "native"), default="native",
        help="precision of the files; native: that of the computation, fp64")  # fmt: skip
    add_device(parser)
    add_head(parser)


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from mdops.data.evaluation import load_for
    from mdops.deepmd.descriptors import descriptors
    from mdops.files.atomic import replace_file
    from mdops.loading import load

    require_kind(args.output, f"--output {args.output}", folder=True)
    model = load(
        args.model, head=args.head, device=args.device, dtype="float64", spline=False, overflow=args.overflow
    )
    data = load_for(model, systems_of(args), labelled=False)
    names = [Path(system).resolve().name for system in data.systems]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"several systems have the name {twice[0]}, and would be written to the same file")
    args.output.mkdir(parents=True, exist_ok=True)
    for name, frames in zip(names, data.frames_of_systems(), strict=True):
        path = args.output / f"{name}.npy"
        array = descriptors(model, data, frames)
        file = io.BytesIO()
        np.save(file, array.astype(np.float32) if args.dtype == "fp32" else array)
        replace_file(path, file.getbuffer())
        print(f"wrote {path}: {' x '.join(map(str, array.shape))}")
    return 0
