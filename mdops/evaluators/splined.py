"""Descriptors that sum over neighbours, with their embedding nets as splines: the sum comes first, and autograd does
the rest."""

import copy
import dataclasses
import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Answers
from mdops.evaluators.spline import SplineGrid, all_types, choose_grid, coefficients, spline_error
from mdops.models.contract import AtomicModel
from mdops.models.moments import MomentDescriptor, TypeChoice
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.standard import DescriptorFitting
from mdops.nn.activation import is_smooth
from mdops.nn.net import Net
from mdops.ops import NeighborList
from mdops.ops.spline_moment import spline_moment
from mdops.system import System

if TYPE_CHECKING:
    from mdops.potential import Potential

# Types whose pairs a grid is chosen by, of a model that knows more.
_SAMPLED = 6


class LayerTensors(NamedTuple):
    """A layer's weight (inputs, outputs), bias and timestep (outputs,)."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    timestep: torch.Tensor | None


class SplineModel:
    """A standard model of a descriptor of sums with a grid, for some of its types: what evaluators on splines share.

    Descriptors whose neighbours of all types share places often know many more types than a system has. Atoms are
    renamed to the n types that are there, and nothing here costs more for the others.

    Attributes:
        model, descriptor, fitting, grid.
        smoothing: weight of the nets' bending beside the loss of a training.
        kinds: the model's types that count here, n of them; has_all: whether these are all.
        mean (n,), std (n, 2): the descriptor's.
        sel: (n,) int32, or (1,) where types share places.
        mask: (n, n) bool, pairs of types that do not see each other, by the descriptor's `exclude_types` or the model's
            `pair_exclude_types`.
        zeroed: the former alone: such neighbours take places.
        shares_net: whether one fitting net, with one scale, serves all of these types.
    """

    def __init__(
        self, potential: "Potential", types: Sequence[int] | None = None, grid: SplineGrid | None = None
    ) -> None:
        """Takes the types, all unless told, and a grid, the potential's unless told."""
        model, d = potential.model, moment_descriptor(potential.model)
        grid = potential.grid if grid is None else grid
        assert isinstance(model, DescriptorFitting) and d is not None and grid is not None
        self.model, self.descriptor, self.fitting = model, d, model.fitting
        self.grid: SplineGrid = grid
        self.smoothing = potential.smoothing
        self.has_all = types is None or len(types) == d.ntypes
        self.kinds = all_types(d) if types is None else TypeChoice.of(types, d.mean.device)
        self.mean, self.std = (
            (d.mean, d.std) if self.has_all else (d.mean[self.kinds.index], d.std[self.kinds.index])
        )
        self.sel = torch.tensor([d.slots] if d.mixed else d.sel, dtype=torch.int32, device=d.mean.device)
        self.mask, self.zeroed = (self._of_pairs(x) for x in pair_masks(model))
        self.shares_net = bool(model.fitting.shared and model.has_energy[self.kinds.index].all())
        self._has_mean = bool((self.mean != 0).any())
        self._marks = torch.eye(self.ntypes, dtype=d.mean.dtype, device=d.mean.device)
        names = torch.full((d.ntypes + 1,), -1, dtype=torch.int32, device=d.mean.device)
        names[self.kinds.index] = torch.arange(self.ntypes, dtype=torch.int32, device=d.mean.device)
        self._names = names  # the last one, -1, is that of virtual atoms

    @staticmethod
    def why_not(potential: "Potential") -> str | None:
        """Why there is none for a potential."""
        if not SplineModel.knows(potential):
            return f"{_NO_SUMS}, and this is {potential.kind}"
        return potential.why_no_spline

    @staticmethod
    def knows(potential: "Potential") -> bool:
        return moment_descriptor(potential.model) is not None

    @property
    def ntypes(self) -> int:
        """n."""
        return len(self.kinds.numbers)

    def covers(self, types: tuple[int, ...] | None) -> bool:
        """Whether all of these types, of the model with None, count here."""
        return self.has_all or (types is not None and set(types) <= set(self.kinds.numbers))

    @property
    def nets(self) -> list[Net]:
        """The fitting nets: one for all, or one a type."""
        return [self.fitting.net(t) for t in self.kinds.numbers[: 1 if self.shares_net else None]]

    def _of_pairs(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix if self.has_all else matrix[self.kinds.index][:, self.kinds.index]

    # -- The atoms, with the types that count here

    def types(self, system: System) -> torch.Tensor:
        """(N,) int32."""
        return system.types if self.has_all else self._names[system.types.long()]

    def counts(self, counts: torch.Tensor) -> torch.Tensor:
        """(N, n) int32, of `NeighborList.counts`."""
        return counts if self.has_all else counts.index_select(1, self.kinds.index)

    def padding(self, system: System) -> torch.Tensor:
        """The argument `padding` of the ops."""
        if not self.descriptor.mixed:
            return self.sel[:0]
        if not self._has_mean:  # then it does not matter
            return system.types.new_zeros(system.atoms)
        first = system.first_of_systems().long().clamp(min=0)
        return (first.int() if self.has_all else self._names[first].clamp(min=0))[system.batch.long()]

    def taken(self, within: torch.Tensor) -> torch.Tensor:
        """What `NeighborReport.within` is, from the neighbours (N, n) of each type."""
        return within.sum(1, keepdim=True, dtype=torch.int32) if self.descriptor.mixed else within

    # -- Moments

    def moments(self, near: Neighborhood) -> tuple[torch.Tensor, NeighborReport]:
        """A (N, F * B, 4), and what the op says of the neighbours (`mdops.ops.spline_moment`)."""
        d = self.descriptor
        arguments = (
            near.displacements,
            self.counts(near.counts),
            self.types(near.system),
            self.mean,
            self.std,
            self.sel,
        )
        options: dict[str, Any] = {
            "cutoff": d.cutoff,
            "cutoff_smooth": d.cutoff_smooth,
            "protection": d.protection,
            "s_max": self.grid.s_max,
            "intervals": self.grid.intervals,
            "pair_mask": self.mask,
            "zeroed": self.zeroed,
            "padding": self.padding(near.system) if d.mixed else None,
        }
        moments, within, nearest = spline_moment(*arguments, **options)
        if d.gated:
            gates, _, _ = spline_moment(*arguments, **options, gated=True)
            moments = torch.cat([moments.sum(1, keepdim=True), gates], 1)
        return moments.flatten(1, 2), NeighborReport((self.taken(within),), nearest)

    def gradient(self, gradient: torch.Tensor, near: Neighborhood) -> torch.Tensor:
        """dE/dd (N, K, 3) from dE/dA (N, F * B, 4)."""
        d, gradient = self.descriptor, gradient.unflatten(1, (-1, self.grid.intervals + 5))

        def of_pairs(part: torch.Tensor, gated: bool) -> torch.Tensor:
            return torch.ops.mdops.spline_moment_backward(
                part,
                near.displacements,
                self.counts(near.counts),
                self.types(near.system),
                self.mean,
                self.std,
                self.mask,
                d.cutoff,
                d.cutoff_smooth,
                d.protection,
                self.grid.s_max,
                False,
                gated,
            )

        if not d.gated:
            return of_pairs(gradient, False)
        plain = gradient[:, :1].expand(-1, self.ntypes, -1, -1)
        return of_pairs(plain, False) + of_pairs(gradient[:, 1:], True)

    def table(self) -> torch.Tensor:
        """The splines' coefficients C (n, F, B, M) of each centre's functions, differentiable in the weights."""
        return coefficients(self.descriptor, self.grid, None, self.smoothing, self.kinds)

    def fixed_table(self) -> torch.Tensor:
        """The same without a graph, formed in float64."""
        with torch.no_grad():
            double = copy.deepcopy(self.descriptor).double()
            return coefficients(double, self.grid, types=self.kinds).to(self.mean.dtype)

    def t(self, moments: torch.Tensor, table: torch.Tensor, system: System) -> torch.Tensor:
        """T = A^T C / N_sel, (N, 4, M), from A."""
        d, types = self.descriptor, self.types(system)
        t = moments.new_zeros(moments.shape[0], 4, d.channels)
        for c in range(self.ntypes):
            index = torch.nonzero(types == c)[:, 0]
            t = t.index_copy(0, index, moments[index].transpose(1, 2) @ table[c].flatten(0, 1))
        return t / d.slots

    # -- The fitting nets, with the descriptor's constants folded into them

    @property
    def marks_types(self) -> bool:
        """Whether the first layer of the one net has an input for each type, which is 1 for its own."""
        return self.shares_net and self.ntypes > 1 and self.descriptor.width > self._features

    @property
    def _features(self) -> int:
        """Of T^T T_<."""
        return self.descriptor.channels * max(self.descriptor.axis_neuron, 1)

    def fitting_layers(self, *, double: bool = False) -> list[list[LayerTensors]]:
        """Each net's layers for inputs [T^T T_<, what `extra_inputs` gives], differentiable in the weights; in float64
        if `double`, without a graph then.

        The numbers k_c that a descriptor has of a centre's type are multiplied with their weights here: as a part of
        the bias where a net is of one type, and otherwise as the weights of inputs that mark the types.
        """

        def number(x: torch.Tensor | None) -> torch.Tensor | None:
            return x.detach().double() if double and x is not None else x

        nets = [
            [
                LayerTensors(*map(number, (layer.multiplied, layer.bias, layer.timestep)))  # type: ignore[arg-type]
                for layer in net.layers
            ]
            for net in self.nets
        ]
        constants = number(self.descriptor.constants())
        if constants is None:
            return nets
        own, first = constants[self.kinds.index], self._features
        last = first + own.shape[1]
        for k, (layer, *_) in enumerate(nets):
            weight, bias = layer.weight, layer.bias
            of_types = own @ weight[first:last]
            rest = [weight[:first], weight[last:]]
            if self.marks_types:
                rest.insert(1, of_types)
            else:
                of_type = of_types[0 if self.shares_net else k]
                bias = of_type if bias is None else bias + of_type
            nets[k][0] = LayerTensors(torch.cat(rest), bias, layer.timestep)
        return nets

    def extra_inputs(
        self, system: System, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> torch.Tensor:
        """(N, E): what the nets of `fitting_layers` take beside T^T T_<."""
        extra = self.fitting.extra_inputs(system.batch, system.count, fparam, aparam)
        if not self.marks_types:
            return extra
        marks = self._marks[self.types(system).long().clamp(min=0)]
        return torch.cat([marks, extra], 1) if extra.shape[1] else marks

    @property
    def extra_size(self) -> int:
        """E."""
        return self.fitting.extra_size + (self.ntypes if self.marks_types else 0)


class SplineModels:
    """The spline models of a potential for the types of the systems that it meets."""

    def __init__(self, potential: "Potential") -> None:
        self._potential = potential
        descriptor = moment_descriptor(potential.model)
        self._all = None if descriptor is not None and descriptor.mixed else SplineModel(potential)
        self._known: dict[tuple[int, ...] | None, SplineModel] = {}

    def types(self, system: System) -> tuple[int, ...] | None:
        """Those that count for a system; None for all that the model has."""
        return None if self._all is not None else self._potential.present(system)

    def of(self, types: tuple[int, ...] | None) -> SplineModel:
        if self._all is not None:
            return self._all
        if types not in self._known:
            grid = self._potential.grid_for(types)
            self._known[types] = SplineModel(self._potential, types, grid)
        return self._known[types]


def trained_types(potential: "Potential") -> tuple[int, ...] | None:
    """The types that a training has atoms of; None for all."""
    descriptor = moment_descriptor(potential.model)
    return potential.spline_types if descriptor is not None and descriptor.mixed else None


class PresentTypes:
    """Which types atoms have; remembered, as a device has to be asked."""

    _MOST = 64

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, tuple[int, ...]]] = {}

    def __call__(self, types: torch.Tensor) -> tuple[int, ...] | None:
        """Rising; None where a CUDA graph that is captured keeps the device from being asked."""
        version = 0 if types.is_inference() else types._version
        known = self._known.get(id(types))
        if known is not None and known[0]() is types and known[1] == version:
            return known[2]
        if types.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        found = tuple(t for t in torch.unique(types).tolist() if t >= 0) or (0,)
        if not types.is_inference():
            if len(self._known) >= self._MOST:
                self._known.clear()
            self._known[id(types)] = weakref.ref(types), version, found
        return found


