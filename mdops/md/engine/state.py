"""The state of a simulation, as tensors that are written in place."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from mdops.system import System

# Of a system over some steps: the largest value of each possible fault, and the heat.
TALLY = ("moved2", "overflow", "closeness", "energy", "kinetic", "heat")

# What a step changes, in memory order; and what it changes if cells move.
_MOVING = (
    "positions", "momenta", "forces", "atom_energy", "energy", "kinetic", "scale", "eta", "eta_momenta", "virial",
    "tally",
)  # fmt: skip
_MOVING_CELL = ("cell", "cell_momenta", "xi", "xi_momenta", "flow")
# What several models add.
_DEVIATION = ("forces_std", "model_energy")
# What is there on request.
_VIRIALS = ("atom_virial",)
# What models with magnetic moments add.
_MOMENTS = ("force_mag",)

# The variables of thermostats and barostats; the rest follows from positions, momenta and cells.
BATH = ("eta", "eta_momenta", "cell_momenta", "xi", "xi_momenta")


@dataclass
class ForceResult:
    """Energies and forces of positions; see `mdops.ops.spline_potential`. Of several models: the means.

    Attributes:
        forces: (N, 3); atom_energy: (N,); virial: (S, 3, 3).
        nearest: (N,); within: (N, ntypes), of K models (N, K ntypes).
        forces_std: (N, 1), sqrt(mean_k |F_k - <F>|^2), and model_energy: (N, K), of each model; (N, 0) of one model.
        atom_virial: (N, 3, 3), as of `Potential.evaluate`; (0, 3, 3) unless asked for.
        force_mag: (N, 3), minus the derivatives by magnetic moments; (0, 3) if no model has moments.
    """

    forces: torch.Tensor
    atom_energy: torch.Tensor
    virial: torch.Tensor
    nearest: torch.Tensor
    within: torch.Tensor
    forces_std: torch.Tensor
    model_energy: torch.Tensor
    atom_virial: torch.Tensor
    force_mag: torch.Tensor


class ListOrigin(NamedTuple):
    """Positions (N, 3) and cells (S, 3, 3) that a neighbour list was built for; how far it reaches, A; and the largest
    distance of a virtual atom from its atom, A, or 0."""

    positions: torch.Tensor
    cell: torch.Tensor
    cutoff: float
    offset: float = 0.0


@dataclass
class State:
    """N atoms of S systems in the engine's own order, in ASE's units (A, eV, amu; time in A sqrt(amu/eV)), float64.

    Attributes:
        positions, forces: (N, 3).
        momenta: (N, 3), to be multiplied by `scale`.
        atom_energy: (N,).
        energy, kinetic: (S,), of the model and the atoms, at the end of the last step.
        scale: (S,), what the thermostats made of the momenta at the end of the last step.
        eta, eta_momenta: (S, M), of the thermostats.
        virial: (S, 3, 3), W = -dE/d(strain).
        tally: (S, 6), the columns of `TALLY`.
        cell: (S, 3, 3), rows are lattice vectors.
        cell_momenta: (S, 6); xi, xi_momenta: (S, M), of the cells' thermostats; flow: (S, 6), sum p p^T / m of the
            momenta times `scale`: see `mdops.ops.begin_cell_step`. They have no columns if cells do not move,
            except `flow`, then of the start.
        forces_std, model_energy, atom_virial, force_mag: as of `ForceResult`.
        inverse_mass: (N,); batch: (N,) int32, the system of each atom; empty_tally: (S, 6), of no steps. They do not
            change.
        memory: the tensors above are views of it.
        moving: the names of its parts, in order.
    """

    positions: torch.Tensor
    momenta: torch.Tensor
    forces: torch.Tensor
    atom_energy: torch.Tensor
    energy: torch.Tensor
    kinetic: torch.Tensor
    scale: torch.Tensor
    eta: torch.Tensor
    eta_momenta: torch.Tensor
    virial: torch.Tensor
    tally: torch.Tensor
    cell: torch.Tensor
    cell_momenta: torch.Tensor
    xi: torch.Tensor
    xi_momenta: torch.Tensor
    flow: torch.Tensor
    forces_std: torch.Tensor
    model_energy: torch.Tensor
    atom_virial: torch.Tensor
    force_mag: torch.Tensor
    inverse_mass: torch.Tensor
    batch: torch.Tensor
    empty_tally: torch.Tensor
    memory: torch.Tensor
    moving: tuple[str, ...]

    @classmethod
    def of(
        cls,
        system: System,
        momenta: torch.Tensor,
        masses: torch.Tensor,
        bath: Mapping[str, torch.Tensor],
        models: int = 1,
        *,
        atom_virial: bool = False,
        magnetic: bool = False,
    ) -> "State":
        """No forces yet; masses (N,); `bath` has `BATH`'s tensors. Cells move if they have momenta. There is memory for
        atomic virials and for magnetic forces if asked."""
        compared = models if models > 1 else 0
        inverse_mass, count = 1 / masses, system.count
        kinetic, flow = _heat(momenta, inverse_mass, system.batch, count)
        zeros = system.positions.new_zeros
        empty_tally = zeros(count, len(TALLY)).fill_(-torch.inf)
        empty_tally[:, TALLY.index("heat")] = 0
        values = {
            "positions": system.positions, "momenta": momenta, "forces": zeros(momenta.shape),
            "atom_energy": zeros(masses.shape), "energy": zeros(count), "kinetic": kinetic,
            "scale": 1 + zeros(count), "virial": zeros(count, 3, 3), "tally": empty_tally,
            "cell": system.cell, "flow": flow, "forces_std": zeros(len(masses), min(compared, 1)),
            "model_energy": zeros(len(masses), compared),
            "atom_virial": zeros(len(masses) if atom_virial else 0, 3, 3),
            "force_mag": zeros(len(masses) if magnetic else 0, 3), **bath,
        }  # fmt: skip
        moving = _MOVING + (_MOVING_CELL if bath["cell_momenta"].numel() else ())
        moving += (_DEVIATION if compared else ()) + (_VIRIALS if atom_virial else ())
        moving += _MOMENTS if magnetic else ()
        parts = [values[name] for name in moving]
        memory = torch.cat([tensor.reshape(-1) for tensor in parts])
        views = memory.split([tensor.numel() for tensor in parts])
        for name, view in zip(moving, views, strict=True):
            values[name] = view.view(values[name].shape)
        return cls(
            **values, inverse_mass=inverse_mass, batch=system.batch, empty_tally=empty_tally, memory=memory,
            moving=moving,
        )  # fmt: skip

    def after(self, new: Mapping[str, torch.Tensor]) -> "State":
        """The state after a step from the tensors in `new`; it does not share memory with this one, but `memory` stays
        this one's."""
        moved: dict[str, Any] = {name: new[name].reshape(getattr(self, name).shape) for name in self.moving}
        return replace(self, **moved)

    def take(self, new: Mapping[str, torch.Tensor]) -> None:
        """The state after a step from the tensors in `new`, in one kernel."""
        torch.cat([new[name].reshape(-1) for name in self.moving], out=self.memory)

    def clear_tally(self) -> None:
        self.tally.copy_(self.empty_tally)


def _heat(
    momenta: torch.Tensor, inverse_mass: torch.Tensor, batch: torch.Tensor, systems: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(S,) and (S, 6): kinetic energies, and sum p p^T / m as xx, yy, zz, yz, xz, xy; summed on the host, in order."""
    p = momenta.cpu()
    rows = p[:, [0, 1, 2, 1, 0, 0]] * p[:, [0, 1, 2, 2, 2, 1]] * inverse_mass.cpu()[:, None]
    flow = rows.new_zeros(systems, 6).index_add_(0, batch.cpu().long(), rows)
    return (flow[:, :3].sum(1) / 2).to(momenta.device), flow.to(momenta.device)
