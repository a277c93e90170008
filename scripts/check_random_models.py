"""Compares mdops with DeePMD-kit on models of random kinds and options.

    python scripts/check_random_models.py PYTHON_WITH_DEEPMD [--seeds 0 200] [--folder DIR] [--device cuda]
        [--kind dpa4] [--json FILE]

scripts/random_deepmd_models.py, in a process of that Python, makes a model for each seed: descriptors of every kind,
alone, in hybrids, in ZBL and linear models, with random options, weights and statistics, and results of DeePMD-kit's
PyTorch backend in float64 for three systems. mdops must give the same energies, forces and virials: to 1e-9 of the
largest with the nets themselves in float64, 1e-7 with splines, 3e-5 in float32. With --folder, models are kept there,
and existing ones are used, also without DeePMD-kit ("-" for PYTHON).
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from random_cases import Rows, compare

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from machine import machine  # noqa: E402

import mdops  # noqa: E402
from mdops.errors import ModelFileError  # noqa: E402

WAYS: dict[str, tuple[dict[str, Any], float]] = {
    "float64, nets": ({"dtype": "float64", "spline": False}, 1e-9),
    "float64, splines": ({"dtype": "float64"}, 1e-7),
    "float32": ({"dtype": "float32"}, 3e-5),
}
SMALL = 1e-2  # eV/A and eV: the reference for relative errors if all forces or energies are smaller


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="a Python with deepmd-kit and its PyTorch backend")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 200), metavar=("FIRST", "LAST"))
    parser.add_argument(
        "--kind",
        help="of all descriptors; dpa2, dpa3, dpa4, dpa4c, spin, dpa4_virtual_spin, dpa4_spin and dpa4c_spin come only "
        "so",
    )
    parser.add_argument("--device", default="cpu")

    def check(args: argparse.Namespace, folder: Path) -> Rows:
        return [row for seed in range(*args.seeds) for row in checked(args.python, folder, seed, args)]

    def told(args: argparse.Namespace, rows: Rows) -> dict[str, Any]:
        limits = {way: limit for way, (_, limit) in WAYS.items()}
        return {"machine": machine(args.device), "seeds": args.seeds, "limits": limits, **summary(rows)}

    return compare(parser, "models", check, told)


def checked(python: str, folder: Path, seed: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    path = folder / str(seed)
    if not any(path.with_suffix(end).exists() for end in (".npz", ".txt")):
        missing = [s for s in range(seed, args.seeds[1]) if not (folder / f"{s}.npz").exists()]
        command = [python, ROOT / "scripts/random_deepmd_models.py", folder, missing[0], missing[-1] + 1]
        command += [args.kind] if args.kind else []
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run([str(c) for c in command], env=environment, stderr=subprocess.PIPE, text=True)
        if done.returncode:  # otherwise the output only has DeePMD-kit's warnings
            raise SystemExit(f"{python} cannot make models:\n{done.stderr[-2000:]}")
    if path.with_suffix(".txt").exists():
        return [{"seed": seed, "deepmd": path.with_suffix(".txt").read_text().strip()}]
    section = json.loads(path.with_suffix(".json").read_text())
    with np.load(path.with_suffix(".npz")) as arrays:
        systems: dict[str, dict[str, np.ndarray]] = {}
        for key in arrays:
            name, _, what = key.partition("/")
            systems.setdefault(name, {})[what] = arrays[key]
    rows = []
    for way, (options, limit) in WAYS.items():
        try:
            potential = mdops.load(
                path.with_suffix(".dp"), device=args.device, overflow="truncate", **options
            )
        except ModelFileError as error:
            return [{"seed": seed, "refused": str(error).partition(": ")[2]}]
        error = max(difference(potential, system, section["type_map"]) for system in systems.values())
        row = {"seed": seed, "kind": kind(section), "way": way, "error": error, "wrong": not error < limit}
        if row["wrong"]:
            print(f"{seed}, {row['kind']}, {way}: {error:.1e} of the largest, not {limit:.0e}", flush=True)
        rows.append(row)
    return rows


def difference(potential: mdops.Potential, system: dict[str, np.ndarray], type_map: list[str]) -> float:
    """The largest error of energy, forces, magnetic forces and virial, each relative to the largest value."""
    cell = system.get("cell")
    atoms = Atoms(
        [type_map[t] for t in system["types"]], system["positions"], cell=cell, pbc=cell is not None
    )
    extra = {"aparam": system["aparam"]} if "aparam" in system else {}
    if "fparam" in system:
        extra["fparam"] = system["fparam"][None]
    if "spins" in system:
        atoms.set_initial_magnetic_moments(system["spins"])
    got = potential.compute([atoms], **extra)
    largest = max(np.abs(system["forces"]).max(), SMALL)
    magnetic = 0.0
    if "spins" in system:  # per unit of spin, which may be a hundred times the forces per A
        wanted = system["force_mag"]
        magnetic = np.abs(got["force_mag"] - wanted).max() / max(np.abs(wanted).max(), largest)
    return max(
        magnetic,
        np.abs(got["energy"] - system["energy"]).max() / max(np.abs(system["atom_energy"]).sum(), SMALL),
        np.abs(got["forces"] - system["forces"]).max() / largest,
        np.abs(got["virial"].ravel() - system["virial"].ravel()).max()
        / (np.abs(system["virial"]).max() + largest),
    )


def kind(section: dict[str, Any]) -> str:
    if "models" in section:
        return "linear of " + ", ".join(kind(part) for part in section["models"])
    own = section["descriptor"]
    name = "hybrid of " + ", ".join(part["type"] for part in own["list"]) if "list" in own else own["type"]
    return f"zbl with {name}" if "sw_rmin" in section else name


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    done = [row for row in rows if "error" in row]
    kinds: dict[str, int] = {}
    for row in done:
        if row["way"] == "float32":
            form = row["kind"].partition(" ")[0]
            kinds[form] = kinds.get(form, 0) + 1
    return {
        "models": len({row["seed"] for row in done}),
        "of kinds": dict(sorted(kinds.items())),
        "DeePMD-kit cannot": {row["seed"]: row["deepmd"] for row in rows if "deepmd" in row},
        "mdops refuses": {row["seed"]: row["refused"] for row in rows if "refused" in row},
        "largest error": {
            way: max((r["error"] for r in done if r["way"] == way), default=None) for way in WAYS
        },
        "wrong": [row for row in done if row["wrong"]],
    }


if __name__ == "__main__":
    raise SystemExit(main())
