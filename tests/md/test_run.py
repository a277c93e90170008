"""Runs: ensembles, files, restarts, and what stops a run."""

import copy
import dataclasses
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.cluster import Octahedron
from ase.constraints import FixAtoms, FixedLine
from ase.io import read
from ase_reference import reference_conserved, reference_integrator

import mdops
from mdops import load
from mdops.calculator import MDOps
from mdops.errors import InputError
from mdops.md import Engine, EnsembleSettings, Output, UnstableRunError, run
from mdops.md.log import LogState, columns
from mdops.md.motion import degrees_of_freedom, set_velocities, temperature
from mdops.md.outputs import ExtxyzTrajectory

MODEL = Path(__file__).parents[1] / "data" / "formats" / "model.dp"

ENSEMBLES = {
    "nve": EnsembleSettings("nve", 300, 2),
    "nose-hoover": EnsembleSettings("nvt", 300, 2),
    "langevin": EnsembleSettings("nvt", 300, 2, "langevin"),
    "npt": EnsembleSettings("npt", 300, 2, pressure=1),
    "flexible": EnsembleSettings("npt", 300, 2, pressure=1, flexible=True),
}


def output(folder, steps=60, **changes):
    options = {"interval": 10, "trajectory": folder / "md.traj", "log": folder / "md.log"} | changes
    return Output(steps, folder / "md.restart", **options)


def files(folder):
    return {name: (folder / name).read_bytes() for name in ("md.traj", "md.log")}


@pytest.mark.parametrize("name", ENSEMBLES)
def test_frames_log_and_last_state(alloy, tmp_path, name):
    atoms = alloy
    summary = run(atoms, ENSEMBLES[name], output(tmp_path))
    frames = read(tmp_path / "md.traj", ":")
    assert [f.info["step"] for f in frames] == list(range(0, 61, 10))
    np.testing.assert_array_equal(frames[-1].positions, atoms.positions)
    np.testing.assert_array_equal(frames[-1].get_momenta(), atoms.get_momenta())
    np.testing.assert_allclose(frames[-1].get_forces(), atoms.get_forces(), atol=2e-5)
    heading, *lines = (tmp_path / "md.log").read_text().splitlines()
    assert len(lines) == 7 and all(len(line.split()) == len(heading.split()[1:]) for line in lines)
    assert heading.split()[:2] == ["#", "step"] and np.loadtxt(tmp_path / "md.log")[-1, 0] == 60
    assert summary.steps == 60 and 100 < summary.temperature < 500
    if summary.drift is not None:
        assert abs(summary.drift) < 2e-4


@pytest.mark.parametrize("name", ENSEMBLES)
@pytest.mark.parametrize("constraint", [None, FixAtoms([0, 5])])
def test_a_restart_is_the_unbroken_run_to_the_last_bit(alloy, tmp_path, name, constraint):
    """In the engine, and with constraints through ASE's integrators."""
    if constraint and name not in ("nve", "langevin"):
        pytest.skip("no such run")
    physics = dataclasses.replace(ENSEMBLES[name], checkpoint_every=20)
    alloy.set_constraint(constraint)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    start = alloy.copy()
    run(alloy, physics, output(whole))
    for steps in (20, 40, 60):
        again = start.copy()
        again.calc = MDOps(alloy.calc.models)
        run(again, physics, output(parts, steps, restart=True))
    assert files(parts) == files(whole)
    assert again.positions.tobytes() == alloy.positions.tobytes()


@pytest.mark.parametrize("name", ["md.traj", "md.xyz"])
def test_what_came_after_the_checkpoint_is_cut(alloy, potential, tmp_path, name):
    physics = dataclasses.replace(ENSEMBLES["nve"], checkpoint_every=30)
    trajectory, start = tmp_path / name, alloy.copy()
    run(alloy, physics, output(tmp_path, 30, trajectory=trajectory))
    with trajectory.open("ab") as file, (tmp_path / "md.log").open("ab") as log:
        file.write(b"32\nhalf a fra")
        log.write(b"   40    0.0")
    start.calc = MDOps(potential)
    run(start, physics, output(tmp_path, 60, trajectory=trajectory, restart=True))
    assert [f.info["step"] for f in read(trajectory, ":")] == list(range(0, 61, 10))
    steps = [line.split()[0] for line in (tmp_path / "md.log").read_text().splitlines()]
    assert steps == ["#", *(str(s) for s in range(0, 61, 10))]


