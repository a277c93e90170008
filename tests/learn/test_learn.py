"""The whole loop: what it leaves behind, what it does when it is called again, and what a changed input means."""

import json
import re
import shutil

import ase.io
import numpy as np
import pytest
from loop_cases import tiny

import mdops
from mdops.applicability import domain_of
from mdops.cli import main
from mdops.errors import InputError
from mdops.learn import learn
from mdops.learn.labels import read_frames
from mdops.learn.rounds import finished_rounds


def labels(out):
    return [frame for r, _ in finished_rounds(out) for frame in read_frames(r.labels.labels)]


def test_rounds_follow_each_other_and_calls_stay_within_the_budget(learned):
    out, result, _ = learned
    kinds = [s.kind for _, s in finished_rounds(out)]
    assert kinds == ["first", "explore", "final"]
    assert result.calls == sum(s.calls for _, s in finished_rounds(out)) == 20 + 8 + 5 <= 34
    assert [s.labels for _, s in finished_rounds(out)] == [0, 20, 28]
    assert not result.reached and result.errors["forces"] > 1e-4


def test_every_label_says_whose_it_is_and_is_the_teachers(learned):
    from ase.calculators.emt import EMT

    for frame in labels(learned[0]):
        assert frame.info["teacher"] == "ase.calculators.emt.EMT()"
        wanted = frame.get_forces()
        frame.calc = EMT()
        np.testing.assert_allclose(frame.get_forces(), wanted, atol=1e-7)


def test_the_model_knows_its_domain(learned, capsys):
    out, result, _ = learned
    model = mdops.load(result.model)
    domain = domain_of(model)
    assert domain["committee"] == ["model.safetensors", "committee-1.safetensors"]
    assert domain["temperatures"] == [300, 900]
    # Only of what was visited: runs of the alloy may have been stopped before their first frame.
    visited = [f for path in (out / "round-02/explored").glob("*.extxyz") for f in read_frames(path)]
    assert set(domain["shares"]) == {symbol for frame in visited for symbol in frame.get_chemical_symbols()}
    assert domain["errors"]["forces"] == result.errors["forces"] and domain["deviation"] > 0
    assert domain["labels"] == len(labels(out))
    assert 2.0 < domain["closest"]["Cu-Cu"] < 2.7
    assert main(["info", str(result.model)]) == 0
    told = capsys.readouterr().out
    assert "300 to 900 K" in told and "ase.calculators.emt.EMT()" in told and "guard" in told


def test_the_report_is_one_file(learned):
    pytest.importorskip("matplotlib")
    text = learned[1].report.read_text()
    sources = re.findall(r'src="([^"]*)"', text)
    assert len(sources) == 5 and all(s.startswith("data:image/png;base64,iVBOR") for s in sources)
    for part in ("calls of the teacher", "300 K", "rank correlation", "energy drift", "must not be used"):
        assert part in text, part


def test_a_folder_that_is_done_is_left_alone(learned):
    out, result, place = learned
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.extxyz")}
    assert learn(tiny(place), out) == result
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*.extxyz")}


def test_more_calls_go_on_with_all_labels(learned, tmp_path, capsys):
    out, _, place = learned
    folder = tmp_path / "out"
    shutil.copytree(out, folder)
    kept = [frame.positions for frame in labels(folder)]
    config = tiny(place, budget={"calls": 46, "rounds": 2}, report={"steps": 0})
    assert learn(config, folder).calls == 20 + 8 + 5 + 8 + 5
    assert "the input changed in budget; kept: 33 labels of 3 finished rounds" in capsys.readouterr().err
    assert [s.kind for _, s in finished_rounds(folder)] == ["first", "explore", "final", "explore", "final"]
    for before, after in zip(kept, labels(folder), strict=False):
        np.testing.assert_array_equal(before, after.positions)


def test_labels_of_two_teachers_are_not_mixed(learned):
    out, _, place = learned
    teacher = {"calculator": "ase.calculators.lj.LennardJones"}
    with pytest.raises(
        InputError, match=r"from the teacher ase\.calculators\.emt\.EMT\(\), not from .*Lennard"
    ):
        learn(tiny(place, teacher=teacher), out)


def test_changed_students_are_trained_anew_in_the_round_that_is_not_finished(learned, tmp_path, capsys):
    out, _, place = learned
    folder = tmp_path / "out"
    shutil.copytree(out, folder)
    last = folder / "round-02"
    for name in ("round.json", "labels.extxyz", "set_aside.extxyz", "asked.extxyz"):
        (last / name).unlink()
    (folder / "result.json").unlink()
    config = tiny(place, students={"final_steps": 20}, report={"steps": 0})
    learn(config, folder)
    told = capsys.readouterr().err
    assert "repeated in round 2: trainings, exploration, selection" in told
    assert json.loads((last / "student-1/input.json").read_text())["training"]["numb_steps"] == 20


def test_the_guard_warns_and_stops(learned, tmp_path, monkeypatch, capsys):
    from mdops.calculator import MDOps
    from mdops.errors import OutsideDomainError

    out, result, place = learned
    atoms = ase.io.read(place / "start.extxyz")
    for models in (result.model, [result.model, out / "committee-1.safetensors"]):
        atoms.calc = MDOps(models, guard="stop")
        guard, level = atoms.calc.guard, atoms.calc.guard.level
        guard.usual = level  # so that the first one is not unusual
        forces = atoms.get_forces()
        guard.usual, half = 0.0, np.full(len(atoms), level / 2)
        assert [guard.check(atoms, forces, half) for _ in range(4)] == [level / 2] * 4
        with pytest.raises(OutsideDomainError, match="5 of 6 structures deviate by more than 0"):
            guard.check(atoms, forces, half)
        strange = atoms.copy()
        strange.set_cell(0.8 * strange.cell.array, scale_atoms=True)
        strange.rattle(0.3)
        strange.calc = MDOps(models, guard="stop", overflow="extend")
        strange.calc.guard.level = level / 100
        with pytest.raises(OutsideDomainError, match="outside of the model's domain"):
            strange.get_forces()
    monkeypatch.chdir(tmp_path)
    command = ["md", str(place / "start.extxyz@0"), "-m", str(result.model), "-T", "9000", "--steps", "60"]
    command += ["--timestep", "2", "--interval", "10", "--overflow", "extend"]
    assert main([*command, "--guard", "stop", "--trajectory", "stop.traj"]) == 2
    assert "outside of the model's domain at step" in capsys.readouterr().err
    assert main([*command, "--guard", "warn", "--trajectory", "warn.traj"]) == 0
    assert capsys.readouterr().err.count("outside of the model's domain") == 1


def test_a_model_without_a_domain_has_no_guard(learned, tmp_path):
    from mdops.calculator import MDOps

    model = mdops.load(learned[1].model)
    model.source = {}
    model.save(tmp_path / "m.dp")
    with pytest.raises(InputError, match="does not say where it was tested"):
        MDOps(tmp_path / "m.dp", guard="warn")
    shutil.copy(learned[1].model, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="is not beside it"):
        MDOps(tmp_path / "model.safetensors", guard="warn")
    with pytest.raises(InputError, match="guard is 'maybe'"):
        MDOps(learned[1].model, guard="maybe")
