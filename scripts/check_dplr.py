"""Compares DPLR in LAMMPS with DeePMD-kit's own evaluation of the same graph, on its example of water.

    python scripts/check_dplr.py PYTHON_WITH_TENSORFLOW --examples DIR [--steps 300] [--folder DIR] [--json FILE]

The given Python trains both models of examples/water/dplr for a few steps, freezes them and evaluates the 128 molecules
of lmp/conf.lmp, with charges. `mdops convert` reads the graph. DeePMD-kit's own input for LAMMPS, with changed lines
for the pair style, the kspace and the fix, runs with mdops' plugin, on 1 and 2 processes: energy, forces and virial
must be DeePMD-kit's. Then 50 steps in float32 show where LAMMPS' time goes. LAMMPS is found as by `mdops
lammps`, and mpirun beside it; TensorFlow may need CUDA's runtime on LD_LIBRARY_PATH.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from mdops.cli import main as mdops_main
from mdops.lammps import environment, find_program
from mdops.long_range import COULOMB

# Relative to the largest value, with LAMMPS' sum over wave vectors, and with the mesh of DeePMD-kit's input.
LIMITS = {"ewald 1e-11": 1e-6, "pppm 1e-7": 1e-4}
BAR_PER_EV, LAMMPS_COULOMB = 1.6021765e6, 14.399645
EWALD_H = 0.5  # A: with the example's 1 A, DeePMD-kit's sum ends where its terms are 1e-6

EVALUATE = """
import numpy as np
from deepmd.infer import DeepPot
given = np.load("conf.npz")
found = DeepPot("ener.pb").eval(given["positions"][None], given["cell"][None], given["types"].tolist())
np.savez("deepmd.npz", energy=found[0], forces=found[1], virial=found[2])
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="a Python with deepmd-kit and its TensorFlow backend")
    parser.add_argument("--examples", type=Path, required=True, help="DeePMD-kit's folder `examples`")
    parser.add_argument(
        "--steps", type=int, default=300, help="of the dipole model's training; that of energies has a tenth"
    )
    parser.add_argument("--folder", type=Path, help="where the models are kept")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = (args.folder or Path(made)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        example = args.examples.absolute() / "water/dplr"
        if not (folder / "ener.pb").exists():
            train(args.python, example / "train", folder, args.steps)
        result = compared(args.python, example / "lmp", folder)
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(any(max(run["errors"].values()) > LIMITS[run["kspace"]] for run in result["runs"]))


def train(python: str, example: Path, folder: Path, steps: int) -> None:
    """Makes dw.pb and ener.pb."""
    shutil.copytree(example, folder, dirs_exist_ok=True)
    for name in ("dw", "ener"):
        tree = json.loads((folder / f"{name}.json").read_text())
        own = steps if name == "dw" else steps // 10
        tree["training"] |= {"numb_steps": own, "disp_freq": own, "save_freq": own}
        if name == "ener":
            tree["model"]["modifier"]["ewald_h"] = EWALD_H
        (folder / f"{name}.json").write_text(json.dumps(tree))
        for words in (["train", "--skip-neighbor-stat", f"{name}.json"], ["freeze", "-o", f"{name}.pb"]):
            subprocess.run([python, "-m", "deepmd", "--tf", *words], cwd=folder, check=True)


def atoms_of(data: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The real atoms' positions and types, and the cell, of a data file of LAMMPS."""
    lengths = re.findall(r"^\s*0\S*\s+(\S+)\s+[xyz]lo", data, re.MULTILINE)
    rows = data.split("Atoms")[1].split("Bonds")[0].splitlines()
    atoms = np.array([[float(x) for x in row.split()[:7]] for row in rows if row.strip()[:1].isdigit()])
    atoms = atoms[np.argsort(atoms[:, 0])]
    real = atoms[:, 2] < 3
    return atoms[real, 4:7], atoms[real, 2].astype(int) - 1, np.diag([float(x) for x in lengths])


def for_mdops(text: str, kspace: str, steps: int) -> str:
    """DeePMD-kit's input, with some lines replaced for mdops."""
    for pattern, line in (
        (r"pair_style\s+deepmd.*", "pair_style mdops ener.safetensors precision float64 overflow extend"),
        (r"pair_coeff.*", "pair_coeff * * O H NULL"),
        (r"kspace_style.*", kspace),
        (r"kspace_modify.*", "kspace_modify gewald ${BETA} mesh ${KMESH} ${KMESH} ${KMESH}"),
        (r"fix\s+0 all dplr model ener.pb(.*)", r"fix 0 all mdops/dplr model ener.safetensors\1 overflow extend"),
        (r"fix\s+thermo_print.*", ""),
        (r"thermo_style.*", "compute v all pressure NULL virial\nthermo_style custom step pe c_v[*] vol"),
        (r"thermo_modify.*", "thermo_modify format float %20.15g"),
        (r"dump\s+1.*", "dump 1 all custom 1000 dump.txt id fx fy fz\ndump_modify 1 sort id format float %20.15g"),
        (r"(variable\s+NSTEPS\s+equal).*", rf"\1 {steps}"),
        (r"write_data.*", ""),
    ):  # fmt: skip
        text, count = re.subn(rf"^{pattern}$", line, text, flags=re.MULTILINE)
        assert count, pattern
    return text.replace("ewald 1e-11\nkspace_modify gewald ${BETA} mesh ${KMESH} ${KMESH} ${KMESH}",
                        "ewald 1e-11\nkspace_modify gewald ${BETA}")  # fmt: skip


def run(folder: Path, text: str, ranks: int) -> str:
    (folder / "in.lmp").write_text(text)
    program = find_program()
    words = [str(program.with_name("mpirun")), "-np", str(ranks)] if ranks > 1 else []
    env = {**environment(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*words, str(program), "-in", "in.lmp"], cwd=folder, env=env, text=True, capture_output=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-2000:])
    return done.stdout


def compared(python: str, example: Path, folder: Path) -> dict[str, Any]:
    shutil.copy(example / "conf.lmp", folder)
    positions, types, cell = atoms_of((folder / "conf.lmp").read_text())
    np.savez(folder / "conf.npz", positions=positions, types=types, cell=cell)
    subprocess.run([python, "-c", EVALUATE], cwd=folder, check=True)
    theirs = dict(np.load(folder / "deepmd.npz"))
    names = [str(folder / name) for name in ("ener.pb", "ener.safetensors")]
    before = os.getcwd()
    os.chdir(folder)  # the graph names dw.pb
    try:
        assert mdops_main(["convert", *names, "--overwrite", "--core"]) == 0
    finally:
        os.chdir(before)
    text = (example / "in.lammps").read_text()
    result: dict[str, Any] = {"atoms": len(types), "runs": []}
    for kspace, ranks in (("ewald 1e-11", 1), ("ewald 1e-11", 2), ("pppm 1e-7", 1)):
        told = run(folder, for_mdops(text, f"kspace_style {kspace}", 0), ranks)
        line = np.array([float(x) for x in told.split("   Step ")[-1].splitlines()[1].split()])
        rows = (folder / "dump.txt").read_text().split("ITEM: ATOMS")[-1].splitlines()[1:]
        forces = np.array([[float(x) for x in row.split()[1:]] for row in rows])[: len(types)]
        virial = line[2:8] * line[8] / BAR_PER_EV
        wanted = theirs["virial"].reshape(9)[[0, 4, 8, 1, 2, 5]]
        errors = {
            "energy": abs(line[1] - theirs["energy"].item()) / abs(theirs["energy"].item()),
            "forces": np.abs(forces - theirs["forces"][0]).max() / np.abs(theirs["forces"]).max(),
            "virial": np.abs(virial - wanted).max() / np.abs(wanted).max(),
        }
        result["runs"].append({"kspace": kspace, "ranks": ranks, "errors": errors})
    told = run(folder, for_mdops(text, "kspace_style pppm 1e-5", 50).replace("precision float64", ""), 1)
    parts = re.findall(r"^(Pair|Kspace|Modify|Neigh)\s*\|[^|]*\|\s*(\S+)\s*\|", told, re.MULTILINE)
    whole = sum(float(seconds) for _, seconds in parts)
    result["shares of the time of 50 steps"] = {name: round(float(s) / whole, 2) for name, s in parts}
    result["LAMMPS' number for charges"] = LAMMPS_COULOMB / COULOMB - 1
    return result


if __name__ == "__main__":
    raise SystemExit(main())
