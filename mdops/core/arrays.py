"""Arrays and texts of the C core's part of a model file."""

import json
from typing import Any

import numpy as np
import torch

from mdops.evaluators.splined import SplineNets, SplineSum

Arrays = dict[str, np.ndarray]


def array(x: torch.Tensor, dtype: str = "float64") -> np.ndarray:
    return np.ascontiguousarray(x.detach().numpy().astype(dtype))


def description_array(about: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(json.dumps(about).encode(), np.uint8)


def parameter_arrays(splines: SplineNets, prefix: str) -> Arrays:
    """Of what the nets see besides features."""
    fitting = splines.fitting
    arrays = {f"{prefix}case": array(fitting.case_embedding)}
    for part in (fitting.fparam, fitting.aparam):
        arrays[f"{prefix}{part.name}.average"] = array(part.average)
        arrays[f"{prefix}{part.name}.inverse"] = array(part.inverse_deviation)
    if fitting.fparam.size and fitting.default_fparam is not None:
        arrays[f"{prefix}fparam.default"] = array(fitting.default_fparam)
    return arrays


def descriptor_arrays(splines: SplineSum, prefix: str, precision: str) -> Arrays:
    """Of one descriptor, with its table."""
    return {
        f"{prefix}{precision}.tables": array(splines.fixed_table() / splines.descriptor.slots, precision),
        f"{prefix}mean": array(splines.mean),
        f"{prefix}std": array(splines.std),
        f"{prefix}pair_mask": splines.mask.numpy().astype(np.uint8),
        f"{prefix}zeroed": splines.zeroed.numpy().astype(np.uint8),
        f"{prefix}sel": splines.sel.numpy(),
    }
