"""Molecular dynamics at constant energy with any calculator, and its analysis."""

import time
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np
import torch
from ase import Atoms, units
from ase.calculators.calculator import Calculator
from ase.md.verlet import VelocityVerlet
from rich.progress import track

from mdops import ops

EQUILIBRATION = 0.2  # of a run, left out of averages


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        label: of the calculator.
        times: ps. energies: total, eV/atom, relative to a constant. temperatures: K. A value for each frame.
        frames: copies of the atoms.
        step_seconds: wall time of a step.
    """

    label: str
    times: np.ndarray
    energies: np.ndarray
    temperatures: np.ndarray
    frames: list[Atoms]
    step_seconds: float

    @property
    def drift(self) -> float:
        """Slope of the straight line through the energies, eV/atom/ps."""
        return float(np.polyfit(self.times, self.energies, 1)[0])

    def settled(self) -> "Run":
        """Without its first part, in which kinetic energy becomes potential energy."""
        first = int(EQUILIBRATION * len(self.frames))
        energies = self.energies[first:] - self.energies[first:].mean()
        times, temperatures = self.times[first:], self.temperatures[first:]
        return replace(
            self, energies=energies, frames=self.frames[first:], times=times, temperatures=temperatures
        )


def simulate(
    start: Atoms, calculator: Calculator, label: str, *, timestep: float, steps: int, interval: int = 10
) -> Run:
    """Velocity Verlet from `start`, which has velocities; a frame every `interval` steps of `timestep` fs."""
    atoms = start.copy()
    atoms.calc = calculator
    atoms.get_forces()  # one-time work is not timed
    dynamics = VelocityVerlet(atoms, timestep * units.fs)
    frames, energies, temperatures = [atoms.copy()], [atoms.get_total_energy()], [atoms.get_temperature()]
    seconds = 0.0
    for _ in track(range(steps // interval), f"dynamics with {label}"):
        started = time.perf_counter()
        dynamics.run(interval)
        seconds += time.perf_counter() - started
        frames.append(atoms.copy())
        energies.append(atoms.get_total_energy())
        temperatures.append(atoms.get_temperature())
    return Run(
        label,
        np.arange(len(frames)) * interval * timestep / 1000,
        (np.array(energies) - energies[0]) / len(atoms),
        np.array(temperatures),
        frames,
        seconds / max(len(frames) - 1, 1) / interval,
    )


def pair_distributions(
    frames: list[Atoms], cutoff: float, width: float
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Distances (A) and, for each pair of elements such as "Al-Cu", their histogram, in bins of `width`.

    With a cell it is the radial distribution function: the density of the second element at a distance from
    the first, over its mean. Without one it is the number of pairs per A.
    """
    elements = sorted(set(frames[0].get_chemical_symbols()))
    types = torch.tensor([elements.index(s) for s in frames[0].symbols], dtype=torch.int32)
    distances, first, second = _all_pairs(frames, types.repeat(len(frames)), cutoff)
    edges = np.arange(0, cutoff + width / 2, width)
    middles = (edges[1:] + edges[:-1]) / 2
    volume, found = frames[0].get_volume() if frames[0].pbc.all() else None, {}
    for a, b in combinations_with_replacement(range(len(elements)), 2):
        chosen = distances[(first == a) & (second == b)]
        per_frame = np.histogram(chosen, edges)[0] / len(frames) / width
        if volume is not None:
            ideal = 4 * np.pi * middles**2 * int((types == a).sum()) * int((types == b).sum()) / volume
            per_frame = per_frame / ideal
        elif a == b:
            per_frame = per_frame / 2  # both i -> j and j -> i were counted
        found[f"{elements[a]}-{elements[b]}"] = per_frame
    return middles, found


def _all_pairs(
    frames: list[Atoms], types: torch.Tensor, cutoff: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distances and the types of both ends of all pairs i -> j of all frames: one batch for the ops."""
    positions = torch.from_numpy(np.concatenate([frame.positions for frame in frames]))
    cell = torch.from_numpy(np.stack([frame.cell.array for frame in frames]))
    batch = torch.arange(len(frames), dtype=torch.int32).repeat_interleave(len(frames[0]))
    near = ops.neighbor_list(positions, cell, frames[0].pbc.tolist(), types, cutoff, batch=batch)
    vectors = ops.displacements(positions, cell, batch, near.neighbors, near.images, torch.float32)
    present = near.neighbors >= 0
    first = types[:, None].expand_as(near.neighbors)[present]
    second = types[near.neighbors[present].long()]
    return vectors.norm(dim=-1)[present].numpy(), first.numpy(), second.numpy()
