"""Runs inputs for DeePMD-kit's LAMMPS styles by DeePMD-kit's plugin and by mdops', unchanged, and compares numbers.

    python scripts/check_lammps_inputs.py LMP DP PLUGIN [--libraries FOLDERS]

LMP is a LAMMPS that both plugins fit, DP DeePMD-kit's program `dp`, and PLUGIN its plugin, libdeepmd_lmpplugin.so.
FOLDERS are those of the libraries that this needs, for LD_LIBRARY_PATH. Prints the largest difference of a
column, by the column's largest number.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ase.io
import numpy as np
import torch
from ase import Atoms

import mdops

REFERENCE = Path(__file__).parents[1] / "tests/data/reference"
INPUT = """units {units}
atom_modify map yes
read_data data.lmp
pair_style deepmd {style}
pair_coeff * *
velocity all create 300 7
compute now all reduce max vx
compute each all property/atom vx vy
compute c all centroid/stress/atom NULL virial
compute e all pe/atom
thermo_style custom step pe pxx pyy pzz pxy pxz pyz
thermo_modify format float %20.15g
fix 1 all nve
timestep {step}
dump d all custom 1 dump.txt id fx fy fz c_e c_c[*]
dump_modify d sort id format float %20.15g
thermo 1
run 2
"""
WORDS = {
    "one model": "a.pth",
    "two models": "a.pth b.pth out_freq 1",
    "atomic": "a.pth b.pth out_freq 1 out_file model_devi.out atomic",
    "relative": "a.pth b.pth out_freq 1 atomic relative 0.5 relative_v 0.25",
    "fparam": "fparam.pth fparam 0.3 -0.2",
    "aparam": "both.pth fparam 0.3 aparam 0.1 0.2",
    "computes": "both.pth fparam_from_compute now aparam_from_compute each",
}


def make_models(folder: Path, dp: str) -> None:
    """Files that both read, of models in float64."""
    cases = {"a": "base", "b": "base", "fparam": "fparam", "both": "fparam_aparam"}
    for name, case in cases.items():
        potential = mdops.load(REFERENCE / case / "model.dp", dtype="float64", spline=False)
        if name == "b":
            with torch.no_grad():
                for weight in potential.model.fitting.parameters():
                    weight.mul_(1.02)
        potential.save(folder / f"{name}.dp")
        command = [dp, "convert-backend", f"{name}.dp", f"{name}.pth"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


def results(command: list[str], folder: Path, text: str, env: dict[str, str]) -> dict[str, np.ndarray]:
    """The lines of thermo, the last frame of the dump, and the file of the deviation if there is one."""
    (folder / "model_devi.out").unlink(missing_ok=True)
    (folder / "in.lmp").write_text(text)
    done = subprocess.run([*command, "-in", "in.lmp"], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    rows = done.stdout.split("   Step ")[-1].splitlines()[1:4]
    frame = (folder / "dump.txt").read_text().split("ITEM: ATOMS")[-1].splitlines()[1:]
    found = {"thermo": np.array([row.split() for row in rows], float)}
    found |= {"atoms": np.array([row.split() for row in frame], float)}
    file = folder / "model_devi.out"
    if file.exists():
        found["deviation"] = np.loadtxt(file, ndmin=2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("lmp", "dp", "plugin"):
        parser.add_argument(name)
    parser.add_argument("--libraries", default=os.environ.get("LD_LIBRARY_PATH", ""))
    args = parser.parse_args()
    random = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), -1).reshape(-1, 3) * 3.0 + 0.5
    positions = grid + random.uniform(-0.3, 0.3, grid.shape)
    atoms = Atoms(random.choice(["Cu", "Al"], len(grid)), positions, cell=[12.0] * 3, pbc=True)
    own = {**os.environ, "MDOPS_LAMMPS": args.lmp}
    other = {**os.environ, "LD_LIBRARY_PATH": args.libraries}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ase.io.write(folder / "data.lmp", atoms, format="lammps-data", specorder=["Cu", "Al"], masses=True)
        make_models(folder, args.dp)
        for units, step in (("metal", 0.001), ("real", 1.0)):
            for name, style in WORDS.items():
                if name == "relative" and units != "metal":
                    continue  # DeePMD-kit multiplies these numbers, which have no unit, by that of forces
                text = INPUT.format(units=units, step=step, style=style)
                theirs = results([args.lmp], folder, f"plugin load {args.plugin}\n{text}", other)
                style += " precision float64"
                text = INPUT.format(units=units, step=step, style=style)
                command = [sys.executable, "-m", "mdops", "lammps"]
                ours = results(command, folder, text, own)
                for what, wanted in theirs.items():
                    error = np.abs(ours[what] - wanted).max(0) / np.abs(wanted).max(0).clip(1e-300)
                    print(f"{units:6} {name:11} {what:10} {error.max():.1e}")


if __name__ == "__main__":
    main()
