"""What every way to evaluate a model has."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from mdops.evaluators.context import Answers, EvaluationContext
from mdops.models.neighborhood import NeighborReport
from mdops.ops import NeighborList
from mdops.system import System


class Evaluator(ABC):
    """A way from the atoms and their neighbours to the answers of a model as it was when the evaluator was made.

    Attributes:
        name: in messages.
        summary: what it does, in a few words.
        cost: how a step by the next evaluator compares, for those who cannot have this one.
        chooses_knots: whether it makes splines whose knots it chooses itself, for the types that come.
        packs_weights: whether it has to be made anew when a weight changes.
        captures: whether it never waits for the device where `check` is False and `System.atoms_by_type` is known, so
            that a CUDA graph can have it.
        devices: types of devices that it is made for.
        energies_alone: whether it has no answers but energies, forces and virials.
        r_min: distances below are extrapolated, A.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    cost: ClassVar[str] = ""
    chooses_knots: ClassVar[bool] = False
    packs_weights: ClassVar[bool] = False
    captures: bool = False
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    energies_alone: ClassVar[bool] = True
    r_min: float = 0.0

    def __init__(self, potential: EvaluationContext) -> None:
        self.potential = potential

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        """Whether it is made for this kind of model at all."""
        return True

    @classmethod
    @abstractmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        """Why it cannot evaluate this model where and as it is now; None if it can."""

    @classmethod
    def refusal(cls, potential: EvaluationContext) -> str | None:
        """`why_not`, or that the model answers something else than energies."""
        if cls.energies_alone and not potential.answers_energies:
            return f"it is for energies, and this model answers {', '.join(o.name for o in potential.model.outputs)}"
        return cls.why_not(potential)

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        """By which kernels, if not by the prebuilt ones of the ops (mdops.jit)."""
        return None

    @abstractmethod
    def __call__(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        check: bool = True,
    ) -> tuple[Answers, NeighborReport]:
        """atom_energy (N,), forces (N, 3) and virial (S, 3, 3), eV and A, float64, or what else the model answers; and
        what there is to say of the neighbours. With `check` the potential has judged that
        (`Potential.check_neighbors`). Those for simulation and for differentiation also take `atom_virial`, whether to
        give that, (N, 3, 3) (`Potential.evaluate`)."""