def test_a_trajectory_that_nobody_could_read_is_not_begun(alloy, tmp_path):
    alloy.info["comment"] = "two\nlines"
    with pytest.raises(InputError, match=r"no place for line breaks, .* \('comment'\): write \.traj"):
        run(alloy, ENSEMBLES["nve"], output(tmp_path, 2, trajectory=tmp_path / "md.xyz"))
    run(alloy, ENSEMBLES["nve"], output(tmp_path, 2, overwrite=True))
    assert read(tmp_path / "md.traj").info["comment"] == "two\nlines"


def test_files_of_another_run_are_refused(alloy, tmp_path):
    physics = ENSEMBLES["nve"]
    run(alloy, physics, output(tmp_path, 10))
    with pytest.raises(InputError, match="--overwrite"):
        run(alloy, physics, output(tmp_path, 10))
    with pytest.raises(InputError, match=r"timestep \(2, now 1\)"):
        run(alloy, dataclasses.replace(physics, timestep=1), output(tmp_path, 20, restart=True))
    with pytest.raises(InputError, match="past the end"):
        run(alloy, physics, output(tmp_path, 5, restart=True))
    with pytest.raises(InputError, match="wrote a log"):
        run(alloy, physics, output(tmp_path, 20, restart=True, log=None))
    other = alloy[:-1]
    other.calc = alloy.calc
    with pytest.raises(InputError, match="another structure"):
        run(other, physics, output(tmp_path, 20, restart=True))
    (tmp_path / "md.traj").write_bytes(b"short")
    with pytest.raises(InputError, match="moved or changed"):
        run(alloy, physics, output(tmp_path, 20, restart=True))
    (tmp_path / "md.restart").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a checkpoint, or damaged"):
        run(alloy, physics, output(tmp_path, 20, restart=True))
    before = files(tmp_path)
    alloy.pbc = [True, True, False]
    with pytest.raises(InputError, match="periodic"):
        run(alloy, ENSEMBLES["npt"], output(tmp_path, 10, overwrite=True))
    assert files(tmp_path) == before
    assert run(alloy, physics, output(tmp_path, 10, overwrite=True)).steps == 10


@pytest.mark.parametrize("engine", [False, True])
def test_a_restart_with_another_model_is_refused(alloy, potential, tmp_path, engine):
    physics, start = ENSEMBLES["nve"], alloy.copy()
    run(alloy, physics, output(tmp_path, 10), engine=engine)
    other = copy.deepcopy(potential)
    with torch.no_grad():  # the last bit of one weight
        weight = other.model.fitting.net(1).layers[-1].weight
        weight[0, 0] = torch.nextafter(weight[0, 0], weight.new_tensor(9.0))
    before = files(tmp_path)
    for model, says in (
        (other, r"other model \(\w{16}, now \w{16}\): a restart .*--overwrite"),
        (load(MODEL, dtype="float64"), r"dtype of the model \(float32, now float64\)"),
        (load(MODEL, overflow="extend"), r"other overflow of the model \(error, now extend\)"),
        (load(MODEL, spline=False), r"\(splines of \d+ intervals beyond 0.5 A, now exact nets\)"),
        (load(MODEL, r_min=1.0), r"splines of \d+ intervals beyond 1 A\)"),
    ):
        again = start.copy()
        again.calc = MDOps(model)
        with pytest.raises(InputError, match=says):
            run(again, physics, output(tmp_path, 20, restart=True), engine=engine)
    assert files(tmp_path) == before
    start.calc = MDOps(load(MODEL))
    assert run(start, physics, output(tmp_path, 20, restart=True), engine=engine).steps == 10


def test_a_restart_with_another_skin_is_refused(alloy, potential, tmp_path):
    """It decides how long lists live, and with that the last bits of forces."""
    physics, start = ENSEMBLES["nve"], alloy.copy()
    run(alloy, physics, output(tmp_path, 10))
    start.calc = MDOps(potential, skin=0.8)
    with pytest.raises(InputError, match=r"other skin \(1.0, now 0.8\)"):
        run(start, physics, output(tmp_path, 20, restart=True))


