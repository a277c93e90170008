"""Dynamics of a model in OpenMM, at constant temperature and pressure. Needs OpenMM and OpenMM-ML:
pip install "mdops[openmm]"

python examples/openmm_md.py
"""

import openmm
from alloy import MODEL, alloy
from openmm import app, unit
from openmmml import MLPotential

atoms = alloy(repeat=3)
topology = app.Topology()
residue = topology.addResidue("CuAl", topology.addChain())
for symbol in atoms.symbols:
    topology.addAtom(symbol, app.Element.getBySymbol(symbol), residue)
topology.setPeriodicBoxVectors(atoms.cell.array * unit.angstrom)

system = MLPotential("mdops", model=str(MODEL), device="cpu").createSystem(topology)
system.addForce(openmm.MonteCarloBarostat(1 * unit.bar, 300 * unit.kelvin, 10))
integrator = openmm.LangevinMiddleIntegrator(300 * unit.kelvin, 5 / unit.picosecond, 2 * unit.femtosecond)
simulation = app.Simulation(topology, system, integrator, openmm.Platform.getPlatformByName("CPU"))
simulation.context.setPositions(atoms.positions * unit.angstrom)
simulation.minimizeEnergy(maxIterations=20)
simulation.context.setVelocitiesToTemperature(300 * unit.kelvin, 1)

for _ in range(4):
    simulation.step(25)
    state = simulation.context.getState(getEnergy=True)
    energy = (state.getPotentialEnergy() + state.getKineticEnergy()) / unit.kilojoules_per_mole / 96.485
    volume = state.getPeriodicBoxVolume() / unit.angstrom**3
    print(f"{simulation.currentStep:4d} steps: {energy:.3f} eV in all, {volume / len(atoms):.3f} A^3 an atom")
