"""Options that several commands have."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mdops.errors import InputError


def add_spline_options(parser: argparse.ArgumentParser) -> None:
    """--r-min and --no-spline, which `mdops.load` takes as `r_min` and `spline`."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--r-min",
        type=float,
        metavar="A",
        help="splines keep their accuracy down to this distance; None: 0.5 A",
    )
    choice.add_argument(
        "--no-spline", action="store_false", dest="spline", help="evaluate the embedding nets exactly: slower"
    )


def add_overwrite(parser: argparse.ArgumentParser, what: str = "OUT") -> None:
    """--overwrite, for `require_absent`."""
    parser.add_argument("--overwrite", action="store_true", help=f"replace {what} if it exists")


def require_absent(path: Path, *, overwrite: bool, folder: bool = False) -> None:
    """Raises InputError if the output exists and may not be overwritten, and as `require_place`."""
    require_place(path, folder=folder)
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists already; --overwrite replaces it")


def require_place(path: Path, option: str = "", *, folder: bool = False) -> None:
    """Raises InputError, with the option's name, if a file (or a folder) cannot be written there: before the work, not
    after."""
    name = f"{option} {path}".lstrip()
    require_kind(path, name, folder=folder)
    if not path.absolute().parent.is_dir():
        raise InputError(f"{name}: there is no folder {path.parent} to write into")


def require_other(path: Path, option: str, inputs: Iterable[str | Path]) -> None:
    """Raises InputError, with the option's name, if the file to write is an input of the command."""
    if path.exists() and any(Path(name).exists() and path.samefile(name) for name in inputs):
        raise InputError(f"{option} {path}: it is an input of this command: give another name")


def require_kind(path: Path, name: str, *, folder: bool) -> None:
    """Raises InputError, which begins with the name, if there is a folder instead of a file, or the reverse."""
    if path.exists() and path.is_dir() != folder:
        found, expected = ("a file", "a folder") if folder else ("a folder", "a file")
        raise InputError(f"{name}: it is {found}, expected {expected}")


def file_name(text: str) -> Path:
    """The name of a file to write, from which other names are derived."""
    path = Path(text)
    if not path.name:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a file")
    return path


def add_type_map(parser: argparse.ArgumentParser) -> None:
    """--type-map, for data."""
    parser.add_argument(
        "--type-map",
        "-t",
        nargs="+",
        metavar="ELEMENT",
        help="the elements, in order; default: those of the data",
    )


def add_head(parser: argparse.ArgumentParser) -> None:
    """--head, which `mdops.load` takes as `head`."""
    parser.add_argument(
        "--head",
        "--model-branch",
        metavar="NAME",
        help="name of the model in a multi-task file",
    )


def add_matmul(parser: argparse.ArgumentParser) -> None:
    """--matmul, which `mdops.load` takes as `matmul`."""
    parser.add_argument(
        "--matmul",
        choices=("float32", "tf32", "bf16x6", "bf16x3", "bf16"),
        default="float32",
        help="accuracy of matrix products; faster and less accurate: tf32 on a GPU, bf16x3 and bf16 on a CPU with "
        "AMX or AVX512-BF16; bf16x6 is as accurate as float32",
    )


def add_allow_low_bit(parser: argparse.ArgumentParser) -> None:
    """--allow-low-bit, which `mdops.load` takes as `allow_low_bit`."""
    parser.add_argument(
        "--allow-low-bit",
        action="store_true",
        help="allow dynamics with a low-bit model (of mdops quantize), which is less accurate",
    )


def add_run_options(parser: argparse.ArgumentParser, *, interval: int, dtype: str, skin: float) -> None:
    """Options of runs of the engine and of relaxations, with these defaults: their files, and how a model computes."""
    add = parser.add_argument
    add("--interval", type=int, default=interval, help="steps between frames and log lines")
    add("--restart", action="store_true", help="continue from the checkpoint; start if there is none")
    add("--overwrite", action="store_true", help="start again and replace files of an earlier run")
    add("--device", default="cpu", help="where to compute")
    add("--dtype", choices=("float32", "float64"), default=dtype, help="precision of the computation")
    add_matmul(parser)
    add_allow_low_bit(parser)
    add_head(parser)
    add("--skin", type=float, default=skin, help="skin of the neighbour list, A")
    add("--overflow", choices=("error", "truncate", "extend"), default="error",
        help="if there are more neighbours than the model's sel")  # fmt: skip
    add_spline_options(parser)


def model_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `mdops.load` from the options of `add_run_options`."""
    names = "head", "device", "dtype", "overflow", "spline", "r_min", "matmul", "allow_low_bit"
    return {name: getattr(args, name) for name in names}


def add_device(parser: argparse.ArgumentParser) -> None:
    """--device and --overflow, which `mdops.load` takes, for commands that give DeePMD-kit's results."""
    parser.add_argument("--device", default="cpu", help="where to compute")
    parser.add_argument(
        "--overflow",
        choices=("truncate", "error", "extend"),
        default="truncate",
        help="if there are more neighbours than the model's sel; truncate: as DeePMD-kit does",
    )


def add_systems(parser: argparse.ArgumentParser) -> "argparse._MutuallyExclusiveGroup":
    """--system or --datafile, which `systems_of` reads; more choices may be added to the group."""
    group = parser.add_mutually_exclusive_group()
    text = "systems of DeePMD-kit, folders of them, and files that ASE reads"
    group.add_argument("--system", "-s", nargs="+", default=["."], metavar="SYSTEM", help=text)
    group.add_argument("--datafile", "-f", metavar="FILE", help="a text file with a system in each line")
    return group


def systems_of(args: argparse.Namespace) -> list[str]:
    """The systems from the options of `add_systems`."""
    if args.datafile is None:
        return args.system
    with open(args.datafile, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]