def test_a_restart_needs_all_models(alloy, potential, tmp_path):
    other = copy.deepcopy(potential)
    with torch.no_grad():
        other.model.fitting.bias += 0.1
    physics, start = ENSEMBLES["nve"], alloy.copy()
    for models, says in (
        ([potential, other], None),
        ([potential], r"number of models \(2, now 1\)"),
        ([potential, potential], r"other model 2 \("),
        ([other, potential], r"other model 1 \(.*, model 2 \("),
        ([potential, other], None),
    ):
        again = start.copy()
        again.calc = MDOps(models)
        if says is None:
            run(again, physics, output(tmp_path, 5, restart=True))
        else:
            with pytest.raises(InputError, match=says):
                run(again, physics, output(tmp_path, 10, restart=True))


def test_a_restart_with_other_parameters_is_refused(alloy, tmp_path):
    model = load(MODEL.parents[1] / "reference" / "fparam_aparam" / "model.dp", overflow="extend")
    sizes, physics = (model.model.fitting.fparam.size, model.model.fitting.aparam.size), ENSEMBLES["nve"]
    alloy.symbols[:] = [model.type_map[k % 2] for k in range(len(alloy))]
    zeros = [np.zeros(size) for size in sizes]

    def go_on(steps, fparam, aparam):
        atoms = alloy.copy()
        atoms.calc = MDOps(model, fparam=fparam, aparam=aparam)
        return run(atoms, physics, output(tmp_path, steps, restart=True)).steps

    assert go_on(5, *zeros) == 5
    with pytest.raises(InputError, match=r"other fparam \(\[0\.0.*, now \[0\.5"):
        go_on(10, zeros[0] + 0.5, zeros[1])
    with pytest.raises(InputError, match=r"other aparam \(\w{16}, now \w{16}\)"):
        go_on(10, zeros[0], zeros[1] + 0.5)
    alloy.info["fparam"] = zeros[0] + 0.5
    with pytest.raises(InputError, match="other fparam"):
        go_on(10, *zeros)
    del alloy.info["fparam"]
    assert go_on(10, *zeros) == 5


@pytest.mark.parametrize("name", ["md.traj", "md.xyz"])
@pytest.mark.parametrize("foreign", ["trajectory", "log"])
def test_a_longer_file_of_another_run_is_neither_cut_nor_added_to(alloy, potential, tmp_path, name, foreign):
    physics, start = ENSEMBLES["nve"], alloy.copy()
    own = {"trajectory": tmp_path / name, "log": tmp_path / "md.log"}
    run(alloy, physics, output(tmp_path, 20, **own))
    other = start.copy()
    other.calc = MDOps(potential)
    names = {"trajectory": tmp_path / f"b{name}", "log": tmp_path / "b.log"} | {foreign: own[foreign]}
    files_of_b = Output(60, tmp_path / "b.restart", 5, names["trajectory"], names["log"], overwrite=True)
    run(other, dataclasses.replace(physics, seed=1), files_of_b)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    start.calc = MDOps(potential)
    with pytest.raises(
        InputError, match=rf"{own[foreign].name} is not what this run wrote before its checkpoint"
    ):
        run(start, physics, output(tmp_path, 40, restart=True, **own))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["md.traj", "md.xyz"])
