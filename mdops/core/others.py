"""The C core's data of descriptors that are not sums over neighbours of functions of the distance: those of angles, and
those with attention layers (docs/reference/formats.md)."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from mdops.core.arrays import Arrays, array, grid_numbers
from mdops.errors import UnsupportedModelError
from mdops.evaluators.context import EvaluationContext
from mdops.models.angles import AngleDescriptor
from mdops.models.contract import mean_in_words
from mdops.models.moments import MomentDescriptor, TypeChoice
from mdops.ops.angle_moment import POWERS, ROW
from mdops.ops.neighbor_attention import SHIFT
from mdops.tables.attention_tables import in_coordinates
from mdops.tables.grids import Sum, grid_of
from mdops.tables.sum_tables import SumTables


def padding_refusal(descriptor: Any, mean: torch.Tensor) -> str | None:
    """Why the core lacks a descriptor with that mean (n,) of the types; None if it has it. Empty slots shared by all
    types count if there is a mean. Their type is known if there is only one; with a gate they have none."""
    if not descriptor.mixed or not bool(mean.any()):
        return None
    why, free = mean_in_words([descriptor.options]), len(mean) == 1 or bool(descriptor.gated)
    if free and descriptor.goes_by_rows:
        return f"its empty slots count ({why}), which the core does not compute beside attention"
    if free:
        return None
    return (
        f"its absent neighbours have the type of a system's first atom ({why}), which a program that reorders atoms "
        "does not know"
    )


def other_refusal(part: EvaluationContext, other: Any, cutoff: float, is_all: bool) -> str | None:
    """Why the core lacks a descriptor of a model whose list reaches to the cutoff (A); None if it has it."""
    if isinstance(other, AngleDescriptor):
        if other.knots is None:
            return part.why_no_angle_spline or "its nets of angles have no splines"
        if not other.mixed and not is_all:
            return "elements are chosen, and its neighbours of each type have places of their own"
        return None
    by_rows = isinstance(other, MomentDescriptor) and other.goes_by_rows
    if not (by_rows and other.layers and other.degrees == 1):
        return f"it does not have the descriptor {other.kind}"
    if other.options.is_smooth and other.options.cubic_switch:
        return "its attention fades as in DeePMD-kit's TensorFlow backend (cubic_switch), which the core does not know"
    if other.options.shortest_row:
        return "its directions fade as in DeePMD-kit's TensorFlow backend (shortest_row), which the core does not know"
    problem = padding_refusal(other, other.mean)
    if problem is not None:
        return problem
    if other.cutoff < cutoff and not other.options.is_smooth:
        return f"neighbours beyond the cutoff of its {other.kind} take part in attention"
    return None


def other_member(
    part: EvaluationContext,
    other: Any,
    kinds: TypeChoice,
    prefix: str,
    precision: str,
    accuracy: tuple[float, float],
    arrays: Arrays,
) -> dict[str, Any]:
    """The description of a descriptor for these types, which is in float64; `accuracy` is that of splines: the smallest
    distance (A) and the tolerance."""
    index = kinds.index
    constants = other.constants()
    constants = other.std.new_empty(len(index), 0) if constants is None else constants[index]
    arrays |= {f"{prefix}std": array(other.std[index]), f"{prefix}constants": array(constants)}
    to = _Target(arrays, prefix, precision)
    if isinstance(other, AngleDescriptor):
        own = _angles(part.model, other, kinds, to)
    else:
        own = _attention(part.model, other, kinds, to, accuracy)
    return {
        "is_angles": isinstance(other, AngleDescriptor),
        "cutoff": other.cutoff,
        "cutoff_smooth": other.cutoff_smooth,
        "protection": other.protection,
        "width": other.channels,
        "gated": bool(other.gated),
        "mixed": bool(other.mixed),
        **own,
    }


class _Target(NamedTuple):
    """Collects a descriptor's arrays: names begin with `prefix`, and with `precision` if it matters."""

    arrays: Arrays
    prefix: str
    precision: str


def _angles(model: Any, d: AngleDescriptor, kinds: TypeChoice, to: _Target) -> dict[str, Any]:
    knots, index = d.knots, kinds.index
    assert knots is not None
    mask = d.excluded | model.absent_matrix
    tables = F.pad(d.coefficients(knots.grid, index).transpose(-1, -2), (0, ROW - POWERS))
    places = [d.slots] if d.mixed else d.sel
    to.arrays.update(
        {
            f"{to.prefix}{to.precision}.tables": array(tables, to.precision),
            f"{to.prefix}pair_mask": array(mask[index][:, index], "uint8"),
            f"{to.prefix}sel": array(torch.tensor(places), "int32"),
        }
    )
    grid = knots.grid._asdict()
    return {"grid": {**grid, "r_min": knots.r_min, "error": knots.error}}


def _attention(
    model: Any, d: Any, kinds: TypeChoice, to: _Target, accuracy: tuple[float, float]
) -> dict[str, Any]:
    one = Sum(model, d)
    grid, problem = grid_of(one, *accuracy, kinds.numbers)
    if grid is None:
        raise UnsupportedModelError(problem or "")
    splines = SumTables(model, d, grid, kinds.numbers)
    table, forms = in_coordinates(d, grid, kinds, getattr(torch, to.precision))
    to.arrays.update(
        {
            f"{to.prefix}{to.precision}.tables": array(table, to.precision),
            f"{to.prefix}pair_mask": array(splines.mask, "uint8"),
            f"{to.prefix}zeroed": array(splines.zeroed, "uint8"),
            f"{to.prefix}sel": array(splines.sel, "int32"),
        }
    )
    layers = []
    for n, (layer, form) in enumerate(zip(d.layers, forms, strict=True)):
        for name, value in form.weights._asdict().items():
            if value is not None:
                to.arrays[f"{to.prefix}{to.precision}.layer.{n}.{name}"] = array(value, to.precision)
        layers.append({"scale": layer.scale, "eps": layer.eps, "normalize": bool(form.normalize)})
    return {
        "grid": grid_numbers(grid),
        "axis": d.axis_neuron,
        "smooth": bool(d.options.is_smooth),
        "by_angles": bool(d.options.attn_dotr),
        "shift": SHIFT,
        "layers": layers,
    }
