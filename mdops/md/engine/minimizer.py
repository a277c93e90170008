"""Relaxations of structures, one or many side by side."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ase import Atoms

from mdops.errors import InputError
from mdops.flags import require_kinds
from mdops.md.engine.fire import DONE, FORCE, STEPS, Fire
from mdops.md.engine.frame import BatchFrame, Recording, to_host
from mdops.md.engine.propagators import Propagator
from mdops.md.engine.restraints import Restraints
from mdops.md.engine.simulation import Simulation
from mdops.md.engine.state import State
from mdops.md.engine.structures import is_list_of_atoms
from mdops.md.guard import Guard, UnstableRunError
from mdops.md.options import EnsembleSettings, Relaxation
from mdops.potential import Potential


class Minimizer(Simulation[Sequence[Atoms], BatchFrame]):
    """FIRE for S structures side by side, each as if it were alone (`mdops.md.engine.fire`): by the same steps as ASE's
    `FIRE`, and `FrechetCellFilter` where cells move, in blocks that check themselves (`Simulation`).

        minimizer = Minimizer(structures, mdops.load("model.dp"), Relaxation(fmax=0.01, cell="all"))
        for frames in minimizer.run(1000, every=10):
            print(frames.step, minimizer.largest_force.max())
        relaxed = minimizer.structures()

    A structure that has converged stays as it is; when all have, `run` ends. Atoms with ASE's `FixAtoms` stay where
    they are; other constraints are refused. `momenta` of frames are the minimiser's velocities.
    """

    _may_fix = True

    def __init__(
        self,
        structures: Sequence[Atoms],
        potential: Potential | Sequence[Potential],
        relaxation: Relaxation | None = None,
        *,
        skin: float = 0.5,
        graphs: bool = True,
        step: int = 0,
        fparam: Any = None,
        aparam: Any = None,
        velocities: np.ndarray | None = None,
        restraints: Sequence[Any] | None = None,
    ) -> None:
        """Begins at rest.

        Args:
            relaxation: the target; `Relaxation()` by default.
            velocities: (N, 3), the minimiser's own, to continue a frame (`momenta`) with its `inner`.
            structures, potential, skin, graphs, step, fparam, aparam, restraints: as of `Simulation`; no tethers where
                cells move.

        Raises:
            InputError: as `Simulation`; constraints other than FixAtoms; a moving cell that is not periodic in three
                directions or has fixed atoms.
        """
        self.relaxation = Relaxation() if relaxation is None else relaxation
        require_kinds(relaxation=(self.relaxation, Relaxation))
        self._originals = self._frames(structures)
        starts = np.cumsum([0, *map(len, self._originals)])
        moving = np.zeros((starts[-1], 3)) if velocities is None else velocities
        at_rest = [
            _with_momenta(atoms, moving[first:last])
            for atoms, first, last in zip(self._originals, starts[:-1], starts[1:], strict=True)
        ]
        super().__init__(
            at_rest,
            potential,
            EnsembleSettings("nve"),
            skin=skin,
            graphs=graphs,
            step=step,
            fparam=fparam,
            aparam=aparam,
            restraints=restraints,
        )

    def _frames(self, structures: Sequence[Atoms]) -> list[Atoms]:
        if not is_list_of_atoms(structures):
            raise InputError("the minimiser takes a list of ase.Atoms")
        if self.relaxation.cell != "fixed":
            for s, atoms in enumerate(structures):
                name = f"system {s}: " if len(structures) > 1 else ""
                if not atoms.pbc.all():
                    raise InputError(
                        f"{name}a cell can relax only where it is periodic in three directions; pbc is {atoms.pbc}"
                    )
                if atoms.constraints:
                    raise InputError(f"{name}the cell of a structure with fixed atoms cannot relax")
        return list(structures)

    def _moves_cells(self, physics: EnsembleSettings) -> bool:
        return self.relaxation.cell != "fixed"

    def _of_each(self, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        return values

    def _restrained(self, restraints: Sequence[Any]) -> Restraints:
        found = super()._restrained(restraints)
        if self.relaxation.cell != "fixed" and found.tethered.any():
            raise InputError("a tether holds atoms at fixed positions, which a relaxing cell would move")
        return found

    def _make_guard(self) -> Guard:
        return _RelaxationGuard(1.0, None)

    def _make_propagator(self) -> Propagator:
        s = self._structures
        return Fire(self.relaxation, s.cells, np.diff(s.starts), self.potential.device)

    def _start(self, *state: Any) -> None:
        super()._start(*state)
        self._judge()

    def _judge(self) -> None:
        propagator = self._propagator
        assert isinstance(propagator, Fire)
        propagator.judge(self._state)

    @property
    def inner(self) -> dict[str, np.ndarray]:
        return super().inner

    @inner.setter
    def inner(self, values: dict[str, np.ndarray]) -> None:
        Simulation.inner.fset(self, values)  # type: ignore[attr-defined]
        self._judge()

    def _rests(self) -> bool:
        return bool(self._state.eta[:, DONE].all())

    @property
    def converged(self) -> np.ndarray:
        """(S,) bool."""
        return self._column(DONE) > 0

    @property
    def steps(self) -> np.ndarray:
        """(S,) int, of each structure."""
        return self._column(STEPS).astype(int)

    @property
    def largest_force(self) -> np.ndarray:
        """(S,), eV/A, as `Relaxation.fmax` has it."""
        return self._column(FORCE)

    def _column(self, k: int) -> np.ndarray:
        column: np.ndarray = self._state.eta[:, k].cpu().numpy().copy()
        return column

    def structures(self, frame: BatchFrame | None = None) -> list[Atoms]:
        """The structures now, or in a frame, with energies, forces and stress; with their initial velocities and
        constraints."""
        now = self.frame() if frame is None else frame
        relaxed = []
        for atoms, own in zip(self._originals, now, strict=True):
            found = own.atoms(atoms)
            del found.arrays["momenta"]
            if atoms.has("momenta"):
                found.set_array("momenta", atoms.arrays["momenta"], float, (3,))
            relaxed.append(found)
        return relaxed

    def _give(self, frame: BatchFrame) -> BatchFrame:
        return frame

    def _record(self, step: int) -> Recording:
        return _Recording(step, self._state, None, self._inverse, self._structures.starts)


class _Recording(Recording):
    """With the minimiser's results of each structure."""

    def __init__(
        self, step: int, state: State, bath: torch.Tensor | None, inverse: torch.Tensor, starts: np.ndarray
    ) -> None:
        super().__init__(step, state, bath, inverse, starts)
        self._eta = to_host(state.eta)

    def frame(self) -> BatchFrame:
        eta = self._eta.numpy()
        converged, largest = eta[:, DONE] > 0, eta[:, FORCE].copy()
        return dataclasses.replace(super().frame(), converged=converged, largest_force=largest)


class _RelaxationGuard(Guard):
    def _stop(self, step: int, what: str) -> UnstableRunError:
        return UnstableRunError(
            f"the relaxation failed at step {step}: {what}. Look at the structure it began with, and whether the model "
            "was trained for structures like it."
        )


def _with_momenta(atoms: Atoms, momenta: np.ndarray) -> Atoms:
    copy = atoms.copy()
    copy.set_momenta(momenta, apply_constraint=False)
    return copy
