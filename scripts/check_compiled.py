"""Compares models that DeePMD-kit's exportable backend compiles (.pt2, .pte) with their original files.

    python scripts/check_compiled.py PYTHON_WITH_DEEPMD [--models FILE ...] [--suffixes .pte .pt2] [--json FILE]

DeePMD-kit converts each model (by default some of tests/data) with `dp convert-backend`. The trees that
`mdops.io.read_model` returns must be the same in all bits. A .pt2 takes minutes, because C++ is compiled, and large
models need more than 20 GB of memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from check_deepmd import differences

from mdops.io import read_model

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
MODELS = [
    *(
        DATA / "checkpoints" / f"{name}.dp"
        for name in ("se_e2_r", "se_e3", "dpa1", "dpa2", "dpa3", "hybrid", "zbl")
    ),
    *(DATA / "outputs" / f"{name}.dp" for name in ("dipole", "dos", "property")),
]


def checked(python: str, model: Path, suffix: str) -> dict[str, Any]:
    row: dict[str, Any] = {"model": "/".join(model.parts[-2:]), "suffix": suffix}
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / f"made{suffix}"
        command = [str(Path(python).parent / "dp"), "convert-backend", str(model), str(made)]
        told = subprocess.run(command, capture_output=True, text=True)
        if told.returncode or not made.exists():
            return row | {"not made": (told.stderr.strip().splitlines() or ["killed"])[-1]}
        return row | {"differs": differences(read_model(made).model, read_model(model).model, "model")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("python", help="a Python that has DeePMD-kit")
    parser.add_argument("--models", nargs="+", type=Path, default=MODELS)
    parser.add_argument("--suffixes", nargs="+", default=[".pte", ".pt2"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for model in args.models:
        for suffix in args.suffixes:
            rows.append(checked(args.python, model, suffix))
            print(rows[-1], flush=True)
    if args.json:
        asked = "import importlib.metadata as m; print(m.version('deepmd-kit'))"
        found = subprocess.run([args.python, "-c", asked], capture_output=True, text=True, check=True)
        text = json.dumps({"deepmd-kit": found.stdout.strip(), "rows": rows}, indent=1)
        args.json.write_text(text + "\n")
    return int(any(row.get("differs") for row in rows) or not any("differs" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
