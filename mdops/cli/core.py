"""Prints where the C core is, for compilers: cc energy.c $(mdops core --cflags --libs). `mdops convert IN
OUT.safetensors` makes models for it."""

import argparse

HELP = "where the C core is: flags for compilers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--include", action="store_true", help="the folder of mdops.h and mdops.f90")
    parser.add_argument("--cflags", action="store_true", help="flags that find the header")
    parser.add_argument(
        "--libs", action="store_true", help="flags that link the library, and find it when it runs"
    )


def run(args: argparse.Namespace) -> int:
    import shlex

    from mdops.core import compile_flags, get_include, library, link_flags

    if args.include:
        print(get_include())
    flags = [*(compile_flags() if args.cflags else ()), *(link_flags() if args.libs else ())]
    if flags:
        print(shlex.join(flags))
    if not args.include and not flags:
        print(f"header   {get_include()}/mdops.h\nlibrary  {library()}")
    return 0
