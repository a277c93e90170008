"""Compares mdops with DeePMD-kit's TensorFlow backend on graphs of random kinds and options.

    python scripts/check_tensorflow_graphs.py PYTHON_WITH_TENSORFLOW [--seeds 0 36] [--folder DIR] [--json FILE]

scripts/random_tensorflow_graphs.py, in a process of that Python, trains a model for each seed for a few steps, freezes
it, compresses it if DeePMD-kit can, and evaluates both. mdops must give the same energies, forces, virials and
atomic energies, or dipoles with their derivatives, polarizabilities, densities of states: to 1e-10 of the largest in
float64, to 1e-5 if a net of the model is float32, to 1e-8 with gelu_tf. With --folder, graphs are kept there, and
existing ones are used, also without TensorFlow ("-" for PYTHON). TensorFlow may need CUDA's runtime on
LD_LIBRARY_PATH.
"""

import argparse
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from random_cases import Rows, compare

import mdops
from mdops.errors import MDOpsError
from mdops.system import from_tensors

ROOT = Path(__file__).resolve().parents[1]
# For models with a float32 net, for TensorFlow's own gelu, whose constant is rounded to float32, and for others.
LIMITS = {"float32": 1e-5, "gelu_tf": 1e-8, "float64": 1e-10}
SMALL = 1e-2  # eV/A: the reference for relative errors if all forces are smaller


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="a Python with deepmd-kit and its TensorFlow backend")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 36), metavar=("FIRST", "LAST"))

    def check(args: argparse.Namespace, folder: Path) -> Rows:
        if args.python != "-":
            script = ROOT / "scripts/random_tensorflow_graphs.py"
            subprocess.run([args.python, script, folder, *map(str, args.seeds)], check=True)
        return [row for seed in range(*args.seeds) for row in checked(folder, seed)]

    return compare(parser, "graphs", check, lambda _, rows: summary(rows))


def checked(folder: Path, seed: int) -> list[dict[str, Any]]:
    rows = []
    if (folder / f"{seed}.txt").exists():
        rows.append({"seed": seed, "deepmd": (folder / f"{seed}.txt").read_text().strip()})
    for path in (folder / f"{seed}.pb", folder / f"{seed}.compressed.pb"):
        answers = path.with_suffix(".npz")
        if not answers.exists():
            continue
        script = json.loads((folder / f"{seed}.json").read_text())
        described = json.dumps(script["model"])
        kind = next((kind for kind in LIMITS if f'"{kind}"' in described), "float64")
        limit = LIMITS[kind]
        row = {"seed": seed, "kind": script["kind"], "compressed": ".compressed" in path.name}
        try:
            error = difference(path, answers, _not_derived(script["model"]["descriptor"]))
            row |= {"error": error, "wrong": not error < limit}
        except MDOpsError as refusal:
            row |= {"refused": str(refusal).partition(": ")[2], "wrong": True}
        if row["wrong"]:
            print(f"{path.name}, {row['kind']}: {row.get('error', row.get('refused'))}", flush=True)
        rows.append(row)
    return rows


def _not_derived(descriptor: dict[str, Any]) -> Sequence[str]:
    """DeePMD-kit's results that are not derivatives of its energies: an atom that defines an axis of loc_frame gets a
    part of the force on the atom with the same index among those with distances only."""
    both = descriptor["type"] == "loc_frame" and any(descriptor["sel_a"]) and any(descriptor["sel_r"])
    return ("forces", "virial") if both else ()


def difference(path: Path, answers: Path, without: Sequence[str] = ()) -> float:
    """The largest error of energies, forces and virials, each relative to the largest value, without some
    names."""
    potential = mdops.load(path, dtype="float64", spline=False, overflow="truncate")
    errors = []
    with np.load(answers) as arrays:
        for name in sorted({key.partition("/")[0] for key in arrays}):
            case = {key.partition("/")[2]: arrays[key] for key in arrays if key.startswith(f"{name}/")}
            case = {key: value for key, value in case.items() if key not in without}
            errors.append(case_difference(potential, case))
    return max(errors)


def case_difference(potential: mdops.Potential, case: dict[str, np.ndarray]) -> float:
    system = from_tensors(
        torch.from_numpy(case["positions"]),
        torch.from_numpy(case["types"].astype(np.int32)),
        torch.from_numpy(case["cell"]) if "cell" in case else None,
        None,
        None,
        len(potential.type_map),
    )
    extra = {
        key: torch.from_numpy(case[key]).reshape(rows, -1)
        for key, rows in (("fparam", 1), ("aparam", system.atoms))
        if key in case
    }
    found = potential.evaluate(system, **extra)
    # If no atom has a result, DeePMD-kit's array is empty.
    known = [key for key in found.keys() & case.keys() if case[key].size]
    scales = {key: float(np.abs(case[key]).max()) or 1.0 for key in known}
    if "forces" in scales:
        scales["forces"] = max(scales["forces"], SMALL)
    if "virial" in scales:
        scales["virial"] += scales["forces"]
    for key in ("energy", "dipole", "dos"):
        if key in scales:
            scales[key] = np.abs(case.get(f"atom_{key}", case[key])).sum()
    errors = (
        float(np.abs(found[key].numpy().reshape(-1) - case[key].reshape(-1)).max() / scale)
        for key, scale in scales.items()
    )
    return max(errors, default=0.0)  # outputs for some types are empty if there are no such atoms


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    done = [row for row in rows if "deepmd" not in row]
    kinds: dict[str, int] = {}
    for row in done:
        kind = row["kind"] + (", compressed" if row["compressed"] else "")
        kinds[kind] = kinds.get(kind, 0) + 1
    return {
        "graphs": len(done),
        "of kinds": dict(sorted(kinds.items())),
        "DeePMD-kit cannot": {row["seed"]: row["deepmd"] for row in rows if "deepmd" in row},
        "largest error": max((row["error"] for row in done if "error" in row), default=None),
        "wrong": [row for row in done if row["wrong"]],
    }


if __name__ == "__main__":
    raise SystemExit(main())
