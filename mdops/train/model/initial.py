"""The model that a training begins with: a new one, one that was trained before, or a checkpoint's."""

import copy
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from mdops.data.batch import make_batch
from mdops.data.dataset import Dataset
from mdops.data.neighbor_lists import PairLists
from mdops.data.statistics import chunks, output_statistics, parameter_statistics
from mdops.errors import ConfigError, HeadError, InputError
from mdops.io import read_model
from mdops.models import DescriptorFitting, model_of_tree
from mdops.models.angles import AngleKnots
from mdops.models.contract import ENERGY
from mdops.options import take_trainable
from mdops.potential import Potential
from mdops.tables.spline import SplineGrid
from mdops.train.config.sections import Config
from mdops.train.loop.checkpoint import arrays
from mdops.train.loop.update import use_training_spline
from mdops.train.model.compatibility import require_same, require_types
from mdops.train.model.random import frozen_parts, origin, random_potential, set_trained
from mdops.train.model.statistics import (
    NeighborCounts,
    data_outputs,
    fit_rcond,
    overflow_rule,
    preset_energies,
    statistics_frames,
)
from mdops.train.model.types import with_elements

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def new_potential(config: Config, data: Dataset, lists: PairLists, seed: int) -> Potential:
    """A model with random weights and the statistics of the data."""
    potential = random_potential(config, data, lists, seed=seed, dtype=_DTYPES[config.training.precision])
    frozen = frozen_parts(config.model)
    if frozen and not all(frozen):  # trained parts learn the difference
        refit_bias(potential, data, lists, statistics_frames(config, data), rcond=fit_rcond(config.model))
    if config.training.spline:
        use_training_spline(potential, potential.source["min_nbor_dist"], _types(potential, data))
    return potential


RANDOM = "RANDOM"  # the head for a new fitting


@dataclass(frozen=True)
class Pretrained:
    """An initial model.

    Attributes:
        potential: the model.
        refits: whether to fit the energies of types again.
        is_new: whether its fitting is new: then these energies come from the data.
    """

    potential: Potential
    refits: bool
    is_new: bool

    def adapted(self, config: Config, data: Dataset, lists: PairLists) -> Potential:
        """See `adapt`."""
        found = adapt(self.potential, config, data, lists, refit=self.refits and not self.is_new)
        if self.is_new:
            set_bias(found, data, statistics_frames(config, data))
        return found


def read_pretrained(
    path: str | os.PathLike[str] | Potential,
    config: Config,
    *,
    head: str | None = None,
    branch: str = "",
    use_pretrain_script: bool = False,
    finetune: bool = False,
) -> Pretrained:
    """The model of a file (for several, that of the `head`), or a copy of a model, in the precision of the training.

    It keeps its own type map, which may have more elements than the input, in another order; but with `finetune`, a
    model whose weights serve all types gets the input's (`with_elements`). Without a head it is the input's
    `finetune_head`, or in a training of several models the head named like the `branch`, or else a new fitting. The
    input says which parts are `trainable`.

    Raises:
        ConfigError: it lacks an element, or differs from the input's model (what `use_pretrain_script`
            allows); the message names all differences.
        InputError: a model of another precision. ModelFileError, UnsupportedModelError: see `mdops.load`.
    """
    dtype, name, is_new = _DTYPES[config.training.precision], "the model to begin with", False
    if isinstance(path, Potential):
        potential = copy.deepcopy(path)
        potential.modifier = None  # the labels lack its part
        if potential.dtype != dtype:
            raise InputError(f"{name} computes in {potential.dtype}, and training.precision is {dtype}")
    else:
        name = str(path)
        head, is_new = _head(path, head or config.model.finetune_head, branch)
        file = read_model(path, head)
        potential = Potential(model_of_tree(file.model, dtype))
        potential.source = {k: v for k, v in file.source.items() if k not in ("head", "head_aliases")}
    require_types(potential.model, config.model, name)
    if potential.source.get("modifier") and not getattr(config.model, "modifier", None):
        raise ConfigError(
            f"{name} was trained with charges (modifier), but the input has no section model.modifier"
        )
    if not use_pretrain_script:
        require_same(potential.model, config.model, name, descriptor_alone=is_new)
    if finetune or is_new:
        potential = with_elements(potential, config.model.type_map)
    take_trainable(potential.model.options, config.model)
    if is_new:
        potential = _with_new_fitting(potential, config)
    else:
        potential.model.follow(config.model, config.training.seed or 0)
    return Pretrained(potential, finetune, is_new)


