"""What the comparisons on models of random options share: a folder for them, and a table of what came out."""

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
    """The exit status: 1 where anything is "wrong" in the summary of what `check` says of what is in a folder.
    `kept`: what that holds, for the parser's help."""
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
