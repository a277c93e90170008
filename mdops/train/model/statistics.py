"""Statistics of the data for new models."""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mdops.data.dataset import Dataset
from mdops.data.neighbor_lists import PairLists
from mdops.data.sampler import batch_sizes
from mdops.data.statistics import (
    NeighborStatistics,
    OutputStatistics,
    neighbor_statistics,
    output_statistics,
    parameter_statistics,
    spread_frames,
)
from mdops.errors import ConfigError, DataError
from mdops.models import AtomicModel, NeighborSpec
from mdops.potential import Overflow
from mdops.train.config.sections import Config


class NeighborCounts:
    """The neighbours of all atoms of a dataset, within any cutoff up to that of its lists."""

    def __init__(self, data: Dataset, lists: PairLists) -> None:
        self._data, self._lists = data, lists
        self.of = lru_cache(maxsize=None)(self._of)

    def _of(self, cutoff: float) -> NeighborStatistics:
        return neighbor_statistics(self._data, self._lists, cutoff)

    @property
    def nearest(self) -> float:
        """The smallest distance, A."""
        return self.of(self._lists.cutoff).nearest

    def most(self, cutoff: float) -> tuple[list[int], int]:
        """The most neighbours of each type, and of all types, that an atom has."""
        found = self.of(cutoff)
        return found.most, found.together

    def require_any(self) -> None:
        """Raises DataError if no atom has a neighbour."""
        if not any(self.of(self._lists.cutoff).most):
            raise DataError(
                f"{', '.join(self._data.systems)}: no atom has a neighbour within the model's cutoff (rcut) = "
                f"{self._lists.cutoff:g} A: are positions and cells in A?"
            )


def data_parameters(
    model: AtomicModel, options: Any, data: Dataset
) -> dict[str, tuple[np.ndarray, np.ndarray] | None]:
    """Averages and inverse deviations of fparam and aparam, None where the data has none.

    Raises DataError if the model takes parameters that the data lacks, and ConfigError where it takes another number;
    warns of parameters that it does not take."""
    result = {}
    for name, size in model.parameter_sizes.items():
        key = f"model.fitting_net.numb_{name}"
        if size and not data.has(name) and name not in model.default_parameters:
            raise DataError(f"{data.systems[0]}: has no {name}, and {key} is {size}")
        if not size and data.has(name) and not (model.masks and name == "aparam"):
            warnings.warn(f"the data has {name}, which {key} = 0 leaves out", stacklevel=2)
        found = parameter_statistics(data, name, options.data_stat_protect) if size else None
        if found is not None and len(found[0]) != size:
            raise ConfigError(f"{key}: is {size}, and the data has {len(found[0])} values of {name}")
        result[name] = found
    return result


def overflow_rule(
    counts: NeighborCounts, specs: Sequence[NeighborSpec], of: str = "training data"
) -> Overflow:
    """The `overflow` of a model with these places on data with so many neighbours.

    Warns if there are more, naming the data: then the farthest are dropped.
    """
    for spec in specs:
        if spec.sel is None:
            continue
        of_types, together = counts.most(spec.cutoff)
        if spec.kinds is not None:
            together = counts.of(spec.cutoff).of_atoms
        if spec.mixed:
            most, places, kinds = [together], [sum(spec.sel)], "in all"
        else:
            most, places, kinds = list(of_types), list(spec.sel), "of each type"
        if any(a > b for a, b in zip(most, places, strict=True)):
            warnings.warn(
                f"atoms of the {of} have up to {most} neighbours {kinds}, and sel is {places}: the farthest will be "
                "dropped, as DeePMD-kit does, and energies will jump where neighbours change; a larger sel in the "
                'input, such as "auto:2", keeps all',
                stacklevel=2,
            )
            return "truncate"
    return "error"


def statistics_frames(config: Config, data: Dataset) -> np.ndarray:
    """The frames for statistics of energies and environments: `data_stat_nbatch` batches a system."""
    sizes = batch_sizes(data, config.training.training_data.batch_size)
    return spread_frames(data, config.model.data_stat_nbatch, sizes)


def data_outputs(model: AtomicModel, options: Any, data: Dataset, frames: np.ndarray) -> OutputStatistics:
    """From these frames, by the model's options."""
    return output_statistics(
        data,
        model.outputs[0],
        frames=frames,
        preset=preset_energies(options),
        exclude_types=options.atom_exclude_types,
        rcond=fit_rcond(options),
    )


def fit_rcond(options: Any) -> float | None:
    """Of `numpy.linalg.lstsq` in the fit of the types' energies."""
    return getattr(getattr(options, "fitting_net", None), "rcond", None)


def preset_energies(options: Any) -> list[float | None]:
    """preset_out_bias of the energy, a number or nothing for each type."""
    energies = (options.preset_out_bias or {}).get("energy") or [None] * len(options.type_map)
    if len(energies) != len(options.type_map):
        raise ConfigError(
            f"model.preset_out_bias: has {len(energies)} energies for {len(options.type_map)} types"
        )
    return [None if v is None else float(np.ravel(v)[0]) for v in energies]
