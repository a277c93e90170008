"""The energy model: descriptor, fitting net, biases; energies, forces and virials of atoms."""

import copy
import os
import warnings
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import nn

from mdops.errors import InputError
from mdops.nn import system as systems
from mdops.nn.exact import exact_moments
from mdops.nn.fitting import EnergyFitting
from mdops.nn.fused import FusedPotential, supports, tf32_problem
from mdops.nn.moments import Moments
from mdops.nn.pairs import Pairs, keep_nearest, overflows, refuse_coincident, refuse_overflow, warn_close
from mdops.nn.se_e2_a import SeE2A
from mdops.nn.spline import DEFAULT_R_MIN, TOLERANCE, SplineGrid, choose_grid, coefficients
from mdops.nn.splined import splined_moments
from mdops.nn.sums import sum_systems
from mdops.nn.system import System
from mdops.ops import NeighborList, displacements, neighbor_list, pair_forces

Overflow = Literal["error", "truncate", "extend"]
Matmul = Literal["float32", "tf32"]


class Potential(nn.Module):
    """E = sum_i e_i, with e_i = fitting(descriptor(neighbours of i)) + bias of i's type.

    Made by `mdops.load`. Parameters have the compute dtype; positions, cells and energies are float64.
    An atom of an excluded type (`atom_exclude_types`) and a virtual atom have no energy; the former still is
    a neighbour of others.

    Attributes:
        type_map: the element of each type.
        atom_exclude_types: types whose atoms have no energy.
        descriptor, fitting: the parts.
        overflow: what to do with more neighbours of a type than `sel`: "error", "truncate" (keep the nearest,
            as DeePMD-kit) or "extend" (keep all).
        grid: the knots of the splines that stand for the embedding nets; None in exact mode.
        tree: the serialised model this one was made from; `save` writes it with the weights of now.
        source: where the model is from, as `mdops.io.ModelFile.source`; `save` writes it, too.
    """

    out_bias: torch.Tensor
    has_energy: torch.Tensor

    def __init__(
        self,
        descriptor: SeE2A,
        fitting: EnergyFitting,
        out_bias: torch.Tensor,
        *,
        type_map: Sequence[str],
        atom_exclude_types: Sequence[int] = (),
        overflow: Overflow = "error",
        tree: dict[str, Any],
    ) -> None:
        """Takes out_bias (ntypes,) float64, eV."""
        super().__init__()
        if overflow not in get_args(Overflow):
            raise InputError(f"overflow is {overflow!r}, expected one of {', '.join(get_args(Overflow))}")
        self.descriptor, self.fitting = descriptor, fitting
        self.type_map, self.overflow = list(type_map), overflow
        self.atom_exclude_types = list(atom_exclude_types)
        self.tree = tree
        self.source: dict[str, Any] = {}
        self.grid: SplineGrid | None = None
        self._matmul: Matmul = "float32"
        self._watched: list[torch.Tensor] | None = None
        self._table: tuple[Any, torch.Tensor] | None = None
        self._fused: tuple[Any, FusedPotential | None] | None = None
        self.register_buffer("out_bias", out_bias)
        excluded = torch.tensor([t in self.atom_exclude_types for t in range(len(type_map))])
        self.register_buffer("has_energy", ~excluded)

    @property
    def cutoff(self) -> float:
        """A."""
        return self.descriptor.cutoff

    @property
    def sel(self) -> list[int]:
        """Places for neighbours of each type."""
        return list(self.descriptor.sel)

    @property
    def dtype(self) -> torch.dtype:
        """The compute dtype."""
        return self.descriptor.mean.dtype

    @property
    def device(self) -> torch.device:
        return self.out_bias.device

    def use_spline(self, r_min: float = DEFAULT_R_MIN, tolerance: float | None = None) -> None:
        """Evaluate the embedding nets as splines, with knots that keep the error bound down to r_min (A).

        The bound (`mdops.nn.spline.spline_error`) is `tolerance`, or that of simulation: 2e-5 in float32 and
        1e-8 in float64.
        Nets that no spline follows (relu has kinks) go on to be evaluated exactly, with a warning.
        """
        if not self.descriptor.is_smooth:
            warnings.warn(
                "the embedding nets have kinks and are evaluated exactly, not as splines", stacklevel=2
            )
            return
        tolerance = TOLERANCE[self.dtype] if tolerance is None else tolerance
        grid = choose_grid(copy.deepcopy(self.descriptor).double(), r_min, tolerance)
        if grid.error > tolerance:
            warnings.warn(
                f"splines of the embedding nets reach an error of {grid.error:.1e}, not {tolerance:.1e}; "
                "the nets are evaluated exactly",
                stacklevel=2,
            )
            return
        self.grid = grid

    @property
    def matmul(self) -> Matmul:
        """How accurate the fitting net's matrix products in `evaluate` are; `use_matmul` sets it."""
        return self._matmul

    def use_matmul(self, matmul: Matmul) -> None:
        """Choose the accuracy of the fitting net's matrix products in `evaluate` and all that uses it.

        "float32" is that of float32 (22 bits on a GPU). "tf32" keeps 11 bits of each factor, and sums in float32: for
        simulation on a GPU, faster; docs/cuda.md, "TF32", has its error. It goes with the model when that is copied,
        pickled or moved; `save` does not write it.

        Raises:
            InputError: neither of the two; or "tf32" where it has no effect: on a CPU, in float64, with exact nets,
                with overflow "truncate", and for models that the fused step does not cover. A model that was moved or
                changed to such a state later is refused by `evaluate`.
        """
        if matmul not in get_args(Matmul):
            raise InputError(f"matmul is {matmul!r}, expected one of {', '.join(get_args(Matmul))}")
        if matmul == "tf32":
            self._refuse_tf32(tf32_problem(self))
        self._matmul = matmul

    def _refuse_tf32(self, problem: str | None) -> None:
        if problem is not None:
            raise InputError(
                f"matmul is 'tf32', and {problem}: use matmul 'float32' (`Potential.use_matmul`)"
            )

    def table(self, differentiable: bool) -> torch.Tensor | None:
        """The splines' coefficients (ntypes, ntypes, B, M) of the weights of now; None in exact mode.

        Those that are not differentiable are formed in float64 and kept until a weight changes.
        """
        if self.grid is None:
            return None
        if differentiable:
            return coefficients(self.descriptor, self.grid)
        state = self._state()
        if self._table is None or self._table[0] != state:
            with torch.no_grad():
                double = copy.deepcopy(self.descriptor).double()
                self._table = state, coefficients(double, self.grid).to(self.dtype)
        return self._table[1]

    def fused(self) -> FusedPotential | None:
        """The weights of now as the op for a whole step takes them, None where it cannot stand for this model."""
        state = self._state()
        if self._fused is None or self._fused[0] != state:
            if self.matmul == "tf32":
                self._refuse_tf32(tf32_problem(self))
            self._fused = state, FusedPotential(self, self.grid) if self.grid and supports(self) else None
        return self._fused[1]

    def _state(self) -> tuple[Any, ...]:
        """Changes when a weight, a buffer or the grid does. Asked at every step: walking over all modules each
        time would cost more than the step of a small system."""
        if self._watched is None:
            self._watched = [*self.parameters(), *self.buffers()]
        return (self.grid, self.matmul, *((t.data_ptr(), t._version) for t in self._watched))

    def _apply(self, *args: Any, **kwargs: Any) -> "Potential":
        """What `to`, `double` and the like go through: it may replace tensors."""
        self._watched = None
        return super()._apply(*args, **kwargs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `mdops.load` reads, with `source`; weights keep the precision of `tree`.

        The suffix says the format: .dp or .yaml, which DeePMD-kit reads too, .json, or .safetensors (docs/formats.md).
        Raises ModelFileError for weights that are not finite, another suffix, and a folder that is not there.
        """
        from mdops.io import write_model
        from mdops.nn.build import serialize

        write_model(path, serialize(self), self.source)

    def forward(
        self,
        positions: torch.Tensor,
        types: torch.Tensor,
        cell: torch.Tensor | None = None,
        pbc: torch.Tensor | None = None,
        batch: torch.Tensor | None = None,
        neighbors: NeighborList | None = None,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        forces: bool = False,
        create_graph: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Energies, differentiable in positions, cell, parameters and weights.

        Args:
            positions: (N, 3), A.
            types: (N,) integers, -1 for a virtual atom.
            cell: (S, 3, 3), or (3, 3) for one system, A; nothing is periodic without it.
            pbc: (S, 3) or (3,) bool; with a cell all are True unless told.
            batch: (N,) integers, the system of each atom; one system unless told.
            neighbors: a list that holds at least all pairs within the cutoff; made here unless told.
            fparam: (S, p) or (p,); aparam: (N, q) or (q,); only of a model that takes them.
            forces: give forces and virial too.
            create_graph: make those differentiable, for a loss on them.

        Returns:
            energy (S,) and atom_energy (N,), eV, float64; with `forces` also forces (N, 3), eV/A, and virial
            (S, 3, 3), W = -dE/d(strain), eV.

        Raises:
            InputError: an argument does not fit, parameters are missing, or given to a model that takes none, atoms
                coincide, or there are more neighbours than `sel`; or `matmul` is "tf32".
        """
        if self.matmul == "tf32":
            self._refuse_tf32("differentiable energies come from PyTorch's own products")
        system = systems.from_tensors(positions, types, cell, pbc, batch, len(self.type_map))
        pairs = self._pairs(system, self._neighbors(system) if neighbors is None else neighbors)
        table = self.table(differentiable=torch.is_grad_enabled())
        with torch.set_grad_enabled(forces or torch.is_grad_enabled()):
            if forces and not pairs.displacements.requires_grad:
                pairs.displacements.requires_grad_()
            atom_energy, pairs = self._atom_energies(system, pairs, table, fparam, aparam)
            result = {
                "energy": sum_systems(atom_energy, system.batch, system.count),
                "atom_energy": atom_energy,
            }
            if forces:
                gradient = _pair_gradient(atom_energy, pairs, create_graph)
                result["forces"], result["virial"], _ = self._assemble(gradient, pairs, system)
        return result

    def evaluate(
        self,
        system: System,
        neighbors: NeighborList | None = None,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        atom_virial: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Energy, forces, virial and atom_energy (as `forward` gives them), without a graph: for simulation.

        With `atom_virial` also atom_virial (N, 3, 3): a pair's virial is booked on the neighbour, as in
        DeePMD-kit; refused with `matmul` "tf32".
        """
        if atom_virial and self.matmul == "tf32":
            self._refuse_tf32("atomic virials come from PyTorch's own products")
        if neighbors is None:
            neighbors = self._neighbors(system)
        fused = None if atom_virial else self.fused()
        if fused is not None:
            result = self._evaluate_fused(fused, system, neighbors, fparam, aparam)
            if result is not None:
                return result
        with torch.no_grad():
            pairs = self._pairs(system, neighbors)
            table = self.table(differentiable=False)
        with torch.enable_grad():
            pairs.displacements.requires_grad_()
            atom_energy, pairs = self._atom_energies(system, pairs, table, fparam, aparam)
            gradient = _pair_gradient(atom_energy, pairs, create_graph=False)
        with torch.no_grad():
            forces, virial, per_atom = self._assemble(gradient, pairs, system)
            atom_energy = atom_energy.detach()
            result = {"energy": sum_systems(atom_energy, system.batch, system.count), "forces": forces}
            result |= {"virial": virial, "atom_energy": atom_energy}
        # DeePMD-kit has the force's component first (the sum over atoms is symmetric).
        return result | {"atom_virial": per_atom.transpose(1, 2)} if atom_virial else result

    @torch.no_grad()
    def _evaluate_fused(
        self,
        fused: FusedPotential,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
    ) -> dict[str, torch.Tensor] | None:
        """`evaluate` by the one op that does a whole step; None where it is the other way's turn: to name
        coincident atoms, and to drop neighbours."""
        self._check_cutoff(neighbors)
        result, moments = fused(system, neighbors, fparam, aparam)
        if system.atoms:
            nearest = float(moments.nearest.min())
            too_many = self.overflow != "extend" and bool(overflows(moments, self.sel).any())
            if nearest == 0 or (too_many and self.overflow == "truncate"):
                return None
            if too_many:
                refuse_overflow(moments, self.sel, self.type_map)
            if nearest < fused.r_min:
                warn_close(moments, fused.r_min)
        return {"energy": sum_systems(result["atom_energy"], system.batch, system.count), **result}

    def compute(
        self,
        atoms: Any,
        fparam: np.ndarray | Sequence[float] | None = None,
        aparam: np.ndarray | Sequence[float] | None = None,
        *,
        atom_virial: bool = False,
    ) -> dict[str, np.ndarray]:
        """Answers for ASE Atoms, or a list of them, S systems with N atoms in all.

        Args:
            atoms: ase.Atoms or a list of them; elements are looked up in `type_map`, "X" is a virtual atom.
            fparam: (S, p) or (p,); aparam: (N, q) or (q,).
            atom_virial: give that too.

        Returns:
            energy (S,), forces (N, 3), virial (S, 3, 3), atom_energy (N,) and, when asked for, atom_virial
            (N, 3, 3); eV and A.

        Raises:
            InputError: as `forward`, and for an element the model does not know.
        """
        frames = atoms if isinstance(atoms, list | tuple) else [atoms]
        system = systems.from_atoms(frames, self.type_map, self.device)
        result = self.evaluate(
            system, None, self._parameter(fparam), self._parameter(aparam), atom_virial=atom_virial
        )
        return {name: value.cpu().numpy() for name, value in result.items()}

    def _parameter(self, value: np.ndarray | Sequence[float] | None) -> torch.Tensor | None:
        return None if value is None else torch.as_tensor(value, dtype=torch.float64, device=self.device)

    def _neighbors(self, system: System) -> NeighborList:
        return neighbor_list(
            system.positions.detach(),
            system.cell.detach(),
            system.pbc,
            system.types,
            self.cutoff,
            batch=system.batch,
            ntypes=len(self.type_map),
        )

    def _check_cutoff(self, neighbors: NeighborList) -> None:
        if neighbors.cutoff < self.cutoff:
            raise InputError(
                f"the neighbour list is of cutoff {neighbors.cutoff} A, and the model's is {self.cutoff} A"
            )

    def _pairs(self, system: System, neighbors: NeighborList) -> Pairs:
        self._check_cutoff(neighbors)
        d = displacements(
            system.positions, system.cell, system.batch, neighbors.neighbors, neighbors.images, self.dtype
        )
        return Pairs(neighbors.neighbors, neighbors.counts, d)

    def _moments(self, pairs: Pairs, types: torch.Tensor, table: torch.Tensor | None) -> Moments:
        """The one place that chooses how T is computed."""
        if self.grid is None or table is None:
            return exact_moments(self.descriptor, pairs.displacements, pairs.counts, types)
        return splined_moments(self.descriptor, self.grid, table, pairs.displacements, pairs.counts, types)

    def _atom_energies(
        self,
        system: System,
        pairs: Pairs,
        table: torch.Tensor | None,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Pairs]:
        """Energies (N,), float64, and the pairs they came from (fewer ones after a truncation)."""
        moments = self._moments(pairs, system.types, table)
        refuse_coincident(moments, pairs)
        if self.grid is not None:
            warn_close(moments, self.grid.r_min)
        if self.overflow == "error":
            refuse_overflow(moments, self.sel, self.type_map)
        elif self.overflow == "truncate" and bool(overflows(moments, self.sel).any()):
            pairs = keep_nearest(pairs, self.sel, self.cutoff)
            moments = self._moments(pairs, system.types, table)
        kind = system.types.long().clamp(min=0)
        energy = self.fitting(
            self.descriptor(moments.t), system.types, system.batch, system.count, fparam, aparam
        )
        counted = self.has_energy[kind] & (system.types >= 0)
        return torch.where(counted, energy + self.out_bias[kind], 0.0), pairs

    def _assemble(
        self, gradient: torch.Tensor, pairs: Pairs, system: System
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return pair_forces(gradient, pairs.displacements, system.batch, pairs.neighbors, system.count)


def _pair_gradient(atom_energy: torch.Tensor, pairs: Pairs, create_graph: bool) -> torch.Tensor:
    """dE/dd (N, K, 3)."""
    (gradient,) = torch.autograd.grad(
        atom_energy.sum(),
        pairs.displacements,
        create_graph=create_graph,
        retain_graph=True,
        materialize_grads=True,
    )
    return gradient