def _head(path: str | os.PathLike[str], head: str | None, branch: str) -> tuple[str | None, bool]:
    """The head to read, and whether it gets a new fitting."""
    if head is not None and head != RANDOM:
        return head, False
    if head is None and not branch:
        return None, False
    try:
        read_model(path, None)
        return None, head == RANDOM  # a file of one model
    except HeadError as error:
        if head == RANDOM:
            return error.heads[0], True
        return (branch, False) if branch in error.heads else (error.heads[0], True)


def _with_new_fitting(potential: Potential, config: Config) -> Potential:
    """The model's descriptor with a new fitting of the input on it."""
    model = potential.model
    if not isinstance(model, DescriptorFitting):
        raise ConfigError(f"a {model.kind} model has no descriptor that a new fitting ({RANDOM}) could be on")
    new = copy.copy(config.model)
    new.descriptor, new.type_map = model.descriptor.options, list(model.type_map)
    seed = config.training.seed or 0
    found = type(model).random(new, seed, potential.dtype)
    found.descriptor = model.descriptor
    result = Potential(found, overflow=potential.overflow)
    result.source = potential.source
    return result


def adapt(potential: Potential, config: Config, data: Dataset, lists: PairLists, *, refit: bool) -> Potential:
    """Prepares a trained model for this data, whose types are the model's; returns it.

    Its statistics (davg, dstd) stay. With `refit` the energies of types are fitted again.
    """
    counts = NeighborCounts(data, lists)
    potential.overflow = overflow_rule(counts, potential.neighbors)
    potential.source = origin(counts.nearest, potential.source)
    if config.training.spline:
        use_training_spline(potential, counts.nearest, _types(potential, data))
    if refit:
        refit_to(potential, config, data, lists)
    return potential


def refit_to(potential: Potential, config: Config, data: Dataset, lists: PairLists) -> None:
    """`refit_bias`, as the input tells."""
    preset = _by_type(preset_energies(config.model), config.model, potential)
    frames = statistics_frames(config, data)
    refit_bias(potential, data, lists, frames, preset=preset, rcond=fit_rcond(config.model))


def _types(potential: Potential, data: Dataset) -> list[int] | None:
    """The types in the data, if a model may know many more; None: all types."""
    found = np.unique(data.types[data.types >= 0]).tolist()
    return found if potential.model.mixed_types else None