_NO_SUMS = (
    "splines are for models of one descriptor of sums over neighbours "
    "(se_e2_a, se_e2_r, DPA-1 without attention)"
)


def moment_descriptor(model: AtomicModel) -> MomentDescriptor | None:
    """That of a model which has splines."""
    d = model.descriptor if isinstance(model, DescriptorFitting) else None
    return d if isinstance(d, MomentDescriptor) and d.is_sum else None


def pair_masks(model: DescriptorFitting) -> tuple[torch.Tensor, torch.Tensor]:
    """`mask` and `zeroed` of a `SplineModel` of all types."""
    excluded: torch.Tensor = model.descriptor.excluded  # type: ignore[assignment]
    absent = torch.zeros_like(excluded) if model.absent_pairs is None else model.absent_pairs
    return excluded | absent, excluded & ~absent


class Splined(Autograd):
    name = "splines"
    summary = "spline moments, then PyTorch"
    cost = "the embedding nets run on every pair instead, which takes about three times as long"

    def __init__(self, potential: "Potential") -> None:
        super().__init__(potential)
        self.captures = False  # it asks which types are there
        self._models = SplineModels(potential)
        assert potential.grid is not None
        self.r_min = potential.grid.r_min

    @classmethod
    def knows(cls, potential: "Potential") -> bool:
        return SplineModel.knows(potential)

    @classmethod
    def why_not(cls, potential: "Potential") -> str | None:
        return SplineModel.why_not(potential) or why_not_rows(potential)

    def respond(
        self,
        near: Neighborhood,
        neighbors: NeighborList,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
        check: bool,
        trains: bool,
    ) -> tuple[Answers, NeighborReport]:
        types = self._models.types(near.system)
        s = self._models.of(types)
        table = s.table() if trains else self.potential.kept("table", s.fixed_table, types)
        moments, report = s.moments(near)
        if check and self.potential.check_neighbors(report, near.system, neighbors, self.r_min):
            near = dataclasses.replace(near, truncates=True).select(
                s.descriptor.sel, mixed=s.descriptor.mixed
            )
            moments, _ = s.moments(near)
        features = s.descriptor.contract(s.t(moments, table, near.system), near)
        return s.model.finish(s.fitting(features.values, near, fparam, aparam), near.types), report


