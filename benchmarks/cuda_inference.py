"""Time of the fused inference step on a GPU (`spline_potential`), kernel by kernel, beside lower bounds (floors).

    python benchmarks/cuda_inference.py --model model.dp [--structure frame.extxyz | --system deepmd_folder]
                                        [--atoms 192 1536 12288 98304 1572864] [--check 192 5184]
                                        [--matmul tf32] [--json FILE] [--commit HASH]

The structure, a periodic box, is repeated until it has the requested number of atoms, with displacements of 0.01 A. Its
neighbour list has the skin of a simulation, 1 A, and is not part of the time. Steps are replays of a CUDA graph;
times are medians of ten runs. `floor_ns` is the time of the matrix products only, at the tensor cores' float16 rate,
with three products for one if --matmul is float32. `step_bytes_per_atom` is the memory of a step. The last line
compares 1,024 molecules of 24 atoms in one batch with one system of as many atoms. --check compares systems of these
sizes with the float64 step on the CPU.
Without --structure and --system: an artificial box with water's density.
"""

import argparse
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from ase import Atoms
from ase.io import read

import mdops
from mdops import Potential
from mdops.evaluators.one_op import Fused
from mdops.jit.sample_box import sample_box
from mdops.ops import NeighborList, neighbor_list
from mdops.potential import Matmul
from mdops.system import System, from_atoms

SKIN = 1.0  # A
PRODUCTS = {"float32": 3, "tf32": 1}  # float16 products for one product
TENSOR_RATE = 989e12  # float16 operations per second of an H100 or H200, from its data sheet
MOLECULES, MOLECULE = 1024, 24


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds --model and the options for `structure`."""
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--structure", type=Path)
    parser.add_argument("--system", type=Path)


def structure(elements: list[str], file: Path | None = None, folder: Path | None = None) -> Atoms:
    """The first frame of a file that ASE reads, or of DeePMD-kit's data in a folder; otherwise an artificial box."""
    if file is not None:
        frame = read(file)
        assert isinstance(frame, Atoms)
        return frame
    if folder is not None:
        frames = sorted(folder.glob("set.*"))[0]
        types = np.loadtxt(folder / "type.raw", dtype=int, ndmin=1)
        names = (folder / "type_map.raw").read_text().split()
        return Atoms(
            [names[t] for t in types],
            np.load(frames / "coord.npy")[0].reshape(-1, 3),
            cell=np.load(frames / "box.npy")[0].reshape(3, 3),
            pbc=True,
        )
    return sample_box(192, elements)


def repeated(unit: Atoms, count: int) -> Atoms:
    """The structure, repeated to at least `count` atoms; the shortest edges are repeated first."""
    times = np.ones(3, dtype=int)
    while len(unit) * times.prod() < count:
        times[np.argmin(times * unit.cell.lengths())] *= 2
    atoms = unit.repeat(tuple(times))
    atoms.positions += np.random.default_rng(0).normal(scale=0.01, size=atoms.positions.shape)
    return atoms


def listed(model: Potential, frames: list[Atoms], skin: float = SKIN) -> tuple[System, NeighborList]:
    system = from_atoms(frames, model.type_map, model.device)
    pairs = neighbor_list(
        system.positions,
        system.cell,
        system.pbc,
        system.types,
        model.cutoff + skin,
        batch=system.batch,
        ntypes=len(model.type_map),
    )
    return system, pairs


def captured(fused: Fused, system: System, pairs: NeighborList) -> torch.cuda.CUDAGraph:
    fused(system, pairs, check=False)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused(system, pairs, check=False)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def milliseconds(graph: torch.cuda.CUDAGraph, steps: int) -> tuple[float, float]:
    """The median of ten runs, and their spread relative to it."""
    times = []
    for _ in range(10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(steps):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / steps)
    times.sort()
    return times[5], (times[-1] - times[0]) / times[5]


