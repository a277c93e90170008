"""A step of a descriptor of sums on a GPU by ops without a graph, for models that the one op of a step does not take
there: float64 (`mdops.evaluators.fused`)."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from mdops.evaluators.autograd import forces_and_virials
from mdops.evaluators.base import Answers, Evaluator
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.fused import scale_and_shift, why_not_net
from mdops.evaluators.of_types import OfTypes
from mdops.evaluators.splined import SplineModel, SplineModels, unfused_evaluator, why_not_rows
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.ops import NeighborList, axis_product, mlp_value_and_gradient, moment_product
from mdops.system import System
from mdops.tracing import is_exported


class MomentSteps(Evaluator):
    name = "moment steps"
    summary = "spline moments, features, nets and forces by an op each"
    cost = "autograd through spline moments takes several times as long"
    devices = ("cuda",)
    packs_weights = True
    captures = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        assert potential.grid is not None
        self.r_min = potential.grid.r_min
        self._models = SplineModels(potential)
        self._constants = OfTypes(lambda types: _Constants(self._models.of(types)))

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return SplineModel.knows(potential)

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if potential.device.type != "cuda":
            return f"it is made for NVIDIA GPUs, and the model is on {potential.device}"
        return SplineModel.why_not(potential) or why_not_rows(potential) or why_not_net(potential)

    def __call__(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        check: bool = True,
        atom_virial: bool = False,
    ) -> tuple[Answers, NeighborReport]:
        types = self._models.types(system)
        with torch.no_grad():
            constants = self._constants(types)
            s = constants.splines
            atoms = system.atoms_of_types(s.model.ntypes)
            kinds = [atoms[t] for t in s.kinds.numbers]
            near = Neighborhood.of(system, neighbors, self.potential.cutoff, self.potential.dtype)
            moments, report = s.moments(near)
            if check and self.potential.check_neighbors(report, system, neighbors, self.r_min):
                # Which drops neighbours.
                return unfused_evaluator(self.potential)(
                    system, neighbors, fparam, aparam, atom_virial=atom_virial
                )
            extra = s.extra_inputs(system, fparam, aparam)
            energy, gradient = constants.energies(moments, extra, s.types(system), kinds)
            gradient = s.gradient(gradient, near)
            answers = forces_and_virials(gradient, near, atom_virial=atom_virial)
        return {"atom_energy": energy} | answers, report


class _Constants:
    """What a step takes of a model for atoms of some types: tables (n, F * B, M), nets, and what is made of their
    outputs."""

    _MOST_STREAMS = 4

    def __init__(self, splines: SplineModel) -> None:
        self.splines = splines
        dtype, device = splines.mean.dtype, splines.mean.device
        self.tables = (splines.fixed_table() / splines.descriptor.slots).flatten(1, 2).contiguous()
        # Contiguous, as the op would copy what is not at every step.
        self.nets = [
            [layer.of(dtype)._replace(weight=layer.weight.to(dtype).contiguous()) for layer in layers]
            for layers in splines.fitting_layers(double=True)
        ]
        self.scale, self.shift = scale_and_shift(splines)
        # With each net's scale, for the way back.
        self.scaled = self.tables * self.scale.to(dtype)[:, None, None]
        hidden = splines.fitting.net(0).layers[:-1]
        self.options: dict[str, Any] = {
            "activation": [layer.activation_name for layer in hidden],
            "residual": [layer.adds_input for layer in hidden],
        }
        # One net's products leave a GPU half idle where there are some thousand atoms.
        others = min(len(self.nets), self._MOST_STREAMS) - 1 if device.type == "cuda" else 0
        self.streams = [torch.cuda.Stream(device) for _ in range(others)]

    def energies(
        self, moments: torch.Tensor, extra: torch.Tensor, types: torch.Tensor, kinds: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Energies (N,), float64, and their gradients by A, (N, F * B, 4), from A. `kinds`: the atoms of each type."""
        atoms = torch.cat(list(kinds))
        rows, of_rows = atoms.int(), types.index_select(0, atoms).long()
        t = moment_product(moments, self.tables, rows, types)
        more = extra.index_select(0, atoms) if extra.shape[1] else None
        shares = len(self.nets) == 1
        counts = [len(t)] if shares else [len(own) for own in kinds]
        values, by_t = self._in_streams(t.split(counts), None if more is None else more.split(counts))
        scale = self.scale if shares else self.scale.index_select(0, of_rows)
        energy = moments.new_zeros(len(moments), dtype=torch.float64)
        energy.index_copy_(0, atoms, values[:, 0].double() * scale + self.shift.index_select(0, of_rows))
        return energy, torch.ops.mdops.moment_product_backward(by_t, self.scaled, rows, types)

    def _in_streams(
        self, t: Sequence[torch.Tensor], extra: Sequence[torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs of all nets for their atoms' T, and the gradients by T, one net after the other in the results.

        Every stream waits for this one first, so that what it had given back may be in use here until then.
        """
        streams: list[Any] = [] if is_exported() else self.streams
        here = torch.cuda.current_stream(t[0].device) if streams else None
        for stream in streams:
            stream.wait_stream(here)
        parts = []
        for n, own in enumerate(t):
            k = n % (len(streams) + 1)
            with torch.cuda.stream(streams[k - 1]) if k else nullcontext():
                parts.append(self._net(n, own, None if extra is None else extra[n]))
        for stream in streams:
            here.wait_stream(stream)  # type: ignore[union-attr]
        values, by_t = zip(*parts, strict=True)
        return (values[0], by_t[0]) if len(parts) == 1 else (torch.cat(values), torch.cat(by_t))

    def _net(self, n: int, t: torch.Tensor, extra: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs of one net, and their gradients by T."""
        axis, layers = self.splines.descriptor.axis_neuron, self.nets[n]
        value, grad = mlp_value_and_gradient(
            axis_product(t, axis, extra),
            [layer.weight for layer in layers],
            [layer.bias for layer in layers],
            timesteps=[layer.timestep for layer in layers[:-1]],
            **self.options,
        )
        return value, torch.ops.mdops.axis_product_backward(grad, t, axis)