@pytest.mark.parametrize("part", [0, 30, 0.5, 1])
def test_a_run_that_died_in_its_first_frame_goes_on_unless_the_files_are_anothers(
    alloy, potential, tmp_path, monkeypatch, name, part
):
    """Its checkpoint knows of no files."""
    physics, trajectory = ENSEMBLES["nve"], tmp_path / name
    start, again = alloy.copy(), alloy.copy()

    def die(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("mdops.md.files.open_files", die)
    with pytest.raises(KeyboardInterrupt):
        run(alloy, physics, output(tmp_path, 20, trajectory=trajectory))
    monkeypatch.undo()
    other = start.copy()
    other.calc = MDOps(potential)
    run(other, physics, Output(0, tmp_path / "b", 10, tmp_path / f"b{name}", tmp_path / "b.log"))
    whole = (tmp_path / f"b{name}").read_bytes()
    trajectory.write_bytes(whole[: part if part > 1 else int(part * len(whole))])
    (tmp_path / "md.log").write_text("a diary")
    for atoms in (start, again):
        atoms.calc = MDOps(potential)
    with pytest.raises(InputError, match=r"md.log is of another run"):
        run(start, physics, output(tmp_path, 20, trajectory=trajectory, restart=True))
    assert (tmp_path / "md.log").read_text() == "a diary"
    (tmp_path / "md.log").write_text("#   ")
    assert run(again, physics, output(tmp_path, 20, trajectory=trajectory, restart=True)).steps == 20
    assert len(read(trajectory, ":")) == 3


def test_a_restart_with_other_masses_or_constraints_is_refused(alloy, potential, tmp_path):
    physics = ENSEMBLES["nve"]

    def go_on(folder, masses, constraint):
        folder.mkdir(exist_ok=True)
        atoms = alloy.copy()
        atoms.set_masses(masses)
        atoms.set_constraint(constraint)
        atoms.calc = MDOps(potential)
        return run(atoms, physics, output(folder, 10 if folder in begun else 5, restart=True)).steps

    begun, usual = [], alloy.get_masses()
    heavy, one = np.where(usual < 30, 2 * usual, usual), usual.copy()
    one[3] += 1.0
    free, fixed = tmp_path / "free", tmp_path / "fixed"
    go_on(free, usual, None)
    go_on(fixed, usual, FixAtoms([0]))
    begun += [free, fixed]
    with pytest.raises(InputError, match=r"other masses \(Al 26.98.*, Cu 63.546, now Al 53.96"):
        go_on(free, heavy, None)
    with pytest.raises(InputError, match=r"other masses \(Al 26.98.*, now \w{16}\)"):
        go_on(free, one, None)
    with pytest.raises(InputError, match=r"other constraints .*FixAtoms.*\[0\].*now .*\[1\]"):
        go_on(fixed, usual, FixAtoms([1]))
    with pytest.raises(InputError, match=r"other constraints .*FixedLine"):
        go_on(fixed, usual, FixedLine([0], [0, 0, 1]))
    assert go_on(free, usual, None) == go_on(fixed, usual, FixAtoms([0])) == 5


def test_velocities_that_are_all_zero_count_as_none_if_there_is_a_temperature(alloy):
    alloy.set_momenta(np.zeros((len(alloy), 3)))
    set_velocities(alloy, EnsembleSettings("nve"), np.random.default_rng(0), anew=False)
    assert not alloy.get_momenta().any()
    set_velocities(alloy, ENSEMBLES["nve"], np.random.default_rng(0), anew=False)
    assert temperature(alloy, degrees_of_freedom(alloy, ENSEMBLES["nve"])) == pytest.approx(300)


@pytest.mark.parametrize("mass", [0.0, -1.0, float("nan"), float("inf")])
def test_masses_that_are_none_are_refused(alloy, tmp_path, mass):
    masses = alloy.get_masses()
    masses[7] = mass
    alloy.set_masses(masses)
    for constraint in (None, FixAtoms([7])):
        for momenta in (None, np.zeros((32, 3))):
            atoms = alloy.copy()
            atoms.calc, atoms.info = alloy.calc, {}
            atoms.set_constraint(constraint)
            if momenta is not None:
                atoms.arrays["momenta"] = momenta
            with pytest.raises(
                InputError, match=r"atom 7 \(Cu\) has a mass of .*, expected a finite one above 0"
            ):
                run(atoms, ENSEMBLES["nve"], output(tmp_path, 5))
    assert not list(tmp_path.iterdir())


def whole_and_parts(tmp_path, *ends):
    """The folder and the last step of a run to the last of these steps, and of the same in parts that end so."""
    for name, steps in (("whole", ends[-1:]), ("parts", ends)):
        (tmp_path / name).mkdir()
        for end in steps:
            yield tmp_path / name, end


def test_a_cell_that_is_no_number_is_refused_in_one_line(alloy, tmp_path):
    alloy.cell.array[2, 2] = np.nan
    with warnings.catch_warnings(), pytest.raises(InputError, match="`cell` holds nan"):
        warnings.simplefilter("error")
        run(alloy, EnsembleSettings("nve", 300), output(tmp_path))
    assert not list(tmp_path.glob("md*"))


@pytest.mark.parametrize("constraint", [None, FixAtoms([0])])
def test_velocities_that_are_not_finite_are_refused(alloy, tmp_path, constraint):
    """In time: without files, and not as a run that blew up."""
    velocities = np.zeros((len(alloy), 3))
    velocities[3, 1] = np.nan
    alloy.set_velocities(velocities)
    alloy.set_constraint(constraint)
    with pytest.raises(InputError, match=r"atom 3 \(\w+\) has velocity \[0\.0, nan, 0\.0\], not finite"):
        run(alloy, EnsembleSettings("nve"), output(tmp_path))
    assert not list(tmp_path.glob("md*"))
    run(alloy, EnsembleSettings("nve", 300), output(tmp_path, 1), new_velocities=True)
    alloy.set_constraint(None)
    alloy.set_velocities(velocities)
    with pytest.raises(InputError, match="atom 3"):
        Engine(alloy, alloy.calc.models[0], EnsembleSettings("nve"))


@pytest.mark.parametrize("constraint", [None, FixAtoms([0])])
def test_means_are_of_the_whole_run(alloy, potential, tmp_path, capfd, constraint):
    alloy.set_constraint(constraint)
    physics = dataclasses.replace(ENSEMBLES["nve"], checkpoint_every=20)
    summaries, start = [], alloy.copy()
    for folder, end in whole_and_parts(tmp_path, 20, 60, 60):
        atoms = start.copy()
        atoms.calc = MDOps(potential)
        summaries.append(run(atoms, physics, output(folder, end, restart=True)))
    whole, first, second, nothing = summaries
    assert (whole.steps, first.steps, second.steps, nothing.steps) == (60, 20, 40, 0)
    for after in (second, nothing):
        assert after.temperature == pytest.approx(whole.temperature, rel=1e-9)
        assert after.drift == pytest.approx(whole.drift, abs=4e-9)
    assert abs(first.temperature / whole.temperature - 1) > 0.01, "the crystal begins at rest"
    assert capfd.readouterr().err.count("continuing from step 20 of 60") == 1


def test_the_first_checkpoints_come_early():
    def places(physics, atoms, last, **device):
        found = [0]
        while found[-1] < last:
            found.append(physics.next_checkpoint(found[-1], atoms, **device))
        return found[1:]

    assert places(EnsembleSettings(), 192, 3000) == [10, 20, 40, 80, 160, 320, 640, 1000, 2000, 3000]
    assert places(EnsembleSettings(), 192, 1600, on_gpu=True) == [100, 200, 400, 800, 1600]
    assert places(EnsembleSettings(), 10**6, 40) == [10, 20, 30, 40]
    assert places(EnsembleSettings(checkpoint_every=300), 192, 900) == [300, 600, 900]


def test_what_an_op_says_of_anything_else_is_no_explosion(alloy, tmp_path, monkeypatch):
    """Nor does an error of the program become advice about time steps."""
    from mdops.md.guard import Guard

    guard = Guard(1.0, 300)
    for says in (
        "mdops::spline_potential: out of memory for 8 bytes of scratch",
        "mdops::neighbor_matrix: argument `positions` has shape (2), expected (N, 3)",
    ):
        with pytest.raises(RuntimeError, match="mdops::") as caught, guard.explain(3):
            raise RuntimeError(says)
        assert not isinstance(caught.value, UnstableRunError)
    alloy.positions[3] = np.nan
    with pytest.raises(RuntimeError) as caught:
        zeros = torch.zeros(32, dtype=torch.int32)
        mdops.ops.neighbor_matrix(
            torch.tensor(alloy.positions), torch.eye(3, dtype=torch.float64)[None], torch.zeros(1, 3, dtype=torch.bool),
            zeros, zeros, 3.0, 1, 10,
        )  # fmt: skip
    with pytest.raises(UnstableRunError, match="blew up"), guard.explain(3):
        raise RuntimeError(str(caught.value))


def test_a_checkpoint_of_another_version_is_refused(alloy, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("mdops.md.checkpoint._VERSION", 2)
        run(alloy, ENSEMBLES["nve"], output(tmp_path, 5))
    with pytest.raises(InputError, match=r"another version of mdops: .*start again with --overwrite"):
        run(alloy, ENSEMBLES["nve"], output(tmp_path, 10, restart=True))


def test_an_explosion_stops_a_run_through_ase(alloy, tmp_path):
    alloy.set_constraint(FixAtoms([31]))
    with pytest.raises(UnstableRunError, match=r"blew up at step \d+ .*--timestep") as caught:
        run(alloy, EnsembleSettings("nve", 3000, 40), output(tmp_path, 500, interval=1))
    frames, step = read(tmp_path / "md.traj", ":"), int(re.search(r"step (\d+)", str(caught.value))[1])
    assert step > 5 and [f.info["step"] for f in frames] == list(range(step))
    assert all(np.isfinite(f.positions).all() for f in frames)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ensemble": "nvt"}, "temperature"),
        ({"timestep": 0}, "timestep"),
        ({"temperature": -1}, "temperature"),
        ({"ensemble": "nvz"}, "nve, nvt, npt"),
        ({"pressure": float("nan")}, "pressure"),
        ({"thermostat": "langevin"}, "thermostat is langevin, and nve has no thermostat"),
        ({"ensemble": "npt", "temperature": 1, "thermostat": "langevin"}, "npt has no thermostat"),
        ({"pressure": 1}, "pressure is 1, and nve has no pressure"),
        ({"ensemble": "nvt", "temperature": 1, "flexible": True}, "nvt by nose-hoover has no flexible"),
        ({"ensemble": "nvt", "temperature": 1, "friction": 5}, "nvt by nose-hoover has no friction"),
        (
            {"ensemble": "nvt", "temperature": 1, "thermostat": "langevin", "tdamp": 5},
            "by langevin has no tdamp",
        ),
    ],
)
def test_impossible_physics(changes, says):
    with pytest.raises(InputError, match=says):
        EnsembleSettings(**changes)


