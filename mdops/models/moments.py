"""The base of descriptors that sum over neighbours: evaluators use spline moments for the sums."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from mdops.models.contract import EnvironmentDescriptor, Features
from mdops.models.neighborhood import Neighborhood
from mdops.models.type_embedding import TypedNets, TypeEmbedding
from mdops.models.type_pairs import TypePairs
from mdops.models.ways import way_of
from mdops.nn.net import NetCollection, is_input_gradient_alone
from mdops.ops.axis_product import axis_product
from mdops.tracing import is_exported


@dataclass(frozen=True)
class TypeChoice:
    """Some of a model's types, as numbers and as an index (n,) int64 on its device: both are kept, because a step
    captured in a CUDA graph can make neither from the other."""

    numbers: tuple[int, ...]
    index: torch.Tensor

    @classmethod
    def of(cls, numbers: Sequence[int], device: torch.device) -> "TypeChoice":
        return cls(tuple(numbers), torch.tensor(numbers, dtype=torch.int64, device=device))

    def places(self, ntypes: int) -> torch.Tensor:
        """(ntypes + 1,) int32: the index of each of the model's types among these, and -1 for others. The last entry,
        at -1, is for virtual atoms."""
        found = torch.full((ntypes + 1,), -1, dtype=torch.int32, device=self.index.device)
        found[self.index] = torch.arange(len(self.numbers), dtype=torch.int32, device=self.index.device)
        return found


def of_pairs(nets: NetCollection, x: torch.Tensor, types: TypeChoice) -> torch.Tensor:
    """(n, n, P, M): the nets of centres and neighbours of these n types at x (n, P), by the centre's type."""
    kinds, n = types.numbers, len(types.numbers)
    if nets.ndim == 1:
        chosen, x = [nets.net(t) for t in kinds], x.reshape(1, -1, 1)
    else:
        chosen, x = [nets.net(c, t) for t in kinds for c in kinds], x[..., None].repeat(n, 1, 1)
    values = chosen[0].alike(chosen, x)
    return values.view(n, n, -1, values.shape[-1]).transpose(0, 1)


class MomentDescriptor(EnvironmentDescriptor):
    """Base of descriptors of sums over the neighbours j of an atom of functions g of one scalar each:

        T = (1/N_sel) sum_j R_j (x) g_ct(s_j),    D = [T^T T_<, k_c]

    R_j is the normalised row of the environment matrix of neighbour j, s_j the s of mathematics.md, c the type of
    the centre and t that of the neighbour; T_< are the first M2 of T's M columns, and k_c features of the centre's
    type, if any. With a gate, the sum is of R_j (x) (g_c(s_j) + w_j g_ct(s_j)), w_j being the switch. A plain sum
    has 1 in place of R_j, and D = [sum_j g_ct(s_j) / N_sel, k_c]; there, excluded neighbours have the mean as s, not
    a zero row.
    """

    _known_mean: tuple[torch.Tensor, int, bool] | None = None
    _nets_capture: ClassVar[bool] = False

    @property
    def axis_neuron(self) -> int:
        """M2; 0 for a plain sum."""
        return self.options.axis_neuron

    @property
    def plain(self) -> bool:
        """Whether it is a plain sum."""
        return self.axis_neuron == 0

    @property
    @abstractmethod
    def channels(self) -> int:
        """M, the width of the embedding."""

    @property
    def axes(self) -> int:
        return 0 if self.plain else self.channels

    is_local = True

    @property
    def is_sum(self) -> bool:
        """Whether, with its options, T is such a sum."""
        return True

    @property
    def goes_by_rows(self) -> bool:
        """Whether it needs each neighbour, for `layers` of attention or sums to more `degrees` than one: it then has
        the methods of `mdops.models.dpa1` for those."""
        return False

    def has_mean(self) -> bool:
        """Whether any mean is not zero, read from the device once after each change. The host cannot read it while a
        CUDA graph is captured: the run before did."""
        if is_exported():
            return True
        mean, known = self.mean, self._known_mean
        if known is None or known[0] is not mean or known[1] != mean._version:
            known = self._known_mean = mean, mean._version, bool(mean.any())
        return known[2]

    @property
    def gated(self) -> bool:
        """Whether there is a gate."""
        return False

    @property
    @abstractmethod
    def activations(self) -> list[str]:
        """Of the nets of s."""

    @abstractmethod
    def functions(self, s: torch.Tensor, types: TypeChoice) -> torch.Tensor:
        """(n, F, P, M): the functions g of centres of these n types at s (P,) in 1/A: for neighbours of each type,
        with a gate g_c before them. Differentiable in the weights."""

    def constants(self) -> torch.Tensor | None:
        """k (ntypes, E); None if there are none."""
        return None

    def row_weights(self) -> torch.Tensor | None:
        """The factors of T's rows in D; None: 1."""
        return None

    @abstractmethod
    def moments(self, near: Neighborhood) -> torch.Tensor:
        """T (N, 4, M), of a plain sum (N, 1, M), by the nets on every pair."""

    def forward(self, near: Neighborhood) -> Features:
        given = way_of(self)
        return self.contract(self.moments(near) if given is None else given.make(near), near)

    @property
    def captures(self) -> bool:
        given = way_of(self)
        return self._nets_capture if given is None else given.captures

    def contract(self, t: torch.Tensor, near: Neighborhood) -> Features:
        """D (N, width), and x, y, z of T as axes, from T (N, 4, M); of a plain sum, without axes, from (N, 1, M). T may
        have rows of higher degrees behind these."""
        constants, weights = self.constants(), self.row_weights()
        of_atoms = None if constants is None else F.embedding(near.centers, constants)
        if not self.plain and weights is None and is_input_gradient_alone():
            # One op each way, if that is enough.
            return Features(axis_product(t, self.axis_neuron, of_atoms), t[:, 1:])
        if self.plain:
            d = t[:, 0]
        else:
            few = t[:, :, : self.axis_neuron]
            d = (t.transpose(1, 2) @ (few if weights is None else weights[:, None] * few)).flatten(1)
        if of_atoms is not None:
            d = torch.cat([d, of_atoms], dim=1)
        return Features(d, None if self.plain else t[:, 1:4])

    def scaled(self, s: torch.Tensor, types: TypeChoice) -> torch.Tensor:
        """(n, P): the nets' inputs for centres of these types at s (P,)."""
        return (s - self.mean[types.index, None]) / self.std[types.index, :1]


MomentNets = tuple[NetCollection, NetCollection | TypePairs | None, TypeEmbedding]


class TypedMomentDescriptor(TypedNets, MomentDescriptor):
    """Of nets that take embeddings of types."""

    def __init__(
        self, options: Any, type_map: Sequence[str], mean: torch.Tensor, std: torch.Tensor, nets: MomentNets
    ) -> None:
        """Takes one net of distances, one of types where these are stripped, and the embedding of types."""
        super().__init__(options, type_map, mean, std)
        self.embeddings, self.type_nets, self.type_embedding = nets

    @property
    def width(self) -> int:
        types = self.options.tebd_dim if self.options.concat_output_tebd else 0
        return self.channels * self.axis_neuron + types
