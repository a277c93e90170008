"""A step of a descriptor of sums on a GPU by ops without a graph, for models that the one op of a step does not take
there: float64 (`mdops.evaluators.fused`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from mdops.evaluators.autograd import forces_and_virials
from mdops.evaluators.base import Answers, Evaluator
from mdops.evaluators.fused import scale_and_shift, why_not_net
from mdops.evaluators.moment_energy import blank_moments, moment_rows
from mdops.evaluators.splined import LayerTensors, SplineModel, SplineModels, composed, why_not_rows
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.ops import NeighborList, axis_product, mlp_value_and_gradient
from mdops.system import System

if TYPE_CHECKING:
    from mdops.potential import Potential


class MomentSteps(Evaluator):
    name = "moment steps"
    summary = "spline moments, features, nets and forces by an op each"
    cost = "autograd through spline moments takes several times as long"
    devices = ("cuda",)
    packs_weights = True

    def __init__(self, potential: "Potential") -> None:
        super().__init__(potential)
        assert potential.grid is not None
        self.r_min = potential.grid.r_min
        self._models = SplineModels(potential)
        self._constants: dict[tuple[int, ...] | None, _Constants] = {}

    @classmethod
    def knows(cls, potential: "Potential") -> bool:
        return SplineModel.knows(potential)

    @classmethod
    def why_not(cls, potential: "Potential") -> str | None:
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
            if types not in self._constants:
                self._constants[types] = _Constants(self._models.of(types))
            constants = self._constants[types]
            s = constants.splines
            atoms = system.atoms_of_types(s.model.ntypes)
            kinds = [atoms[t] for t in s.kinds.numbers]
            near = Neighborhood.of(system, neighbors, self.potential.cutoff, self.potential.dtype)
            moments, report = s.moments(near)
            if check and self.potential.check_neighbors(report, system, neighbors, self.r_min):
                # Which drops neighbours.
                return composed(self.potential)(system, neighbors, fparam, aparam, atom_virial=atom_virial)
            extra = s.extra_inputs(system, fparam, aparam)
            energy, gradient = constants.energies(moments, extra, kinds)
            gradient = s.gradient(gradient, near)
            answers = forces_and_virials(gradient, near, atom_virial=atom_virial)
        return {"atom_energy": energy} | answers, report


class _Constants:
    """What a step takes of a model for atoms of some types: tables (n, F * B, M), nets, and what is made of their
    outputs."""

    def __init__(self, splines: SplineModel) -> None:
        self.splines = splines
        dtype = splines.mean.dtype
        self.tables = (splines.fixed_table() / splines.descriptor.slots).flatten(1, 2)
        self.nets = [[layer.of(dtype) for layer in layers] for layers in splines.fitting_layers(double=True)]
        self.scale, self.shift = scale_and_shift(splines)
        hidden = splines.fitting.net(0).layers[:-1]
        self.options: dict[str, Any] = {
            "activation": [layer.activation_name for layer in hidden],
            "residual": [layer.adds_input for layer in hidden],
        }

    def energies(
        self, moments: torch.Tensor, extra: torch.Tensor, kinds: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Energies (N,), float64, and their gradients by A, (N, F * B, 4), from A. `kinds`: the atoms of each type."""
        energy = torch.zeros(len(moments), dtype=torch.float64, device=moments.device)
        gradient = blank_moments(moments, kinds)
        of_net = len(kinds) // len(self.nets)  # types
        for n, layers in enumerate(self.nets):
            types = range(n * of_net, (n + 1) * of_net)
            t = [(moment_rows(moments, kinds[k]) @ self.tables[k]).unflatten(0, (-1, 4)) for k in types]
            grads = self._net(n, layers, t, extra, [kinds[k] for k in types], energy)
            for k, own, grad in zip(types, t, grads, strict=True):
                by_t = torch.ops.mdops.axis_product_backward(grad.contiguous(), own) * self.scale[n].to(
                    own.dtype
                )
                rows = by_t.flatten(0, 1) @ self.tables[k].t()
                gradient[kinds[k]] = rows.unflatten(0, (-1, 4)).transpose(1, 2)
        return energy, gradient

    def _net(
        self,
        n: int,
        layers: list[LayerTensors],
        t: Sequence[torch.Tensor],
        extra: torch.Tensor,
        kinds: Sequence[torch.Tensor],
        energy: torch.Tensor,
    ) -> Sequence[torch.Tensor]:
        """Puts the energies of one net's atoms into `energy`, and gives their gradients by the features."""
        axis = self.splines.descriptor.axis_neuron
        features = [axis_product(own, axis) for own in t]
        width = features[0].shape[1]
        if extra.shape[1]:
            features = [torch.cat([x, extra[atoms]], 1) for x, atoms in zip(features, kinds, strict=True)]
        x = features[0] if len(features) == 1 else torch.cat(features)
        value, grad = mlp_value_and_gradient(
            x,
            [layer.weight for layer in layers],
            [layer.bias for layer in layers],
            timesteps=[layer.timestep for layer in layers[:-1]],
            **self.options,
        )
        outputs = value[:, 0].double() * self.scale[n]
        counts = [len(atoms) for atoms in kinds]
        for k, (atoms, own) in enumerate(zip(kinds, outputs.split(counts), strict=True)):
            energy[atoms] = own + self.shift[n * len(kinds) + k]
        return grad[:, :width].split(counts)
