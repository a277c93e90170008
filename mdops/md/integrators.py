"""ASE's integrators, made from a run's physics, and their inner state for restarts."""

from typing import Any

import numpy as np
from ase import Atoms, units
from ase.md.langevin import Langevin
from ase.md.md import MolecularDynamics
from ase.md.nose_hoover_chain import MTKNPT, IsotropicMTKNPT, NoseHooverChainNVT
from ase.md.verlet import VelocityVerlet

from mdops.errors import InputError
from mdops.md.motion import check_npt, degrees_of_freedom
from mdops.md.options import Physics

# What each integrator knows beyond positions, momenta and cell.
_INNER: dict[type[MolecularDynamics], tuple[str, ...]] = {
    VelocityVerlet: (),
    Langevin: (),
    NoseHooverChainNVT: ("_thermostat._eta", "_thermostat._p_eta"),
    IsotropicMTKNPT: (
        "_thermostat._eta", "_thermostat._p_eta", "_barostat._xi", "_barostat._p_xi",
        "_eps", "_p_eps", "_cell0", "_volume0",
    ),
    MTKNPT: ("_thermostat._eta", "_thermostat._p_eta", "_barostat._xi", "_barostat._p_xi", "_p_g"),
}  # fmt: skip


def make_integrator(atoms: Atoms, physics: Physics, rng: np.random.Generator) -> Any:
    """The integrator of an ensemble.

    Raises:
        InputError: an ensemble that these atoms cannot have.
    """
    dt = physics.timestep * units.fs
    if physics.ensemble == "nve":
        return VelocityVerlet(atoms, dt)
    bath: dict[str, Any] = {"temperature_K": physics.temperature}
    if physics.ensemble == "nvt" and physics.thermostat == "langevin":
        friction = physics.friction / (1000 * units.fs)
        # With its fixcm ASE's Langevin does not sample the canonical distribution.
        return Langevin(atoms, dt, friction=friction, fixcm=False, rng=rng, **bath)
    if atoms.constraints:
        # ASE's chains go on integrating the momenta of fixed atoms, and the thermostat takes them for heat.
        raise InputError("a Nose-Hoover chain cannot keep constraints: use --thermostat langevin, or no npt")
    freedom = degrees_of_freedom(atoms, physics)
    if freedom < 1:
        raise InputError("a Nose-Hoover chain has no motion to act on here: use --thermostat langevin")
    bath["tdamp"] = physics.tdamp * units.fs
    if physics.ensemble == "nvt":
        chain = NoseHooverChainNVT(atoms, dt, **bath)
        _set_freedom(chain, freedom)
        return chain
    check_npt(atoms)
    kind = MTKNPT if physics.flexible else IsotropicMTKNPT
    bath |= {"pressure_au": physics.pressure * units.GPa, "pdamp": physics.pdamp * units.fs}
    barostat: Any = kind(atoms, dt, **bath)
    _set_freedom(barostat, freedom)
    if physics.flexible:
        # ASE counts nine momenta of the cell. They are a symmetric matrix, of which six are free: nine would be
        # heated to one and a half times the temperature.
        barostat._barostat._cell_dof = 6
    return barostat


def inner_state(dynamics: MolecularDynamics) -> dict[str, np.ndarray]:
    """The thermostat's and barostat's variables."""
    state = {}
    for path in _INNER[type(dynamics)]:
        owner, name = _owner(dynamics, path)
        state[path] = np.array(getattr(owner, name))
    return state


def set_inner_state(dynamics: MolecularDynamics, state: dict[str, np.ndarray]) -> None:
    for path in _INNER[type(dynamics)]:
        owner, name = _owner(dynamics, path)
        value = state[path]
        setattr(owner, name, value.copy() if value.ndim else float(value))


def conserved_energy(dynamics: Any) -> float | None:
    """eV, what the equations of motion keep; None for Langevin dynamics, which keep nothing."""
    if isinstance(dynamics, Langevin):
        return None
    if isinstance(dynamics, VelocityVerlet):
        return float(dynamics.atoms.get_total_energy())
    return float(dynamics.get_conserved_energy())


def _owner(dynamics: MolecularDynamics, path: str) -> tuple[Any, str]:
    *parts, name = path.split(".")
    owner: Any = dynamics
    for part in parts:
        owner = getattr(owner, part)
    return owner, name


def _set_freedom(dynamics: Any, freedom: int) -> None:
    """ASE counts 3 N momenta, though the total momentum stays zero: small systems would be too hot."""
    thermostat = dynamics._thermostat
    thermostat._num_atoms_global = dynamics._num_atoms_global = freedom / 3
    thermostat._Q[0] = freedom * thermostat._kT * thermostat._tdamp**2
