"""Path-integral molecular dynamics of water in i-PI: the quantum kinetic energy of its nuclei at 300 K.
Needs i-PI, pip install "mdops[ipi]", a model of O and H, and a structure that ASE reads:

python examples/path_integral_water.py model.dp water.extxyz --beads 8 --time 2
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import ase.io
import numpy as np

from mdops.ipi import PES

# All beads are one batch: one call of the model per step. PILE thermostats each normal mode of the ring polymers.
INPUT = """
<simulation verbosity="low">
  <output prefix="run">
    <properties stride="4" filename="out">
      [time{{picosecond}}, kinetic_cv(H){{electronvolt}}, kinetic_cv(O){{electronvolt}}, temperature{{kelvin}}]
    </properties>
  </output>
  <total_steps>{steps}</total_steps>
  <prng><seed>{seed}</seed></prng>
  <ffdirect name="mdops">
    <pes>custom</pes> <pes_path>{pes}</pes_path> <batch_size>{beads}</batch_size>
    <parameters>{{model: {model}, template: start.xyz, device: {device}}}</parameters>
  </ffdirect>
  <system>
    <initialize nbeads="{beads}">
      <file mode="ase" units="ase">start.xyz</file>
      <velocities mode="thermal" units="kelvin">300</velocities>
    </initialize>
    <forces><force forcefield="mdops"/></forces>
    <ensemble><temperature units="kelvin">300</temperature></ensemble>
    <motion mode="dynamics">
      <dynamics mode="nvt">
        <timestep units="femtosecond">{timestep}</timestep>
        <thermostat mode="pile_l"><tau units="femtosecond">100</tau></thermostat>
      </dynamics>
    </motion>
  </system>
</simulation>
"""


def mean_and_error(values: np.ndarray, blocks: int = 8) -> tuple[float, float]:
    """The mean of a correlated series, and its standard error from the means of blocks."""
    means = [block.mean() for block in np.array_split(values, blocks)]
    return float(values.mean()), float(np.std(means, ddof=1) / blocks**0.5)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", type=Path)
parser.add_argument("structure", type=Path)
parser.add_argument("--beads", type=int, default=8)
parser.add_argument("--time", type=float, default=2.0, help="ps")
parser.add_argument("--timestep", type=float, default=0.25, help="fs")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--device", default="cpu")
arguments = parser.parse_args()

with tempfile.TemporaryDirectory() as folder:
    atoms = ase.io.read(arguments.structure)
    ase.io.write(f"{folder}/start.xyz", atoms, format="extxyz")
    given = vars(arguments) | {"model": arguments.model.resolve(), "pes": PES}
    Path(folder, "input.xml").write_text(
        INPUT.format(steps=round(1000 * arguments.time / arguments.timestep), **given)
    )
    ipi = shutil.which("i-pi", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if ipi is None:
        raise SystemExit("there is no i-pi: pip install 'mdops[ipi]'")
    subprocess.run([ipi, "input.xml"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    time, hydrogen, oxygen, temperature = np.loadtxt(f"{folder}/run.out").T

late = time > 0.25 * time[-1]  # the first quarter equilibrates
print(
    f"{arguments.beads} beads, {late.sum()} samples after {time[late][0]:.2f} ps, {temperature[late].mean():.0f} K"
)
for element, values in (("H", hydrogen), ("O", oxygen)):
    count = atoms.get_chemical_symbols().count(element)
    mean, error = mean_and_error(1000 * values[late] / count)
    print(
        f"quantum kinetic energy of {element}: {mean:.1f} +- {error:.1f} meV (classical: {1.5 * 25.85:.1f})"
    )