def why_not_rows(potential: "Potential") -> str | None:
    """Why `spline_moment` has not the sums of a model."""
    descriptor = moment_descriptor(potential.model)
    plain = descriptor is not None and descriptor.plain
    return "the op for moments sums rows of the environment matrix, and here are none" if plain else None


def composed(potential: "Potential") -> Autograd:
    """The separate ops of a model."""
    return Autograd(potential) if Splined.why_not(potential) else Splined(potential)


def new_grid(
    model: AtomicModel, r_min: float, tolerance: float, types: Sequence[int] | None = None
) -> tuple[SplineGrid | None, str | None, bool]:
    """A grid for a model that keeps the tolerance down to r_min (A) for pairs of these types, by default `grid_types`,
    or why there is none, and whether that needs to be told: a net that was expected to have one."""
    descriptor = moment_descriptor(model)
    if descriptor is None:
        return None, _NO_SUMS, False
    if not all(map(is_smooth, descriptor.activations)):
        return None, "the embedding nets have kinks", True
    kinds = grid_types(descriptor) if types is None else types
    grid = choose_grid(_double(descriptor), r_min, tolerance, *_pairs(model, kinds))
    if grid.error <= tolerance:
        return grid, None, False
    problem = f"splines of the embedding nets reach an error of {grid.error:.1e}, not {tolerance:.1e}"
    return None, problem, True


