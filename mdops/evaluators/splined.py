"""Descriptors that sum over neighbours, with their embedding nets as splines: the sum comes first, and autograd does
the rest."""

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Answers
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.of_types import OfTypes
from mdops.evaluators.per_type_lookup import PerTypeLookup
from mdops.models.contract import Descriptor, joined
from mdops.models.moments import MomentDescriptor, TypeChoice
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.standard import DescriptorFitting
from mdops.nn.net import Net
from mdops.ops import NeighborList
from mdops.ops.spline_moment import spline_moment
from mdops.system import System
from mdops.tables.grids import NO_SUMS, moment_descriptor, pair_masks, sums_of
from mdops.tables.spline import SplineGrid, all_types, basis_matrix, coefficients, collocation_on
from mdops.tracing import is_recorded

# As minus the mean, and as the deviation of s it makes R_0 = (s - mean)/std = 1, exactly, with a slope of 1e-30: what
# `spline_moment` sums then is a plain sum. A power of two, with room in float32.
_ONE = 2.0**100


class LayerTensors(NamedTuple):
    """A layer's weight (inputs, outputs), bias and timestep (outputs,)."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    timestep: torch.Tensor | None

    def of(self, dtype: torch.dtype) -> "LayerTensors":
        bias, timestep = (None if x is None else x.to(dtype) for x in self[1:])
        return LayerTensors(self.weight.to(dtype), bias, timestep)


class SplineSum:
    """A descriptor of sums with a grid, for some of its types: what evaluators on splines share.

    Descriptors whose neighbours of all types share places often know many more types than a system has. Atoms are
    renamed to the n types that are there, and nothing here costs more for the others.

    Attributes:
        descriptor, grid.
        smoothing: weight of the nets' bending beside the loss of a training.
        kinds: the descriptor's types that count here, n of them; has_all: whether these are all.
        mean (n,), std (n, 2): the descriptor's.
        sel: (n,) int32, or (1,) where types share places.
        mask: (n, n) bool, pairs of types that do not see each other, by the descriptor's `exclude_types` or the model's
            `pair_exclude_types`.
        zeroed: the former alone: such neighbours take places.
        has_mean: whether any mean is not zero; excludes: whether any pair is in `zeroed`.
    """

    def __init__(
        self,
        model: DescriptorFitting,
        descriptor: MomentDescriptor,
        grid: SplineGrid,
        types: Sequence[int] | None = None,
        smoothing: float = 0.0,
    ) -> None:
        """Takes the model that the descriptor is of, and the types, all by default."""
        d = self.descriptor = descriptor
        self.grid, self.smoothing = grid, smoothing
        self.has_all = types is None or list(types) == list(range(d.ntypes))
        self.kinds = all_types(d) if types is None else TypeChoice.of(types, d.mean.device)
        index = self.kinds.index
        self.mean, self.std = (d.mean, d.std) if self.has_all else (d.mean[index], d.std[index])
        self.sel = torch.tensor([d.slots] if d.mixed else d.sel, dtype=torch.int32, device=d.mean.device)
        self.mask, self.zeroed = (self._of_pairs(x) for x in pair_masks(model, d))
        self.has_mean, self.excludes = bool((self.mean != 0).any()), bool(self.zeroed.any())
        names = torch.full((d.ntypes + 1,), -1, dtype=torch.int32, device=d.mean.device)
        names[index] = torch.arange(self.ntypes, dtype=torch.int32, device=d.mean.device)
        self._names = names  # the last one, -1, is that of virtual atoms

    @property
    def ntypes(self) -> int:
        """n."""
        return len(self.kinds.numbers)

    @property
    def features(self) -> int:
        """How many numbers T^T T_< has."""
        return self.descriptor.channels * max(self.descriptor.axis_neuron, 1)

    def covers(self, types: tuple[int, ...] | None) -> bool:
        """Whether all of these types, of the model with None, count here."""
        return self.has_all or (types is not None and set(types) <= set(self.kinds.numbers))

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
        if not self.has_mean:  # then it does not matter
            return system.types.new_zeros(system.atoms)
        first = system.first_of_systems().long().clamp(min=0)
        return (first.int() if self.has_all else self._names[first].clamp(min=0))[system.batch.long()]

    def occupied_slots(self, within: torch.Tensor) -> torch.Tensor:
        """What `NeighborReport.within` is, from the neighbours (N, n) of each type."""
        return within.sum(1, keepdim=True, dtype=torch.int32) if self.descriptor.mixed else within

    # -- Moments

    def moments(
        self, near: Neighborhood, absent: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, NeighborReport]:
        """A (N, F * B, 4), of a plain sum (N, n * B, 1), and what the op says of the neighbours
        (`mdops.ops.spline_moment`). `absent` is what `SplineHybrid.absent` says."""
        d, types = self.descriptor, self.types(near.system)
        arguments = (near.displacements, self.counts(near.counts), types, *self._norm, self.sel)
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
        moments, within, nearest = spline_moment(*arguments, **options, radial=d.plain)
        kinds = types.long().clamp(min=0)
        if absent is not None:
            more = (absent - self._absent(within, kinds, near)) * self._shift[kinds, None]
            moments = moments + (more[..., None] * self._at_zero[kinds, None])[..., None] * (
                torch.arange(moments.shape[-1], device=moments.device) == 0
            )
        if d.plain and self.excludes:
            counts = within if absent is None else self.sel - absent
            zeros = (counts * self.zeroed[kinds]).to(moments.dtype)
            moments = moments + (zeros[..., None] * self._at_mean[kinds, None])[..., None]
        if d.gated:
            gates, _, _ = spline_moment(*arguments, **options, gated=True)
            moments = torch.cat([moments.sum(1, keepdim=True), gates], 1)
        return moments.flatten(1, 2), NeighborReport((self.occupied_slots(within),), nearest)

    @property
    def _norm(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean and deviations of R."""
        if not self.descriptor.plain:
            return self.mean, self.std
        return torch.full_like(self.mean, -_ONE), torch.full_like(self.std, _ONE)

    @property
    def _shift(self) -> torch.Tensor:
        """(n,): R_0 of an absent neighbour."""
        return torch.ones_like(self.mean) if self.descriptor.plain else -self.mean / self.std[:, 0]

    # Made once: a step that is captured in a CUDA graph cannot ask the device for the mean.

    @cached_property
    def _at_zero(self) -> torch.Tensor:
        """(n, B): phi_b at s = 0."""
        return self._basis(torch.zeros_like(self.mean))

    @cached_property
    def _at_mean(self) -> torch.Tensor:
        """(n, B): phi_b at the means."""
        return self._basis(self.mean)

    def _basis(self, s: torch.Tensor) -> torch.Tensor:
        """(n, B): phi_b at s (n,) in 1/A."""
        x = s.double().cpu() * (self.grid.intervals / self.grid.s_max)
        return basis_matrix(x, self.grid.intervals).to(self.mean)

    def _absent(self, within: torch.Tensor, kinds: torch.Tensor, near: Neighborhood) -> torch.Tensor:
        """(N, n): the absent neighbours that the op counts, where so many are within the cutoff."""
        taken = within * (~self.mask | self.zeroed)[kinds]
        if not self.descriptor.mixed:
            return self.sel - taken
        empty = (self.sel - taken.sum(1, keepdim=True)).clamp(min=0)
        return torch.zeros_like(taken).scatter(
            1, self.padding(near.system).long()[:, None], empty.to(taken.dtype)
        )

    def gradient(self, gradient: torch.Tensor, near: Neighborhood) -> torch.Tensor:
        """dE/dd (N, K, 3) from dE/dA, as `moments` gives A."""
        d, gradient = self.descriptor, gradient.unflatten(1, (-1, self.grid.intervals + 5))

        def of_pairs(part: torch.Tensor, gated: bool) -> torch.Tensor:
            return torch.ops.mdops.spline_moment_backward(
                part,
                near.displacements,
                self.counts(near.counts),
                self.types(near.system),
                *self._norm,
                self.mask,
                d.cutoff,
                d.cutoff_smooth,
                d.protection,
                self.grid.s_max,
                d.plain,
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
        """T = A^T C / N_sel, (N, 4, M), of a plain sum (N, 1, M), from A."""
        d, types, known = self.descriptor, self.types(system), system.known_atoms_by_type()
        t = moments.new_zeros(moments.shape[0], moments.shape[2], d.channels)
        if known is None and types.is_cuda and torch.cuda.is_current_stream_capturing():
            # Nobody may ask which atoms are of a type.
            for c in range(self.ntypes):
                of_type = moments.transpose(1, 2) @ table[c].flatten(0, 1)
                t = torch.where((types == c)[:, None, None], of_type, t)
            return t / d.slots
        columns = moments.transpose(1, 2)
        for c in range(self.ntypes):
            if known is None:
                index = torch.nonzero(types == c)[:, 0]
            else:
                index = known[self.kinds.numbers[c]]
            # One product of matrices, not one an atom.
            of_type = columns.index_select(0, index).flatten(0, 1) @ table[c].flatten(0, 1)
            t = t.index_copy(0, index, of_type.unflatten(0, (-1, columns.shape[1])))
        return t / d.slots


class SplineNets:
    """The fitting nets of a standard model on parts that are splines, with the descriptors' constants folded in.

    Attributes:
        model, fitting.
        kinds: the model's types that count here, n of them; has_all: whether these are all.
        shares_net: whether one fitting net, with one scale, serves all of these types.
        members: of each part of the descriptor how it is evaluated: a `SplineSum`, or the part itself.
        one_hot_types: whether the first layer of the one net has an input for each type, which is 1 for its own.
    """

    model: DescriptorFitting
    kinds: TypeChoice
    has_all: bool
    members: "list[SplineSum | Descriptor]"

    def set_nets(self, model: DescriptorFitting, kinds: TypeChoice) -> None:
        self.model, self.kinds, self.fitting = model, kinds, model.fitting
        self.shares_net = bool(model.fitting.shared and model.has_energy[kinds.index].all())
        like = next(model.parameters())
        marks = like.new_zeros(len(model.type_map), len(kinds.numbers))
        marks[kinds.index, torch.arange(len(kinds.numbers), device=like.device)] = 1
        self._marks, self._no_inputs = PerTypeLookup(marks.detach()), like.new_empty(0)
        # Kept, as it is asked for in every step.
        has_constants = any(part.descriptor.width > part.features for part in self.sums)
        self.one_hot_types = self.shares_net and len(kinds.numbers) > 1 and has_constants

    @property
    def nets(self) -> list[Net]:
        """The fitting nets: one for all, or one a type."""
        return [self.fitting.net(t) for t in self.kinds.numbers[: 1 if self.shares_net else None]]

    @property
    def sums(self) -> "list[SplineSum]":
        return [part for part in self.members if isinstance(part, SplineSum)]

    @property
    def others(self) -> list[Descriptor]:
        return [part for part in self.members if not isinstance(part, SplineSum)]

    def fitting_layers(self, *, double: bool = False) -> list[list[LayerTensors]]:
        """Each net's layers for inputs [T^T T_< of each sum, features of the others, what `extra_inputs` gives],
        differentiable in the weights; in float64 if `double`, without a graph then.

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
        constants = [number(part.descriptor.constants()) for part in self.sums]
        if len(self.members) == 1 and not any(own is not None for own in constants):
            return nets
        for k, (layer, *_) in enumerate(nets):
            weight, bias = layer.weight, layer.bias
            features, of_others, of_types, at = [], [], [], 0
            given = iter(constants)
            for part in self.members:
                if not isinstance(part, SplineSum):
                    of_others.append(weight[at : at + part.width])
                    at += part.width
                    continue
                features.append(weight[at : at + part.features])
                at, own = at + part.features, next(given)
                if own is not None:
                    of_types.append(own[self.kinds.index] @ weight[at : at + own.shape[1]])
                    at += own.shape[1]
            rest = [*features, *of_others, weight[at:]]
            if of_types:
                added = sum(of_types[1:], of_types[0])
                if self.one_hot_types:
                    rest.insert(-1, added)
                else:
                    of_type = added[0 if self.shares_net else k]
                    bias = of_type if bias is None else bias + of_type
            nets[k][0] = LayerTensors(torch.cat(rest), bias, layer.timestep)
        return nets

    def extra_inputs(
        self, system: System, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> torch.Tensor:
        """(N, E): what the nets of `fitting_layers` take beside the features."""
        given = self.fitting.extra_size > 0 or fparam is not None or aparam is not None
        marks = None
        if self.one_hot_types:
            # A graph of a training gets other frames' types in the same tensor.
            marks = (self._marks.find if is_recorded(system.types) else self._marks)(system.types)
        if not given:
            return self._no_inputs.new_empty(system.atoms, 0) if marks is None else marks
        extra = self.fitting.extra_inputs(system.batch, system.count, fparam, aparam)
        return extra if marks is None else torch.cat([marks, extra], 1)

    @property
    def extra_size(self) -> int:
        """E."""
        return self.fitting.extra_size + (len(self.kinds.numbers) if self.one_hot_types else 0)


class SplineModel(SplineSum, SplineNets):
    """A standard model of one descriptor of sums, for some of its types."""

    def __init__(
        self, potential: EvaluationContext, types: Sequence[int] | None = None, grid: SplineGrid | None = None
    ) -> None:
        """Takes the types, all by default, and a grid, the potential's by default."""
        model, d = potential.model, moment_descriptor(potential.model)
        grid = potential.grid if grid is None else grid
        assert isinstance(model, DescriptorFitting) and d is not None and grid is not None
        super().__init__(model, d, grid, types, potential.smoothing)
        self.members = [self]
        self.set_nets(model, self.kinds)

    @staticmethod
    def why_not(potential: EvaluationContext) -> str | None:
        """Why there is none for a potential."""
        if not SplineModel.knows(potential):
            return f"{NO_SUMS}, and this is {potential.kind}"
        return potential.why_no_spline

    @staticmethod
    def knows(potential: EvaluationContext) -> bool:
        return moment_descriptor(potential.model) is not None


class SplineHybrid(SplineNets):
    """A standard model of one or more descriptors, some of which are of sums, for some of its types."""

    def __init__(
        self, potential: EvaluationContext, types: Sequence[int] | None, grids: Sequence[SplineGrid]
    ) -> None:
        """Takes the types, or None for all, and a grid for each of the sums."""
        model = potential.model
        assert isinstance(model, DescriptorFitting)
        every = range(len(model.type_map))
        kinds = TypeChoice.of(every if types is None else types, model.out_bias.device)
        given = iter(grids)
        self.members = [
            SplineSum(model, part, next(given), types, potential.smoothing)
            if isinstance(part, MomentDescriptor) and part.is_sum
            else part
            for part in model.descriptor.parts
        ]
        self.set_nets(model, kinds)
        self.has_all = kinds.numbers == tuple(every)
        self.spec = model.descriptor.spec
        self._all_mixed = all(part.descriptor.mixed for part in self.sums)

    @staticmethod
    def knows(potential: EvaluationContext) -> bool:
        return isinstance(potential.model, DescriptorFitting) and bool(sums_of(potential.model))

    @staticmethod
    def why_not(potential: EvaluationContext) -> str | None:
        """Why there is none for a potential."""
        if not SplineHybrid.knows(potential):
            return f"{NO_SUMS}, and this is {potential.kind}"
        return potential.why_no_spline

    def near(self, system: System, neighbors: NeighborList, dtype: torch.dtype) -> Neighborhood:
        """The pairs of a list, as the hybrid has them."""
        near = Neighborhood.of(system, neighbors, self.spec.cutoff, dtype)
        return near.without(self.model.absent_pairs)

    def occupied_slots(self, within: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What `NeighborReport.within` is of the sums, from the neighbours (N, sums, n) of each type."""
        if self._all_mixed:
            totals = within.sum(2, dtype=torch.int32)
            return (totals,) if totals.shape[1] == 1 else totals.split(1, 1)
        return tuple(part.occupied_slots(own) for part, own in zip(self.sums, within.unbind(1), strict=True))

    @property
    def is_sync_free(self) -> bool:
        """Whether no part waits for a GPU, and absent neighbours need not be looked for."""
        return self.counts_none and all(part.captures and part.ends_at_cutoff for part in self.others)

    @property
    def counts_none(self) -> bool:
        """Whether absent neighbours need not be looked for."""
        return not any(self.may_differ(part) for part in self.sums)

    def may_differ(self, part: SplineSum) -> bool:
        """Whether `absent` is not None: a shorter cutoff than the hybrid's, and absent neighbours that are not all
        alike."""
        d = part.descriptor
        alike = (
            not part.has_mean
            if d.mixed and not d.gated
            else not (part.excludes and (part.has_mean or d.plain))
        )
        return not alike and d.cutoff < self.spec.cutoff

    def absent(self, part: SplineSum, near: Neighborhood) -> torch.Tensor | None:
        """(N, n) int32: how many neighbours of each type count as absent ones for a sum. None where that follows from
        the neighbours within its own cutoff."""
        d = part.descriptor
        if not self.may_differ(part):
            return None
        # Those beyond its own cutoff take places, as neighbours of their own type whose R is that of absent ones.
        shared = near.restrict_to_part(d.spec, mixed=self.spec.mixed)
        kinds, ntypes = shared.neighbor_types, shared.ntypes
        within = ~(shared.squared >= d.cutoff**2)
        beyond = shared.count(torch.where(within | d.excludes(shared), ntypes, kinds))
        if d.mixed:
            empty = (d.slots - (kinds < ntypes).sum(1)).clamp(min=0).int()
            found = beyond.scatter_add(1, near.padding_types[:, None], empty[:, None])
        else:
            found = torch.tensor(d.sel, device=kinds.device) - shared.count(kinds) + beyond
        return part.counts(found.int())


def shared(part: Descriptor, near: Neighborhood, *, mixed: bool) -> Neighborhood:
    """What a part of a hybrid, itself `mixed` or not, gets of its neighbours."""
    if part.ends_at_cutoff and not near.truncates:
        return near
    return near.restrict_to_part(part.spec, mixed=mixed)


class SplineModels:
    """The spline models of a potential for the types of the systems that it meets.

    Attributes:
        of: gives that for some types.
    """

    def __init__(self, potential: EvaluationContext) -> None:
        self._potential = potential
        self._mixed = shares_places(potential)
        self.of: OfTypes[Any] = OfTypes(lambda types: spline_model(potential, types))
        if not self._mixed:
            self.of(None)

    def types(self, system: System) -> tuple[int, ...] | None:
        """Those that count for a system; None for all that the model has."""
        return self._potential.present(system) if self._mixed else None


def spline_model(potential: EvaluationContext, types: tuple[int, ...] | None) -> SplineModel | SplineHybrid:
    """For these types, with the knots that they need."""
    grids = potential.grids_for(types)
    if SplineModel.knows(potential):
        return SplineModel(potential, types, grids[0])
    return SplineHybrid(potential, types, grids)


def shares_places(potential: EvaluationContext) -> bool:
    """Whether in every descriptor of sums neighbours of all types share places, so that types which are not there do
    not matter."""
    return all(one.descriptor.mixed for one in sums_of(potential.model))


def trained_types(potential: EvaluationContext) -> tuple[int, ...] | None:
    """The types that a training has atoms of; None for all."""
    return potential.spline_types if shares_places(potential) else None


class Splined(Autograd):
    name = "splines"
    summary = "spline moments, then PyTorch"
    cost = "the embedding nets run on every pair instead, which takes about three times as long"

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self._models = SplineModels(potential)
        self.captures = potential.device.type == "cuda" and self._is_sync_free()
        self._held: list[Any] = []
        self.r_min = potential.r_min or 0.0

    def _is_sync_free(self) -> bool:
        """Whether it never waits for a GPU where it is known which atoms are of which type."""
        model: Any = self.potential.model
        if not model.fitting.captures:
            return False
        return (
            SplineModel.knows(self.potential)
            or SplineHybrid(self.potential, None, self.potential.grids).is_sync_free
        )

    def _hold(self, s: Any, tables: Sequence[torch.Tensor]) -> None:
        """Keeps what a CUDA graph reads that is being captured: others may take its place where it is kept."""
        if s.sums[0].mean.is_cuda and torch.cuda.is_current_stream_capturing():
            mean = s.sums[0].mean
            grids = [collocation_on(part.grid.intervals, mean.device, mean.dtype) for part in s.sums]
            self._held.append((s, tables, grids))

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return SplineHybrid.knows(potential)

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        return SplineHybrid.why_not(potential)

    def atomic_answers(
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
        near = near.within(min(near.cutoff, s.model.cutoff)).without(s.model.absent_pairs)
        tables = self._tables(s, trains, types)
        parts, report = self._parts(s, near)
        if check and self.potential.check_neighbors(report, near.system, neighbors, self.r_min):
            spec = s.model.descriptor.spec
            near = self.potential.truncated(near).select(spec.sel, mixed=spec.mixed)
            parts, _ = self._parts(s, near)
        features = []
        for part, found in zip(s.members, parts, strict=True):
            if isinstance(part, SplineSum):
                t = part.t(found, next(tables), near.system)
                features.append(part.descriptor.contract(t, near))
            else:
                features.append(found)
        return s.model.finish(s.model.fitted(joined(features), near, fparam, aparam), near.types), report

    def _tables(self, s: Any, trains: bool, types: tuple[int, ...] | None) -> Iterator[torch.Tensor]:
        """Of each sum."""
        if trains:
            self._hold(s, [])
            return iter([part.table() for part in s.sums])
        tables = self.potential.cached_for_weights(
            "table", lambda: [part.fixed_table() for part in s.sums], types
        )
        self._hold(s, tables)
        return iter(tables)

    @staticmethod
    def _parts(s: Any, near: Neighborhood) -> tuple[list[Any], NeighborReport]:
        """The moments of each sum, and the features of other parts."""
        if isinstance(s, SplineModel):
            moments, report = s.moments(near)
            return [moments], report
        found: list[torch.Tensor] = []
        within: list[torch.Tensor] = []
        nearest, widest = None, 0.0
        for part in s.members:
            d = part.descriptor if isinstance(part, SplineSum) else part
            own = near.restrict_to_part(d.spec, mixed=s.spec.mixed) if near.truncates else near
            if isinstance(part, SplineSum):
                moments, report = part.moments(own, s.absent(part, own))
                found.append(moments)
            else:
                report = near.report(d.neighbors)
                found.append(part(shared(part, near, mixed=s.spec.mixed)))
            within += report.within
            if d.cutoff > widest:
                nearest, widest = report.nearest, d.cutoff
        assert nearest is not None
        return found, NeighborReport(tuple(within), nearest)


def why_not_rows(potential: EvaluationContext) -> str | None:
    """Why the passes that are written for rows of the environment matrix have not the sums of a model."""
    plain = any(one.descriptor.plain for one in sums_of(potential.model))
    return "the passes are written for rows of the environment matrix, and here are none" if plain else None


def unfused_evaluator(potential: EvaluationContext) -> Autograd:
    """The separate ops of a model; kept from step to step."""
    found: Autograd = potential.evaluator("differentiate")
    return found
