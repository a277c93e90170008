"""Many systems in one engine: each moves as it would alone."""

import dataclasses
from types import SimpleNamespace

import ase.io
import engine_cases
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.constraints import FixAtoms
from engine_cases import GRAPH_MODELS, MODEL, PHYSICS, alloy, rounding, set_sel, skewed

from mdops import load
from mdops.cli import main
from mdops.errors import InputError
from mdops.md import BatchEngine, Engine, EnsembleSettings, UnstableRunError
from mdops.md.motion import set_velocities


def mixed(physics):
    """Sizes, cells, elements, pbc and temperatures of all kinds."""
    cold = dataclasses.replace(physics, temperature=50)
    if physics.ensemble == "npt":
        return [alloy(physics), skewed(cold), alloy(physics, seed=3)[:16], skewed(physics, seed=4)]
    slab = alloy(physics, seed=4)
    slab.pbc = [True, True, False]
    cluster = bulk("Cu", a=3.9, cubic=True) * (1, 1, 2)
    cluster.pbc = False
    set_velocities(cluster, physics, np.random.default_rng(2), anew=True)
    return [alloy(physics), skewed(cold), cluster, slab]


@pytest.mark.parametrize("name", ["nve", "nose-hoover", "npt", "flexible"])
def test_each_system_moves_as_it_does_alone(models, device, name):
    physics, potential = PHYSICS[name], models(device)
    alone = [list(Engine(atoms, potential, physics).run(60, every=20)) for atoms in mixed(physics)]
    together = BatchEngine(mixed(physics), potential, physics)
    frames = list(together.run(60, every=20))
    assert [f.step for f in frames] == [20, 40, 60] and together.step == 60
    limit = rounding(device, 1e-10, 1e-3)
    for k, batch in enumerate(frames):
        assert len(batch) == 4 and len(list(batch)) == 4 and len(batch[1:3]) == 2
        for s, got in enumerate(batch):
            want = alone[s][k]
            assert got.step == want.step
            for field in (
                "positions",
                "momenta",
                "forces",
                "virial",
                "energy",
                "kinetic",
                "conserved",
                "cell",
            ):
                np.testing.assert_allclose(
                    getattr(got, field), getattr(want, field), atol=10 * limit, rtol=1e-6, err_msg=field
                )
    assert batch[-1].positions is not None and np.array_equal(batch[-1].positions, batch[3].positions)
    with pytest.raises(IndexError):
        batch[4]


def test_frames_go_back_into_atoms(models):
    physics = PHYSICS["nve"]
    structures = mixed(physics)
    engine = BatchEngine(structures, models("cpu"), physics)
    batch = engine.frame()
    for atoms, frame in zip(structures, batch, strict=True):
        again = frame.atoms(atoms)
        np.testing.assert_allclose(again.positions, atoms.positions)
        np.testing.assert_allclose(again.get_momenta(), atoms.get_momenta())
        assert again.get_potential_energy() == pytest.approx(frame.energy)
        assert ("stress" in again.calc.results) == bool(atoms.pbc.all())
    np.testing.assert_allclose(engine.temperature(batch.kinetic), [300, 50, 300, 300], rtol=1e-10)


def test_thermostats_keep_to_their_own_system(models, device):
    """A hot and a cold system side by side: each conserves its own energy, and both come to the temperature."""
    physics = PHYSICS["nose-hoover"]
    structures = [alloy(dataclasses.replace(physics, temperature=t), seed=s) for s, t in enumerate((20, 900))]
    engine = BatchEngine(structures, models(device), physics)
    conserved = np.array([frame.conserved for frame in engine.run(600, every=10)])
    assert np.ptp(conserved, axis=0).max() < 0.02
    list(engine.run(400))
    start = engine.mean_temperature * engine.step
    list(engine.run(2000))
    mean = (engine.mean_temperature * engine.step - start) / 2000
    np.testing.assert_allclose(mean, 300, rtol=0.15)