def grid_types(descriptor: MomentDescriptor) -> list[int]:
    """The types by whose pairs a grid is chosen when none are told: all, or some of many that share nets."""
    n = descriptor.ntypes
    if not descriptor.mixed or n <= _SAMPLED:
        return list(range(n))
    return sorted({round(k * (n - 1) / (_SAMPLED - 1)) for k in range(_SAMPLED)})


def finer_grid(model: AtomicModel, grid: SplineGrid, tolerance: float, types: Sequence[int]) -> SplineGrid:
    """The grid, if it keeps the tolerance for pairs of these types, too, or one that does."""
    descriptor = moment_descriptor(model)
    assert descriptor is not None
    if grid_error(model, grid, types) <= tolerance:
        return grid
    pairs = _pairs(model, types)
    found = choose_grid(_double(descriptor), grid.r_min, tolerance, *pairs, intervals=grid.intervals)
    if found.error > tolerance:
        warnings.warn(
            f"splines of the embedding nets of {', '.join(model.type_map[t] for t in types)} reach an error of "
            f"{found.error:.1e}, not {tolerance:.1e}: spline=False evaluates the nets exactly",
            stacklevel=2,
        )
    return found


def grid_error(model: AtomicModel, grid: SplineGrid, types: Sequence[int] | None = None) -> float:
    """The error of a grid for the weights of now (`spline_error`)."""
    descriptor = moment_descriptor(model)
    assert descriptor is not None
    kinds = grid_types(descriptor) if types is None else types
    with torch.no_grad():
        return spline_error(_double(descriptor), grid.s_max, grid.intervals, *_pairs(model, kinds))


def _double(descriptor: MomentDescriptor) -> MomentDescriptor:
    return copy.deepcopy(descriptor).double()


def _pairs(model: AtomicModel, types: Sequence[int]) -> tuple[torch.Tensor | None, TypeChoice]:
    """The mask of pairs, if there is any, and the types."""
    assert isinstance(model, DescriptorFitting)
    kinds = TypeChoice.of(types, model.out_bias.device)
    mask = pair_masks(model)[0][kinds.index][:, kinds.index]
    # Of a plain sum, neighbours that are excluded count.
    descriptor = moment_descriptor(model)
    masks = bool(mask.any()) and descriptor is not None and not descriptor.plain
    return (mask if masks else None), kinds
