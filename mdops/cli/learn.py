"""Makes a fast potential from the results of a slow teacher: an ASE calculator, a model, or a command. If it is
interrupted, the same command continues it."""

import argparse
from pathlib import Path

from mdops.cli.arguments import require_kind
from mdops.errors import InputError

HELP = "learn a potential from a teacher"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("input", nargs="?", metavar="INPUT", help="a YAML or JSON file; --keys lists its keys")
    add("--keys", action="store_true", help="list every key of INPUT, with type, unit, default and meaning")
    add("--output", "-o", type=Path, default=Path("learned"), metavar="FOLDER", help="folder of all files")


def run(args: argparse.Namespace) -> int:
    from mdops.learn import learn, read_config

    if args.keys:
        from mdops.cli.keys import keys_text
        from mdops.learn.config import keys

        print("\n".join(keys_text(keys())))
        return 0
    if not args.input:
        raise InputError("give INPUT (`mdops learn --help`)")
    require_kind(args.output, f"--output {args.output}", folder=True)
    result = learn(read_config(args.input), args.output)
    errors = f"{1000 * result.errors['forces']:.3g} meV/A, {1000 * result.errors['energy']:.3g} meV/atom"
    print(f"errors (RMSE) on fresh frames of its own dynamics: {errors}; {result.calls} calls of the teacher")
    print(
        f"wrote {result.model}"
        + (f" and {result.report}" if result.report else "; the report needs matplotlib")
    )
    if not result.reached:
        print(
            "the targets were not reached: raise budget.calls and give the same command again, which continues"
        )
    return 0 if result.reached else 1
