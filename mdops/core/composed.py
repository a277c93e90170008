"""The C core's part of a model file for models of several parts: hybrids, linear and ZBL models, pair tables; and for
one descriptor that is not a sum over neighbours (docs/reference/formats.md)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mdops.core.arrays import (
    Arrays,
    array,
    by_precision,
    description_array,
    descriptor_arrays,
    grid_numbers,
    parameter_arrays,
)
from mdops.core.others import other_member, other_refusal, padding_refusal
from mdops.errors import UnsupportedModelError
from mdops.evaluators.blended import part_potentials
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.fitting import has_sums, is_alone, why_not_net
from mdops.evaluators.one_op import FusedParts
from mdops.models.linear import Blend, LinearModel
from mdops.models.pairtab import PairTable
from mdops.models.standard import DescriptorFitting
from mdops.models.zbl import ZBLModel
from mdops.ops import hybrid_potential_pack
from mdops.tables.spline_model import SplineModel
from mdops.tables.sum_tables import SumTables

VERSION, VERSION_OF_OTHERS = 2, 4


def knows(exact: EvaluationContext) -> bool:
    """Whether a model has several parts for the core."""
    return isinstance(exact.model, Blend | PairTable | DescriptorFitting) and not is_alone(exact)


def composed_arrays(
    exact: EvaluationContext,
    types: tuple[int, ...],
    r_min: float,
    tolerances: dict[str, float],
    use_spline: Callable[[float], None],
) -> Arrays:
    """Arrays by name. `use_spline(tolerance)` makes new knots of the model.

    Raises:
        UnsupportedModelError: with the reason. Float32Alone: of float64.
    """
    model: Any = exact.model
    arrays: Arrays = {}

    def describe(name: str, tolerance: float) -> list[dict[str, Any]]:
        use_spline(tolerance)
        return [
            _member(part, own, f"core.{m}.", name, (r_min, tolerance), arrays)
            for m, (part, own) in enumerate(_parts(exact, types))
        ]

    described = by_precision(tolerances, describe)
    members = next(iter(described.values()))
    for m, member in enumerate(members):
        for of in ("descriptors", "others"):
            for p, descriptor in enumerate(member.get(of, [])):
                grids = {name: found[m][of][p].pop("grid") for name, found in described.items()}
                descriptor["grids"] = grids
    # Splines are extrapolated below r_min, where a blend only uses its table.
    covered = isinstance(model, ZBLModel) and model.options.sw_rmin >= r_min
    has_others = any(member.get("others") for member in members)
    reached = 0.0 if covered or not (exact.grids or has_others) else r_min
    index = torch.tensor(types)
    if isinstance(model, Blend):
        arrays["core.bias"] = array(model.counted_bias[index])
        arrays["core.has_energy"] = model.has_energy[index].numpy().astype(np.uint8)
    else:  # the one member's
        arrays["core.bias"] = np.zeros(len(types))
        arrays["core.has_energy"] = np.ones(len(types), np.uint8)
    about: dict[str, Any] = {
        "version": VERSION_OF_OTHERS if has_others else VERSION,
        "kind": exact.kind,
        "elements": [exact.type_map[t] for t in types],
        "cutoff": model.cutoff,
        "closest": model.shortest,
        "grids": {name: {"r_min": reached} for name in described},
        "members": [
            {"factor": factor, **member} for factor, member in zip(_factors(model), members, strict=True)
        ],
    }
    if isinstance(model, ZBLModel):
        o = model.options
        about["near"] = {
            "cutoff": model.near_part[0].cutoff, "decay": o.smin_alpha, "low": o.sw_rmin, "high": o.sw_rmax,
        }  # fmt: skip
        arrays["core.near_mask"] = array(model.absent_matrix[index][:, index], "uint8")
    arrays["core.description"] = description_array(about)
    return arrays


def _factors(model: Any) -> list[float]:
    if type(model) is LinearModel:
        return [float(factor) for factor in model.part_weights(None)]  # type: ignore[arg-type]  # without neighbours
    return [1.0] * (len(model.models) if isinstance(model, Blend) else 1)


def _parts(
    exact: EvaluationContext, types: tuple[int, ...]
) -> list[tuple[EvaluationContext, tuple[int, ...]]]:
    """Each with its own numbers of the types."""
    model: Any = exact.model
    if not isinstance(model, Blend):
        return [(exact, types)]
    found = []
    for i, part in enumerate(part_potentials(exact)):
        names = getattr(model, f"names_{i}")
        found.append((part, types if names is None else tuple(int(names[t]) for t in types)))
    return found


def _member(
    part: EvaluationContext,
    types: tuple[int, ...],
    prefix: str,
    precision: str,
    accuracy: tuple[float, float],
    arrays: Arrays,
) -> dict[str, Any]:
    if isinstance(part.model, PairTable):
        return _table(part.model, types, prefix, arrays)
    problem = FusedParts.limit(part) if has_sums(part) else why_not_net(part, first_may_add=True)
    if problem is not None:
        raise UnsupportedModelError(problem)
    is_all = types == tuple(range(len(part.type_map)))
    splines = SplineModel(part, None if is_all else types, part.grids_for(None if is_all else types))
    problem = _refusal(part, splines, is_all)
    if problem is not None:
        raise UnsupportedModelError(problem)
    about = _nets(splines, prefix, precision, arrays)
    about["descriptors"] = [
        _descriptor(one, f"{prefix}{p}.", precision, arrays) for p, one in enumerate(splines.sums)
    ]
    about["others"] = [
        other_member(part, one, splines.kinds, f"{prefix}other.{p}.", precision, accuracy, arrays)
        for p, one in enumerate(splines.others)
    ]
    return about


def _refusal(part: EvaluationContext, splines: SplineModel, is_all: bool) -> str | None:
    for other in splines.others:
        problem = other_refusal(part, other, splines.spec.cutoff, is_all)
        if problem is not None:
            return problem
    for one in splines.sums:
        if one.may_differ:
            return (
                f"neighbours beyond the cutoff of its {one.descriptor.kind} take places among absent ones that are "
                "not all alike"
            )
        problem = padding_refusal(one.descriptor, one.mean)
        if problem is not None:
            return problem
        if not is_all and not one.descriptor.mixed:
            return "elements are chosen, and its neighbours of each type have places of their own"
    return splines.why_not


def _nets(splines: SplineModel, prefix: str, precision: str, arrays: Arrays) -> dict[str, Any]:
    outputs, adds, activation, threshold = splines.shape
    widths, axes = ([one.scalars[k] for one in splines.sums] for k in (-2, -1))
    nets = splines.packed(hybrid_potential_pack, widths, axes)
    scale, shift = splines.scale_and_shift()
    key = f"{prefix}nets"
    if key not in arrays or precision == "float64":
        arrays[key] = array(nets, precision)
    arrays |= {f"{prefix}scale": array(scale), f"{prefix}shift": array(shift)}
    arrays |= parameter_arrays(splines, prefix)
    return {
        "is_table": False,
        "neurons": outputs,
        "residual": [bool(own) for own in adds],
        "activation": int(activation),
        "threshold": threshold,
        "marks": splines.one_hot_types,
    }


def _descriptor(splines: SumTables, prefix: str, precision: str, arrays: Arrays) -> dict[str, Any]:
    arrays |= descriptor_arrays(splines, prefix, precision)
    d, grid = splines.descriptor, splines.grid
    return {
        "cutoff": d.cutoff,
        "cutoff_smooth": d.cutoff_smooth,
        "protection": d.protection,
        "width": d.channels,
        "axis": d.axis_neuron,
        "gated": bool(d.gated),
        "mixed": bool(d.mixed),
        "grid": grid_numbers(grid),
    }


def _table(model: PairTable, types: Sequence[int], prefix: str, arrays: Arrays) -> dict[str, Any]:
    index = torch.tensor(types)
    arrays |= {
        f"{prefix}coefficients": array(model.counted_coefficients[index][:, index]),
        f"{prefix}pair_mask": array(model.absent_matrix[index][:, index], "uint8"),
        f"{prefix}bias": array(model.counted_bias[index]),
    }
    return {
        "is_table": True,
        "first": model.first,
        "step": model.step,
        "cutoff": model.options.rcut,
        "sel": int(model.options.sel),
    }
