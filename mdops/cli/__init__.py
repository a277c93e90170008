"""The command `mdops`. Nothing here imports the compiled ops before a command needs them."""

import argparse
import contextlib
import ctypes
import functools
import importlib
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from mdops.errors import LibraryError, MDOpsError
from mdops.stopping import Stopped

COMMANDS = (
    "info",
    "download",
    "convert",
    "convert-data",
    "export",
    "core",
    "lammps",
    "md",
    "relax",
    "train",
    "learn",
    "test",
    "quantize",
    "zbl",
    "model-devi",
    "neighbor-stat",
    "eval-desc",
    "spectrum",
    "change-bias",
    "bench",
    "build",
    "profile",
    "doctor",
)
_QUOTES = "\"'"
# How messages name the arguments of functions: overflow="truncate", spline=False, r_min.
_ADVICE = re.compile(
    r"""(?<![\w.`-])(?P<name>[a-z_]+)=(?P<value>"\w+"|'\w+'|True|False|[\d.]+)|\b(?P<bare>r_min)\b"""
)


_NEGATIVE_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$|-(inf|nan)$", re.IGNORECASE)

# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Returns 0, or 2 for an error that the user can fix (`doctor`: 1 for a problem), or 128 and the
    number of a signal that stopped it."""
    given = list(sys.argv[1:] if argv is None else argv)
    command = next((k for k, word in enumerate(given) if not word.startswith("-")), len(given))
    is_lammps = given[command : command + 1] == ["lammps"] and given[command + 1 :] != ["--help"]
    own = command + 1 if is_lammps else len(given)
    args = _parser().parse_args(given[:own])
    if own < len(given):
        args.rest = given[own:]  # LAMMPS' arguments, not parsed
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # the locale may lack characters of names or units
    warnings.showwarning = functools.partial(_show_warning, args)
    _keep_freed_memory()
    try:
        _load_kinds(args.kinds)
        return args.run(args)
    except KeyboardInterrupt:
        advice = "; the same command with --restart continues" if "restart" in args else ""
        return _fail(args, f"interrupted{advice}", 130)
    except Stopped as stopped:
        return _fail(args, str(stopped), stopped.exit_code)
    except BrokenPipeError:
        # The reader (`| head`) has closed the pipe; at exit, Python must not flush into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except LibraryError as error:
        return _fail(args, f"{error} (`mdops doctor` tells more)", 2)
    except MDOpsError as error:
        return _fail(args, str(error), 2)
    except OSError as error:
        named = error.filename is not None and error.strerror
        return _fail(args, f"{error.filename}: {error.strerror}" if named else str(error), 2)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        what = "the work does not fit into the memory: take fewer atoms or smaller batches"
        return _fail(args, f"{what} ({str(error).splitlines()[0] if str(error) else 'MemoryError'})", 2)


def _keep_freed_memory() -> None:
    """Lets the C library keep large arrays that are freed. Otherwise the system clears the pages of new arrays, which
    takes up to a fourth of a step of a large model on a CPU."""
    with contextlib.suppress(OSError, AttributeError):  # no glibc
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mdops",
        description="Deep Potential molecular dynamics: models, runs, training, timings, diagnosis.",
    )
    parser.add_argument("--version", action="version", version=f"mdops {version('mdops')}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    text = "a Python file or module with your own model types (models.md); may be given several times"
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
        # Otherwise argparse takes -1e-4 for an option's name.
        command._negative_number_matcher = _NEGATIVE_NUMBER
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _load_kinds(names: Sequence[str]) -> None:
    """Loads the kinds of models that the command line names, also for processes that the command starts."""
    if names:
        from mdops.models.registry import load_kinds

        for name in names:
            load_kinds(name)
        others = filter(None, [os.environ.get("MDOPS_KINDS"), *names])
        os.environ["MDOPS_KINDS"] = os.pathsep.join(others)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether NumPy, PyTorch or a GPU ran out of memory; this must not import PyTorch."""
    kind = type(error).__name__ in ("MemoryError", "OutOfMemoryError", "_ArrayMemoryError")
    return kind or "can't allocate memory" in str(error) or ": out of memory for " in str(error)


def _fail(args: argparse.Namespace, message: str, code: int) -> int:
    if args.debug:
        traceback.print_exc()
    print(f"mdops: {_in_options(args, ' '.join(message.split()))}", file=sys.stderr)
    return code


def _show_warning(args: argparse.Namespace, message: Any, *_: Any) -> None:
    print(f"mdops: warning: {_in_options(args, str(message))}", file=sys.stderr)


def _in_options(args: argparse.Namespace, message: str) -> str:
    """The message, in which arguments of Python functions are replaced by the command's options, if it has them."""

    def option(found: re.Match[str]) -> str:
        name, value = found["name"] or found["bare"], found["value"]
        if not hasattr(args, name):
            return found[0]
        words = name.replace("_", "-")
        if value in ("True", "False", None):
            return f"--{'no-' if value == 'False' else ''}{words}"
        return f"--{words} {value.strip(_QUOTES)}"

    return _ADVICE.sub(option, message)
