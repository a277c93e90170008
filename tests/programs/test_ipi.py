"""The driver for i-PI: numbers beside the potential's, batches, and i-PI itself through `ffdirect` and its sockets."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import spin_models
from ase import Atoms, units
from ase.build import bulk
from ase.io import read, write

import mdops
from mdops.errors import InputError
from mdops.ipi import PES

pytest.importorskip("ipi", reason="i-PI is not installed (pip install 'mdops[ipi]')")

MODEL = Path(__file__).parents[1] / "data" / "formats" / "model.dp"
COMMANDS = Path(sys.executable).parent

SIMULATION = """
<simulation verbosity="low">
  <output prefix="run">
    <properties stride="1" filename="out">
      [step, conserved{{electronvolt}}, potential{{electronvolt}}, kinetic_cv{{electronvolt}},
       pressure_md{{gigapascal}}]
    </properties>
  </output>
  <total_steps>{steps}</total_steps>
  <prng><seed>3</seed></prng>
  {forcefield}
  <system>
    <initialize nbeads="{beads}">
      <file mode="ase" units="ase">start.xyz</file>
      <velocities mode="thermal" units="kelvin">300</velocities>
    </initialize>
    <forces><force forcefield="mdops"/></forces>
    <ensemble><temperature units="kelvin">300</temperature></ensemble>
    <motion mode="dynamics">
      <dynamics mode="nve"><timestep units="femtosecond">1</timestep></dynamics>
    </motion>
  </system>
</simulation>
"""
DIRECT = """<ffdirect name="mdops"><pes>custom</pes><pes_path>{pes}</pes_path><batch_size>{batch}</batch_size>
<parameters>{{model: {model}, template: start.xyz, dtype: float64}}</parameters></ffdirect>"""
SOCKET = """<ffsocket name="mdops" mode="unix"><address>{name}</address><batch_size>{batch}</batch_size>
<latency>1e-4</latency></ffsocket>"""


@pytest.fixture
def crystal(tmp_path, monkeypatch):
    """Written to start.xyz in the working folder."""
    monkeypatch.chdir(tmp_path)
    atoms = bulk("Cu", a=4.0, cubic=True) * (2, 2, 1)
    atoms.symbols[::3] = "Al"
    atoms.set_cell(atoms.cell.array + np.array([[0, 0, 0], [0.3, 0, 0], [0.1, 0.2, 0]]))  # rows: a shear
    atoms.rattle(0.08, seed=2)
    write("start.xyz", atoms, format="extxyz")
    return atoms


def driver(**options):
    from ipi.pes import load_pes

    return load_pes("custom", PES)(model=str(MODEL), template="start.xyz", dtype="float64", **options)


def atomic_units(atoms):
    """Cells of columns and positions, as i-PI has them."""
    return atoms.cell.array.T / units.Bohr, atoms.positions / units.Bohr


def test_answers_are_the_potentials_in_atomic_units(crystal):
    found = driver()(*atomic_units(crystal))
    wanted = mdops.load(MODEL, dtype="float64").compute(crystal)
    energy, forces, virial, extra = found
    assert energy * units.Ha == pytest.approx(wanted["energy"][0], abs=1e-7) and extra == ""
    # ASE and i-PI take constants of nature from different years.
    np.testing.assert_allclose(forces * units.Ha / units.Bohr, wanted["forces"], rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(virial.T * units.Ha, wanted["virial"][0], rtol=2e-6)
    assert abs(wanted["virial"][0][0, 1]) > 1e-3  # something to tell from its transpose, or sign


def test_a_batch_is_one_call(crystal):
    pes = driver()
    beads = []
    for k in range(5):
        bead = crystal.copy()
        bead.rattle(0.02, seed=k)
        bead.set_cell(bead.cell * (1 + 0.01 * k), scale_atoms=True)
        beads.append(atomic_units(bead))
    alone = [pes(*bead) for bead in beads]
    calls, whole = [], pes.potential.evaluate
    pes.potential.evaluate = lambda s, *rest, **more: calls.append(s.count) or whole(s, *rest, **more)
    found = pes([cell for cell, _ in beads], [pos for _, pos in beads])
    assert calls == [5]
    for a, b in zip(found, alone, strict=True):
        for x, y in zip(a[:3], b[:3], strict=True):
            np.testing.assert_allclose(x, y, atol=1e-12)
    pes([cell for cell, _ in beads[:3]], [pos for _, pos in beads[:3]])  # what is left of a step
    pes([cell for cell, _ in beads], [pos.ravel() + 0.001 for _, pos in beads])
    assert calls == [5, 3, 5] and pes._parts[5][0].builds == 1


def test_other_atoms_than_the_templates_are_refused(crystal):
    cell, pos = atomic_units(crystal)
    with pytest.raises(InputError, match="i-PI sends 15 atoms, and the template has 16"):
        driver()(cell, pos[1:])
    crystal.symbols[0] = "Fe"
    write("start.xyz", crystal, format="extxyz")
    with pytest.raises(InputError, match="the model does not know Fe"):
        driver()


def test_parameters_that_are_none_are_refused(crystal):
    with pytest.raises(InputError, match="no parameter 'skni' for i-PI: it has model, template, device"):
        driver(skni=2.0)
    words = [str(MODEL), "start.xyz", "cpu", "float64", 1.0, "error", "float32", None, None, "more"]
    from ipi.pes import load_pes

    with pytest.raises(InputError, match="no parameter 'more', which has no name"):
        load_pes("custom", PES)(*words)
    driver(verbose=True)
    driver(verbosity="high")  # which <ffdirect> adds


def test_frame_parameters(crystal):
    from ipi.pes import load_pes

    path = Path(__file__).parents[1] / "data/reference/fparam/model.dp"
    potential = mdops.load(path, dtype="float64", overflow="extend")
    crystal.symbols[:] = potential.type_map[0]
    write("start.xyz", crystal, format="extxyz")
    assert potential.parameter_sizes["fparam"] == 2
    options = dict(model=str(path), template="start.xyz", dtype="float64", overflow="extend")
    found = load_pes("custom", PES)(fparam="0.3;0.5", **options)(*atomic_units(crystal))
    wanted = potential.compute(crystal, fparam=[0.3, 0.5])["energy"][0]
    assert found[0] * units.Ha == pytest.approx(wanted, rel=2e-6)
    with pytest.raises(InputError, match="expected numbers separated by ;"):
        load_pes("custom", PES)(fparam="0.3;x", **options)
    with pytest.raises(InputError, match=r"fparam\[1\] is nan, expected finite numbers"):
        load_pes("custom", PES)(fparam="0.3;nan", **options)


@pytest.mark.parametrize("kind", ["se_e2_a", "dpa4"])
def test_magnetic_moments_are_those_of_the_template(kind, tmp_path, monkeypatch):
    """As virtual atoms and as vectors, in batches."""
    from ipi.pes import load_pes

    monkeypatch.chdir(tmp_path)
    spin_models.model(kind).save("spin.dp")
    write("start.xyz", spin_models.crystal(), format="extxyz")
    options = dict(model="spin.dp", template="start.xyz", dtype="float64", overflow="extend")
    pes, beads = load_pes("custom", PES)(**options), []
    for k in range(3):
        bead = read("start.xyz")
        bead.rattle(0.02, seed=k)
        beads.append(bead)
    found = pes(*([x for x, _ in map(atomic_units, beads)], [x for _, x in map(atomic_units, beads)]))
    for bead, (energy, forces, virial, _) in zip(beads, found, strict=True):
        wanted = pes.potential.compute(bead)
        assert energy * units.Ha == pytest.approx(wanted["energy"][0], rel=2e-6)
        np.testing.assert_allclose(forces * units.Ha / units.Bohr, wanted["forces"], rtol=2e-5, atol=1e-7)
        np.testing.assert_allclose(virial.T * units.Ha, wanted["virial"][0], rtol=2e-5, atol=1e-7)
        assert np.abs(wanted["forces"]).max() > 1e-5
    write("start.xyz", Atoms(beads[0].symbols, beads[0].positions, cell=beads[0].cell, pbc=True))
    with pytest.raises(InputError, match="set_initial_magnetic_moments"):
        load_pes("custom", PES)(**options)


def simulate(forcefield, beads=4, steps=20):
    """i-PI's table of a run in the working folder."""
    Path("input.xml").write_text(SIMULATION.format(beads=beads, steps=steps, forcefield=forcefield))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [COMMANDS / "i-pi", "input.xml"], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return np.loadtxt("run.out")