def test_impossible_output(tmp_path):
    for changes in ({"interval": 0}, {"trajectory": tmp_path / "a.dcd"}, {"log": tmp_path / "no" / "x"}):
        with pytest.raises(InputError):
            output(tmp_path, **changes)
    with pytest.raises(InputError, match="different files"):
        output(tmp_path, log=tmp_path / "md.restart")
    (tmp_path / "i").mkdir()
    with pytest.raises(InputError, match=r"different files: .*md.traj and .*i/../md.traj are one"):
        output(tmp_path, log=tmp_path / "i" / ".." / "md.traj")
    (tmp_path / "a.xyz").touch()
    os.link(tmp_path / "a.xyz", tmp_path / "a.log")
    with pytest.raises(InputError, match="are one"):
        output(tmp_path, trajectory=tmp_path / "a.xyz", log=tmp_path / "a.log")


@pytest.mark.parametrize("name", ENSEMBLES)
def test_fixed_atoms_stay_or_are_refused(alloy, tmp_path, name):
    alloy.set_constraint(FixAtoms([0, 5]))
    before = alloy.positions.copy()
    if name in ("nve", "langevin"):
        run(alloy, ENSEMBLES[name], output(tmp_path))
        moved = np.abs(alloy.positions - before).max(1)
        assert set(np.flatnonzero(moved == 0)) == {0, 5}
    else:
        with pytest.raises(InputError, match="constraints"):
            run(alloy, ENSEMBLES[name], output(tmp_path))


