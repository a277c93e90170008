"""A graph of DeePMD-kit's TensorFlow backend, compressed or not, in LAMMPS with `pair_style mdops` and with its own
pair style, in turn in one run: NVE of the same 1,728 atoms of one element on diamond's sites, one process.

    MDOPS_LAMMPS=/path/to/lmp python benchmarks/lammps_beside_deepmd.py GRAPH.pb --lattice 6.7
        --deepmd SITE-PACKAGES --deepmd-lammps /path/to/its/lmp [--json FILE]

SITE-PACKAGES is that of a Python with deepmd-kit[cpu]; its plugin needs a LAMMPS of the version that `deepmd-kit[lmp]`
names. Choose the lattice constant (A) so that no atom has more neighbours than `sel`. Times are LAMMPS' own.
"""

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

from machine import machine, report

import mdops
from mdops.lammps import environment, find_program

INPUT = """
units metal
atom_style atomic
atom_modify map array
lattice diamond {lattice}
region box block 0 6 0 6 0 6
create_box 1 box
create_atoms 1 box
mass 1 28
{pair}
pair_coeff * * {element}
neighbor 1.0 bin
velocity all create 300 7
timestep 0.0002
fix 1 all nve
thermo {steps}
run 5
run {steps}
"""
ATOMS = 1728


def run(program: Path, text: str, folder: Path, env: dict[str, str]) -> tuple[float, float]:
    """us/atom, and the last total energy in eV."""
    (folder / "in.lmp").write_text(text)
    done = subprocess.run(
        [str(program), "-in", "in.lmp"], cwd=folder, env=env, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"LAMMPS failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    seconds, steps = re.findall(r"Loop time of (\S+) on \d+ procs for (\d+) steps", done.stdout)[-1]
    energies = re.findall(r"^ +\d+ +\S+ +(\S+) +\S+ +\S+ +\S+ *$", done.stdout, re.MULTILINE)
    return 1e6 * float(seconds) / int(steps) / ATOMS, float(energies[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("graph", type=Path)
    parser.add_argument("--lattice", type=float, required=True)
    parser.add_argument("--deepmd", type=Path, required=True)
    parser.add_argument("--deepmd-lammps", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    threads = ("OMP", "TF_INTRA_OP_PARALLELISM", "TF_INTER_OP_PARALLELISM", "DP_INTRA_OP_PARALLELISM")
    one = {f"{name}_NUM_THREADS" if name == "OMP" else f"{name}_THREADS": "1" for name in threads}
    one |= {"DP_INTER_OP_PARALLELISM_THREADS": "1"}
    folders = [args.deepmd / name for name in ("deepmd/lib", "tensorflow", "nvidia/cuda_runtime/lib")]
    theirs = os.environ | one | {"LD_LIBRARY_PATH": os.pathsep.join(map(str, folders))}
    model = mdops.load(args.graph, dtype="float64", spline=False)
    text = {"lattice": args.lattice, "element": model.type_map[0], "steps": args.steps}
    found: dict[str, list[float]] = {}
    energies = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save(folder / "model.safetensors")
        ways = {
            "DeePMD-kit": f"plugin load libdeepmd_lmpplugin.so\npair_style deepmd {args.graph.absolute()}",
            "mdops, float64": "pair_style mdops model.safetensors precision float64",
            "mdops, float32": "pair_style mdops model.safetensors precision float32",
        }
        for _ in range(args.rounds):
            for way, pair in ways.items():
                own = way.startswith("mdops")
                program, env = (find_program(), environment() | one) if own else (args.deepmd_lammps, theirs)
                us, energies[way] = run(program, INPUT.format(pair=pair, **text), folder, env)
                found.setdefault(way, []).append(us)
    result = {
        "machine": machine("cpu"),
        "graph": args.graph.name,
        "atoms": ATOMS,
        "us_per_atom": {way: min(times) for way, times in found.items()},
        "potential energy, eV": energies,
    }
    report(result, args.json)


if __name__ == "__main__":
    main()
