"""Forces of one or several potentials on the device, with neighbour lists for several steps, and flags in place of
errors."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from mdops.errors import InputError
from mdops.md.engine.state import ForceResult, ListOrigin
from mdops.models.force_moments import ghosts_of
from mdops.models.judge import limits, warn_extrapolated
from mdops.models.neighborhood import Neighborhood
from mdops.models.spin import places
from mdops.ops import NeighborList, neighbor_list, neighbor_matrix
from mdops.potential import Potential
from mdops.system import AtomsByType, System


class GraphSizes(NamedTuple):
    """How many edges, angles, edges with angles, and ghosts a model's graph has, or has room for."""

    edges: int = 0
    angles: int = 0
    inner: int = 0
    ghosts: int = 0


class Flags(NamedTuple):
    """The largest value over some steps and all systems of each possible fault; NaN if a step had one.

    Attributes:
        moved2: squared distance of an atom from where the list was built, A^2; with moving cells, from its place in
            the strained list, plus a term for that strain (`mdops.ops.end_cell_step`).
        overflow: neighbours of an atom beyond the model's `sel`.
        closeness: minus the smallest distance of two atoms, A.
        energy: absolute value, eV.
        temperature: K.
        longest: length of the longest row of a list; infinite if the search refused its input.
        graph: the sizes of a model's graph.
    """

    moved2: float
    overflow: float
    closeness: float
    energy: float
    temperature: float
    longest: float
    graph: GraphSizes = GraphSizes()

    @property
    def finite(self) -> bool:
        *values, _ = self
        return not any(math.isnan(value) for value in values) and math.isfinite(
            self.energy + self.temperature
        )


