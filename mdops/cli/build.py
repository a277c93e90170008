"""Rebuilds kernels for a model's sizes and this machine, and measures whether they are faster; or builds the CUDA
library that a wheel without CUDA lacks. The results are in a cache (docs/how-to/jit.md)."""

import argparse
from typing import TYPE_CHECKING

from mdops.cli.arguments import add_head, add_matmul

if TYPE_CHECKING:
    from mdops.files.cache import Entry

HELP = "rebuild kernels for a model and this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", help="a model file")
    add("--cuda", action="store_true", help="build the CUDA library of the ops with nvcc instead")
    add("--arch", nargs="+", metavar="SM", help="build for these GPUs (sm_90 ...) instead of this machine's")
    add("--profiler", action="store_true", help="build the kernels of `mdops profile`, for --arch")
    add("--list", action="store_true", help="show what is in the cache")
    add("--clear", action="store_true", help="empty the cache")
    add("--device", default="cpu", help="where the model will compute")
    add("--dtype", choices=("float32", "float64"), default="float32", help="precision of the computation")
    add_matmul(parser)
    add_head(parser)


def run(args: argparse.Namespace) -> int:
    from mdops.errors import InputError
    from mdops.files import cache

    if sum([args.model is not None, args.cuda, args.list, args.clear]) != 1:
        raise InputError("give one of: a MODEL, --cuda, --list, --clear")
    if args.list:
        for entry in cache.entries():
            print(describe(entry))
        return 0
    if args.clear:
        print(f"{cache.clear()} entries removed from {cache.cache_folder()}")
        return 0
    return _cuda(args) if args.cuda else _model(args)


def _cuda(args: argparse.Namespace) -> int:
    from mdops import _library
    from mdops.jit.cuda_library import build_cuda_library

    own = _library.library_path("libmdops_cuda.so")
    if own is not None:
        print(f"this mdops already has a CUDA library: {own}")
        return 0
    entry = build_cuda_library(args.arch)
    print(f"{entry.path}: it will be used from the next start of Python on")
    return 0


def _model(args: argparse.Namespace) -> int:
    from mdops.jit.kernels import entry_for, rebuild
    from mdops.loading import load

    model = load(
        args.model, head=args.head, device=args.device, dtype=args.dtype, overflow="extend", matmul=args.matmul,
    )  # fmt: skip
    if args.arch or args.profiler:  # for another machine or for later: nothing to measure
        for architecture in args.arch or [None]:
            print(entry_for(model, architecture=architecture, profiler=args.profiler).path)
        return 0
    built = rebuild(model)
    times = f"a step takes {built.rebuilt / built.prebuilt:.3f} of the time with the prebuilt ones"
    effect = "models of these sizes use them" if built.used else "not faster: the prebuilt ones remain"
    print(f"{built.path}\n{times}; {effect}")
    return 0


def describe(entry: "Entry") -> str:
    """A line that describes an entry of the cache."""
    about, told = entry.configuration["about"], entry.calibration
    sizes = " ".join(f"{name}={value}" for name, value in about.items())
    times = f", {told['rebuilt'] / told['prebuilt']:.3f} of the prebuilt ones' time" if told else ""
    return f"{entry.key} ({entry.configuration['target']}, {entry.size / 2**20:.1f} MiB{times}): {sizes}"