def refit_bias(
    potential: Potential,
    data: Dataset,
    lists: PairLists,
    frames: np.ndarray,
    *,
    preset: Mapping[int, float] | None = None,
    rcond: float | None = None,
) -> None:
    """Shifts the energy of each type to fit labels - predictions of these frames.

    DeePMD-kit's "change-by-statistic": least squares, or the mean error of a type where atoms have
    energies. Types in no frame stay unchanged. Warns if there are no energies at all.

    Args:
        potential: changed. The types of `data` are its own.
        preset: the energies of types that are not fitted, eV.
        rcond: of `numpy.linalg.lstsq`.
    """
    model = potential.model
    output = model.outputs[0]
    names = [
        name
        for name in (output.name, output.atom_name)
        if data.has(name) and data.present[name][frames].any()
    ]
    if not names:
        what = "energies" if output.name == ENERGY.name else f"labels of {output.name}"
        warnings.warn(f"the data has no {what}: those of the types stay the model's", stacklevel=2)
    errors = replace(data, labels={**data.labels, **{name: data.labels[name].copy() for name in names}})
    for part in chunks(data, frames):
        batch = make_batch(data, lists, part).taken_by(potential)
        result = potential.evaluate(batch.system, batch.neighbors, batch.fparam, batch.aparam)
        atoms = np.concatenate([np.arange(data.offsets[f], data.offsets[f + 1]) for f in part])
        for name in names:
            errors.labels[name][part if name == output.name else atoms] -= result[name].cpu().numpy()
    before = model.out_bias.cpu().numpy()
    known = [None if t not in (preset or {}) else (preset or {})[t] - before[t] for t in range(data.ntypes)]
    silent = np.flatnonzero(~model.has_energy.cpu().numpy()).tolist()
    found = output_statistics(errors, output, frames=frames, preset=known, exclude_types=silent, rcond=rcond)
    model.out_bias += torch.from_numpy(found.bias).to(model.out_bias)
    if not model.keeps_deviation:
        model.out_std.copy_(torch.from_numpy(found.std))


def set_bias(potential: Potential, data: Dataset, frames: np.ndarray) -> None:
    """Fits the energy of each type to the labels of these frames, without the model, and sets averages and deviations
    of frame and atomic parameters from the data: DeePMD-kit's "set-by-statistic". `preset_out_bias` of the model's
    options holds."""
    model = potential.model
    found = data_outputs(model, model.options, data, frames)
    model.out_bias.copy_(torch.from_numpy(found.bias).to(model.out_bias))
    model.out_std.copy_(torch.from_numpy(found.std))
    model.set_parameter_statistics(
        {name: parameter_statistics(data, name) for name, size in model.parameter_sizes.items() if size}
    )


def _by_type(energies: list[float | None], options: Any, potential: Potential) -> dict[int, float]:
    """The given energies, by the model's type."""
    pairs = zip(options.type_map, energies, strict=True)
    return {potential.type_map.index(element): e for element, e in pairs if e is not None}


def model_state(potential: Potential) -> dict[str, Any]:
    """The state for `restored` to make the same model, bit by bit."""
    return {
        "tree": potential.model.to_tree(),
        "weights": potential.state_dict(),
        "source": potential.source,
        "overflow": potential.overflow,
        "grids": [None if grid is None else asdict(grid) for grid in potential.grids],
        "inner_grids": [None if grid is None else asdict(grid) for grid in potential.inner_grids],
        "angle_knots": [None if knots is None else asdict(knots) for knots in potential.angle_knots],
        "spline_types": potential.spline_types,
    }


def restored(state: Mapping[str, Any], config: Config) -> Potential:
    """The model of a state, on the CPU and in training mode."""
    dtype = _DTYPES[config.training.precision]
    potential = Potential(model_of_tree(arrays(state["tree"]), dtype), overflow=state["overflow"])
    # The tree has the precision of saved models, the weights that of the computation.
    potential.load_state_dict(state["weights"])
    potential.source = dict(state["source"])
    if "grids" in state:
        given = state["grids"]
        potential.grids = tuple(None if grid is None else SplineGrid(**grid) for grid in given)
    else:  # checkpoints of earlier versions have one, or None
        potential.grid = None if state["grid"] is None else SplineGrid(**state["grid"])
    if state.get("inner_grids"):  # which checkpoints of earlier versions have not
        potential.inner_grids = tuple(
            None if grid is None else SplineGrid(**grid) for grid in state["inner_grids"]
        )
    if state.get("angle_knots"):  # which checkpoints of earlier versions have not
        potential.angle_knots = [
            None if knots is None else AngleKnots(**knots) for knots in state["angle_knots"]
        ]
    types = state.get("spline_types")  # which checkpoints of earlier versions have not
    potential.spline_types = None if types is None else tuple(types)
    set_trained(potential, config)
    return potential.train()
