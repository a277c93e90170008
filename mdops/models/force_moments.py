"""Atomic virials of models that pass messages, by first moments of gradients (docs/explanation/mathematics.md, "Atomic
virials of messages")."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn.functional import pad

from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.ops import EdgeIndex, NeighborList, edge_gather, edge_scatter, pair_forces, unpack_images
from mdops.system import Exchange, System

_NONE = 2**62  # larger than every key
_BITS = 30  # of a packed image

S = TypeVar("S", bound=Any)
Found = tuple[tuple[dict[str, torch.Tensor], Any], NeighborReport | None]


class _Images(NamedTuple):
    """Ghosts that are images of the system's own atoms; see `mdops.system.Exchange`."""

    atoms: int
    owners: EdgeIndex

    def __call__(self, nodes: torch.Tensor) -> torch.Tensor:
        own = nodes[: self.atoms]
        return torch.cat((own, edge_gather(own, self.owners)))


class _Moments:
    """An exchange that also carries first moments backward.

    Attributes:
        axis: of the current pass; None: that of gradients, which are kept.
        calls: exchanges of the pass so far.
    """

    def __init__(self, exchange: Exchange, positions: torch.Tensor) -> None:
        self._exchange, self.atoms = exchange, exchange.atoms
        self._shifts = (positions - exchange(positions))[self.atoms :]
        self._kept: dict[int, torch.Tensor] = {}
        self.axis: int | None = None
        self.calls = 0

    def __call__(self, nodes: torch.Tensor) -> torch.Tensor:
        found, call = self._exchange(nodes), self.calls
        self.calls += 1
        if not found.requires_grad:
            return found
        carried: torch.Tensor = _Carried.apply(found, self, call)
        return carried

    def back(self, grad: torch.Tensor, call: int) -> torch.Tensor:
        """The gradient, or moment, by the rows of an exchange as their owners see it."""
        own, ghosts = grad.split([self.atoms, len(grad) - self.atoms])
        if self.axis is None:
            self._kept[call] = ghosts.clone()
            return grad
        return torch.cat((own, ghosts - self._shifts[:, self.axis, None] * self._kept[call]))


class _Carried(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, moments: _Moments, call: int) -> torch.Tensor:
        ctx.moments, ctx.call = moments, call
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return ctx.moments.back(grads[0], ctx.call), None, None


def with_moments(step: S, run: Callable[[Neighborhood, S], Found], near: Neighborhood) -> Found:
    """The answers of `run` with atom_virial (N, 3, 3) float64, eV, the force's component first: only what messages add,
    zeros in all. The gradient by the pair vectors (N, K, 3) is as without.

    Args:
        step: a request of N atoms, with `weight` and `aparam`.
        run: gives answers, the gradient, and a report on the neighbours for a request of more atoms, with ghosts. It is
            called four times.
        near: without an exchange, images of its atoms become ghosts.
    """
    whole, atoms, images = near, near.system.atoms, None
    if near.system.exchange is None:
        near, images = _with_images(near)
    system, exchange = near.system, near.system.exchange
    assert exchange is not None
    positions = system.positions - _middles(system, exchange.atoms)  # small numbers, for float32
    moments = _Moments(exchange, positions.to(near.displacements.dtype))
    near = replace(near, system=replace(system, exchange=moments))
    weight, aparam = step.weight, step.aparam
    weight = positions.new_ones(atoms) if weight is None else weight
    weight, ghosts = pad(weight, (0, system.atoms - atoms)), system.atoms - atoms
    if aparam is not None and aparam.dim() > 1:
        aparam = pad(aparam, (0, 0, 0, ghosts))
    found, by_axes = [], (weight, *(weight[:, None] * positions).unbind(1))
    for moments.axis, own in zip((None, 0, 1, 2), by_axes, strict=True):
        moments.calls = 0
        found.append(run(near, replace(step, weight=own, aparam=aparam)))
    (answers, gradient), report = found[0]
    given = whole.displacements.detach(), whole.system.batch, whole.neighbors, whole.system.count
    centers, added = positions[:atoms].to(gradient), []
    for axis, ((_, moment), _) in enumerate(found[1:]):
        at_center = centers[:, axis, None, None] * gradient[:atoms] - moment[:atoms]
        added.append(pair_forces(at_center, *given, of_atoms=False)[0])
    if images is not None and "force_mag" in answers:
        own, of_ghosts = answers["force_mag"].split([atoms, ghosts])
        answers["force_mag"] = edge_scatter(of_ghosts.contiguous(), images, own.contiguous())
    answers = {name: value[:atoms] for name, value in answers.items()}
    answers["atom_virial"] = torch.stack(added, 2)
    if report is not None:
        report = NeighborReport(tuple(own[:atoms] for own in report.within), report.nearest[:atoms])
    return (answers, gradient[:atoms]), report


