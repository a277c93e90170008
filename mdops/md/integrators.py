"""ASE's integrators, for structures with constraints, which the engine cannot move."""

import numpy as np
from ase import Atoms, units
from ase.md.langevin import Langevin
from ase.md.verlet import VelocityVerlet

from mdops.errors import InputError
from mdops.md.options import EnsembleSettings


def make_integrator(
    atoms: Atoms, physics: EnsembleSettings, rng: np.random.Generator
) -> VelocityVerlet | Langevin:
    """Velocity Verlet, or Langevin dynamics with noise of `rng`; neither has a state beside the atoms'.

    Raises:
        InputError: another ensemble.
    """
    dt = physics.timestep * units.fs
    if physics.ensemble == "nve":
        return VelocityVerlet(atoms, dt)
    if physics.ensemble == "nvt" and physics.thermostat == "langevin":
        friction = physics.friction / (1000 * units.fs)
        # With fixcm, ASE's Langevin does not sample the canonical distribution.
        return Langevin(atoms, dt, friction=friction, temperature_K=physics.temperature, fixcm=False, rng=rng)
    if atoms.constraints:
        # ASE's chains integrate the momenta of fixed atoms, and the thermostat counts them as heat.
        langevin = 'Langevin dynamics can (thermostat="langevin")'
        if physics.ensemble == "npt":
            raise InputError(f"npt cannot keep constraints: nve and {langevin}")
        raise InputError(f"a Nose-Hoover chain cannot keep constraints: {langevin}")
    raise InputError(
        "only the engine has Nose-Hoover chains and npt. ASE's integrators have nve and Langevin dynamics "
        '(thermostat="langevin")'
    )


def conserved_energy(dynamics: VelocityVerlet | Langevin) -> float | None:
    """eV, the conserved energy; None for Langevin dynamics, which has none."""
    return None if isinstance(dynamics, Langevin) else float(dynamics.atoms.get_total_energy())
