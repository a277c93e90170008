"""The options of descriptors of the environment matrix, and the rows of their neighbours."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from mdops.errors import ConfigError
from mdops.models.contract import EnvironmentDescriptor
from mdops.models.keys import excluded_pairs_key, precision_key, seed_key, sel_key
from mdops.models.neighborhood import Neighborhood, longest_row
from mdops.nn.net import NetCollection
from mdops.ops.env_mat import env_mat
from mdops.options import Most, Options, check_pairs, key
from mdops.tracing import is_exported

# Numbers in the largest tensor of a run of atoms (`in_chunks`).
CHUNK = 2**24


@dataclass(kw_only=True)
class EnvironmentOptions(Options):
    """Those of se_e2_a and of all descriptors of the environment matrix."""

    sel: list[int] | str = sel_key("each type", of="types")
    rcut: float = key(6.0, "the cutoff", unit="A", above=0, implied=..., absent=...)
    rcut_smth: float = key(
        0.5, "distance at which the switch begins to fall", unit="A", low=0, implied=..., absent=...
    )
    neuron: list[int] = key(
        [10, 20, 40], "widths of the embedding net's layers", low=1, implied=[25, 50, 100], absent=...
    )
    activation_function: str = key("tanh", "activation function of the embedding nets")
    resnet_dt: bool = key(False, "a trained factor in front of each residual layer")
    precision: str = precision_key()
    trainable: bool = key(
        True, "whether the embedding nets are trained", of="training", saved=bool | list[bool]
    )
    seed: int | None = seed_key(where="input")
    exclude_types: list[list[int]] = excluded_pairs_key()
    env_protection: float = key(0.0, "added to distances in denominators", unit="A", low=0)
    set_davg_zero: bool = key(False, "use zero as the mean of the environment matrix")

    def check(self, place: str, type_map: Sequence[str]) -> None:
        if isinstance(self.sel, str):
            automatic_sel_ratio(self.sel, f"{place}.sel")
        else:
            self.check_sel(place, type_map)
        if not self.rcut_smth < self.rcut:
            raise ConfigError(f"{place}.rcut_smth: is {self.rcut_smth}, expected less than rcut")
        check_pairs(self.exclude_types, len(type_map), f"{place}.exclude_types")

    def check_sel(self, place: str, type_map: Sequence[str]) -> None:
        """Raises ConfigError unless there is a number for each type."""
        if isinstance(self.sel, int):
            raise ConfigError(f"{place}.sel: is {self.sel}, expected text, or a list of whole numbers")
        if isinstance(self.sel, list) and len(self.sel) != len(type_map):
            raise ConfigError(f"{place}.sel: has {len(self.sel)} numbers for {len(type_map)} types")

    @property
    def cutoff(self) -> float:
        return self.rcut

    def resolve_sel(self, most: Most, place: str) -> Self:
        """Raises ConfigError if there is no place for a neighbour."""
        known = self
        if isinstance(self.sel, str):
            ratio = automatic_sel_ratio(self.sel, f"{place}.sel")
            known = dataclasses.replace(self, sel=self.automatic_sel(*most(self.rcut), ratio))  # type: ignore[arg-type]
        if not np.any(known.sel):
            raise ConfigError(f"{place}.sel: {self.sel} has no slot for a neighbour")
        return known

    def automatic_sel(self, of_types: Sequence[int], together: int, ratio: float) -> list[int] | int:
        """Places with a margin, from the most neighbours of each type and of all types."""
        return [rounded(count * ratio) for count in of_types]


def rounded(count: float) -> int:
    """Rounded up to fours, like DeePMD-kit."""
    return 4 * ((int(count) + 3) // 4)


def automatic_sel_ratio(sel: str, place: str) -> float:
    """f of "auto:f", 1.1 of "auto"."""
    word, _, ratio = sel.partition(":")
    try:
        if word == "auto" and 0 < float(ratio or 1.1) < math.inf:
            return float(ratio or 1.1)
    except ValueError:
        pass
    raise ConfigError(f'{place}: is {sel!r}, expected numbers, "auto" or "auto:f" with a number f above 0')


def places_of(sel: int | str, cutoff: float, most: Most, place: str) -> int:
    """Places for neighbours of all types within a cutoff (A); `sel` may be automatic, from the data."""
    if isinstance(sel, int):
        return sel
    _, together = most(cutoff)
    return max(rounded(together * automatic_sel_ratio(sel, place)), 4)


def axis_key() -> Any:
    """The key axis_neuron of options."""
    text = "columns of the embedding that the descriptor is built with"
    return key(4, text, alias=["n_axis_neuron"], low=1, implied=16, absent=...)


def check_axis(axis_neuron: int, neuron: Sequence[int], place: str) -> None:
    """Raises ConfigError if the axis is wider than the embedding."""
    if not neuron or axis_neuron > neuron[-1]:
        raise ConfigError(f"{place}.axis_neuron: is more than the last of neuron")


def environment(
    descriptor: EnvironmentDescriptor, near: Neighborhood, *, radial: bool = False
) -> torch.Tensor:
    """R (N, K, 4), or its first column alone (N, K, 1): the normalised rows of the neighbours (`mdops.ops.env_mat`).

    Rows of slots without a neighbour within the descriptor's cutoff are ((0 - mean)/std, 0, 0, 0), as for absent ones;
    sums select slots by `near.neighbor_types`, which leaves out absent pairs, too.
    """
    d = descriptor
    return env_mat(
        *(near.displacements, near.counts, near.types, d.mean, d.std),
        cutoff=d.cutoff,
        cutoff_smooth=d.cutoff_smooth,
        protection=d.protection,
        radial=radial,
    )


def embed(nets: NetCollection, s: torch.Tensor, kinds: torch.Tensor, centers: torch.Tensor) -> torch.Tensor:
    """G (N, K, M): of each slot the net of its types at s (N, K), zero where `kinds` (N, K) is ntypes.

    `nets` are one a neighbour type, or one a (centre, neighbour); `centers` (N,).
    """
    flat, x = kinds.flatten(), s.reshape(-1, 1)
    center_of_slot = centers[:, None].expand_as(kinds).reshape(-1)
    index, value = [], []
    width = nets.net(0, 0).outputs
    g = x.new_zeros(x.shape[0], width)
    for t in range(nets.ntypes):
        for c in range(nets.ntypes if nets.ndim == 2 else 1):
            chosen = (flat == t) & (center_of_slot == c) if nets.ndim == 2 else flat == t
            if is_exported():  # a program cannot read the counts: each net takes all slots
                g = torch.where(chosen[:, None], nets.net(c, t)(x), g)
                continue
            index.append(torch.nonzero(chosen)[:, 0])
            value.append(nets.net(c, t)(x[index[-1]]))
    if index:
        g = g.index_copy(0, torch.cat(index), torch.cat(value))
    return g.view(*kinds.shape, width)


class Directions(NamedTuple):
    """Of the neighbours within a descriptor's cutoff that are not in `exclude_types`; L is the most that an atom has.

    Attributes:
        rows: (N, L, 3), x, y and z of the rows of the environment matrix; zeros in empty places.
        kinds: (N, L), types; ntypes in empty places.
        squared: (N, L), distances, A^2; the square of the cutoff in empty places.
    """

    rows: torch.Tensor
    kinds: torch.Tensor
    squared: torch.Tensor


def directions(
    descriptor: EnvironmentDescriptor, near: Neighborhood, types: Sequence[int] | None = None
) -> Directions:
    """Of the neighbours of these types, or of all."""
    d, near = descriptor, near.within(min(near.cutoff, descriptor.cutoff))
    kinds = near.neighbor_types.masked_fill(d.excludes(near), d.ntypes)
    if types is not None:
        kinds = kinds.masked_fill(~torch.isin(kinds, torch.tensor(types, device=kinds.device)), d.ntypes)
    chosen = kinds < d.ntypes
    width = longest_row(chosen)
    order = torch.argsort((~chosen).int(), dim=1, stable=True)[:, :width]

    def taken(x: torch.Tensor, empty: float) -> torch.Tensor:
        rows = x.gather(1, order[..., None].expand(-1, -1, 3))
        return rows.masked_fill(~chosen.gather(1, order)[..., None], empty)

    pairs = taken(near.displacements, d.cutoff / 3**0.5).square().sum(-1)
    return Directions(taken(environment(d, near)[..., 1:], 0.0), kinds.gather(1, order), pairs)


def in_chunks(of_atoms: Callable[[slice], torch.Tensor], atoms: int, numbers: int) -> torch.Tensor:
    """`of_atoms` of all atoms, (N, ...), by runs of atoms with at most `CHUNK` numbers in the largest tensor, or of one
    atom.

    Args:
        of_atoms: gives the result for a run of atoms.
        numbers: of one atom in the largest tensor.
    """
    if is_exported():
        return of_atoms(slice(None))
    size = max(1, CHUNK // max(1, numbers))
    runs = [slice(first, first + size) for first in range(0, max(1, atoms), size)]
    if len(runs) == 1:
        return of_atoms(slice(None))
    # The backward pass recomputes each run, so that only one run at a time needs its memory.
    options: Any = {"use_reentrant": False, "preserve_rng_state": False}
    return torch.cat([checkpoint(of_atoms, run, **options) for run in runs])
