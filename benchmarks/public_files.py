"""Published model files: which evaluator each uses, and energy, forces and virial of 1,000 atoms with
mdops and with DeePMD-kit, in turn in one run.

    python benchmarks/public_files.py FOLDER --tensorflow PYTHON --pytorch PYTHON [--json FILE]

FOLDER is as for scripts/check_public_files.py. DeePMD-kit runs in the given Python, with its TensorFlow backend
for `.pb`, with the file as it is: compressed, if it is. Both use one thread and find the neighbours in the call; the
call of mdops is that of the ASE calculator. Atoms are near the sites of a cubic grid, so far from each other that no
atom has more neighbours than `sel`. Times are processor times, the smallest of five.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
import public_file_answers

BACKENDS = {".pb": "tf", ".pth": "pt"}
ATOMS, EDGE, ROUNDS = 1000, 10, 5
WIDER, MOST = 1.08, 4.0  # factor between distances of atoms, and the largest factor
WAYS = ("float64", "float32")


def structure(ntypes: int, scale: float) -> Any:
    """Types, positions and cell; at a scale of 1 the grid's sites are 2.4 A apart."""
    public_file_answers.CASES["large"] = (ATOMS, EDGE)
    types, positions, cell = public_file_answers.structure("large", ntypes)
    return types, scale * positions, scale * cell


def least(call: Any) -> float:
    """Microseconds per atom; the first two calls, which include preparations, are not counted."""
    call(), call()
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return 1e6 * min(found) / ATOMS


def of_deepmd(path: Path, scale: float) -> float:
    """The same in DeePMD-kit's Python."""
    with tempfile.TemporaryDirectory() as folder:
        model = public_file_answers.potential(path, BACKENDS[path.suffix], Path(folder))
        types, positions, cell = structure(model.get_ntypes(), scale)
        return least(lambda: model.eval(positions[None], cell[None], types.tolist(), atomic=False))


def of_mdops(path: Path) -> dict[str, Any]:
    from ase import Atoms

    import mdops
    from mdops.calculator import MDOps
    from mdops.errors import InputError, MDOpsError

    found: dict[str, Any] = {"scale": 1.0}
    for dtype in WAYS:
        try:
            model = mdops.load(path, dtype=dtype)
            calculator = MDOps(model)
            while True:
                types, positions, cell = structure(len(model.type_map), found["scale"])
                atoms = Atoms([model.type_map[t] for t in types], positions, cell=cell, pbc=True)
                try:
                    calculator.calculate(atoms, ["energy"])
                    break
                except InputError:  # more neighbours than sel
                    if found["scale"] > MOST:
                        raise
                    found["scale"] *= WIDER

            def call(atoms: Atoms = atoms, calculator: MDOps = calculator) -> None:
                atoms.positions[0, 0] += 1e-7
                calculator.calculate(atoms, ["energy", "forces", "stress"])

            us = least(call)
            found[dtype] = {"evaluator": model.explain().splitlines()[0], "us_per_atom": us}
        except MDOpsError as error:
            found[dtype] = {"refused": str(error)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tensorflow", help="a Python with deepmd-kit and its TensorFlow backend")
    parser.add_argument("--pytorch", help="a Python with deepmd-kit and its PyTorch backend")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--deepmd", action="store_true", help=argparse.SUPPRESS
    )  # this is DeePMD-kit's Python
    parser.add_argument("--scale", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.deepmd:
        print("answer", of_deepmd(args.folder, args.scale))
        return
    import torch
    from machine import machine

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    one = {name: "1" for name in ("OMP_NUM_THREADS", "DP_INTRA_OP_PARALLELISM_THREADS")}
    one |= {"DP_INTER_OP_PARALLELISM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    rows = []
    for path in sorted(p for p in args.folder.rglob("*") if p.suffix in BACKENDS):
        python = args.tensorflow if BACKENDS[path.suffix] == "tf" else args.pytorch
        repository, _, place = path.relative_to(args.folder).as_posix().partition("/")
        row: dict[str, Any] = {"repository": repository.replace("+", "/", 1), "path": place}
        row["mdops"] = of_mdops(path)
        if python:
            command = [python, __file__, str(path), "--deepmd", "--scale", str(row["mdops"]["scale"])]
            done = subprocess.run(command, env=os.environ | one, capture_output=True, text=True)
            said = [line for line in done.stdout.splitlines() if line.startswith("answer")]
            row["DeePMD-kit, us_per_atom"] = float(said[-1].split()[1]) if said else None
            if not said:
                row["DeePMD-kit"] = done.stderr.strip().rpartition("\n")[2][:200]
        rows.append(row)
        print(json.dumps(row), flush=True)
        if args.json:
            text = json.dumps({"machine": machine("cpu"), "atoms": ATOMS, "files": rows}, indent=1)
            args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