def test_npt_needs_a_crystal(alloy, tmp_path):
    alloy.pbc = [True, True, False]
    alloy.set_momenta(np.zeros((32, 3)))
    with pytest.raises(InputError, match="periodic in three directions"):
        run(alloy, ENSEMBLES["npt"], output(tmp_path))
    assert not (tmp_path / "md.traj").exists()


class TestVelocities:
    def test_crystal(self, alloy):
        physics = ENSEMBLES["nve"]
        set_velocities(alloy, physics, np.random.default_rng(0), anew=False)
        assert degrees_of_freedom(alloy, physics) == 3 * 32 - 3
        assert temperature(alloy, 3 * 32 - 3) == pytest.approx(300)
        np.testing.assert_allclose(alloy.get_momenta().sum(0), 0, atol=1e-10)

    def test_cluster_does_not_rotate(self):
        atoms = Octahedron("Cu", 3)
        physics = ENSEMBLES["nve"]
        set_velocities(atoms, physics, np.random.default_rng(0), anew=False)
        np.testing.assert_allclose(atoms.get_angular_momentum(), 0, atol=1e-9)
        assert temperature(atoms, 3 * len(atoms) - 6) == pytest.approx(300)

    def test_those_of_the_structure_are_kept(self, alloy):
        momenta = np.random.default_rng(0).normal(size=(32, 3))
        momenta -= momenta.mean(0)
        alloy.set_momenta(momenta)
        alloy.set_masses(np.full(32, 50.0))
        set_velocities(alloy, ENSEMBLES["nve"], np.random.default_rng(0), anew=False)
        np.testing.assert_allclose(alloy.get_momenta(), momenta, atol=1e-12)

    def test_without_temperature(self):
        with pytest.raises(InputError, match="no velocities"):
            set_velocities(Atoms("Cu"), EnsembleSettings("nve"), np.random.default_rng(0), anew=False)


