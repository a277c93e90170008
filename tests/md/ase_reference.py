"""The engine's ensembles by ASE's own integrators, to compare with. ASE counts 3 N momenta of the atoms and nine of the
cell; it is told to count those that are free, as the engine does, which takes private attributes of its chains."""

import pytest
from ase import units
from ase.md.nose_hoover_chain import MTKNPT, IsotropicMTKNPT, NoseHooverChainNVT
from ase.md.verlet import VelocityVerlet

from mdops.md.motion import degrees_of_freedom


def reference_integrator(atoms, physics):
    dt = physics.timestep * units.fs
    if physics.ensemble == "nve":
        return VelocityVerlet(atoms, dt)
    bath = {"temperature_K": physics.temperature, "tdamp": physics.tdamp * units.fs}
    if physics.ensemble == "nvt":
        dynamics = NoseHooverChainNVT(atoms, dt, **bath)
    else:
        kind = MTKNPT if physics.flexible else IsotropicMTKNPT
        bath |= {"pressure_au": physics.pressure * units.GPa, "pdamp": physics.pdamp * units.fs}
        dynamics = kind(atoms, dt, **bath)
        if physics.flexible:
            # A symmetric matrix has six free momenta: nine would be heated to one and a half times the temperature.
            if not hasattr(dynamics._barostat, "_cell_dof"):
                pytest.skip("this ASE counts nine momenta of a flexible cell, whatever it is told")
            dynamics._barostat._cell_dof = 6
    thermostat, freedom = dynamics._thermostat, degrees_of_freedom(atoms, physics)
    thermostat._num_atoms_global = dynamics._num_atoms_global = freedom / 3
    thermostat._Q[0] = freedom * thermostat._kT * thermostat._tdamp**2
    return dynamics


def reference_conserved(dynamics):
    if isinstance(dynamics, VelocityVerlet):
        return dynamics.atoms.get_total_energy()
    return dynamics.get_conserved_energy()