def _middles(system: System, atoms: int) -> torch.Tensor:
    """(N, 3), A, the middle of each row's system, between the outermost of the first atoms."""
    own, batch = system.positions[:atoms], system.batch.long()
    systems = own.new_zeros(system.count, 3)
    index = batch[:atoms, None].expand(-1, 3)
    low, high = (systems.scatter_reduce(0, index, own, end, include_self=False) for end in ("amin", "amax"))
    return ((low + high) / 2)[batch]


def ghosts_of(
    pairs: NeighborList | Neighborhood, *, paired: bool, room: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The images of atoms among the neighbours, each once, for `NeighborList.ghosts`: (G,) int64, rising. And their
    number, () int64; if it is larger than G, some are missing.

    Args:
        paired: as in `System`: an atom and its virtual atom are one image.
        room: G; None: their number, which waits for a GPU.
    """
    keys = torch.sort(_keys(pairs, 2 if paired else 1).flatten())[0]
    begins = (pad(keys, (1, 0), value=-1).diff() > 0) & (keys < _NONE)
    count = begins.sum()
    size = int(count) if room is None else room
    places = torch.nonzero_static(begins, size=size, fill_value=len(keys))[:, 0]
    return pad(keys, (0, 1), value=_NONE)[places], count


def _keys(pairs: NeighborList | Neighborhood, rows: int) -> torch.Tensor:
    """(N, K) int64, of each neighbour's atom, which has so many rows, and its image; `_NONE` if it is no image."""
    keys = (pairs.neighbors.long() // rows << _BITS) + pairs.images
    return keys.masked_fill((pairs.images <= 0) | (pairs.neighbors < 0), _NONE)


def _with_images(near: Neighborhood) -> tuple[Neighborhood, EdgeIndex]:
    """The same, with a ghost for each image of an atom that is a neighbour, and the ghosts' atoms. Ghosts have no
    neighbours, and those behind the last image are no neighbours: copies of atoms, whose gradients are zeros."""
    s, atoms = near.system, near.system.atoms
    rows = 2 if s.paired else 1  # a virtual atom stays beside its atom
    found = ghosts_of(near, paired=s.paired)[0] if near.ghosts is None else near.ghosts
    ghosts, own = rows * len(found), atoms // rows
    place = torch.arange(ghosts, device=found.device)
    images = found.repeat_interleave(rows)
    owners = torch.where(images >> _BITS < own, images >> _BITS, place // rows % max(own, 1))
    owners = owners * rows + place % rows
    shifts = unpack_images((images & (2**_BITS - 1)).int()).to(s.cell)
    batch = s.batch[owners]
    positions = s.positions[owners] + (shifts[:, None] @ s.cell[batch.long()])[:, 0]
    keys = _keys(near, rows)
    # Where there are more images than room, whoever made the list finds it out.
    ghost = torch.searchsorted(found, keys).clamp(max=len(found) - 1) * rows + near.neighbors % rows
    neighbors = torch.where(keys < _NONE, (atoms + ghost).int(), near.neighbors)
    index = EdgeIndex.of(owners.int(), atoms)
    system = System(
        torch.cat((s.positions, positions)),
        torch.cat((s.types, s.types[owners])),
        s.cell,
        s.pbc,
        torch.cat((s.batch, batch)),
        first_types=near.first_types.to(s.types.dtype),
        exchange=_Images(atoms, index),
        paired=s.paired,
        charge_spin=s.charge_spin,
        spins=None if s.spins is None else torch.cat((s.spins, s.spins[owners])),
    )
    with_ghosts = replace(
        near,
        system=system,
        neighbors=pad(neighbors, (0, 0, 0, ghosts), value=-1),
        images=pad(torch.zeros_like(near.images), (0, 0, 0, ghosts)),
        counts=pad(near.counts, (0, 0, 0, ghosts)),
        displacements=pad(near.displacements, (0, 0, 0, 0, 0, ghosts)),
    )
    return with_ghosts, index
