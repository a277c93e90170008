"""All the statistics that a new model takes from its data."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mdops.errors import ConfigError, DataError
from mdops.nn.potential import Overflow
from mdops.train.config.checks import automatic_sel_ratio
from mdops.train.config.sections import Config, FittingConfig, ModelConfig
from mdops.train.data.dataset import Dataset
from mdops.train.data.neighbor_lists import PairLists
from mdops.train.data.sampler import batch_sizes
from mdops.train.data.statistics import (
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
    """The parts of `mdops.train.data.statistics`; `sel` is the model's, given or found, and `parameters` has those
    of fparam and aparam."""

    neighbors: NeighborStatistics
    sel: list[int]
    environment: EnvironmentStatistics
    energy: EnergyStatistics
    parameters: dict[str, tuple[np.ndarray, np.ndarray] | None]


def model_statistics(config: Config, data: Dataset, lists: PairLists) -> ModelStatistics:
    """The statistics of the training data that the configuration asks for; the lists' cutoff is the model's.

    Raises DataError if no atom has a neighbour, or the model takes parameters that the data lacks, and ConfigError if
    `sel` has no places; warns of parameters that the model does not take.
    """
    model, descriptor = config.model, config.model.descriptor
    _require_parameters(model.fitting_net, data)
    neighbors = neighbor_statistics(data, lists)
    if not any(neighbors.most):
        raise DataError(
            f"{', '.join(data.systems)}: no atom has a neighbour within model.descriptor.rcut = {lists.cutoff:g} A: "
            "are positions and cells in A?"
        )
    if isinstance(descriptor.sel, str):
        sel = neighbors.sel(automatic_sel_ratio(descriptor.sel))
    else:
        sel = descriptor.sel
    if not any(sel):
        raise ConfigError(f"model.descriptor.sel: {sel} has no place for a neighbour")
    frames = statistics_frames(config, data)
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
        preset=preset_energies(model),
        exclude_types=model.atom_exclude_types,
        rcond=model.fitting_net.rcond,
    )
    parameters = {p: parameter_statistics(data, p, model.data_stat_protect) for p in ("fparam", "aparam")}
    return ModelStatistics(neighbors, sel, environment, energy, parameters)


def _require_parameters(fitting: FittingConfig, data: Dataset) -> None:
    sizes = {"fparam": fitting.numb_fparam, "aparam": fitting.numb_aparam}
    for name, size in sizes.items():
        key = f"model.fitting_net.numb_{name}"
        has_default = name == "fparam" and fitting.default_fparam is not None
        if size and not data.has(name) and not has_default:
            raise DataError(f"{data.systems[0]}: has no {name}, and {key} is {size}")
        if not size and data.has(name):
            warnings.warn(f"the data has {name}, which {key} = 0 leaves out", stacklevel=2)


def overflow_rule(neighbors: NeighborStatistics, sel: Sequence[int]) -> Overflow:
    """What a model with this `sel` is to do with more neighbours on data that has so many.

    Warns where there are more: the farthest are dropped then.
    """
    if all(most <= places for most, places in zip(neighbors.most, sel, strict=True)):
        return "error"
    warnings.warn(
        f"atoms have up to {neighbors.most} neighbours of each type, and sel is {list(sel)}: the farthest "
        "will be dropped, as DeePMD-kit does, and energies will jump where neighbours change",
        stacklevel=2,
    )
    return "truncate"


def statistics_frames(config: Config, data: Dataset) -> np.ndarray:
    """The frames that statistics of energies and environments are of: `data_stat_nbatch` batches a system."""
    sizes = batch_sizes(data, config.training.training_data.batch_size)
    return spread_frames(data, config.model.data_stat_nbatch, sizes)


def preset_energies(model: ModelConfig) -> list[float | None]:
    """preset_out_bias of the energy, a number or nothing for each type."""
    given = (model.preset_out_bias or {}).get("energy") or [None] * len(model.type_map)
    if len(given) != len(model.type_map):
        raise ConfigError(f"model.preset_out_bias: has {len(given)} energies for {len(model.type_map)} types")
    return [None if v is None else float(np.ravel(v)[0]) for v in given]
