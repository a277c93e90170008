"""Parts of the loop: the input, teachers, labels, levels, selection, exploration, processes."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from loop_cases import TREE, tiny, write_cells

import mdops
from mdops.cli import main
from mdops.data.dataset import load_dataset
from mdops.errors import ConfigError, InputError
from mdops.learn import learn, parse_config, read_config
from mdops.learn.config import (
    AseTeacherConfig,
    CommandTeacherConfig,
    ExploreConfig,
    LimitsConfig,
    StartConfig,
)
from mdops.learn.explore import Condition, _Recorder, _run
from mdops.learn.jobs import DiedError, Jobs
from mdops.learn.labels import LabelFolder, gather, label, read_frames, teacher_of
from mdops.learn.progress import seconds_left
from mdops.learn.rounds import Summary
from mdops.learn.select import chosen_frames, farthest
from mdops.learn.structures import changed, first_set, start_structures
from mdops.learn.students import answers_of
from mdops.learn.trust import Trust, rank_correlation, trust_levels
from mdops.md import EnsembleSettings
from mdops.md.motion import set_velocities


def copper(seed=0, scale=1.0):
    atoms = bulk("Cu", a=3.6 * scale, cubic=True)
    atoms.rattle(0.1, seed=seed)
    return atoms


# -- The input


def test_structures_are_all_frames_or_those_that_are_named(tmp_path):
    ase.io.write(tmp_path / "a.extxyz", [bulk("Cu", a=3.6 + 0.1 * k) for k in range(4)])
    counts = {"a.extxyz": 4, "a.extxyz@2": 1, "a.extxyz@1:": 3}
    for name, count in counts.items():
        found = start_structures(StartConfig([str(tmp_path / name)]))
        assert len(found) == count and all(atoms.info == {"from": name} for atoms in found)
    assert found[0].cell[0, 1] == pytest.approx(1.85)
    with pytest.raises(InputError, match=r"start\.structures: .*b\.extxyz: there is no such file"):
        start_structures(StartConfig([str(tmp_path / "b.extxyz")]))


def test_the_input_is_yaml_or_json(tmp_path, capsys):
    write_cells(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(TREE))
    (tmp_path / "a.yaml").write_text("teacher: {calculator: ase.calculators.emt.EMT}\n" + "\n".join(
        f"{name}: {json.dumps(TREE[name])}" for name in TREE if name != "teacher"))  # fmt: skip
    assert read_config(tmp_path / "a.json") == read_config(tmp_path / "a.yaml") == tiny(tmp_path)
    assert read_config(tmp_path / "a.json").start.structures == [str(tmp_path / "start.extxyz")]
    (tmp_path / "b.yaml").write_text("a: [1")
    with pytest.raises(ConfigError, match=r"b\.yaml: is not YAML"):
        read_config(tmp_path / "b.yaml")
    assert main(["learn", "--keys"]) == 0
    told = capsys.readouterr().out
    assert "teacher[command].command" in told and "targets.forces" in told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": {"calls": 27}}, "budget.calls: is 27"),
        ({"students": {"input": {"training": {"numb_steps": 3}}}}, "training.numb_steps: is set by the loop"),
        ({"students": {"input": {"data": {}}}}, "students.input.data: is not a section"),
        ({"explore": {"temperatures": []}}, "expected one at least"),
        ({"teacher": {"type": "oracle"}}, "teacher.type: is 'oracle'"),
        ({"explore": {"temperature": 3}}, "nearest is 'temperatures'"),
    ],
)
def test_inputs_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        tiny(".", **changes)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"model": {"descriptor": {"rcutt": 4.0}}},
            r"students\.input\.model\.descriptor\.rcutt: .* the nearest is 'rcut'",
        ),
        (
            {"model": {"type": "dpa4"}, "loss": {"type": "dens"}},
            r"students\.input: these models answer energy, forces, and simulations need energies whose",
        ),
    ],
)
def test_a_wrong_input_of_the_students_is_told_before_the_teacher_is_asked(given, message, tmp_path):
    write_cells(tmp_path)
    config = tiny(tmp_path, students={"input": given})
    with pytest.raises(ConfigError, match=message):
        learn(config, tmp_path / "learned")
    assert not list((tmp_path / "learned").glob("round-*"))


def test_a_script_whose_processes_call_the_loop_again_is_told_of_its_guard(tmp_path):
    write_cells(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps({**TREE, "compute": {"processes": 2}}))
    (tmp_path / "script.py").write_text(
        "from mdops.learn import learn, read_config\nlearn(read_config('a.json'), 'learned')\n"
    )
    # Not by `children`: what processes of a process of theirs write goes elsewhere.
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode and 'needs `if __name__ == "__main__":`' in done.stderr


# -- Teachers and labels


def test_a_calculator_of_ones_own_is_found_beside_the_input(tmp_path):
    (tmp_path / "my_teacher.py").write_text(
        "from ase.calculators.emt import EMT\ndef make(scale): return EMT()\n"
    )
    config = AseTeacherConfig("my_teacher.make", {"scale": 2}, str(tmp_path))
    teacher = teacher_of(config)
    assert teacher.identity == "my_teacher.make(scale=2)"
    (answer,) = teacher.label([copper()], [0], tmp_path)
    wanted = copper()
    wanted.calc = EMT()
    np.testing.assert_allclose(answer.get_forces(), wanted.get_forces())
    np.testing.assert_allclose(answer.get_stress(), wanted.get_stress())
    with pytest.raises(ConfigError, match="no_such"):
        teacher_of(AseTeacherConfig("no_such.Calculator", None, None))


def test_a_model_labels_in_batches(learned, tmp_path):
    from mdops.learn.config import ModelTeacherConfig

    _, result, _ = learned
    teacher = teacher_of(ModelTeacherConfig(str(result.model), batch_atoms=10))
    frames = [copper(k) * (k % 2 + 1, 1, 1) for k in range(5)]
    broken = copper()
    broken.positions[1] = broken.positions[0]
    answers = teacher.label([*frames, broken], range(6), tmp_path)
    model = mdops.load(result.model)
    for frame, answer in zip(frames, answers, strict=False):
        np.testing.assert_allclose(answer.get_forces(), model.compute(frame)["forces"], atol=1e-5)
    assert isinstance(answers[5], str) and "InputError" in answers[5]


def test_a_model_with_too_few_places_labels_as_told(tmp_path):
    from mdops.learn.config import ModelTeacherConfig

    few = str(Path(__file__).parents[1] / "data/reference_kinds/dpa3_few_places/model.dp")
    type_map = mdops.load(few, spline=False).type_map
    frame = bulk("Cu", cubic=True, a=3.0) * (2, 2, 2)
    frame.set_chemical_symbols([type_map[0]] * len(frame))
    (refused,) = teacher_of(ModelTeacherConfig(few)).label([frame], [0], tmp_path)
    assert isinstance(refused, str) and "sel" in refused
    identities = set()
    for rule in ("truncate", "extend"):
        teacher = teacher_of(ModelTeacherConfig(few, overflow=rule, dtype="float64"))
        (answer,) = teacher.label([frame], [0], tmp_path)
        wanted = mdops.load(few, overflow=rule, dtype="float64").compute(frame)["energy"]
        np.testing.assert_allclose(answer.get_potential_energy(), wanted, rtol=1e-12)
        identities.add(teacher.identity)
    assert len(identities) == 2


SCRIPT = """#!{python}
import pathlib, sys
import ase.io
from ase.calculators.emt import EMT
for path in sorted(pathlib.Path(sys.argv[1]).glob("[0-9]*.extxyz")):
    if ".labels" in path.name or path.stem == "00002":
        continue
    atoms = ase.io.read(path)
    atoms.calc = EMT()
    atoms.get_forces(), atoms.get_stress()
    ase.io.write(path.with_suffix(".labels.extxyz"), atoms)
    print(path.stem, file=open("called", "a"))
