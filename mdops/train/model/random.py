"""New models: random weights, and statistics of the data."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

from mdops.data.dataset import Dataset
from mdops.data.neighbor_lists import PairLists
from mdops.data.statistics import neighborhoods
from mdops.models import AtomicModel
from mdops.models.registry import find
from mdops.potential import Potential
from mdops.train.config.sections import Config
from mdops.train.model.statistics import (
    NeighborCounts,
    data_outputs,
    data_parameters,
    overflow_rule,
    statistics_frames,
)


def random_potential(
    config: Config,
    data: Dataset,
    lists: PairLists,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Potential:
    """A model with random weights and the data's statistics, in training mode, with its nets as they are.

    The weights are DeePMD-kit's (`mdops.nn.net`); they depend on `seed` unless the configuration has one for a
    part.

    Frozen parts of a linear model are unchanged; the averages of types are then zero.

    Raises DataError if no atom has a neighbour, or the model takes parameters that the data lacks, and ConfigError if
    `sel` has no places; warns of parameters that the model does not take.
    """
    counts = NeighborCounts(data, lists)
    counts.require_any()
    options = config.model.resolve_sel(counts.most, "model")
    model = find("model", options.KIND).random(options, seed, dtype)
    parameters = data_parameters(model, options, data)
    frames = statistics_frames(config, data)
    for part in _new_parts(model, options):
        for descriptor in part.descriptors:
            pairs = neighborhoods(data, lists, descriptor.cutoff, frames)
            descriptor.learn_statistics(pairs, part.options.pair_exclude_types)
    if not frozen_parts(options):
        for part in model.with_averages:
            found = data_outputs(part, part.options, data, frames)
            part.out_bias.copy_(torch.from_numpy(found.bias))
            part.out_std.copy_(torch.from_numpy(found.std))
        model.set_parameter_statistics(parameters)
    else:
        for part in _new_parts(model, options):
            part.set_parameter_statistics(parameters)
    potential = Potential(model, overflow=overflow_rule(counts, model.neighbors))
    potential.source = origin(counts.nearest)
    set_trained(potential, config)
    return potential.train()


def frozen_parts(options: Any) -> list[bool]:
    """For each part of a linear model, whether it is frozen; empty if none is."""
    found = [part.is_frozen for part in getattr(options, "models", [])]
    return found if any(found) else []


def _new_parts(model: AtomicModel, options: Any) -> list[AtomicModel]:
    """Those that take statistics from the data."""
    frozen = frozen_parts(options)
    return [part for i, part in enumerate(model.parts) if not (frozen and frozen[i])]


def origin(nearest: float, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The origin of a model trained here: mdops, and the smallest distance in its data (A).

    With `before`, the origin of the initial model, it is the smaller of both distances.
    """
    found = {"software": "mdops", "version": version("mdops"), "min_nbor_dist": nearest}
    if before:
        known = [before["min_nbor_dist"]] if before.get("min_nbor_dist") else []
        found["min_nbor_dist"] = min([nearest, *known])
        found["began_with"] = {
            name: before[name] for name in ("software", "version", "format") if name in before
        }
    return found


def set_trained(potential: Potential, config: Config) -> None:
    """Freezes the weights of parts that are not `trainable`, and sets the smoothing of embedding nets."""
    potential.model.set_trained()
    potential.smoothing = config.training.smoothing
