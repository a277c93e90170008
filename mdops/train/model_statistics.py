"""All the statistics that a new model takes from its data."""

import warnings
from dataclasses import dataclass

import numpy as np

from mdops.errors import ConfigError
from mdops.train.config import Config, ModelConfig, automatic_sel_ratio
from mdops.train.data import Dataset
from mdops.train.lists import PairLists
from mdops.train.sampler import batch_sizes
from mdops.train.statistics import (
    EnergyStatistics,
    EnvironmentStatistics,
    NeighborStatistics,
    energy_statistics,
    environment_statistics,
    neighbor_statistics,
    parameter_statistics,
    spread_frames,
)


@dataclass(frozen=True)
class ModelStatistics:
    """The parts of `mdops.train.statistics`; `sel` is the model's, given or found, and `parameters` has those
    of fparam and aparam."""

    neighbors: NeighborStatistics
    sel: list[int]
    environment: EnvironmentStatistics
    energy: EnergyStatistics
    parameters: dict[str, tuple[np.ndarray, np.ndarray] | None]


def model_statistics(config: Config, data: Dataset, lists: PairLists) -> ModelStatistics:
    """The statistics of the training data that the configuration asks for; the lists' cutoff is the model's.

    Warns where an atom has more neighbours than a `sel` that is given.
    """
    model, descriptor = config.model, config.model.descriptor
    neighbors = neighbor_statistics(data, lists)
    if isinstance(descriptor.sel, str):
        sel = neighbors.sel(automatic_sel_ratio(descriptor.sel))
    else:
        sel = descriptor.sel
    if any(most > places for most, places in zip(neighbors.most, sel, strict=True)):
        warnings.warn(
            f"atoms have up to {neighbors.most} neighbours of each type, and sel is {sel}: the farthest will "
            "be dropped, as DeePMD-kit does, and energies will jump where neighbours change",
            stacklevel=2,
        )
    sizes = batch_sizes(data, config.training.training_data.batch_size)
    frames = spread_frames(data, model.data_stat_nbatch, sizes)
    environment = environment_statistics(
        data,
        lists,
        sel=sel,
        cutoff_smooth=descriptor.rcut_smth,
        protection=descriptor.env_protection,
        exclude_types=[*descriptor.exclude_types, *model.pair_exclude_types],
        frames=frames,
    )
    if descriptor.set_davg_zero:
        environment = EnvironmentStatistics(np.zeros(data.ntypes), environment.std)
    energy = energy_statistics(
        data,
        frames=frames,
        preset=_preset(model),
        exclude_types=model.atom_exclude_types,
        rcond=model.fitting_net.rcond,
    )
    parameters = {p: parameter_statistics(data, p, model.data_stat_protect) for p in ("fparam", "aparam")}
    return ModelStatistics(neighbors, sel, environment, energy, parameters)


def _preset(model: ModelConfig) -> list[float | None]:
    """preset_out_bias of the energy, a number or nothing for each type."""
    given = (model.preset_out_bias or {}).get("energy") or [None] * len(model.type_map)
    if len(given) != len(model.type_map):
        raise ConfigError(f"model.preset_out_bias: has {len(given)} energies for {len(model.type_map)} types")
    return [None if v is None else float(np.ravel(v)[0]) for v in given]