def test_path_integrals_in_batches_conserve_energy(crystal):
    table = simulate(DIRECT.format(pes=PES, batch=4, model=MODEL))
    assert table.shape == (21, 5)
    conserved = table[:, 1]
    assert np.ptp(conserved) < 2e-4 * len(crystal) and np.ptp(table[:, 2]) > 20 * np.ptp(conserved)
    serial = simulate(DIRECT.format(pes=PES, batch=1, model=MODEL))
    np.testing.assert_allclose(table, serial, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("batch", [1, 4])
def test_sockets(crystal, tmp_path, batch):
    """By i-PI's own client, in another process."""
    direct = simulate(DIRECT.format(pes=PES, batch=1, model=MODEL), steps=5)
    name = f"mdops_{os.getpid()}_{batch}"
    options = f"model={MODEL},template=start.xyz,dtype=float64"
    command = [COMMANDS / "i-pi-driver-py", "-u", "-a", name, "-m", "custom", "-P", PES, "-o", options]
    # The client needs a server that listens already.
    wait = (
        "import os, subprocess, sys, time\n"
        f"while not os.path.exists('/tmp/ipi_{name}'): time.sleep(0.02)\n"
        "sys.exit(subprocess.call(sys.argv[1:]))"
    )
    client = subprocess.Popen([sys.executable, "-c", wait, *map(str, command)], stdout=subprocess.DEVNULL)
    try:
        table = simulate(SOCKET.format(name=name, batch=batch), steps=5)
        assert client.wait(timeout=60) == 0
    finally:
        client.kill()
    np.testing.assert_allclose(table, direct, rtol=1e-6, atol=1e-7)


def test_the_path_of_the_file_is_printed(capsys):
    done = subprocess.run([sys.executable, "-m", "mdops.ipi"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == PES and Path(PES).is_file()


def test_the_example_runs(tmp_path):
    """On the trained water model, where that is."""
    shared = Path(__file__).parents[3] / "shared"
    model = shared / "reference/water_se_a/model.dp"
    if not model.exists():
        pytest.skip("there is no trained model of water")
    with np.load(model.with_name("systems.npz")) as file:
        keys = {key.split("/")[1]: file[key] for key in file.files}
    names = mdops.load(model).type_map
    box = Atoms([names[t] for t in keys["types"]], keys["positions"][0], cell=keys["cell"][0], pbc=True)
    write(tmp_path / "w.xyz", box, format="extxyz")
    script = Path(__file__).parents[2] / "examples/path_integral_water.py"
    command = [sys.executable, script, model, tmp_path / "w.xyz", "--time", "0.01"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert "8 beads" in done.stdout and "quantum kinetic energy of H" in done.stdout
