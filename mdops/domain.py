"""Energies and forces of one domain: the atoms of one process of a program that divides a system into domains. Around
them are ghosts, which are atoms of other processes or periodic images."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from mdops.errors import InputError, UnsupportedModelError
from mdops.evaluators.autograd import Autograd
from mdops.evaluators.splines import FusedSums, RadialSplineSteps, Splines
from mdops.models.charge_spin import charge_spin_defaults
from mdops.models.contract import mean_in_words
from mdops.models.neighborhood import NeighborReport
from mdops.ops import NeighborList, neighbor_list
from mdops.potential import Potential
from mdops.system import System, checked_charge_spin, hidden_atoms

# Takes rows of the model's dtype and device, and returns such rows.
Communicate = Callable[[torch.Tensor], torch.Tensor]


class Communication(NamedTuple):
    """How rows are passed between atoms and their ghosts. All processes call both, equally often and in the same order.

    Attributes:
        to_ghosts: takes rows (N, W) and returns (N + M, W): these rows, then for each ghost the row of its atom.
        from_ghosts: takes rows (N + M, W) and returns (N, W): the rows of atoms plus those of their ghosts.
    """

    to_ghosts: Communicate
    from_ghosts: Communicate


class DomainEnergies(NamedTuple):
    """A domain's part of the answers for the whole system.

    Attributes:
        energy: (N,) float64, eV, of its atoms.
        forces: (N + M, 3) float64, eV/A; the force on a ghost belongs to the ghost's atom.
        virial: (3, 3) float64, eV, of the pairs of its atoms, W = -dE/d(strain).
        nearest: A, the smallest distance of two atoms; the cutoff where no two are within it.
        atom_virial: (N + M, 3, 3) float64, eV, if asked for: a pair's is its neighbour's.
        force_mag: (N + M, 3) float64, of models with magnetic moments: those on ghosts belong to their atoms.
    """

    energy: torch.Tensor
    forces: torch.Tensor
    virial: torch.Tensor
    nearest: float
    atom_virial: torch.Tensor | None = None
    force_mag: torch.Tensor | None = None


class _ToGhosts(torch.autograd.Function):
    """Rows of ghosts from their owners; gradients of ghosts are added to those of the owners."""

    @staticmethod
    def forward(ctx: Any, nodes: torch.Tensor, communication: Communication) -> torch.Tensor:
        ctx.communication = communication
        return communication.to_ghosts(nodes.detach())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.communication.from_ghosts(grads[0].contiguous()), None


class _Exchange(NamedTuple):
    """See `mdops.system.Exchange`."""

    atoms: int
    communication: Communication

    def __call__(self, nodes: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _ToGhosts.apply(nodes[: self.atoms], self.communication)
        return found


def _of_pairs(communication: Communication) -> Communication:
    """The same for two rows an atom, its own and that of its virtual atom."""

    def paired(communicate: Communicate) -> Communicate:
        return lambda rows: communicate(rows.reshape(-1, 2 * rows.shape[1])).reshape(-1, rows.shape[1])

    return Communication(paired(communication.to_ghosts), paired(communication.from_ghosts))


class Domain:
    """A model for domains. If its layers pass messages, the rows of ghosts are exchanged between layers, and their
    gradients in the opposite direction.

    Attributes:
        potential: the model.
        exchange_width: the largest number of columns in an exchange; 0 if nothing is exchanged.
        charge_spin: (1, 2) float64, of the whole system, or None.
    """

    def __init__(self, potential: Potential, charge_spin: Sequence[float] | None = None) -> None:
        """
        Args:
            charge_spin: the whole system's charge, e, and multiplicity, for models with embeddings of these. None: the
                model's default.

        Raises:
            UnsupportedModelError: for a model of other outputs than energies.
            InputError: the charge or multiplicity is missing, out of range, or not one that the model takes.
        """
        potential.require_energies("a part of a system")
        self.potential, self._spin = potential, potential.model.spin
        self._evaluator = Autograd(potential)  # it supports domains that lack some types
        self.charge_spin = None
        if charge_spin is not None:
            if not charge_spin_defaults(potential.model):
                raise InputError(
                    "charge_spin is given, but the model has no embedding of charge and multiplicity"
                )
            self.charge_spin = torch.from_numpy(checked_charge_spin(charge_spin, 1)).to(potential.device)
        self.exchange_width, self._is_local, self._divides = 0, False, True
        energies = [self._try(first) for first in range(min(2, len(potential.type_map)))]
        self._divides = torch.equal(energies[0], energies[-1])
        self._is_local = not self.exchange_width
        kinds = FusedSums, Splines, RadialSplineSteps, Autograd
        self._evaluator = next(kind for kind in kinds if not kind.why_not(potential))(potential)

    def _try(self, first_type: int) -> torch.Tensor:
        """The energy of an atom beside a ghost, in a system whose first atom has that type. It also finds out what is
        exchanged."""

        def to_ghost(rows: torch.Tensor) -> torch.Tensor:
            self.exchange_width = max(self.exchange_width, rows.shape[1])
            return torch.cat((rows, rows.new_zeros(rows.shape)))

        device = self.potential.device
        like: dict[str, Any] = {"dtype": torch.int32, "device": device}
        distance = 0.5 * self.potential.cutoff
        pairs = torch.tensor([[1], [-1]], **like), torch.zeros(2, 1, **like)
        counts = torch.zeros(2, len(self.potential.type_map), **like)
        counts[0, 0] = 1
        sizes = self.potential.parameter_sizes
        fparam = torch.zeros(sizes["fparam"], device=device) if sizes["fparam"] else None
        aparam = torch.ones(1, sizes["aparam"], device=device) if sizes["aparam"] else None
        return self(
            torch.tensor([[0.0, 0, 0], [distance, 0, 0]], dtype=torch.float64, device=device),
            torch.zeros(2, **like),
            NeighborList(*pairs, counts, self.potential.cutoff),
            1,
            Communication(to_ghost, lambda rows: rows[:1].clone()),
            fparam,
            aparam,
            spins=None if self._spin is None else torch.eye(2, 3, dtype=torch.float64, device=device),
            atom_virial=True,  # it exchanges positions, too
            first_type=first_type,
        ).energy

    def whole(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        spins: torch.Tensor | None = None,
        atom_virial: bool = False,
    ) -> DomainEnergies:
        """The same for a system that is one domain, with the fastest evaluator for it.

        Args:
            system: one, of N atoms; its charge and multiplicity are the domain's.
            neighbors, fparam, aparam, spins, atom_virial: as of a domain without ghosts.
        """
        system = dataclasses.replace(system, charge_spin=self.charge_spin)
        system, aparam = self._with_moments(system, spins, self._shown(aparam))
        neighbors = self._neighbors(system) if system.paired else neighbors
        given = None if fparam is None else fparam[None], aparam
        with torch.no_grad():
            answers, report = self.potential.evaluator()(system, neighbors, *given, atom_virial=atom_virial)
        return self._of(answers, report, system, system.atoms)

    def __call__(
        self,
        positions: torch.Tensor,
        types: torch.Tensor,
        neighbors: NeighborList,
        atoms: int,
        communication: Communication,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        spins: torch.Tensor | None = None,
        atom_virial: bool = False,
        first_type: int = 0,
    ) -> DomainEnergies:
        """Energies and forces.

        Args:
            positions: (N + M, 3) float64, A: the N atoms first, then the ghosts. Nothing is periodic.
            types: (N + M,) int32.
            neighbors: (N + M, K), the atoms' neighbours; rows of ghosts are empty.
            atoms: N.
            communication: with the other processes.
            fparam: (p,). aparam: (N, q).
            spins: (N + M, 3) float64, of a model with magnetic moments. If these are virtual atoms, their neighbours
                are searched here, and ghosts must be there up to the cutoff plus twice the distance of virtual atoms.
            atom_virial: answer with that, too.
            first_type: that the whole system begins with, for models that look at it.

        Raises:
            InputError: atoms coincide, or there are more neighbours than `sel` (`Potential.overflow`).
            UnsupportedModelError: absent neighbours have the type of the system's first atom, which no process knows.
        """
        if not self._divides:
            options = (getattr(part, "options", None) for part in self.potential.model.modules())
            raise UnsupportedModelError(
                "the model gives absent neighbours the type of a system's first atom "
                f"({mean_in_words(options)}), which a program that divides the system into domains does not know"
            )
        device = positions.device
        system = System(
            positions,
            types,
            torch.eye(3, dtype=torch.float64, device=device)[None],
            torch.zeros(1, 3, dtype=torch.bool, device=device),
            torch.zeros(len(types), dtype=torch.int32, device=device),
            charge_spin=self.charge_spin,
        )
        aparam = self._shown(aparam)
        if aparam is not None:
            aparam = torch.nn.functional.pad(aparam, (0, 0, 0, len(types) - atoms))
        rows = atoms
        system, aparam = self._with_moments(system, spins, aparam)
        if system.paired:
            rows, communication = 2 * atoms, _of_pairs(communication)
            neighbors = self._neighbors(system)
            neighbors.neighbors[rows:] = -1
            neighbors.counts[rows:] = 0
        first_types = torch.tensor([first_type], dtype=torch.int32, device=device)
        system = dataclasses.replace(system, first_types=first_types, exchange=_Exchange(rows, communication))
        own = torch.zeros(system.atoms, dtype=torch.float64, device=device)
        own[:rows] = 1
        asked: dict[str, Any] = {"weight": own, "atom_virial": atom_virial}
        if self._is_local:
            asked["own"] = rows
        with torch.no_grad():
            answers, report = self._evaluator(system, neighbors, fparam, aparam, **asked)
        return self._of(answers, report, system, rows)

    def _with_moments(
        self, system: System, spins: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> tuple[System, torch.Tensor | None]:
        """The system with its moments, and the atomic parameters of its rows."""
        system = self.potential.system_with_spins(system, spins)
        return system, aparam if self._spin is None else self._spin.rows_of(aparam)

    def _neighbors(self, system: System) -> NeighborList:
        ntypes = len(self.potential.type_map)
        given = system.positions, system.cell, system.pbc, system.types, self.potential.cutoff
        return neighbor_list(*given, batch=system.batch, ntypes=ntypes)

    def _shown(self, aparam: torch.Tensor | None) -> torch.Tensor | None:
        """The atomic parameters, except those that say which atoms exist."""
        if aparam is None or not self.potential.model.masks:
            return aparam
        if bool(hidden_atoms(aparam).any()):
            raise InputError("aparam marks atoms as absent: leave them out, or give them the type -1")
        return None

    def _of(
        self, answers: dict[str, torch.Tensor], report: NeighborReport, system: System, rows: int
    ) -> DomainEnergies:
        """rows: of the domain's atoms, and of their virtual atoms."""
        nearest = report.nearest[:rows]
        if self._spin is not None:
            answers = self._spin.of_atoms(self._spin.answers(answers, system))
        return DomainEnergies(
            answers["atom_energy"][: rows // 2 if system.paired else rows],
            answers["forces"],
            answers["virial"][0],
            float(nearest.min()) if rows else self.potential.cutoff,
            answers.get("atom_virial"),
            answers.get("force_mag"),
        )