class ForceProvider:
    """The potential energy surface of some systems, their atoms in the engine's order. Magnetic moments are constant;
    virtual atoms move with their atoms.

    Attributes:
        potential: the source of forces.
        system: the atoms, with their magnetic moments in `spins`, if the model has some.
        capacity: places in a row of the list.
        captures: whether a CUDA graph can capture a step; otherwise the potential reads from the device.
        origin: the state that the list was built for.
        needed: (2,) int64, the last one of `neighbor_matrix`.
        room: the capacity for the model's graph, if steps are captured.
        sizes: (4,) int64, the largest `GraphSizes` since the list was built.
        sel: (ntypes,) int32, how many neighbours may be within the cutoff; (1,) where all types share places; of a
            model with several parts those of all, one after another.
    """

    def __init__(
        self,
        potential: Potential,
        system: System,
        skin: float,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
        capacity: int = 0,
        *,
        cells_move: bool = False,
        atom_virial: bool = False,
        magnetic: bool = False,
    ) -> None:
        """`magnetic`: results have magnetic forces, which are 0 if the model has none."""
        self.potential, self.system, self.skin = potential, system, skin
        spin, spins, self._offsets = potential.model.spin, system.spins, None
        self._rows = potential.system_with_spins(replace(system, spins=None), spins)
        if spin is not None and spins is not None:
            self._offsets, aparam = spin.offsets(system.types, spins), spin.rows_of(aparam)
        farthest = 0.0 if self._offsets is None else float(self._offsets.norm(dim=1).max())
        self._evaluator = potential.evaluator()
        # If the potential drops neighbours itself, and finds them at no cost, no block is repeated.
        drops = potential.overflow == "truncate" and potential.device.type == "cpu"
        self._flags = self._evaluator.captures and not drops
        self._takes_ghosts = self._flags and atom_virial and potential.reach > 1
        self._fparam, self._aparam = fparam, aparam
        self.capacity = capacity
        self.captures = self._flags and potential.device.type == "cuda"
        self.origin = ListOrigin(
            torch.zeros_like(system.positions), system.cell.clone(), self.cutoff, farthest
        )
        self._cells_move, self._atom_virial = cells_move, atom_virial
        # Known beforehand: a captured step cannot read them.
        self._kinds = (
            AtomsByType(self._rows.types, self._rows.atoms_of_types(len(potential.type_map)))
            if self.captures
            else None
        )
        self.needed = torch.zeros(2, dtype=torch.int64, device=potential.device)
        self.room, self.sizes = GraphSizes(), self.needed.new_zeros(len(GraphSizes()))
        self._list: NeighborList | None = None
        n = system.atoms
        self.sel = torch.tensor(
            limits(potential.model, potential.overflow), dtype=torch.int32, device=potential.device
        )
        # Placeholders if the potential raises the errors.
        self._nearest = system.positions.new_full((n,), potential.cutoff)
        self._within = torch.zeros(n, len(self.sel), dtype=torch.int32, device=potential.device)
        self._no_deviation = system.positions.new_zeros(n, 0)
        self._no_virials = system.positions.new_zeros(0, 3, 3)
        self._no_moments = system.positions.new_zeros(n if magnetic else 0, 3)

    @property
    def r_min(self) -> float:
        """Distances below are extrapolated, A."""
        return self._evaluator.r_min

    def warn_extrapolated(self) -> None:
        """Warns of such distances, with advice."""
        warn_extrapolated(self.r_min, self.potential.r_min)

    @property
    def list_key(self) -> tuple[Any, ...]:
        """What a list depends on besides positions and cells."""
        model = self.potential
        virtual = model.model.spin if self._rows.paired else None
        return model.cutoff, model.device, virtual, self._takes_ghosts, *model.type_map

    @property
    def cutoff(self) -> float:
        """Of the list, A."""
        return self.potential.cutoff + self.skin

    def grow(self, longest: int) -> None:
        """Capacity for rows a sixteenth longer than this, in multiples of eight."""
        self.capacity = -(-(longest + max(8, longest // 16)) // 8) * 8

    def widen(self, sizes: Sequence[int]) -> None:
        """Enlarges the capacity to a sixteenth more than these sizes."""
        self.room = GraphSizes(
            *(
                had if size <= had else int(size * 17 / 16) + 64
                for had, size in zip(self.room, sizes, strict=True)
            )
        )

    def rebuild(self, positions: torch.Tensor, cell: torch.Tensor) -> None:
        """A new list for these positions and cells; `needed` tells whether rows are long enough."""
        s = self._at(positions, cell)
        neighbors, images, counts, self.needed = neighbor_matrix(
            s.positions,
            cell,
            s.pbc,
            s.batch,
            s.types,
            self.cutoff,
            len(self.potential.type_map),
            self.capacity,
        )
        self._list = NeighborList(neighbors, images, counts, self.cutoff)
        self.sizes.zero_()
        if self._takes_ghosts:
            ghosts, self.sizes[3] = ghosts_of(self._list, paired=s.paired, room=self.room.ghosts)
            self._list = self._list._replace(ghosts=ghosts)
        self.origin.positions.copy_(positions)
        if self._cells_move:
            self.origin.cell.copy_(cell)

    def _at(self, positions: torch.Tensor, cell: torch.Tensor) -> System:
        """The rows of the model for these positions of atoms."""
        at = places(positions, self._offsets)
        return replace(self._rows, positions=at, cell=cell, atoms_by_type=self._kinds)

    def share_list(self, other: "ForceProvider") -> None:
        """Take the list of `other`, which has the same `list_key`."""
        self._list, self.origin, self.needed = other._list, other.origin, other.needed

    def forces(self, positions: torch.Tensor, cell: torch.Tensor) -> ForceResult:
        """By the list of `rebuild`."""
        assert self._list is not None
        system, spin = self._at(positions, cell), self.potential.model.spin
        if not self._flags:
            return self._result(self._evaluate(system, self._list, self._aparam))
        with torch.no_grad():
            result, report = self._evaluator(
                system,
                self._list._replace(graph_room=self.room[:3]),
                self._fparam,
                self._aparam,
                check=False,
                atom_virial=self._atom_virial,
            )
            sizes = self.potential.model.graph_sizes(report.within)
            if sizes is not None:
                torch.maximum(self.sizes[:3], sizes.sum(0), out=self.sizes[:3])
        within = report.within[0] if len(report.within) == 1 else torch.cat(report.within, 1)
        nearest = report.nearest
        if spin is not None:
            result = spin.of_atoms(spin.answers(result, system))
        if system.paired:  # an atom's row, and that of its virtual atom
            nearest, within = nearest.view(-1, 2).amin(1), within.view(len(positions), 2, -1).amax(1)
        return self._result(result, nearest, within)

    def forces_carefully(
        self, positions: torch.Tensor, cell: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor
    ) -> ForceResult:
        """The same with its own list, on atoms in the user's order: errors name the user's atoms.

        Raises InputError in place of flags.
        """
        s = self.system
        constant = cell, s.pbc, s.batch
        system = self.potential.system_with_spins(
            System(positions[inverse], s.types[inverse], *constant, charge_spin=s.charge_spin),
            None if s.spins is None else s.spins[inverse],
        )
        aparam = self._aparam
        if aparam is not None:
            aparam = aparam.unflatten(0, (s.atoms, -1))[inverse].flatten(0, 1)
        try:
            neighbors = self._neighbors(system)
            result = self._evaluate(system, neighbors, aparam)
        except InputError:
            if system.count > 1:
                self._blame(system, aparam)
            raise
        if neighbors.neighbors.shape[1] > self.capacity:
            self.grow(neighbors.neighbors.shape[1])
        if self.captures:
            self._learn_room(system, neighbors)
        for name in ("forces", "atom_energy", "atom_virial", "force_mag"):
            if name in result:
                result[name] = result[name][order]
        return self._result(result)

    @torch.no_grad()
    def _learn_room(self, system: System, neighbors: NeighborList) -> None:
        model = self.potential.model
        near = Neighborhood.of(system, neighbors, model.cutoff, model.dtype)
        sizes = model.graph_sizes(near.report(model.neighbors).within)
        ghosts = int(ghosts_of(neighbors, paired=system.paired)[1]) if self._takes_ghosts else 0
        self.widen([*((0, 0, 0) if sizes is None else sizes.sum(0).tolist()), ghosts])

    def _evaluate(
        self, system: System, neighbors: NeighborList, aparam: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        asked: dict[str, bool] = {"atom_virial": self._atom_virial}
        found = self.potential.evaluate(system, neighbors, self._fparam, aparam, **asked)
        return found if self.potential.model.spin is None else self.potential.model.spin.of_atoms(found)

    def _result(
        self,
        result: dict[str, torch.Tensor],
        nearest: torch.Tensor | None = None,
        within: torch.Tensor | None = None,
    ) -> ForceResult:
        return ForceResult(
            result["forces"], result["atom_energy"], result["virial"],
            self._nearest if nearest is None else nearest, self._within if within is None else within,
            self._no_deviation, self._no_deviation, result.get("atom_virial", self._no_virials),
            result.get("force_mag", self._no_moments),
        )  # fmt: skip

    def _neighbors(self, system: System) -> NeighborList:
        return neighbor_list(
            system.positions, system.cell, system.pbc, system.types, self.cutoff, batch=system.batch,
            ntypes=len(self.potential.type_map),
        )  # fmt: skip

    def _blame(self, system: System, aparam: torch.Tensor | None) -> None:
        """Raises the InputError of the first system that fails alone, named by its number."""
        for k in range(system.count):
            own, one = system.batch == k, slice(k, k + 1)
            alone = System(
                system.positions[own], system.types[own], system.cell[one], system.pbc[one],
                torch.zeros_like(system.batch[own]),
                paired=system.paired,
                charge_spin=None if system.charge_spin is None else system.charge_spin[one],
                spins=None if system.spins is None else system.spins[own],
            )  # fmt: skip
            fparam = None if self._fparam is None else self._fparam[one]
            try:
                self.potential.evaluate(
                    alone, self._neighbors(alone), fparam, None if aparam is None else aparam[own]
                )
            except InputError as error:
                raise InputError(f"system {k}: {error}") from error


def spatial_order(positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, edge: float) -> np.ndarray:
    """(N,): the atoms sorted by boxes of about `edge` (A), so that neighbours are near in memory."""
    # The neighbour search refuses invalid cells.
    if pbc.all() and np.isfinite(cell).all() and abs(np.linalg.det(cell)) > 0:
        boxes = np.maximum(1, np.linalg.norm(cell, axis=1) // edge)
        place = np.linalg.solve(cell.T, positions.T).T % 1.0 * boxes
    else:
        place = positions / edge
    box = np.nan_to_num(np.floor(place))
    return np.lexsort((box[:, 2], box[:, 1], box[:, 0]))
