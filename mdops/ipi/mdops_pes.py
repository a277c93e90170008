"""What i-PI loads as a custom PES: energies, forces and virials of one structure, or of a batch of beads at once."""

from collections.abc import Sequence
from typing import Any

import ase.io
import numpy as np
import torch
from ase import Atoms
from ipi.pes.dummy import Dummy_driver
from ipi.utils.units import unit_to_internal, unit_to_user

from mdops.errors import InputError
from mdops.inputs import check_models
from mdops.loading import load
from mdops.system import System, as_numbers, atom_spins, element_types
from mdops.verlet import VerletList

__DRIVER_NAME__ = "mdops"
__DRIVER_CLASS__ = "MDOpsDriver"

_PARAMETERS = ("model", "template", "device", "dtype", "skin", "overflow", "matmul", "fparam", "head")

Answer = tuple[float, np.ndarray, np.ndarray, str]


class MDOpsDriver(Dummy_driver):
    """A model for i-PI, with i-PI's atomic units and cells of columns.

    All structures of a batch go through the model in one call, by one neighbour list that is kept while it holds.

    Parameters (of `<ffdirect>`, or `-o` of `i-pi-driver-py`):
        model: a model file.
        template: a file that ASE reads, of the elements in i-PI's order, and of the periodic directions; for a model
            with magnetic moments also of these (`initial_magmoms`), which stay as they are.
        device, dtype, skin (A), overflow, matmul: as of `mdops.calculator.MDOps`.
        fparam: frame parameters, a number or several separated by ";".
        head: which model of a file of several.

    Raises:
        InputError: there is no such parameter, the model does not know an element, the template has no moments, or
            i-PI sends another number of atoms than the template has.
        ModelFileError, UnsupportedModelError: as `mdops.load`.
    """

    def __init__(
        self,
        model: str,
        template: str,
        device: str = "cpu",
        dtype: str = "float32",
        skin: float = 1.0,
        overflow: Any = "error",
        matmul: Any = "float32",
        fparam: Any = None,
        head: str | None = None,
        *more: Any,
        verbose: bool = False,
        verbosity: Any = None,  # i-PI adds it to the parameters of <ffdirect>
        **unknown: Any,
    ) -> None:
        wrong = [*map(repr, unknown), *(f"{value!r}, which has no name" for value in more)]
        if wrong:
            raise InputError(f"mdops has no parameter {wrong[0]} for i-PI: it has {', '.join(_PARAMETERS)}")
        self.potential = load(model, head=head, device=device, dtype=dtype, overflow=overflow, matmul=matmul)
        check_models([self.potential])
        atoms = ase.io.read(template, index=-1)
        assert isinstance(atoms, Atoms)
        types = element_types(atoms.get_chemical_symbols(), self.potential.type_map)
        self._types = torch.as_tensor(types, dtype=torch.int32, device=self.potential.device)
        self._pbc = torch.as_tensor(atoms.pbc, device=self.potential.device)
        self._spins = None
        if self.potential.model.spin is not None:
            self._spins = torch.as_tensor(atom_spins([atoms]), device=self.potential.device)
        self._skin, self._fparam = float(skin), _numbers(fparam)
        self._parts: dict[int, tuple[VerletList, torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        super().__init__(verbose=verbose)

    def compute(self, cell: Any, pos: Any) -> Any:
        """What i-PI asks: of one structure energy, forces (n, 3), virial (3, 3) and nothing further, or a list of
        these."""
        several = isinstance(cell, list)
        answers = self.answers(cell if several else [cell], pos if several else [pos])
        return answers if several else answers[0]

    def compute_structure(self, cell: np.ndarray, pos: np.ndarray) -> Answer:
        """Of one structure."""
        return self.answers([cell], [pos])[0]

    def answers(self, cells: Sequence[np.ndarray], positions: Sequence[np.ndarray]) -> list[Answer]:
        """Of B structures, each of all atoms of the template."""
        n, count = len(self._types), len(cells)
        x = unit_to_user("length", "angstrom", np.stack([np.reshape(p, (-1, 3)) for p in positions]))
        if x.shape[1] != n:
            raise InputError(f"i-PI sends {x.shape[1]} atoms, and the template has {n}")
        h = unit_to_user("length", "angstrom", np.stack(cells).transpose(0, 2, 1))
        device = self.potential.device
        neighbors, types, pbc, batch = self._constant(count)
        system = System(
            torch.as_tensor(np.ascontiguousarray(x).reshape(-1, 3), device=device),
            types,
            torch.as_tensor(np.ascontiguousarray(h), device=device),
            pbc,
            batch,
        )
        fparam = None
        if self._fparam is not None:
            fparam = torch.as_tensor(np.tile(self._fparam, (count, 1)), device=device)
        spins = None if self._spins is None else self._spins.repeat(count, 1)
        answers = self.potential.evaluate_atoms(system, fparam, spins=spins, neighbors=neighbors)
        found = {name: value.cpu().numpy() for name, value in answers.items()}
        energy = unit_to_internal("energy", "electronvolt", found["energy"])
        forces = unit_to_internal("force", "ev/ang", found["forces"].astype(np.float64).reshape(count, n, 3))
        # i-PI's tensors have columns where ours have rows.
        virial = unit_to_internal("energy", "electronvolt", found["virial"].transpose(0, 2, 1))
        return [(float(energy[b]), forces[b], virial[b], "") for b in range(count)]

    def _constant(self, count: int) -> tuple[VerletList, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The list, types, pbc and batch of so many structures: i-PI's last batch of a step may be smaller."""
        if count not in self._parts:
            index = torch.arange(count, dtype=torch.int32, device=self._types.device)
            self._parts[count] = (
                VerletList(self.potential.cutoff, self._skin, ntypes=len(self.potential.type_map)),
                self._types.repeat(count),
                self._pbc.repeat(count, 1),
                index.repeat_interleave(len(self._types)),
            )
        return self._parts[count]


def _numbers(fparam: Any) -> np.ndarray | None:
    if fparam is None:
        return None
    parts = str(fparam).split(";") if isinstance(fparam, str) else np.atleast_1d(fparam)
    try:
        numbers = [float(part) for part in parts]
    except ValueError as error:
        raise InputError(f"fparam is {fparam!r}, expected numbers separated by ;") from error
    return as_numbers("fparam", numbers)