sys.exit("one was left out")
"""


def test_a_command_labels_a_folder_and_is_not_asked_twice(tmp_path):
    script = tmp_path / "teach"
    script.write_text(SCRIPT.format(python=sys.executable))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    config = CommandTeacherConfig("./teach {folder}", "EMT by command", 0, str(tmp_path))
    teacher = teacher_of(config)
    answers = teacher.label([copper(k) for k in range(3)], [0, 1, 2], tmp_path)
    assert [isinstance(answer, Atoms) for answer in answers] == [True, True, False]
    assert "no 00002.labels.extxyz; the command ended with 1: one was left out" in answers[2]
    # As after a kill: the labels of two are there, a third one is new.
    teacher.label([copper(k) for k in (0, 1, 3)], [0, 1, 3], tmp_path)
    assert (tmp_path / "called").read_text().split() == ["00000", "00001", "00003"]


def test_what_a_command_says_may_have_any_bytes(tmp_path):
    """Several lines, as those of a traceback, bytes of another encoding, and a backslash at the end; so may the command
    have, which tells whose labels they are."""
    command = "printf 'one\\n\\351 two\\\\' >&2\nexit 3  # \\\n"
    folder = ask(tmp_path, [copper(k) for k in range(2)])
    teach(folder, CommandTeacherConfig(command, None, 0, None))
    answers = folder.answers()
    assert [len(atoms) for atoms in answers] == [4, 4]
    assert all("the command ended with 3: one \ufffd two" in atoms.info["failed"] for atoms in answers)


def ask(tmp_path, frames):
    folder = LabelFolder(tmp_path)
    folder.ask(frames)
    return folder


def teach(folder, config, **options):
    teacher = teacher_of(config)
    with Jobs(1, 1) as jobs:
        label(folder, config, teacher.identity, teacher.at_once, teacher.may_spread, jobs, **options)


EMT_TEACHER = AseTeacherConfig("ase.calculators.emt.EMT", None, None)


def test_each_label_is_on_the_disk_when_it_is_made(tmp_path):
    folder, seen = ask(tmp_path, [copper(k) for k in range(3)]), []
    teach(folder, EMT_TEACHER, on_progress=lambda done, of: seen.append((done, of, folder.count())))
    assert seen == [(1, 3, 1), (2, 3, 2), (3, 3, 3)]
    (folder.each / "00001.extxyz").unlink()  # as if it had been killed before that one
    seen.clear()
    teach(folder, EMT_TEACHER, on_progress=lambda done, of: seen.append(done))
    assert seen == [3]
    assert gather(folder, [], LimitsConfig()) == (3, []) and not folder.each.exists()
    assert [len(frame) for frame in read_frames(folder.labels)] == [4, 4, 4]


def test_failures_and_outliers_are_set_aside_and_told(tmp_path):
    frames = [copper(k) for k in range(24)]
    frames[3].numbers[:] = 3  # EMT has no lithium
    frames[5] = copper(5, scale=0.5)
    folder = ask(tmp_path, frames)
    teach(folder, EMT_TEACHER)
    strange = read_frames(folder.each / "00007.extxyz")[0]
    strange.calc.results["energy"] += 40.0
    ase.io.write(folder.each / "00007.extxyz", strange)
    good, reasons = gather(folder, [], LimitsConfig(force=20.0))
    assert good == 21 and len(reasons) == 3
    assert any("NotImplementedError" in r for r in reasons) and any("a force of" in r for r in reasons)
    assert any("energy is far" in r for r in reasons)
    assert {len(read_frames(folder.labels)), len(read_frames(folder.set_aside))} == {21, 3}
    folder = ask(tmp_path / "none", [frames[3]]) if (tmp_path / "none").mkdir() is None else None
    teach(folder, EMT_TEACHER)
    with pytest.raises(InputError, match="labelled none of 1 structures"):
        gather(folder, [], LimitsConfig())


# -- Processes


def work(number, die=()):
    if number in die:
        os._exit(3)
    return number**2


@pytest.mark.long
def test_processes_that_die_are_tried_again_alone():
    with Jobs(2, 1) as jobs:
        assert dict(jobs.run(work, [(k,) for k in range(5)])) == {k: k**2 for k in range(5)}
        answers = dict(jobs.run(work, [(k, (2,)) for k in range(4)]))
    assert isinstance(answers.pop(2), DiedError) and answers == {0: 0, 1: 1, 3: 9}


# -- Structures, selection, levels


def test_first_structures_are_displaced_strained_and_swapped():
    alloy = bulk("Cu", a=3.7, cubic=True) * 2
    alloy.symbols[:8] = "Al"
    config = StartConfig(["x"], 30, 0.2, 0.05, True)
    made = first_set([alloy], config, np.random.default_rng(1))
    volumes = np.array([atoms.get_volume() for atoms in made])
    assert len(made) == 30 and 0.05 < volumes.std() / volumes.mean() < 0.15
    assert all(atoms.symbols.count("Al") == 8 for atoms in made)
    assert sum((atoms.numbers != alloy.numbers).any() for atoms in made) >= 10
    slab = alloy.copy()
    slab.pbc = (True, True, False)
    bent = changed(slab, np.random.default_rng(0), strain=0.1, swap=False)
    np.testing.assert_allclose(bent.cell[2], slab.cell[2])


def test_farthest_rows_are_taken_one_after_the_other():
    rows = np.array([[0.0], [1.0], [1.1], [5.0], [5.1]])
    assert farthest(rows, np.array([[0.0]]), 2).tolist() == [4, 2]
    assert sorted(farthest(rows, rows[:0], 9).tolist()) == [0, 1, 2, 3, 4]


def test_copies_of_one_event_are_labelled_once(learned):
    model = mdops.load(learned[1].model)
    events = [copper(1), copper(2, 1.05), copper(3, 0.95)]
    frames = [atoms.copy() for atoms in events for _ in range(10)]
    frames += [copper(4) for _ in range(20)]
    for k, frame in enumerate(frames):
        frame.info["deviation"] = 1.0 if k < 30 else 0.01
    places = chosen_frames(frames, [], 3, Trust(0.5, 2.0, 1.0, None), model)
    assert {k // 10 for k in places} == {0, 1, 2}


def test_levels_come_from_errors_held_out(learned):
    out = learned[0]
    models = [mdops.load(out / name) for name in ("model.safetensors", "committee-1.safetensors")]
    data = load_dataset([out / "round-00/labels.extxyz"], models[0].type_map)
    answers = answers_of(models, data)
    trust = trust_levels(answers, 0.05)
    assert 0 < trust.low < trust.high and trust.ratio > 0.2
    # Half of the deviation at the same errors: the same error is to be expected at half of it.
    closer = (answers.forces + answers.forces.mean(0)) / 2
    shifted = answers.forces.mean(0) - data.labels["forces"]
    assert (
        trust_levels(type(answers)(data, closer, answers.energies), 0.05).high < trust.high or shifted.any()
    )
    wanted = np.abs(answers.forces[0] - data.labels["forces"])
    assert answers.errors(0)["forces"] == pytest.approx(np.sqrt((wanted**2).mean()))
    assert answers.frame_errors(0).max() <= answers.largest_errors().max() * np.sqrt(2)


def test_rank_correlation():
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(a, a**3) == pytest.approx(1) and rank_correlation(a, -a) == pytest.approx(-1)
    assert rank_correlation(a, np.array([1, 1, 2, 2])) == pytest.approx(2 / np.sqrt(5))
    assert rank_correlation(a, np.ones(4)) is None and rank_correlation(a[:2], a[:2]) is None


# -- Exploration


def test_a_run_that_is_stopped_leaves_the_others_alone(learned):
    out = learned[0]
    models = [
        mdops.load(out / n, overflow="extend") for n in ("model.safetensors", "committee-1.safetensors")
    ]
    physics = EnsembleSettings("nvt", 100, 2.0)
    atoms = [copper(k) * (2, 1, 1) for k in range(3)]
    atoms[1].positions[1] = atoms[1].positions[0] + 0.9  # forces there throw atoms away
    for one in atoms:
        set_velocities(one, physics, np.random.default_rng(0), anew=True)
    recorder = _Recorder(Condition([4, 5, 6], 100.0, None), 1e9)
    _run(atoms, [0, 1, 2], models, physics, ExploreConfig([100.0], steps=20, interval=5), 0, recorder)
    assert recorder.steps[0] == recorder.steps[2] == 20
    steps = {
        place: [f.info["step"] for f in recorder.frames if f.info["structure"] == place] for place in (4, 6)
    }
    taken = [1, 2, 3, 4, 5, 10, 15, 20]  # more of the first interval
    assert steps == {4: taken, 6: taken}
    recorder = _Recorder(Condition([4, 5, 6], 100.0, None), 0.0)
    _run(atoms[::2], [0, 2], models, physics, ExploreConfig([100.0], steps=20, interval=5), 0, recorder)
    assert recorder.stopped == {0, 2} and not recorder.frames


def test_time_left_is_that_of_the_rounds_that_the_budget_allows():
    config = parse_config(
        {**TREE, "budget": {"calls": 60, "rounds": 5}, "students": {"steps": 10, "final_steps": 50}}
    )
    done = [
        Summary("first", calls=20),
        Summary("explore", calls=8, seconds={"training": 4.0, "exploration": 6.0}),
    ]
    assert seconds_left(config, done[:1]) is None
    # 60 - 28 - 5 calls are three rounds of 10 s; the last training takes five times 4 s.
    assert seconds_left(config, done) == pytest.approx(3 * 10 + 20 + 6)