def test_noise_heats_every_system(models, device):
    physics = PHYSICS["langevin"]
    structures = [alloy(dataclasses.replace(physics, temperature=1)), alloy(physics, seed=1)]
    engine = BatchEngine(structures, models(device), physics)
    assert engine.frame().conserved is None
    list(engine.run(300))
    kinetic = np.array([frame.kinetic for frame in engine.run(2000, every=4)])
    kT, g = 300 * units.kB, engine.freedom
    assert g.tolist() == [96, 96]
    np.testing.assert_allclose(kinetic.mean(0), g * kT / 2, rtol=0.1)
    assert abs(np.corrcoef(kinetic.T)[0, 1]) < 0.5, "their noise differs"


@pytest.mark.parametrize("name", PHYSICS)
def test_restart_is_the_unbroken_run_to_the_last_bit(models, device, name):
    physics = PHYSICS[name]
    whole = BatchEngine(mixed(physics), models(device), physics)
    list(whole.run(35))
    saved, inner = whole.frame(), whole.inner
    whole.renew()
    (expected,) = whole.run(35, every=70)
    structures = mixed(physics)
    for atoms, frame in zip(structures, saved, strict=True):
        engine_cases.put_back(atoms, frame)
    again = BatchEngine(structures, models(device), physics, step=35)
    again.inner = inner
    (got,) = again.run(35, every=70)
    engine_cases.check_same_state(got, expected)


def test_an_explosion_names_system_and_step(models, device):
    physics = EnsembleSettings("nve", 300, 200)
    structures = [alloy(dataclasses.replace(physics, temperature=0.01), seed=s) for s in range(3)]
    structures[1].positions[0] = structures[1].positions[1] + [0.7, 0, 0]
    engine = BatchEngine(structures, models(device), physics)
    with pytest.raises(UnstableRunError, match=r"blew up at step \d+ .*: system 1: "):
        list(engine.run(500, every=1))


def test_the_models_error_names_system_and_atom(device):
    potential = load(MODEL, device=device)
    set_sel(potential, [4, 4])
    alone = Atoms("Cu", positions=[[0, 0, 0]], cell=[20, 20, 20], pbc=True)
    alone.set_momenta(np.zeros((1, 3)))
    with pytest.raises(InputError, match=r"^system 2: atom 0 has \d+ neighbours of type Cu"):
        BatchEngine([alone, alone.copy(), alloy(PHYSICS["nve"])], potential, PHYSICS["nve"])


def test_what_a_batch_cannot_have(models):
    physics, good = PHYSICS["nose-hoover"], alloy(PHYSICS["nose-hoover"])
    fixed = good.copy()
    fixed.set_constraint(FixAtoms([0]))
    single = Atoms("Cu", cell=[9, 9, 9], pbc=True)
    for wrong, message in (
        (fixed, "system 1: .*constraints"),
        (Atoms(), "system 1: .*no atoms"),
        (single, r'system 1: a Nose-Hoover chain has no free momenta .*\(thermostat="langevin"\)'),
        (molecule("H2O"), "does not know H, O"),
    ):
        with pytest.raises(InputError, match=message):
            BatchEngine([good, wrong], models("cpu"), physics)
    with pytest.raises(InputError, match=r"system 1: npt has no motion of atoms .* repeat the cell"):
        BatchEngine([good, single], models("cpu"), PHYSICS["npt"])
    with pytest.raises(InputError, match="no structures"):
        BatchEngine([], models("cpu"), physics)
    with pytest.raises(InputError, match=r"list of ase\.Atoms"):
        BatchEngine(good, models("cpu"), physics)
    with pytest.raises(InputError, match="BatchEngine"):
        Engine([good], models("cpu"), physics)


def test_parameters_of_each_system():
    """Those of a structure's own before the default; lengths that differ are refused."""
    from mdops.md.engine.structures import Structures

    potential, physics = load(MODEL), PHYSICS["nve"]
    structures = [alloy(physics), alloy(physics)]
    structures[1].info["fparam"] = [3.0]
    structures[1].arrays["aparam"] = np.arange(32.0)
    found = Structures(structures, potential, physics, 2.0, np.array([7.0]))
    assert found._fparam.tolist() == [[2.0], [3.0]]
    assert found._aparam[:, 0].tolist() == [7.0] * 32 + list(range(32))
    with pytest.raises(InputError, match="system 0: no fparam"):
        Structures(structures, potential, physics, None, None)
    structures[0].info["fparam"] = [1.0, 2.0]
    with pytest.raises(InputError, match="system 1: 1 numbers of fparam, and others have 2"):
        Structures(structures, potential, physics, None, 0.0)