@pytest.mark.parametrize("name", ["nose-hoover", "langevin"])
def test_baths_hold_the_temperature_of_what_can_move(alloy, name):
    """Four atoms: whether 9 or 12 momenta are free matters here."""
    atoms = alloy[:4]
    atoms.set_cell([4.0, 4.0, 4.0])
    coupling = {"friction": 20.0} if name == "langevin" else {"tdamp": 50.0}
    physics = dataclasses.replace(ENSEMBLES[name], **coupling)
    set_velocities(atoms, physics, np.random.default_rng(5), anew=False)
    engine = Engine(atoms, alloy.calc.models[0], physics)
    assert engine.freedom == (12 if name == "langevin" else 9)
    list(engine.run(4000))
    assert engine.mean_temperature == pytest.approx(300, rel=0.1)


@pytest.mark.parametrize("constraint", [None, FixAtoms([0])])
def test_ases_langevin_holds_the_temperature_of_what_can_move(alloy, tmp_path, constraint):
    """Three or four atoms: whether 9 or 12 momenta are free matters here."""
    atoms = alloy[:4]
    atoms.set_cell([4.0, 4.0, 4.0])
    atoms.set_constraint(constraint)
    atoms.calc = alloy.calc
    physics = dataclasses.replace(ENSEMBLES["langevin"], friction=20.0)
    summary = run(atoms, physics, output(tmp_path, 1500, interval=1500), engine=False)
    assert summary.temperature == pytest.approx(300, rel=0.12)


class TestCommittee:
    """Several models in one run: the mean, the deviation in the log, and restarts."""

    @pytest.fixture
    def models(self, potential):
        """The second has other weights, the third other knots and any number of neighbours."""
        other = copy.deepcopy(potential)
        with torch.no_grad():
            other.model.fitting.net(0).layers[0].weight *= 1.3
        return [potential, other, load(MODEL, r_min=0.4, overflow="extend")]

    @pytest.mark.parametrize("name", ["nve", "langevin", "flexible"])
    def test_restart_log_and_deviation(self, alloy, models, tmp_path, name):
        physics = dataclasses.replace(ENSEMBLES[name], checkpoint_every=20)
        start, written = alloy.copy(), {}
        for kind, ends in (("whole", [60]), ("parts", [20, 60])):
            folder = tmp_path / kind
            folder.mkdir()
            for end in ends:
                atoms = start.copy()
                atoms.calc = MDOps(models)
                run(atoms, physics, output(folder, end, restart=True))
            written[kind] = files(folder)
        assert written["whole"] == written["parts"]
        heading, *lines = (folder / "md.log").read_text().splitlines()
        assert heading.split()[-1] == "max_devi_f/(eV/A)" and len(lines) == 7
        for line, frame in zip(lines, read(folder / "md.traj", ":"), strict=True):
            forces = frame.get_forces()
            frame.calc = MDOps(models)
            np.testing.assert_allclose(forces, frame.get_forces(), atol=2e-5)
            deviation = frame.calc.results["forces_std"].max()
            assert deviation > 1e-3 or frame.info["step"] == 0, "no forces on a crystal at rest"
            assert float(line.split()[-1]) == pytest.approx(deviation, abs=3e-5)

    def test_constraints_keep_the_deviation(self, alloy, models, tmp_path):
        alloy.set_constraint(FixAtoms([0]))
        alloy.calc = MDOps(models)
        run(alloy, ENSEMBLES["nve"], output(tmp_path, 10))
        assert "max_devi_f" in (tmp_path / "md.log").read_text()


