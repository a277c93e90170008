"""A model's step as a program of PyTorch (`torch.export`), which runs without the model's Python code."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx

from mdops.errors import InputError, UnsupportedModelError
from mdops.evaluators.context import EvaluationContext
from mdops.models.charge_spin import charge_spin_defaults
from mdops.models.neighborhood import NeighborReport
from mdops.ops import NeighborList, neighbor_matrix
from mdops.system import CHARGES, MULTIPLICITIES, System
from mdops.tracing import exporting

_SYSTEMS, _ATOMS, _SLOTS = 5, 35, 11  # sizes of the example, which are the sizes of nothing else


class Step(nn.Module):
    """The results of `Potential.evaluate` from tensors; NaN where that would raise an error about the atoms."""

    def __init__(
        self,
        potential: EvaluationContext,
        capacity: int | None,
        angle_capacity: int | None,
        atom_virial: bool,
    ) -> None:
        super().__init__()
        # In a tuple, so that the program contains the evaluator's constants and nothing else of the model.
        self._held = potential, potential.evaluator()
        self.capacity, self.atom_virial = capacity, atom_virial
        self.angle_capacity = _angle_places(potential) if angle_capacity is None else angle_capacity
        self.parameters_taken = [name for name, size in potential.parameter_sizes.items() if size]
        self.conditions_taken = ["charge_spin"] if charge_spin_defaults(potential.model) else []
        self.conditions_taken += ["spins"] if potential.model.spin is not None else []

    @property
    def potential(self) -> EvaluationContext:
        return self._held[0]

    def forward(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Takes `input_names` in their order."""
        given = dict(zip(self.input_names, inputs, strict=True))
        cell, cutoff, spin = given["cell"], self.potential.cutoff, self.potential.model.spin
        pbc = given.get("pbc", torch.ones_like(cell[:, 0], dtype=torch.bool))  # used only by the list
        system = System(given["positions"], given["types"], cell, pbc, given["batch"])
        taken: dict[str, Any] = {name: given[name] for name in self.parameters_taken}
        if spin is not None:
            system = spin.system(system, given["spins"])
            taken |= {"aparam": spin.rows_of(taken["aparam"])} if "aparam" in taken else {}
        fits = None
        if self.capacity is None:
            pairs = NeighborList(given["neighbors"], given["images"], given["counts"], cutoff)
        else:
            at = system.positions, cell, pbc, system.batch, system.types
            ntypes = len(self.potential.type_map)
            neighbors, images, counts, needed = neighbor_matrix(*at, cutoff, ntypes, self.capacity)
            pairs = NeighborList(neighbors, images, counts, cutoff)
            fits = (needed[0] >= 0) & (needed[0] <= self.capacity)
        # The graph of messages has room for all places of the list, so that no size depends on values.
        atoms, slots = pairs.neighbors.shape
        most = slots if self.angle_capacity is None else torch.sym_min(slots, self.angle_capacity)
        pairs = pairs._replace(graph_room=(atoms * slots, atoms * most * most, atoms * most))
        condition = given.get("charge_spin")
        if condition is not None:
            charge, multiplicity = condition.unbind(1)
            known = [_clamped(charge, CHARGES), _clamped(multiplicity, MULTIPLICITIES)]
            system.charge_spin = torch.stack(known, 1)
        answers, report = self._held[1](system, pairs, **taken, check=False, atom_virial=self.atom_virial)
        answers = self.potential.with_sums({k: v.detach() for k, v in answers.items()}, system)
        answers = answers if spin is None else spin.of_atoms(answers)
        fine = self._judged(report)
        sizes = self.potential.model.graph_sizes(report.within)
        if sizes is not None:
            fine = fine & (sizes[:, 2] <= most).all()
        if condition is not None:
            fine = fine & (torch.stack(known, 1) == condition).all()
        fine = fine if fits is None else fine & fits
        return {name: torch.where(fine, value, torch.nan) for name, value in answers.items()}

    def _judged(self, report: NeighborReport) -> torch.Tensor:
        """A bool on the device: the result of `Potential.check_neighbors`."""
        least = self.potential.model.shortest
        fine = ((report.nearest > 0) & (report.nearest >= least)).all()
        if self.potential.overflow == "extend":
            return fine
        for within, spec in zip(report.within, self.potential.neighbors, strict=True):
            if spec.sel is not None:
                places = [sum(spec.sel)] if spec.mixed else spec.sel
                for column, most in enumerate(places):
                    fine = fine & (within[:, column] <= most).all()
        return fine

    @property
    def input_names(self) -> list[str]:
        lists = ["batch", "neighbors", "images", "counts"] if self.capacity is None else ["pbc", "batch"]
        return ["positions", "types", "cell", *lists, *self.parameters_taken, *self.conditions_taken]


def _clamped(values: torch.Tensor, known: range) -> torch.Tensor:
    """The values, rounded and clamped to the known whole numbers."""
    return values.nan_to_num().round().clamp(known[0], known[-1])


def _angle_places(potential: EvaluationContext) -> int | None:
    """The most neighbours of an atom that form angles, from the model's `sel`; None if that says nothing."""
    specs = potential.model.neighbors
    if potential.overflow != "error" or any(spec.sel is None for spec in specs):
        return None
    return _angle_neighbors(potential, [sum(spec.sel or ()) for spec in specs])


def _angle_neighbors(potential: EvaluationContext, within: Sequence[int]) -> int | None:
    """The number of neighbours of an atom that form angles, given the number within each cutoff; None: unknown."""
    ntypes = [1 if spec.mixed else len(potential.type_map) for spec in potential.model.neighbors]
    counts = [torch.full((1, n), count) for n, count in zip(ntypes, within, strict=True)]
    sizes = potential.model.graph_sizes(counts)
    return None if sizes is None else int(sizes[0, 2])


