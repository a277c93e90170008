"""The C core's part of a model file, besides the tree: the arguments of the fused step (formats.md)."""

import copy
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mdops.core.arrays import (
    Float32Alone,
    array,
    by_precision,
    description_array,
    descriptor_arrays,
    grid_numbers,
    parameter_arrays,
)
from mdops.core.composed import composed_arrays, knows
from mdops.core.others import padding_refusal
from mdops.errors import InputError, UnsupportedModelError
from mdops.evaluators.context import EvaluationContext, Modifier
from mdops.evaluators.fitting import why_not_layers
from mdops.evaluators.one_op import Fused, op_scalars
from mdops.tables.spline import DEFAULT_R_MIN, TOLERANCE
from mdops.tables.spline_model import LayerTensors, SplineModel

PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
_VERSION = 1
# Tables grow with the square of the number of types: for more, they are made only on request.
_MOST_TYPES = 8
_ELSEWHERE = (
    "Python (`mdops.calculator.MDOps`, `mdops md`) runs it, also beside C programs and LAMMPS "
    "(docs/reference/core.md)"
)


@torch.no_grad()
def core_arrays(
    potential: EvaluationContext,
    precisions: Sequence[str] = tuple(PRECISIONS),
    elements: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """Arrays by name, for a `.safetensors` file: of a model of energies, with the dipole model of its charges if it has
    some (`EvaluationContext.modifier`), or of a model of dipoles.

    Args:
        potential: the model; each precision gets new splines, down to its own r_min.
        precisions: "float32", "float64" or both: what programs may compute in.
        elements: types that programs may use, in this order, of a model of many; by default all of the model's.

    Raises:
        InputError: another precision, or an element that the model has not.
        UnsupportedModelError: a model that the core does not evaluate; the message says why. Float32Alone: not in
            float64.
    """
    wrong = [name for name in precisions if name not in PRECISIONS]
    if wrong or not precisions:
        raise InputError(
            f"the C core computes in {' or '.join(PRECISIONS)}, not {wrong[0] if wrong else 'nothing'}"
        )
    if potential.modifier is not None:
        return _with_charges(potential, potential.modifier, precisions, elements)
    if not _answers_dipoles(potential):
        potential.require_energies("the C core")
        if potential.model.spin is not None:
            raise UnsupportedModelError(
                f"the C core does not support models with magnetic moments; {_ELSEWHERE}"
            )
    types = _types(potential, elements)
    r_min = DEFAULT_R_MIN if potential.grid is None else potential.grid.r_min
    exact = copy.deepcopy(potential).cpu().double().eval()
    tolerances = {name: TOLERANCE[PRECISIONS[name]] for name in precisions}
    if knows(exact):
        if _answers_dipoles(exact):
            raise UnsupportedModelError(
                "the C core does not support this model: it supports dipole models with one descriptor, "
                f"se_e2_a or DPA-1 without attention, and this is {exact.kind}; {_ELSEWHERE}"
            )
        try:
            return composed_arrays(
                exact, types, r_min, tolerances, lambda t: _use_spline(exact, r_min, t, types)
            )
        except UnsupportedModelError as error:
            raise type(error)(f"the C core does not support this model: {error}; {_ELSEWHERE}") from None
    arrays: dict[str, np.ndarray] = {}
    grids: dict[str, dict[str, float]] = {}

    def tables(name: str, tolerance: float) -> SplineModel:
        splines = _splines(exact, r_min, tolerance, types)
        part = splines.sums[0]
        grids[name] = grid_numbers(part.grid)
        arrays.update(descriptor_arrays(part, "core.", name))
        return splines

    splines = by_precision(tolerances, tables)[max(precisions)]
    layers = splines.fitting_layers(double=True)
    if _answers_dipoles(exact):
        layers = _with_bias(splines, layers)
        scale, shift = torch.ones(len(layers)), torch.zeros(len(types))
    else:
        scale, shift = splines.scale_and_shift()
    arrays |= {"core.scale": array(scale), "core.shift": array(shift)}
    arrays |= parameter_arrays(splines, "core.")
    precision = max(precisions)  # of the weights
    for k, net in enumerate(layers):
        for n, layer in enumerate(net):
            for part, value in zip(("weight", "bias", "timestep"), layer.filled_in(), strict=True):
                arrays[f"core.net.{k}.{n}.{part}"] = array(value, precision)
    about = _description(exact, splines) | {"nets": len(layers), "layers": len(layers[0]), "grids": grids}
    arrays["core.description"] = description_array(about)
    return arrays


def core_arrays_unasked(potential: EvaluationContext) -> tuple[dict[str, np.ndarray], str]:
    """A file's default: `core_arrays` in the possible precisions, of a model that the core evaluates and that has not
    too many types; otherwise nothing, and why."""
    types = len(potential.type_map)
    if types > _MOST_TYPES:
        return (
            {},
            f"it has {types} types, and tables for all pairs are large: --core makes them, --elements fewer",
        )
    if not all(bool(x.isfinite().all()) for x in potential.parameters()):
        return {}, "its weights are not finite"
    try:
        try:
            return core_arrays(potential), ""
        except Float32Alone:
            return core_arrays(potential, ["float32"]), ""
    except UnsupportedModelError as error:
        return {}, str(error)


def why_no_core(source: Mapping[str, Any], modifier: Modifier | None) -> str | None:
    """Why the core cannot have a model of a file with this `source`, of any kind; `modifier`: its loaded
    part."""
    if source.get("modifier") and modifier is None:
        return (
            "its modifier dipole_charge adds charges beyond the cutoff, whose model of dipoles the core's part has in "
            "it, and that is not loaded (mdops.load(..., modifier=False))"
        )
    return None


def _with_charges(
    potential: EvaluationContext,
    charges: Modifier,
    precisions: Sequence[str],
    elements: Sequence[str] | None,
) -> dict[str, np.ndarray]:
    """Arrays of the model alone, and, in float64, of the dipole model, with the charges."""
    alone = copy.copy(potential)
    alone.modifier = None
    own = core_arrays(alone, precisions, elements)
    types = _types(charges.model, elements)
    try:
        dipoles = core_arrays(charges.model, ["float64"], elements)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"of its model of dipoles (modifier): {error}") from error
    about = {
        "charges": {
            "atoms": charges.charges[list(types)].tolist(),
            "dipoles": charges.model_charges[list(types)].tolist(),
            "beta": charges.beta,
        }
    }
    own |= {f"core.charges{name.removeprefix('core')}": value for name, value in dipoles.items()}
    for prefix, more in (("core.", {"lacks_charges": True}), ("core.charges.", about)):
        name = f"{prefix}description"
        own[name] = description_array({**json.loads(own[name].tobytes()), **more})
    return own


