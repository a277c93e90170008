"""Arrays and texts of the C core's part of a model file."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from mdops.errors import UnsupportedModelError
from mdops.tables.spline import SplineGrid
from mdops.tables.spline_model import SplineModel
from mdops.tables.sum_tables import SumTables

_GRADED_VERSION, _DIPOLES_VERSION = 5, 6

Arrays = dict[str, np.ndarray]
Made = TypeVar("Made")


class Float32Alone(UnsupportedModelError):
    """The core evaluates a model in float32, and not in float64."""


def by_precision(tolerances: dict[str, float], make: Callable[[str, float], Made]) -> dict[str, Made]:
    """Results of `make(precision, tolerance)`, float32 first.

    Raises:
        Float32Alone: it fails in float64 after float32. UnsupportedModelError: otherwise.
    """
    made: dict[str, Made] = {}
    for name, tolerance in sorted(tolerances.items()):
        try:
            made[name] = make(name, tolerance)
        except UnsupportedModelError as error:
            if not made:
                raise
            raise Float32Alone(f"in {name} {error}; float32 alone can be had (--core float32)") from None
    return made


def array(x: torch.Tensor, dtype: str = "float64") -> np.ndarray:
    return np.ascontiguousarray(x.detach().numpy().astype(dtype))


def grid_numbers(grid: SplineGrid) -> dict[str, float]:
    """The knots in a description; with their grading only if there is one."""
    found = dataclasses.asdict(grid)
    del found["intervals"]
    if not grid.grading:
        del found["grading"]
    return found


def description_array(about: dict[str, Any]) -> np.ndarray:
    """Libraries from before graded knots, and from before dipoles and charges, refuse their versions."""
    if "dipoles" in about or "lacks_charges" in about:
        about = {**about, "version": _DIPOLES_VERSION}
    elif '"grading"' in json.dumps(about):
        about = {**about, "version": _GRADED_VERSION}
    return np.frombuffer(json.dumps(about).encode(), np.uint8)


def parameter_arrays(splines: SplineModel, prefix: str) -> Arrays:
    """Of the nets' inputs besides features."""
    fitting = splines.fitting
    arrays = {f"{prefix}case": array(fitting.case_embedding)}
    for part in (fitting.fparam, fitting.aparam):
        arrays[f"{prefix}{part.name}.average"] = array(part.average)
        arrays[f"{prefix}{part.name}.inverse"] = array(part.inverse_deviation)
    if fitting.fparam.size and fitting.default_fparam is not None:
        arrays[f"{prefix}fparam.default"] = array(fitting.default_fparam)
    return arrays


def descriptor_arrays(splines: SumTables, prefix: str, precision: str) -> Arrays:
    """Of one descriptor, with its table."""
    return {
        f"{prefix}{precision}.tables": array(splines.fixed_table() / splines.descriptor.slots, precision),
        f"{prefix}mean": array(splines.mean),
        f"{prefix}std": array(splines.std),
        f"{prefix}pair_mask": splines.mask.numpy().astype(np.uint8),
        f"{prefix}zeroed": splines.zeroed.numpy().astype(np.uint8),
        f"{prefix}sel": splines.sel.numpy(),
    }
