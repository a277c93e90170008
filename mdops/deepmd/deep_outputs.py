"""Models of other outputs than energies, with the arguments and results of DeePMD-kit's `deepmd.infer`."""

from typing import Any

import numpy as np

from mdops.deepmd.deep_eval import DeepEval
from mdops.errors import UnsupportedModelError
from mdops.flags import require_flags


class DeepTensor(DeepEval):
    """A model of dipoles or polarizabilities."""

    def eval(
        self,
        coords: Any,
        cells: Any,
        atom_types: Any,
        atomic: bool = True,
        fparam: Any = None,
        aparam: Any = None,
        mixed_type: bool = False,
        charge_spin: Any = None,
    ) -> np.ndarray:
        """(F, n, W) of the atoms, 0 for types that have none, or with `atomic` False (F, W) of the systems; arguments
        as of `DeepPot.eval`."""
        require_flags(atomic=atomic)
        frames = self._frames(coords, cells, atom_types, fparam, aparam, mixed_type, charge_spin)
        return self._outputs(frames)[1 if atomic else 0]

    def eval_full(
        self,
        coords: Any,
        cells: Any,
        atom_types: Any,
        atomic: bool = False,
        fparam: Any = None,
        aparam: Any = None,
        mixed_type: bool = False,
        charge_spin: Any = None,
    ) -> tuple[np.ndarray, ...]:
        """With derivatives; arguments as of `DeepPot.eval`.

        Returns:
            tensor (F, W), and minus its derivatives: force (F, W, n, 3) and virial (F, W, 9); with `atomic` also
            atom_tensor (F, n, W) and atom_virial (F, W, n, 9).

        Raises:
            UnsupportedModelError: the model has no derivatives, as of polarizabilities.
        """
        output = self.potential.model.outputs[0]
        if not output.differentiated:
            raise UnsupportedModelError(
                f"eval_full gives derivatives, which this model of {output.name} has not: use eval"
            )
        require_flags(atomic=atomic)
        frames = self._frames(coords, cells, atom_types, fparam, aparam, mixed_type, charge_spin)
        (f, n), (w,) = frames.types.shape, output.shape
        shapes = {output.name: (f, w), "forces": (f, n, w, 3), "virial": (f, w, 9)}
        if atomic:
            shapes |= {output.atom_name: (f, n, w), "atom_virial": (f, n, w, 9)}
        found = self._answers(frames, shapes, atom_virial=atomic)
        return tuple(x.swapaxes(1, 2) if x.ndim == 4 else x for x in found)

    @property
    def output_tensor_name(self) -> str:
        """DeePMD-kit's name of the output."""
        return {"polarizability": "polar"}.get(str(self.OUTPUT), str(self.OUTPUT))


class DeepDipole(DeepTensor):
    """`DeepDipole("model.dp").eval(coords, cells, atom_types)`: dipoles, e A, W = 3."""

    OUTPUT = "dipole"


class DeepPolar(DeepTensor):
    """`DeepPolar("model.dp").eval(coords, cells, atom_types)`: polarizabilities, W = 9, row by row."""

    OUTPUT = "polarizability"


class DeepGlobalPolar(DeepPolar):
    """As DeepPolar, but those of the systems unless `atomic` is True."""

    def eval(
        self, coords: Any, cells: Any, atom_types: Any, atomic: bool = False, *more: Any, **named: Any
    ) -> np.ndarray:
        return super().eval(coords, cells, atom_types, atomic, *more, **named)


class DeepValues(DeepEval):
    """A model of outputs that are invariant under rotations."""

    def eval(
        self,
        coords: Any,
        cells: Any,
        atom_types: Any,
        atomic: bool = False,
        fparam: Any = None,
        aparam: Any = None,
        mixed_type: bool = False,
        charge_spin: Any = None,
    ) -> tuple[np.ndarray, ...]:
        """((F, W),) of the systems, with `atomic` also (F, n, W) of the atoms; arguments as of `DeepPot.eval`."""
        require_flags(atomic=atomic)
        found = self._outputs(
            self._frames(coords, cells, atom_types, fparam, aparam, mixed_type, charge_spin)
        )
        return found if atomic else found[:1]


class DeepDOS(DeepValues):
    """`DeepDOS("model.dp").eval(coords, cells, atom_types)`: densities of states at W energies."""

    OUTPUT = "dos"

    def get_numb_dos(self) -> int:
        """W."""
        return self.potential.model.outputs[0].shape[0]

    @property
    def numb_dos(self) -> int:
        """W."""
        return self.get_numb_dos()


class DeepPopulation(DeepValues):
    """`DeepPopulation("model.dp").eval(coords, cells, atom_types)`: electrons of atoms, spin up and down.

    `eval` returns ((F, n, 2),) whatever `atomic` is."""

    OUTPUT = "population"


class DeepProperty(DeepValues):
    """`DeepProperty("model.dp").eval(coords, cells, atom_types)`: a property of W components under its own name."""

    OUTPUT = ""

    def get_task_dim(self) -> int:
        """W."""
        return self.potential.model.outputs[0].shape[0]

    def get_var_name(self) -> str:
        """The name of the property."""
        return self.potential.model.outputs[0].name

    def get_intensive(self) -> bool:
        """Whether a system's value is the mean over its atoms, not the sum."""
        return self.potential.model.outputs[0].intensive

    @property
    def task_dim(self) -> int:
        """W."""
        return self.get_task_dim()