def export_program(
    potential: EvaluationContext,
    *,
    capacity: int | None = None,
    angle_capacity: int | None = None,
    atom_virial: bool = False,
) -> ExportedProgram:
    """See `Potential.export`."""
    potential.require_energies("an exported program")
    if capacity is None and potential.model.spin is not None and potential.model.spin.paired:
        raise InputError(
            "the model has virtual atoms for magnetic moments, whose neighbours a list of atoms lacks: give a "
            "capacity, so that the program finds them"
        )
    if potential.overflow == "truncate":
        raise InputError(
            "overflow='truncate' depends on the neighbours that are found, which an exported program does "
            "not support: load the model with overflow 'error' (NaN for too many neighbours) or 'extend' "
            "(keep all)"
        )
    if capacity is not None and capacity < 1:
        raise InputError(f"the capacity of the list is {capacity}, expected 1 or more neighbours per atom")
    if angle_capacity is not None and angle_capacity < 1:
        raise InputError(
            f"the capacity of angles is {angle_capacity}, expected 1 or more neighbours per atom that make angles"
        )
    if angle_capacity is not None and not _angle_neighbors(potential, [1] * len(potential.neighbors)):
        raise InputError(f"a capacity of angles is given, but {potential.kind} has no angles")
    own = _frozen(potential)
    with exporting(), torch.no_grad():
        step = Step(own, capacity, angle_capacity, atom_virial)
        example, sizes = _example(step)
        step(*example)  # makes what is cached with the weights, so that it is not part of the program
        # Forces are gradients. Only a trace below autograd contains their operations.
        with torch.fx.experimental._config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            traced = make_fx(step, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*example)
        _require_dynamic(traced, step, sizes)
        _name_inputs(traced, step.input_names)
        names = step.input_names
        named = dict(zip(names, example, strict=True))
        return torch.export.export(
            traced, (), named, dynamic_shapes=dict(zip(names, sizes, strict=True)), strict=False
        )


def _require_dynamic(traced: torch.fx.GraphModule, step: Step, sizes: Sequence[dict[int, Any]]) -> None:
    """Raises an error for a trace that is valid only for the example's sizes."""
    inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for name, node, free in zip(step.input_names, inputs, sizes, strict=True):
        shape = node.meta["val"].shape
        fixed = [k for k in free if not isinstance(shape[k], torch.SymInt) or shape[k].node.expr.is_number]
        if fixed:
            raise UnsupportedModelError(
                f"{step.potential.kind} cannot be exported: its operations depend on the size of `{name}` ({shape})"
            )


def _name_inputs(traced: torch.fx.GraphModule, names: Sequence[str]) -> None:
    inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, name in zip(inputs, names, strict=True):
        node.target = name
        node._rename(name)
    traced.recompile()


def _frozen(potential: EvaluationContext) -> EvaluationContext:
    """A copy whose weights are plain tensors, so that the program contains them as constants."""
    own = copy.deepcopy(potential).eval()
    for module in own.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = parameter.detach()  # type: ignore[assignment]
    return own


def _example(step: Step) -> tuple[tuple[torch.Tensor, ...], tuple[dict[int, Any], ...]]:
    """Example inputs, and which of their sizes may change."""
    potential, device = step.potential, step.potential.device
    spin, kinds = potential.model.spin, len(potential.type_map)
    elements = kinds if spin is None else spin.ntypes
    atoms, systems = Dim.DYNAMIC, Dim.DYNAMIC
    batch = torch.arange(_ATOMS, device=device) % _SYSTEMS
    apart = 2.0 * potential.cutoff * torch.arange(_ATOMS, dtype=torch.float64, device=device)
    rows = {0: atoms, 1: Dim.DYNAMIC}
    sizes = potential.parameter_sizes
    empty = torch.full((_ATOMS, _SLOTS), -1, dtype=torch.int32, device=device)
    every: dict[str, tuple[torch.Tensor, dict[int, Any]]] = {
        "positions": (apart[:, None].expand(-1, 3).contiguous(), {0: atoms}),
        "types": ((torch.arange(_ATOMS, device=device) % elements).int(), {0: atoms}),
        "cell": (torch.eye(3, dtype=torch.float64, device=device).repeat(_SYSTEMS, 1, 1), {0: systems}),
        "pbc": (torch.zeros(_SYSTEMS, 3, dtype=torch.bool, device=device), {0: systems}),
        "batch": (batch.sort().values.int(), {0: atoms}),
        "neighbors": (empty, rows),
        "images": (torch.zeros_like(empty), rows),
        "counts": (torch.zeros(_ATOMS, kinds, dtype=torch.int32, device=device), {0: atoms}),
        "fparam": (
            torch.zeros(_SYSTEMS, sizes.get("fparam", 0), dtype=torch.float64, device=device),
            {0: systems},
        ),
        "aparam": (
            torch.zeros(_ATOMS, sizes.get("aparam", 0), dtype=torch.float64, device=device),
            {0: atoms},
        ),
        "charge_spin": (torch.ones(_SYSTEMS, 2, dtype=torch.float64, device=device), {0: systems}),
        "spins": (torch.ones(_ATOMS, 3, dtype=torch.float64, device=device), {0: atoms}),
    }
    chosen = [every[name] for name in step.input_names]
    return tuple(x for x, _ in chosen), tuple(size for _, size in chosen)
