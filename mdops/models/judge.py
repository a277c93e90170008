"""The checks on the neighbours that evaluators report."""

import warnings
from collections.abc import Sequence
from typing import Literal

import torch

from mdops.errors import InputError
from mdops.models.contract import AtomicModel
from mdops.models.neighborhood import COINCIDENT, Neighborhood, NeighborReport, NeighborSpec
from mdops.ops import NeighborList, displacements
from mdops.system import System

Overflow = Literal["error", "truncate", "extend"]

_ANY_NUMBER = torch.iinfo(torch.int32).max


def warn_extrapolated(r_min: float, chosen: float | None, *, training: bool = False) -> None:
    """Warns of neighbours nearer than r_min (A): always with the same text from the same line, so that Python's filter
    shows it once a process.

    `chosen` is the least distance of splines whose knots follow `r_min` of `mdops.load`, or None: other splines have
    their own least distance."""
    if chosen is None or chosen < r_min:
        advice = "Load the model with spline=False"
    elif training:
        advice = "Training data with such pairs would make the splines reach there"
    else:
        advice = "Load the model with a smaller r_min, or with spline=False"
    warnings.warn(
        f"atoms have a neighbour nearer than {r_min:g} A, where the splines are extrapolated: the forces there are "
        f"smooth but not the model's. {advice}",
        stacklevel=1,
    )


def judge(
    model: AtomicModel,
    overflow: Overflow,
    report: NeighborReport,
    system: System,
    neighbors: NeighborList,
    r_min: float,
    chosen: float | None,
) -> bool:
    """Checks what evaluators report on the neighbours; waits for the device.

    Returns whether neighbours have to be dropped (`overflow` "truncate"). Warns of neighbours nearer than r_min
    (`warn_extrapolated`).

    Raises:
        InputError: two atoms are at the same place, or nearer than the model has answers for, or an atom has more
            neighbours than `sel` and `overflow` is "error"; the message names the first. Or it is
            unknown which to drop.
    """
    if not len(report.nearest):
        return False
    nearest = float(report.nearest.min())
    if nearest <= _coincident(system):
        _refuse_coincident(report, system, neighbors, model.dtype)
    if nearest < model.shortest:
        _refuse_short(model, system, neighbors)
    for within, spec, most in zip(report.within, model.neighbors, _most(model, overflow), strict=True):
        if _ANY_NUMBER in most:
            continue  # without waiting for the device
        if any(n > places for n, places in zip(within.amax(0).tolist(), most, strict=True)):
            if overflow == "truncate":
                if (
                    spec.mixed
                    and spec.kinds is None
                    and model.spin is not None
                    and not all(model.spin.use_spin)
                ):
                    raise InputError(
                        f"there are more neighbours than the model's sel of {sum(spec.sel or ())}. Which of "
                        "them DeePMD-kit drops depends on its placeholders for atoms without a moment, "
                        "which mdops does not have: "
                        'overflow="extend" keeps all neighbours'
                    )
                return True
            _refuse_overflow(model, within, spec)
    if nearest < r_min:
        warn_extrapolated(r_min, chosen, training=model.training)
    return False


def _most(model: AtomicModel, overflow: Overflow) -> list[Sequence[int]]:
    """For each of the model's specs the capacity for neighbours within its cutoff, of each type or all together."""
    return [
        [_ANY_NUMBER] * (1 if spec.mixed else model.ntypes)
        if spec.sel is None or overflow == "extend"
        else spec.sel
        for spec in model.neighbors
    ]


def limits(model: AtomicModel, overflow: Overflow) -> list[int]:
    """The same in one list of at least one entry, for later checks of the device."""
    return [places for most in _most(model, overflow) for places in most] or [_ANY_NUMBER]


def _coincident(system: System) -> float:
    """The distance up to which atoms coincide, A; 0 with virtual atoms, whose moments may be small."""
    return 0.0 if system.paired else COINCIDENT


def _refuse_coincident(
    report: NeighborReport, system: System, neighbors: NeighborList, dtype: torch.dtype
) -> None:
    least = _coincident(system)
    atom = int(torch.nonzero(report.nearest <= least)[0])
    near = neighbors.neighbors
    d = displacements(
        system.positions.detach(), system.cell.detach(), system.batch, near, neighbors.images, dtype
    )
    slot = torch.nonzero((near[atom] >= 0) & (d[atom].norm(dim=-1) <= least))[0]
    other = int(near[atom, slot])
    if system.paired and atom // 2 == other // 2:
        raise InputError(
            f"atom {atom // 2} has a moment of zero: its virtual atom lies on it. Give it a small one",
            atom // 2,
        )
    atom, other = (atom // 2, other // 2) if system.paired else (atom, other)
    raise InputError(f"atoms {atom} and {other} are at the same place", atom)


def _refuse_short(model: AtomicModel, system: System, neighbors: NeighborList) -> None:
    with torch.no_grad():
        near = Neighborhood.of(system, neighbors, model.cutoff, model.dtype)
        pairs = model.short_pairs(near)
    if len(pairs):
        (a, b), shortest = pairs[0].tolist(), model.shortest
        raise InputError(
            f"atoms {a} and {b} are nearer than {shortest:g} A, where the model's table of pairs begins "
            f"({len(pairs.unique())} atoms are)",
            a,
        )


def _refuse_overflow(model: AtomicModel, within: torch.Tensor, spec: NeighborSpec) -> None:
    assert spec.sel is not None
    too_many = within > torch.tensor(spec.sel, device=within.device)
    row, kind = torch.nonzero(too_many)[0].tolist()
    rows = 2 if model.spin is not None and model.spin.paired else 1
    atom, atoms = row // rows, int(too_many.view(-1, rows * too_many.shape[1]).any(1).sum())
    of_type = "" if spec.mixed else f" of type {model.type_map[kind]}"
    places = sum(spec.sel) if spec.mixed else spec.sel[kind]
    raise InputError(
        f"atom {atom} has {int(within[row, kind])} neighbours{of_type} within the "
        f"cutoff of {spec.cutoff:g} A, and the model's sel is {places} ({atoms} atoms overflow). "
        'DeePMD-kit would drop the farthest: overflow="truncate" does too, overflow="extend" keeps all',
        atom,
    )
