"""Compares mdops with DeePMD-kit on published model files.

    python scripts/check_public_files.py FOLDER [--tensorflow PYTHON] [--pytorch PYTHON] [--json FILE]

FOLDER has a folder OWNER+NAME for each repository, with its files at their paths. If a file has no results beside it,
scripts/public_file_answers.py computes them with the DeePMD-kit of a Python: with TensorFlow for `.pb` and
`.pbtxt`, with PyTorch for others. Differences are the largest ones of energies, forces, virials and atomic energies,
or of dipoles, polarizabilities, densities of states, relative to the largest value, in float64 with
`overflow="truncate"`.
"""

import argparse
import json
import subprocess
import warnings
from pathlib import Path
from typing import Any

import torch
from check_tensorflow_graphs import difference

import mdops
from mdops.errors import MDOpsError
from mdops.io import describe, read_model

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = {".pb": "tf", ".pbtxt": "tf", ".pth": "pt", ".pt": "pt", ".dp": "pt", ".yaml": "pt"}
LARGE = 1e-3  # for larger differences, energies are also compared alone


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tensorflow", help="a Python with deepmd-kit and its TensorFlow backend")
    parser.add_argument("--pytorch", help="a Python with deepmd-kit and its PyTorch backend")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    files = sorted(path for path in args.folder.rglob("*") if path.suffix in SUFFIXES)
    for backend, python in (("tf", args.tensorflow), ("pt", args.pytorch)):
        left = [
            path
            for path in files
            if SUFFIXES[path.suffix] == backend and not any(map(Path.exists, said(path)))
        ]
        if python and left:
            subprocess.run([python, ROOT / "scripts/public_file_answers.py", backend, *left], check=True)
    rows = [row(path, args.folder) for path in files]
    for one in rows:
        print(json.dumps(one))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def said(path: Path) -> tuple[Path, Path]:
    """The files of DeePMD-kit's results, and of its message if it refuses the model."""
    return path.with_name(path.name + ".npz"), path.with_name(path.name + ".txt")


def row(path: Path, folder: Path) -> dict[str, Any]:
    repository, _, place = path.relative_to(folder).as_posix().partition("/")
    found: dict[str, Any] = {"repository": repository.replace("+", "/", 1), "path": place}
    answers, words = said(path)
    if words.exists():
        found["DeePMD-kit"] = words.read_text()
    try:
        model = mdops.load(path, dtype="float64", spline=False)
        found["kind"] = str(describe(read_model(path).model))
        found["elements"] = len(model.type_map)
        if answers.exists():
            found["difference"] = difference(path, answers)
            if found["difference"] > LARGE:
                found["difference of energies"] = difference(path, answers, ("forces", "virial"))
    except MDOpsError as error:
        found["refused"] = str(error).partition(": ")[2]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
