"""The command `mdops`. Nothing here imports the compiled ops before a command that needs them runs."""

import argparse
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from mdops.errors import LibraryError, MDOpsError

COMMANDS = (
    "info",
    "convert",
    "export",
    "core",
    "lammps",
    "md",
    "relax",
    "train",
    "test",
    "quantize",
    "zbl",
    "model-devi",
    "neighbor-stat",
    "eval-desc",
    "change-bias",
    "bench",
    "build",
    "profile",
    "doctor",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Returns 0, or 2 for an error that is the user's to mend (`doctor`: 1 for a problem)."""
    given = list(sys.argv[1:] if argv is None else argv)
    command = next((k for k, word in enumerate(given) if not word.startswith("-")), len(given))
    own = command + 1 if given[command:] and given[command] == "lammps" else len(given)
    args = _parser().parse_args(given[:own])
    if own < len(given):
        args.rest = given[own:]  # LAMMPS' arguments, whatever they look like
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        _load_kinds(args.kinds)
        return args.run(args)
    except KeyboardInterrupt:
        advice = "; the same command with --restart goes on" if "restart" in args else ""
        return _fail(f"interrupted{advice}", args.debug, 130)
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; Python must not flush into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except LibraryError as error:
        return _fail(f"{error} (`mdops doctor` tells more)", args.debug, 2)
    except (MDOpsError, OSError) as error:
        return _fail(str(error), args.debug, 2)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        what = "the work does not fit into the memory: take fewer atoms or smaller batches"
        return _fail(f"{what} ({str(error).splitlines()[0] if str(error) else 'MemoryError'})", args.debug, 2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mdops",
        description="Deep Potential molecular dynamics: models, runs, training, timings, diagnosis.",
    )
    parser.add_argument("--version", action="version", version=f"mdops {version('mdops')}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    text = "a Python file or module with kinds of models of your own (docs/models.md); may be given several times"
    common.add_argument("--kinds", action="append", default=[], metavar="FILE", help=text)
    commands = parser.add_subparsers(metavar="command", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"mdops.cli.{name.replace('-', '_')}")
        command = commands.add_parser(
            name,
            parents=[common],
            help=module.HELP,
            description=module.__doc__,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _load_kinds(names: Sequence[str]) -> None:
    """Kinds of models that the command line names; processes that it starts know them, too."""
    if names:
        from mdops.models.registry import load_kinds

        for name in names:
            load_kinds(name)
        others = filter(None, [os.environ.get("MDOPS_KINDS"), *names])
        os.environ["MDOPS_KINDS"] = os.pathsep.join(others)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether NumPy, PyTorch or a GPU had no more memory to give; PyTorch is not imported to tell."""
    kind = type(error).__name__ in ("MemoryError", "OutOfMemoryError", "_ArrayMemoryError")
    return kind or "can't allocate memory" in str(error)


def _fail(message: str, debug: bool, code: int) -> int:
    if debug:
        traceback.print_exc()
    print(f"mdops: {' '.join(message.split())}", file=sys.stderr)
    return code


def _show_warning(message: Any, *_: Any) -> None:
    print(f"mdops: warning: {message}", file=sys.stderr)