class TestEngine:
    """The same runs on the device, with files and checkpoints as through ASE."""

    @pytest.fixture
    def calculator(self, models):
        return lambda device: MDOps(models(device))

    @pytest.mark.parametrize("name", ENSEMBLES)
    @pytest.mark.parametrize("suffix", [".traj", ".xyz"])
    def test_frames_log_and_restart(self, calculator, alloy, tmp_path, name, device, suffix):
        physics = dataclasses.replace(ENSEMBLES[name], checkpoint_every=20)
        start, written = alloy.copy(), {}
        for folder, end in whole_and_parts(tmp_path, 20, 40, 70):
            atoms = start.copy()
            atoms.calc = calculator(device)
            trajectory = folder / f"md{suffix}"
            run_files = output(folder, end, trajectory=trajectory, restart=True)
            summary = run(atoms, physics, run_files, engine=True)
            written[folder.name] = [trajectory.read_bytes(), (folder / "md.log").read_bytes()]
        assert written["whole"] == written["parts"]
        frames = read(trajectory, ":")
        assert [f.info["step"] for f in frames] == list(range(0, 71, 10))
        np.testing.assert_allclose(frames[-1].positions, atoms.positions, atol=1e-7)
        np.testing.assert_allclose(frames[-1].cell.array, atoms.cell.array, atol=1e-7)
        assert (abs(atoms.get_volume() / start.get_volume() - 1) > 1e-4) == (physics.ensemble == "npt")
        np.testing.assert_allclose(frames[-1].get_forces(), atoms.get_forces(), atol=1e-4)
        assert summary.steps == 30 and 100 < summary.temperature < 500
        assert (summary.drift is None) == (name == "langevin")

    @pytest.mark.parametrize("name", ["nve", "nose-hoover", "npt", "flexible"])
    def test_log_is_that_of_ases_integrator(self, calculator, alloy, tmp_path, name, device):
        physics, start = ENSEMBLES[name], alloy.copy()
        set_velocities(start, physics, np.random.default_rng(0), anew=True)
        start.calc, atoms = calculator(device), start.copy()
        atoms.calc = calculator(device)
        run(atoms, physics, output(tmp_path))
        heading, *lines = (tmp_path / "md.log").read_text().splitlines()
        line = dict(zip(heading.split()[1:], map(float, lines[-1].split()), strict=True))
        dynamics = reference_integrator(start, physics)
        for _ in range(60):
            dynamics.step()
        now = temperature(start, degrees_of_freedom(start, physics))
        wanted = columns(start, LogState(60, 120.0, now, reference_conserved(dynamics)))
        assert list(line) == list(wanted)
        for column, value in wanted.items():
            assert line[column] == pytest.approx(float(value), abs=3e-6 if device == "cpu" else 0.02), column
        density = atoms.get_masses().sum() * 1.66053907 / line["V/A^3"]
        assert line["density/(g/cm^3)"] == pytest.approx(density, rel=1e-5)
        assert line["V/A^3"] == pytest.approx(atoms.get_volume(), abs=1e-3)

    def test_an_explosion_leaves_the_frames_before_it(self, calculator, alloy, tmp_path, device):
        """Too long a time step for so hot a crystal, some ten steps long."""
        alloy.calc = calculator(device)
        with pytest.raises(UnstableRunError, match=r"blew up at step \d+") as caught:
            run(alloy, EnsembleSettings("nve", 3000, 40), output(tmp_path, 500, interval=1))
        frames, step = read(tmp_path / "md.traj", ":"), int(re.search(r"step (\d+)", str(caught.value))[1])
        assert step > 5 and [f.info["step"] for f in frames] == list(range(step))
        assert all(np.isfinite(f.positions).all() for f in frames)

    def test_files_that_cannot_be_written_stop_the_run(self, calculator, alloy, tmp_path, monkeypatch):
        """From the second frame on: it is the writing thread that fails."""
        write, frames = ExtxyzTrajectory.write_frame, []

        def fill(file, atoms):
            if frames:
                raise OSError("no space left on device")
            frames.append(write(file, atoms))

        alloy.calc = calculator("cpu")
        monkeypatch.setattr(ExtxyzTrajectory, "write_frame", fill)
        with pytest.raises(OSError, match="no space left"):
            run(alloy, ENSEMBLES["nve"], output(tmp_path, trajectory=tmp_path / "md.xyz"), engine=True)

    def test_a_run_stays_with_its_integrator(self, alloy, tmp_path):
        run(alloy, ENSEMBLES["nve"], output(tmp_path, 10), engine=True)
        with pytest.raises(InputError, match=r"integrator \(engine, now ase\)"):
            run(alloy, ENSEMBLES["nve"], output(tmp_path, 20, restart=True), engine=False)

    def test_what_it_cannot_run_is_refused_or_left_to_ase(self, alloy, tmp_path):
        with pytest.raises(InputError, match="only the engine has"):
            run(alloy, ENSEMBLES["npt"], output(tmp_path), engine=False)
        alloy.set_constraint(FixAtoms([0]))
        with pytest.raises(InputError, match="does not support constraints: use ASE's integrators"):
            run(alloy, ENSEMBLES["nve"], output(tmp_path), engine=True)
        assert run(alloy, ENSEMBLES["nve"], output(tmp_path, 2)).steps == 2
        alloy.set_constraint()
        with pytest.raises(InputError, match=r"integrator \(ase, now engine\)"):
            run(alloy, ENSEMBLES["nve"], output(tmp_path, 4, restart=True))
