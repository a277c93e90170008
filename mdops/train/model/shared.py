"""Models that share parts of their weights."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from mdops.data.statistics import neighborhoods, parameter_statistics
from mdops.errors import ConfigError
from mdops.models import DescriptorFitting
from mdops.potential import Potential
from mdops.train.config.branches import Place
from mdops.train.config.sections import Config
from mdops.train.loop.frames import Frames
from mdops.train.loop.update import use_training_spline
from mdops.train.model.statistics import statistics_frames

# A branch's model, data and input, and its odds in a step.
Part = tuple[Potential, Frames, Config, float]


def link(branches: Mapping[str, Part], groups: Mapping[str, Sequence[Place]], *, learn: bool) -> None:
    """Gives all places of each group the weights of the first. A fitting keeps its own averages of types and its case
    embedding.

    With `learn`, parts take their statistics from the data of all branches, as in DeePMD-kit: those of the environment
    matrix with equal weights of frames, those of frame and atomic parameters by the branches' odds.

    Raises ConfigError if the parts differ.
    """
    for key, places in groups.items():
        base, types = _part(branches, places[0]), branches[places[0].branch][0].type_map
        for place in places[1:]:
            own = _part(branches, place)
            if own.options != base.options or branches[place.branch][0].type_map != types:
                raise ConfigError(
                    f"model.shared_dict.{key}: is another part of {places[0].branch} than of {place.branch}: both need "
                    "the same type_map, and a sel of numbers, not 'auto', which the data of each may make another "
                    "(`mdops neighbor-stat` counts neighbours)"
                )
            _replace(branches, place, base)
        if learn:
            _learn(branches, places)
    if learn and groups:
        nearest = min(potential.source["min_nbor_dist"] for potential, *_ in branches.values())
        for potential, _, config, _ in branches.values():
            if config.training.spline:
                use_training_spline(potential, nearest, potential.spline_types)


def set_cases(branches: Mapping[str, Potential]) -> None:
    """Sets the case embeddings of fittings: 1 at the index of the branch's name among all, sorted.

    Raises ConfigError if their widths differ or are too small.
    """
    fittings = {name: getattr(branches[name].model, "fitting", None) for name in sorted(branches)}
    widths = {name: len(getattr(fitting, "case_embedding", ())) for name, fitting in fittings.items()}
    if not any(widths.values()):
        return
    if len(set(widths.values())) > 1 or len(widths) > min(widths.values()):
        raise ConfigError(
            f"dim_case_embd: is {widths}; all models need the same, and one for each of the {len(widths)} models"
        )
    for k, fitting in enumerate(fittings.values()):
        with torch.no_grad():
            fitting.case_embedding.zero_()  # type: ignore[union-attr]
            fitting.case_embedding[k] = 1  # type: ignore[union-attr]


def _model(branches: Mapping[str, Part], branch: str) -> DescriptorFitting:
    model = branches[branch][0].model
    if not isinstance(model, DescriptorFitting):
        raise ConfigError(
            f"model.model_dict.{branch}: a {model.kind} model shares no parts; those of a descriptor do"
        )
    return model


def _part(branches: Mapping[str, Part], place: Place) -> Any:
    model: Any = _model(branches, place.branch)
    if place.part == "fitting_net":
        return model.fitting
    return model.descriptor if place.member is None else model.descriptor.members[place.member]


def _replace(branches: Mapping[str, Part], place: Place, base: Any) -> None:
    model: Any = _model(branches, place.branch)
    if place.part == "fitting_net":
        model.fitting.nets, model.fitting.fparam, model.fitting.aparam = base.nets, base.fparam, base.aparam
    elif place.member is None:
        model.descriptor = base
    else:
        model.descriptor.members[place.member] = base


def _learn(branches: Mapping[str, Part], places: Sequence[Place]) -> None:
    base = _part(branches, places[0])
    parts = [branches[name] for name in dict.fromkeys(place.branch for place in places)]
    if places[0].part == "fitting_net":
        model = _model(branches, places[0].branch)
        found = {name: _merged(parts, name) for name, size in model.parameter_sizes.items() if size}
        model.set_parameter_statistics(found)
        return
    absent = _model(branches, places[0].branch).options.pair_exclude_types
    for descriptor in base.parts:
        near = chain.from_iterable(
            neighborhoods(
                frames.data, frames.lists, descriptor.cutoff, statistics_frames(config, frames.data)
            )
            for _, frames, config, _ in parts
        )
        descriptor.learn_statistics(near, absent)


def _merged(parts: Sequence[Part], name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Average and inverse deviation of the values of all branches, weighted by odds."""
    having = [(frames.data.labels[name], odds) for _, frames, _, odds in parts if frames.data.has(name)]
    if len(having) < 2:
        data = next((frames.data for _, frames, _, _ in parts if frames.data.has(name)), None)
        return None if data is None else parameter_statistics(data, name, parts[0][2].model.data_stat_protect)
    weights = np.concatenate([np.full(len(values), odds) for values, odds in having])
    values = np.concatenate([values for values, _ in having])
    mean = np.average(values, axis=0, weights=weights)
    deviation = np.sqrt(np.average(np.square(values - mean), axis=0, weights=weights))
    return mean, 1 / np.maximum(deviation, parts[0][2].model.data_stat_protect)
