"""The potential "mdops" of OpenMM-ML: `MLPotential("mdops", model="model.dp")` (docs/how-to/openmm.md).

OpenMM-ML imports this module whatever potential is requested, so PyTorch is imported only when it is used.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import openmm
from openmm import unit

from mdops.errors import InputError


class MDOpsPotentialFactory:
    """The class that the entry point names. OpenMM-ML loads it while it is imported, so it is there before that, and
    without a base of OpenMM-ML's."""

    def createImpl(self, name: str, **args: Any) -> "MDOpsPotential":
        return MDOpsPotential(name, **args)


from openmmml.mlpotential import MLPotentialImpl  # noqa: E402


class MDOpsPotential(MLPotentialImpl):
    """Adds a model to an OpenMM System, for all of its atoms or for some."""

    def __init__(self, name: str, model: Any, magnetic_moments: Any = None, **options: Any) -> None:
        """
        Args:
            name: the name of the potential, "mdops".
            model: a file, or a Potential, which is used as it is.
            magnetic_moments: for a model that takes them, the moments of all atoms of the topology, vectors or numbers
                along z, which do not change.
            options: head, device, dtype, skin, overflow, spline, r_min, matmul, allow_low_bit, fparam, as in
                `mdops.calculator.MDOps`.

        Raises:
            InputError, ModelFileError, UnsupportedModelError: as `mdops.calculator.MDOps`; moments that are missing, or
                not taken.
        """
        self.name = name
        self._arguments = {"model": model, **options}
        self._moments = None if magnetic_moments is None else _moments(magnetic_moments)
        # Errors are raised here, not later in a simulation.
        ModelForce([], False, None if self._moments is None else self._moments[:0], **self._arguments)

    def addForces(
        self,
        topology: openmm.app.Topology,
        system: openmm.System,
        atoms: Iterable[int] | None,
        forceGroup: int,
        **args: Any,
    ) -> None:
        """Adds a PythonForce of the model's energy. Raises InputError if an atom has no element, or one that the model
        does not know, or if there are other magnetic moments than atoms."""
        chosen, moments = list(topology.atoms()), self._moments
        if moments is not None and len(moments) != len(chosen):
            raise InputError(
                f"there are {len(moments)} magnetic moments, and the topology has {len(chosen)} atoms"
            )
        if atoms is not None:
            atoms = list(atoms)
            chosen = [chosen[i] for i in atoms]
            moments = None if moments is None else moments[atoms]
        nameless = [atom.index for atom in chosen if atom.element is None]
        if nameless:
            raise InputError(f"atom {nameless[0]} of the topology has no element")
        periodic = topology.getPeriodicBoxVectors() is not None
        symbols = [atom.element.symbol for atom in chosen]
        force = openmm.PythonForce(ModelForce(symbols, periodic, moments, **self._arguments))
        force.setName("MDOpsForce")
        force.setForceGroup(forceGroup)
        force.setUsesPeriodicBoundaryConditions(periodic)
        if atoms is not None:
            force.setParticles(atoms)
        system.addForce(force)


def _moments(given: Any) -> np.ndarray:
    """(n,) or (n, 3)."""
    from mdops.system import as_numbers  # imports PyTorch

    moments = as_numbers("magnetic_moments", given)
    if moments.ndim != 1 and moments.shape[1:] != (3,):
        raise InputError(
            f"magnetic_moments have the shape {moments.shape}, expected a number or a vector for each atom"
        )
    return moments


class ModelForce:
    """The function of a PythonForce: energy and forces of a State. Pickled with the model's file name or Potential.

    Attributes:
        calculator: an MDOps.
    """

    def __init__(
        self, symbols: list[str], periodic: bool, moments: np.ndarray | None = None, **arguments: Any
    ) -> None:
        """For atoms of these elements, with these magnetic moments; `arguments` are those of
        `mdops.calculator.MDOps`."""
        from mdops.calculator import MDOps  # imports PyTorch
        from mdops.system import element_types  # imports PyTorch

        self._symbols, self._periodic, self._arguments = symbols, periodic, arguments
        self._moments = moments
        self.calculator = MDOps(**arguments)
        for potential in self.calculator.models:
            potential.require_energies("OpenMM")
        takes = any(potential.model.spin is not None for potential in self.calculator.models)
        if takes != (moments is not None):
            raise InputError(
                "the model has magnetic moments: give `magnetic_moments`, those of all atoms of the topology"
                if takes
                else "magnetic_moments are given, but the model takes none"
            )
        element_types(symbols, self.calculator.type_map)
        self._atoms: Any = None

    def __getstate__(self) -> dict[str, Any]:
        own = {"symbols": self._symbols, "periodic": self._periodic, "moments": self._moments}
        return {**own, "arguments": self._arguments}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = state["symbols"], state["periodic"], state.get("moments")
        self.__init__(*own, **state["arguments"])  # type: ignore[misc]

    def __call__(self, state: openmm.State) -> tuple[float, np.ndarray]:
        """Energy, kJ/mol, and forces (n, 3), kJ/mol/nm."""
        from ase import Atoms, units

        if self._atoms is None:
            self._atoms = Atoms(self._symbols, pbc=self._periodic, magmoms=self._moments)
        atoms = self._atoms
        atoms.positions = state.getPositions(asNumpy=True).value_in_unit(unit.angstrom)
        if self._periodic:
            atoms.cell[:] = state.getPeriodicBoxVectors(asNumpy=True).value_in_unit(unit.angstrom)
        energy = self.calculator.get_property("energy", atoms)
        forces = self.calculator.get_property("forces", atoms)
        scale = units.mol / units.kJ
        return energy * scale, forces * (10 * scale)
