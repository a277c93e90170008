"""The command line of the examples that learn from a calculator."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
from ase import Atoms

from mdops.learn import learn, parse_config


def learn_as_told(description: str, cells: list[Atoms], tree: Callable[[Path], dict[str, Any]]) -> None:
    """Writes the initial cells and learns from them. `tree` makes the input from their path; options change it."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("learned"), help="folder to write into; default: learned"
    )
    parser.add_argument(
        "--change", type=json.loads, default={}, help="keys of sections in JSON, for other runs than this"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    ase.io.write(args.out / "start.extxyz", cells)
    given = tree(args.out.absolute() / "start.extxyz")
    for section, keys in args.change.items():
        given[section] = {**given.get(section, {}), **keys}
    result = learn(parse_config(given), args.out)
    print(
        f"{1000 * result.errors['forces']:.1f} meV/A on fresh frames, {result.calls} calls: {result.report}"
    )