def kernels(graph: torch.cuda.CUDAGraph) -> dict[str, float]:
    """Microseconds of each kernel in a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in profile.events() or []:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] = times.get(event.name, 0.0) + event.device_time / 5
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def matrix_operations(model: Potential) -> float:
    """Operations of the fitting net's products, forward and backward, per atom; D's equal entries are counted once."""
    d, hidden = model.model.descriptor, [layer.outputs for layer in model.model.fitting.net(0).layers[:-1]]
    features = d.channels * d.axis_neuron - d.axis_neuron * (d.axis_neuron - 1) // 2
    widths = [features, *hidden]
    return sum(4.0 * a * b for a, b in zip(widths, hidden, strict=False))


def measure(model: Potential, fused: Fused, frames: list[Atoms]) -> dict[str, Any]:
    system, pairs = listed(model, frames)
    atoms = system.atoms
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fused(system, pairs, check=False)
    torch.cuda.synchronize()
    memory = torch.cuda.max_memory_allocated() - before
    graph = captured(fused, system, pairs)
    ms, spread = milliseconds(graph, max(1, min(50, 1_000_000 // atoms)))
    return {
        "atoms": atoms,
        "systems": system.count,
        "ms": ms,
        "spread": spread,
        "ns_per_atom": 1e6 * ms / atoms,
        "floor_ns": 1e9 * PRODUCTS[model.matmul] * matrix_operations(model) / TENSOR_RATE,
        "step_bytes_per_atom": memory / atoms,
        "peak_GiB": torch.cuda.max_memory_allocated() / 2**30,
        "list_width": pairs.neighbors.shape[1],
        "kernels_us": kernels(graph),
    }


def check(model: Potential, fused: Fused, path: Path, atoms: Atoms) -> dict[str, float]:
    """Differences from the float64 step on the CPU: root mean square of forces (eV/A), energies (eV/atom), and virials
    relative to their largest number."""
    double = mdops.load(path, dtype=torch.float64, overflow="extend").evaluator()
    assert double is not None
    system, pairs = listed(model, [atoms])
    on_cpu = System(
        *(x.cpu() for x in (system.positions, system.types, system.cell, system.pbc, system.batch))
    )
    pairs_on_cpu = NeighborList(*(x.cpu() if isinstance(x, torch.Tensor) else x for x in pairs))
    expected, _ = double(on_cpu, pairs_on_cpu, None, None)
    result = {name: value.cpu() for name, value in fused(system, pairs, None, None)[0].items()}
    off = {name: result[name] - value for name, value in expected.items()}
    return {
        "atoms": len(atoms),
        "force_rms": float(off["forces"].square().mean().sqrt()),
        "force_most": float(off["forces"].abs().max()),
        "energy_rms": float(off["atom_energy"].square().mean().sqrt()),
        "energy_of_sum": float(off["atom_energy"].sum().abs()) / len(atoms),
        "virial_relative": float(off["virial"].abs().max() / expected["virial"].abs().max()),
    }


def molecules(unit: Atoms) -> list[Atoms]:
    """Clusters with the given number of atoms: the first ones of the structure, each in its own large box."""
    order = np.argsort(np.linalg.norm(unit.get_positions() - unit.get_positions()[0], axis=1))[:MOLECULE]
    cluster = unit[order]
    cluster.pbc = False
    random = np.random.default_rng(1)
    frames = []
    for _ in range(MOLECULES):
        frame = cluster.copy()
        frame.positions += random.normal(scale=0.01, size=frame.positions.shape)
        frames.append(frame)
    return frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_model(parser)
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 1536, 12288, 98304, 1572864])
    parser.add_argument("--check", type=int, nargs="*", default=[], metavar="ATOMS")
    parser.add_argument("--matmul", choices=get_args(Matmul), default="float32")
    parser.add_argument("--commit", default="", help="of the measured source, recorded as it is")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    model = mdops.load(arguments.model, overflow="extend", device="cuda", matmul=arguments.matmul)
    fused = model.evaluator()
    assert fused is not None, "this model is not evaluated by the fused step"
    unit = structure(model.type_map, arguments.structure, arguments.system)
    results = []
    cases = [[repeated(unit, count)] for count in arguments.atoms]
    cases += [molecules(unit), [repeated(unit, MOLECULES * MOLECULE)]]
    for frames in cases:
        row = measure(model, fused, frames)
        results.append(row)
        print(
            f"{row['atoms']:>9} atoms in {row['systems']:>4}: {row['ms']:9.4f} ms {row['ns_per_atom']:8.2f} ns/atom "
            f"(floor {row['floor_ns']:.1f}), {row['step_bytes_per_atom'] / 1024:.1f} KiB/atom",
            flush=True,
        )
    checks = [check(model, fused, arguments.model, repeated(unit, count)) for count in arguments.check]
    for row in checks:
        print(", ".join(f"{name} {value:.3g}" for name, value in row.items()))
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "mdops": mdops.__version__,
        "commit": arguments.commit,
    }
    if arguments.json:
        report = {"machine": machine, "matmul": model.matmul, "results": results, "checks": checks}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