def test_a_row_of_numbers_is_of_all_atoms_alike_unless_the_model_takes_one():
    """Whether it has as many numbers as there are atoms, by chance, does not matter."""
    from mdops.md.engine.structures import Structures

    physics = PHYSICS["nve"]
    nothing = SimpleNamespace(descriptors=(), spin=None)
    three, one = (
        SimpleNamespace(type_map=["Cu", "Al"], parameter_sizes={"fparam": 0, "aparam": size}, model=nothing)
        for size in (3, 1)
    )
    trimer = alloy(physics)[:3]
    row, table = np.array([5.0, 6.0, 7.0]), np.arange(9.0).reshape(3, 3)

    def velocities(model, aparam, structures=(trimer,)):
        return Structures(list(structures), model, physics, None, aparam)._aparam.tolist()

    assert velocities(three, row) == [row.tolist()] * 3
    assert velocities(three, table) == table.tolist()
    assert velocities(one, row) == [[5.0], [6.0], [7.0]]
    assert velocities(one, 4.0) == velocities(one, [4.0]) == [[4.0]] * 3
    assert velocities(three, row, [trimer, trimer]) == [row.tolist()] * 6
    for model, wrong, shape in (
        (three, np.zeros(2), r"\(2,\), expected \(3,\).* or \(3, 3\)"),
        (three, np.zeros((2, 3)), r"\(2, 3\), expected"),
        (three, np.zeros((3, 2)), r"\(3, 2\), expected"),
        (one, np.zeros(2), r"\(2,\), expected \(1,\)"),
        (three, np.zeros((1, 3, 3)), r"\(1, 3, 3\), expected"),
    ):
        with pytest.raises(InputError, match=f"aparam has the shape {shape}"):
            velocities(model, wrong)
    with pytest.raises(InputError, match="fparam is of 2 systems, and there are 3"):
        Structures([trimer] * 3, one, physics, np.zeros((2, 1)), None)


def test_the_command_says_where_several_frames_go(tmp_path, capsys):
    ase.io.write(tmp_path / "frames.extxyz", [alloy(PHYSICS["nve"])] * 2)
    command = ["md", f"{tmp_path}/frames.extxyz@:", "--model", str(MODEL), "--steps", "1"]
    assert main([*command, "--trajectory", str(tmp_path / "md.traj"), "--log", str(tmp_path / "md.log")]) == 2
    assert "choose one, as in FILE@0 (from Python, mdops.md.BatchEngine" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("name", PHYSICS)
def test_graphs_change_nothing(models, name, replays):
    physics, ends = PHYSICS[name], []
    for graphs in (False, True):
        engine = BatchEngine(mixed(physics), models("cuda"), physics, graphs=graphs)
        ends += list(engine.run(60, every=60))
        assert bool(replays) == graphs
    assert np.array_equal(ends[0].positions, ends[1].positions)


@pytest.mark.gpu
def test_message_passing_runs_in_graphs(replays):
    physics, ends = PHYSICS["nve"], []
    for graphs in (False, True):
        potential, both = load(GRAPH_MODELS["dpa3"], device="cuda", dtype="float64"), [alloy(physics)]
        both.append(alloy(physics, 1, 3))
        engine = BatchEngine(both, potential, physics, graphs=graphs, atom_virial=True)
        ends += list(engine.run(40, every=40))
        assert bool(replays) == graphs
    np.testing.assert_array_equal(ends[0].positions, ends[1].positions)
    for frame, atoms in zip(ends[1], both, strict=True):
        wanted = potential.compute(frame.atoms(atoms), atom_virial=True)["atom_virial"]
        np.testing.assert_allclose(frame.atom_virial, wanted, rtol=0, atol=1e-10)
    (alone,) = Engine(alloy(physics), load(GRAPH_MODELS["dpa3"]), physics).run(40, every=40)
    np.testing.assert_allclose(ends[1][0].positions, alone.positions, atol=1e-7)