def _answers_dipoles(potential: EvaluationContext) -> bool:
    return [output.name for output in potential.model.outputs] == ["dipole"]


def _with_bias(splines: SplineModel, layers: list[list[LayerTensors]]) -> list[list[LayerTensors]]:
    """The layers of nets with several outputs, with `NetFitting.bias` in the last one's."""
    bias = splines.fitting.bias.view(len(splines.fitting.bias), -1)[splines.kinds.index]
    if len(layers) == 1 and bool((bias != bias[:1]).any()):
        raise UnsupportedModelError(
            "the C core does not support this model: one net serves types with different biases; "
            f"{_ELSEWHERE}"
        )
    found = []
    for net, own in zip(layers, bias, strict=False):
        weight, before, timestep = net[-1]
        found.append([*net[:-1], LayerTensors(weight, own if before is None else before + own, timestep)])
    return found


def _use_spline(exact: EvaluationContext, r_min: float, tolerance: float, types: tuple[int, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same is raised as an error
        # For attention layers, the core's part of the file makes its own.
        exact.use_spline(r_min, tolerance, types, attention=False, inner=False)


def _types(potential: EvaluationContext, elements: Sequence[str] | None) -> tuple[int, ...]:
    known = potential.type_map
    if elements is None:
        return tuple(range(len(known)))
    for k, name in enumerate(elements):
        if name not in known or name in elements[:k]:
            raise InputError(
                f"the elements are {', '.join(elements)}, expected some of {', '.join(known)}, each once"
            )
    return tuple(known.index(name) for name in elements)


def _splines(exact: EvaluationContext, r_min: float, tolerance: float, types: tuple[int, ...]) -> SplineModel:
    """Of the fused step, for these types; raises UnsupportedModelError."""
    _use_spline(exact, r_min, tolerance, types)
    model: Any = exact.model
    if _answers_dipoles(exact):
        problem = exact.why_no_spline or why_not_layers(model.fitting)
    else:
        problem = Fused.why_not(exact)
    if problem is not None:
        raise UnsupportedModelError(f"the C core does not support this model: {problem}; {_ELSEWHERE}")
    if model.descriptor.mixed:
        splines = SplineModel(exact, types)
    elif types == tuple(range(len(exact.type_map))):
        splines = SplineModel(exact)
    else:
        raise UnsupportedModelError(
            "elements can be selected only for models whose `sel` counts all types together (DPA-1), and "
            f"this is {exact.kind}: use all of its elements"
        )
    part = splines.sums[0]
    problem = padding_refusal(part.descriptor, part.mean)
    if problem is not None:
        raise UnsupportedModelError(f"the C core does not support this model: {problem}; {_ELSEWHERE}")
    beyond = splines.why_not
    if beyond is not None:
        advice = "choose fewer `elements` (--elements)" if model.descriptor.mixed else _ELSEWHERE
        raise UnsupportedModelError(f"the C core does not support this model: {beyond}; {advice}")
    return splines


def _description(exact: EvaluationContext, splines: SplineModel) -> dict[str, Any]:
    cutoff, smooth, protection, *_, width, axis, _, residual, gated, activation, threshold, _ = op_scalars(
        splines, "float32"
    )
    about: dict[str, Any] = {}
    if _answers_dipoles(exact):
        about["dipoles"] = exact.model.has_energy[splines.kinds.index].tolist()
    return about | {
        "version": _VERSION,
        "kind": exact.kind,
        "elements": [exact.type_map[t] for t in splines.kinds.numbers],
        "cutoff": cutoff,
        "cutoff_smooth": smooth,
        "protection": protection,
        "width": width,
        "axis": axis,
        "residual": [bool(adds) for adds in residual],
        "activation": int(activation),
        "threshold": threshold,
        "gated": bool(gated),
        "mixed": bool(splines.sums[0].descriptor.mixed),
        "marks": splines.one_hot_types,
    }
