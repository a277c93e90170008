"""The base of all evaluators: one kind of request, one check of the neighbours, one kind of answer."""

import dataclasses
from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import Any, ClassVar

import torch

from mdops.evaluators.context import Answers, EvaluationContext
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.ops import NeighborList, pair_forces
from mdops.system import System

Found = tuple[Answers, NeighborReport]


@dataclasses.dataclass(slots=True)
class Step:
    """A request to an evaluator.

    Attributes:
        check: whether the evaluator judges the neighbours; False: the caller has judged them.
        atom_virial: also answer with atomic virials, (N, 3, 3).
        weight: (N,), float64, of each atom in the sum of energies whose derivatives are forces and virials; 1 by
            default. The returned energies are not weighted.
        own: return energies of so many atoms, the first; the others are their neighbours, and may get zeros. None: of
            all. Only for models whose layers pass no messages.
        forces: answer with forces and virials of the output that has them; create_graph: make them differentiable.
    """

    system: System
    neighbors: NeighborList
    fparam: torch.Tensor | None = None
    aparam: torch.Tensor | None = None
    check: bool = True
    atom_virial: bool = False
    weight: torch.Tensor | None = None
    own: int | None = None
    forces: bool = True
    create_graph: bool = False

    def of_atoms(self, index: slice | torch.Tensor) -> "Step":
        """The same request with the parameters and weights of some atoms."""
        aparam, weight = self.aparam, self.weight
        return dataclasses.replace(
            self,
            aparam=aparam[index] if aparam is not None and aparam.dim() > 1 else aparam,
            weight=None if weight is None else weight[index],
            own=None,
        )


class Evaluator(ABC):
    """Computes the answers of a model, as it was when the evaluator was made, from atoms and their neighbours.

    Attributes:
        name: in messages; made_for: the models that it `knows`.
        summary: what it does, in a few words.
        cost: how a step by the next evaluator compares, for models that cannot use this one.
        chooses_knots: whether it makes splines with knots that it chooses itself, for the types in the systems.
        packs_weights: whether it has to be made anew when a weight changes.
        captures: whether it never waits for the device if `check` is False and `System.atoms_by_type` is known, and for
            atomic virials of messages `NeighborList.ghosts`, so that a CUDA graph can capture it.
        devices: the types of devices that it supports.
        energies_alone: whether its only answers are energies, forces and virials.
        differentiable: whether answers have graphs.
        weighs: whether it takes `Step.weight`.
        r_min: distances below are extrapolated, A.
    """

    name: ClassVar[str]
    made_for: ClassVar[str] = "every model"
    summary: ClassVar[str]
    cost: ClassVar[str] = ""
    chooses_knots: bool = False
    packs_weights: ClassVar[bool] = False
    captures: bool = False
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    energies_alone: ClassVar[bool] = True
    differentiable: ClassVar[bool] = False
    weighs: ClassVar[bool] = False
    r_min: float = 0.0

    def __init__(self, potential: EvaluationContext) -> None:
        self.potential = potential
        self.r_min = potential.r_min or 0.0

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        """Whether it supports this kind of model at all."""
        return True

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        """Why it cannot evaluate this model in its current state and on its device; None if it can."""
        if not cls.knows(potential):
            return f"it is for {cls.made_for}, and this is {potential.kind}"
        if cls.energies_alone and not potential.answers_energies:
            return f"it is for energies, and this model answers {', '.join(o.name for o in potential.model.outputs)}"
        if potential.device.type not in cls.devices:
            return f"it runs on {cls.devices[0]}, and the model is on {potential.device}"
        return cls.limit(potential)

    @classmethod
    def limit(cls, potential: EvaluationContext) -> str | None:
        """Why it cannot evaluate a model of a kind that it supports; None if it can."""
        return None

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        """Its kernels, if not the prebuilt ones of the ops (mdops.jit)."""
        return None

    def __call__(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        **asked: Any,
    ) -> Found:
        """atom_energy (N,), forces (N, 3) and virial (S, 3, 3), eV and A, float64, or the model's other outputs; and
        the report on the neighbours. `asked` are further attributes of `Step`."""
        return self.asked(Step(system, neighbors, fparam, aparam, **asked))

    def asked(self, step: Step) -> Found:
        """Answers this request."""
        if step.weight is not None and not self.weighs:
            raise TypeError(f"the evaluator {self.name} takes no weights of atoms")
        with nullcontext() if self.differentiable or not torch.is_grad_enabled() else torch.no_grad():
            found = self.answer(step)
            if found is None:  # the model's separate ops answer; they are kept from step to step
                instead = self.potential.own_evaluator("differentiate")
                found = instead.answer(dataclasses.replace(step, create_graph=self.differentiable))
        assert found is not None
        return found

    @abstractmethod
    def answer(self, step: Step) -> Found | None:
        """The result of `__call__`; None if neighbours have to be dropped, or if it does not support these types."""

    def drops(self, step: Step, report: NeighborReport) -> bool:
        """Whether some neighbours have to be dropped; the only place where an evaluator has them judged
        (`mdops.models.judge`)."""
        return step.check and self.potential.check_neighbors(report, step.system, step.neighbors, self.r_min)

    def of_op(self, step: Step, report: NeighborReport, *found: torch.Tensor) -> Found | None:
        """The results of an op of a whole step: energies, forces, virials, and atomic virials if they were asked for;
        None if neighbours have to be dropped."""
        if self.drops(step, report):
            return None
        names = ("atom_energy", "forces", "virial", "atom_virial")[: 4 if step.atom_virial else 3]
        return dict(zip(names, found, strict=False)), report

    def neighborhood(self, system: System, neighbors: NeighborList) -> Neighborhood:
        """The pairs of a list for this model."""
        return Neighborhood.of(system, neighbors, self.potential.cutoff, self.potential.dtype)


def forces_and_virials(gradient: torch.Tensor, near: Neighborhood, *, atom_virial: bool) -> Answers:
    """Forces and virials from an energy's gradient by the pair vectors, (N, K, 3)."""
    forces, virial, of_atoms = pair_forces(
        gradient,
        near.displacements,
        near.system.batch,
        near.neighbors,
        near.system.count,
        of_atoms=atom_virial,
    )
    answers = {"forces": forces, "virial": virial}
    # DeePMD-kit has the force's component first (the sum over atoms is symmetric).
    return answers | {"atom_virial": of_atoms.transpose(1, 2)} if atom_virial else answers
