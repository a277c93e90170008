"""A step of the C core on a GPU beside that of the op in PyTorch, in turn in one run: ms and their ratio. The core's
time includes copies of positions to the GPU and of forces back, unless they are in the GPU's memory. Both have a list
that reaches beyond the cutoff by a skin.

python benchmarks/core_gpu.py [--model MODEL] [--structure water.xyz] [--repeat 8 8 8] [--json FILE]
"""

import ctypes
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import ase.io
import numpy as np
import torch
from machine import parser_of

import mdops
from mdops import system as systems
from mdops.cli.sample_model import water_model
from mdops.jit.sample_box import sample_box
from mdops.ops import neighbor_list

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "core"))
from core_library import EXTEND, List, Model, Output, check, given, library


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", help="by default one of random weights and the usual size")
    parser.add_argument("--structure", help="by default a box of O and H")
    parser.add_argument("--repeat", type=int, nargs=3, default=(1, 1, 1))
    parser.add_argument("--atoms", type=int, default=98304, help="of the default box")
    parser.add_argument("--steps", type=int, default=40, help="of each kind")
    parser.add_argument("--threads", type=int, default=1, help="of the core, which copy")
    parser.add_argument("--skin", type=float, default=1.0, help="of the lists, A")
    parser.add_argument("--precision", default="float32", choices=("float32", "float64"))
    parser.add_argument("--json")
    args = parser.parse_args()
    atoms = ase.io.read(args.structure) if args.structure else sample_box(args.atoms, ["O", "H"])
    atoms = atoms.repeat(args.repeat)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        model = water_model(torch.float64, spline=False)
        if args.model:
            model = mdops.load(args.model, dtype="float64", spline=False)
        model.save(path, core=[args.precision])
        potential = mdops.load(path, dtype=args.precision, device="cuda", overflow="extend")
        core = Model(path, args.precision, overflow=EXTEND, threads=args.threads, device="cuda")
    system = systems.from_atoms([atoms], potential.type_map, potential.device)
    near = neighbor_list(
        system.positions,
        system.cell,
        system.pbc,
        system.types,
        potential.cutoff + args.skin,
        batch=system.batch,
        ntypes=len(potential.type_map),
    )
    own, cell, kinds = atoms.get_positions(), atoms.cell.array, system.types.cpu().numpy()
    pbc = atoms.pbc.astype(np.int32)
    found = List.searched(core, own, kinds, len(own), args.skin, cell, pbc)
    there = system.positions.clone()
    forces = torch.empty_like(there)

    def step(positions: int, forces: int) -> float:
        input = given([None, None, cell, None, None, None], len(own), 0, found)
        input.positions = positions
        output = Output(forces=forces)
        check(library().mdops_compute(core.handle, ctypes.byref(input), ctypes.byref(output)))
        return float(output.energy)

    here, pinned = [own.copy(), np.zeros_like(own)], [core.allocated(own.shape) for _ in range(2)]
    pinned[0][:] = own

    ways = {
        "op": lambda: potential.evaluate(system, near)["energy"].item(),
        "core, arrays of the GPU": lambda: step(there.data_ptr(), forces.data_ptr()),
        "core, allocated arrays": lambda: step(*(x.ctypes.data for x in pinned)),
        "core, arrays of the host": lambda: step(*(x.ctypes.data for x in here)),
        "core's search": lambda: List.searched(core, own, kinds, len(own), args.skin, cell, pbc) and None,
    }
    wanted = ways["op"]()
    for name, way in ways.items():
        energy = way()
        assert energy is None or abs(energy - wanted) < 1e-5 * abs(wanted), (name, energy, wanted)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.steps):
        for name, way in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            way()
            torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start))
    result = {
        "atoms": len(own),
        "precision": args.precision,
        "skin": args.skin,
        "device": torch.cuda.get_device_name(),
        "threads": args.threads,
        "ms": {name: statistics.median(t) for name, t in times.items()},
    }
    print(f"{len(own)} atoms, {args.precision}, {result['device']}, median of {args.steps}")
    for name, ms in result["ms"].items():
        print(f"{name:<26}{ms:8.3f} ms {1e3 * ms / len(own):8.4f} us/atom {ms / result['ms']['op']:8.3f}")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
