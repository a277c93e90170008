"""Reads a model file into a Potential."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mdops._library import check_device
from mdops.errors import InputError, ModelFileError, UnsupportedModelError
from mdops.flags import require_flags, require_numbers
from mdops.io import read_model
from mdops.long_range import DipoleCharge
from mdops.models import model_of_tree
from mdops.models.neighborhood import COINCIDENT
from mdops.potential import Matmul, Overflow, Potential
from mdops.tracing import outside_inference_mode

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@outside_inference_mode
def load(
    path: str | os.PathLike[str],
    *,
    head: str | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str = torch.float32,
    spline: bool = True,
    overflow: Overflow = "error",
    r_min: float | None = None,
    matmul: Matmul = "float32",
    allow_low_bit: bool = False,
    modifier: bool = True,
) -> Potential:
    """Read a model file (docs/reference/formats.md), in evaluation mode.

    Args:
        path: the file.
        head: the model of a multi-task file, by its name or an alias.
        device: the device of the model and its computation.
        dtype: the precision of the computation, torch.float32 or torch.float64, or its name. Positions,
            cells and the sums of energies are always float64.
        spline: evaluate the embedding nets as splines (relative error of a pair's forces below 2e-5 in
            float32, 1e-8 in float64; see `Potential.grid`). False: evaluate the nets themselves.
        overflow: what to do if there are more neighbours of a type than the model's sel: raise an "error", "truncate"
            to the nearest (DeePMD-kit's results) or "extend" (keep all).
        r_min: down to this distance (A) the splines keep their error bound; closer pairs are extrapolated
            smoothly, with a warning.
        matmul: the accuracy of products, of fitting nets or layers: that of "float32"; or in simulations with dtype
            float32 "tf32" on a GPU, "bf16x3" or "bf16" on a CPU: faster, less accurate (matmul.md).
        allow_low_bit: allow dynamics with a low-bit model (`mdops quantize`, quantize.md), which is an error otherwise.
            It has no effect on other models.
        modifier: add the energy of the charges of a model with a modifier "dipole_charge" (DPLR). Its dipole model is
            read, too: from the path in the file, or from the model's folder. False: the model's own energy only.
    Raises:
        ModelFileError: the file is absent, damaged, or no model. HeadError: the file has several heads, and none or an
            unknown one was requested.
        UnsupportedModelError: a kind of model that is not implemented; the message names it and those that are.
        InputError: an argument has another value than these, or another matmul than "float32" where it has no
            effect (see `Potential.use_matmul`).
        LibraryError: device is a GPU that cannot be used here; the message says why.
    """
    require_flags(spline=spline, allow_low_bit=allow_low_bit, modifier=modifier)
    precision = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if precision is None or precision not in _DTYPES.values():
        raise InputError(f"dtype is {dtype!r}, expected torch.float32 or torch.float64, or its name")
    if r_min is not None:
        require_numbers(r_min=r_min)
    if head is not None and not isinstance(head, str):
        raise InputError(f"head is {head!r}, expected a name")
    if r_min is not None and not COINCIDENT <= r_min < math.inf:
        raise InputError(
            f"r_min is {r_min} A, expected a distance of {COINCIDENT:g} A or more: closer atoms are at the same place"
        )
    place = check_device(device)
    file = read_model(path, head)
    potential = Potential(model_of_tree(file.model, precision), overflow=overflow)
    potential.read = file.model if precision == torch.float32 else None
    potential.source, potential.allow_low_bit = file.source, allow_low_bit
    potential.truncates_by_type = file.source.get("backend") == "TensorFlow"
    if spline and r_min is not None and r_min >= potential.cutoff:
        raise InputError(
            f"r_min is {r_min:g} A, expected less than the model's cutoff, {potential.cutoff:g} A"
        )
    if spline:
        potential.use_spline(r_min)
    potential.to(place).eval()
    potential.use_matmul(matmul)
    if modifier and file.source.get("modifier"):
        try:
            section, folder = file.source["modifier"], Path(path).parent
            potential.modifier = load_charges(section, folder, device=place, spline=spline)
        except ModelFileError as error:
            raise ModelFileError(
                f"{path}: {error} (mdops.load(..., modifier=False) loads the model without the charges)"
            ) from error
    return potential


def load_charges(
    section: Mapping[str, Any], folder: Path, *, device: str | torch.device = "cpu", spline: bool = True
) -> DipoleCharge:
    """The charges of the section `modifier` of a training input, or of a model file, with their dipole model.

    Args:
        section: with the keys type, model_name, model_charge_map, sys_charge_map, ewald_h and ewald_beta.
        folder: where the dipole model is searched for if it is not at `model_name`.
        device: the device of the dipole model. spline: as in `load`, for that model.

    Raises:
        UnsupportedModelError: a modifier of another type, or the model's output is not dipoles. ModelFileError: the
            section lacks a key, or the dipole model cannot be read. InputError: the charges do not fit its types.
    """
    if section.get("type") != "dipole_charge":
        raise UnsupportedModelError(f"there is no modifier {section.get('type')!r}, only 'dipole_charge'")
    missing = [key for key in ("model_name", "model_charge_map", "sys_charge_map") if key not in section]
    if missing:
        raise ModelFileError(f"the modifier dipole_charge lacks {missing[0]}")
    name = Path(section["model_name"])
    path = next((place for place in (name, folder / name.name) if place.exists()), None)
    if path is None:
        raise ModelFileError(
            f"{name}: the dipole model of a modifier dipole_charge is neither at this path nor in {folder.absolute()}"
        )
    widths = {key: section[key] for key in ("ewald_h", "ewald_beta") if section.get(key) is not None}
    model = load(path, device=device, dtype="float64", modifier=False, spline=spline)
    return DipoleCharge(model, section["model_charge_map"], section["sys_charge_map"], **widths)
