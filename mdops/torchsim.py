"""TorchSim's model interface: many systems in one evaluation (docs/how-to/torchsim.md).

model = MDOpsModel("model.dp", device="cuda")
torch_sim.integrate(systems, model, integrator=..., autobatcher=True, ...)
"""

import os
from typing import Any

import numpy as np
import torch
from ase.data import chemical_symbols
from torch_sim.models.interface import ModelInterface
from torch_sim.state import SimState

from mdops.errors import InputError
from mdops.flags import require_flags
from mdops.inputs import check_models
from mdops.loading import load
from mdops.potential import Matmul, Overflow, Potential
from mdops.system import System, as_numbers
from mdops.verlet import VerletList


class MDOpsModel(ModelInterface):
    """Energies, forces and stresses of all systems of a state, with one call of the potential's evaluator.

    States are float64, because positions and cells are float64 everywhere in mdops; the nets compute in the potential's
    dtype. The neighbour list is reused as long as it is valid.

    Attributes:
        potential: the model.
    """

    _fparam: torch.Tensor | None
    _type_of: torch.Tensor

    def __init__(
        self,
        model: str | os.PathLike[str] | Potential,
        *,
        head: str | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str = "float32",
        skin: float = 1.0,
        overflow: Overflow = "error",
        spline: bool = True,
        r_min: float | None = None,
        matmul: Matmul = "float32",
        allow_low_bit: bool = False,
        fparam: Any = None,
        compute_forces: bool = True,
        compute_stress: bool = True,
    ) -> None:
        """Reads the model.

        Args:
            model: a file, or a Potential, which is used as it is.
            head, device, dtype, overflow, spline, r_min, matmul, allow_low_bit: for files, as in `mdops.load`.
            skin: how far neighbour lists reach beyond the cutoff, A.
            fparam: (p,), for all systems, if the model has frame parameters.
            compute_forces, compute_stress: whether `forward` returns them; both come at no cost.

        Raises:
            InputError, ModelFileError, UnsupportedModelError: as `mdops.load`; a low-bit model without `allow_low_bit`.
        """
        super().__init__()
        require_flags(spline=spline, allow_low_bit=allow_low_bit)
        require_flags(compute_forces=compute_forces, compute_stress=compute_stress)
        self.potential = (
            model
            if isinstance(model, Potential)
            else load(model, head=head, device=device, dtype=dtype, spline=spline, overflow=overflow, r_min=r_min,
                      matmul=matmul, allow_low_bit=allow_low_bit)
        )  # fmt: skip
        check_models([self.potential])
        self._dtype = torch.float64
        self._compute_forces, self._compute_stress = compute_forces, compute_stress
        given = None if fparam is None else torch.tensor(as_numbers("fparam", fparam), device=self.device)
        types = torch.tensor(_types_of_elements(self.potential.type_map), device=self.device)
        self.register_buffer("_fparam", given, persistent=False)
        self.register_buffer("_type_of", types, persistent=False)
        self._list = VerletList(self.potential.cutoff, skin, ntypes=len(self.potential.type_map))
        self._constant: tuple[tuple[Any, ...], System] | None = None

    @property
    def device(self) -> torch.device:
        """The potential's device."""
        return self.potential.device

    @ModelInterface.compute_forces.setter
    def compute_forces(self, value: bool) -> None:
        self._compute_forces = value

    @ModelInterface.compute_stress.setter
    def compute_stress(self, value: bool) -> None:
        self._compute_stress = value

    def forward(self, state: SimState | dict[str, Any], **_: Any) -> dict[str, torch.Tensor]:
        """The model's results for a state of S systems with N atoms in total.

        A model with magnetic moments takes them from the state: TorchSim's `magnetic_moments`, numbers along z (N,) or
        vectors (N, 3).

        Returns:
            energy (S,), eV; forces (N, 3), eV/A; stress (S, 3, 3), -virial / volume, eV/A^3, NaN if a system is not
            periodic in three directions; with magnetic moments also force_mag (N, 3), minus the derivative by them;
            in the state's dtype.

        Raises:
            InputError: as `Potential.forward`, for an element that the model does not know, and for missing moments.
        """
        if isinstance(state, dict):  # TorchSim up to 0.3 passes dicts
            state = SimState(**state, masses=torch.ones_like(state["positions"]))
        positions, cell = state.positions.detach().double(), state.row_vector_cell.detach().double()
        system = self._system(state, positions, cell)
        fparam = self._frame_parameters(system)
        answer = self.potential.evaluate_atoms(system, fparam, spins=self._spins(state), neighbors=self._list)
        result = {"energy": answer["energy"]}
        if self._compute_forces:
            result |= {name: answer[name] for name in ("forces", "force_mag") if name in answer}
        if self._compute_stress:
            a, b, c = cell.unbind(1)
            volume = (a * torch.linalg.cross(b, c)).sum(1).abs()
            volume = torch.where(system.pbc.all(1) & (volume > 0), volume, torch.nan)
            result["stress"] = -answer["virial"] / volume[:, None, None]
        return {name: value.to(state.positions.dtype) for name, value in result.items()}

    def _frame_parameters(self, system: System) -> torch.Tensor | None:
        return None if self._fparam is None else self._fparam.expand(system.count, -1)

    def _spins(self, state: Any) -> torch.Tensor | None:
        """(N, 3), if the model takes them."""
        if self.potential.model.spin is None:
            return None
        moments = getattr(state, "atom_extras", {}).get("magnetic_moments")
        if moments is None:
            raise InputError(
                "the model has magnetic moments, but the state has none: make it with "
                'torch_sim.io.atoms_to_state(..., atom_extras_map={"magnetic_moments": "initial_magmoms"}), which '
                "TorchSim 0.6 has"
            )
        found: torch.Tensor = moments.detach().double()
        return found if found.dim() == 2 else torch.nn.functional.pad(found[:, None], (2, 0))

    def _system(self, state: Any, positions: torch.Tensor, cell: torch.Tensor) -> System:
        """The atoms. What stays the same between steps is made once."""
        numbers, index, pbc = state.atomic_numbers, state.system_idx, state.pbc
        directions = pbc if torch.is_tensor(pbc) else torch.tensor(pbc)
        same = pbc if torch.is_tensor(pbc) else tuple(directions.expand(3).tolist())
        key = (numbers, numbers._version, index, index._version, same, directions._version, len(cell))
        old = self._constant
        if old is None or not all(
            a is b if torch.is_tensor(a) else a == b for a, b in zip(key, old[0], strict=True)
        ):
            types = self._type_of[numbers.long()]
            if bool((types < -1).any()):
                wrong = sorted({chemical_symbols[n] for n in numbers[types < -1].tolist()})
                raise InputError(
                    f"the model does not know {', '.join(wrong)}; its elements are "
                    f"{', '.join(self.potential.type_map)}"
                )
            of_systems = directions.to(positions.device).expand(len(cell), 3).clone()
            old = self._constant = key, System(positions, types, cell, of_systems, index.int())
        part = old[1]
        return System(positions, part.types, cell, part.pbc, part.batch)


def _types_of_elements(type_map: list[str]) -> np.ndarray:
    """(119,) int32: the type of each atomic number; -1 for ASE's X unless the model has an X, -2 for elements that
    it does not know."""
    types = np.full(len(chemical_symbols), -2, dtype=np.int32)
    types[0] = -1
    for kind, symbol in enumerate(type_map):
        if symbol in chemical_symbols:
            types[chemical_symbols.index(symbol)] = kind
    return types
