"""Shared code of the comparisons on random models: a folder for them, and a table of results."""

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Rows = list[dict[str, Any]]


def compare(
    parser: argparse.ArgumentParser,
    kept: str,
    check: Callable[[argparse.Namespace, Path], Rows],
    summary: Callable[[argparse.Namespace, Rows], dict[str, Any]],
) -> int:
    """The exit status: 1 if the summary of `check`'s results for the folder has anything "wrong".
    `kept`: what the folder contains, for the parser's help."""
    parser.add_argument("--folder", type=Path, help=f"where {kept} are, or are kept")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        result = summary(args, check(args, folder))
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["wrong"] else 0
