"""`mdops train` and `mdops test`, in this process."""

import json
import re
import shutil
import sys
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
import yaml
from ase.build import bulk
from ase.calculators.emt import EMT
from children import python
from small_systems import interrupted

import mdops
from mdops.cli import main
from mdops.train.config.read import keys
from mdops.train.loop import trainer

DATA = Path(__file__).parents[1] / "data"
SYSTEM = DATA / "training" / "emt"
MODEL = str(DATA / "formats" / "model.dp")


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """Writes the input of a small training into the current folder, and gives its name."""
    monkeypatch.chdir(tmp_path)

    def write(**training):
        data = {"systems": str(SYSTEM), "batch_size": 2}
        tree = {
            "model": {
                "type_map": ["Cu", "Al"],
                "descriptor": {"rcut": 4.0, "rcut_smth": 2.0, "neuron": [4, 8], "axis_neuron": 3},
                "fitting_net": {"neuron": [8, 8]},
            },
            "loss": {"start_pref_v": 0.1, "limit_pref_v": 1.0},
            "training": {
                "training_data": data,
                "validation_data": data,
                "numb_steps": 12,
                "seed": 5,
                "disp_freq": 4,
                "save_freq": 4,
                **training,
            },
        }
        Path("input.json").write_text(json.dumps(tree))
        return "input.json"

    return write


def weights(path):
    return torch.cat([p.detach().ravel() for p in mdops.load(path).parameters()])


def test_a_training_tells_what_it_did(inputs, capsys):
    assert main(["train", inputs(), "--output", "run"]) == 0
    out, err = capsys.readouterr()
    assert "on 20 frames with 640 atoms (Cu, Al), validation on 20; 12 steps, seed 5" in err
    assert "\nlearns from energy (20 frames), forces (20 frames), virial (20 frames)\n" in err
    assert re.search(
        r"step 12/12  validation: loss \S+, energy \S+ meV/atom, forces .* steps/s  0 s left", err
    )
    assert "wrote run/model.safetensors and run/lcurve.out\n" in out
    assert re.search(
        r"\n  training, 20 frames: energy .* virial \S+ meV/atom\n  validation, 20 frames: .*\n$", out
    )
    assert mdops.load("run/model.safetensors").type_map == ["Cu", "Al"]
    lines = Path("run/lcurve.out").read_text().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["1", "4", "8", "12"]


def test_long_reading_is_told_of(inputs, capsys, monkeypatch):
    line = "still reading the data"
    assert main(["train", inputs()]) == 0
    assert line not in capsys.readouterr().err
    monkeypatch.setattr("mdops.cli.train._PATIENCE", 0.0)
    assert main(["train", inputs(), "--overwrite"]) == 0
    assert line in capsys.readouterr().err


def test_restart_goes_on_to_the_same_model(inputs, capsys, monkeypatch):
    whole = ["train", inputs(), "--output"]
    assert main([*whole, "whole"]) == 0

    with interrupted(7):
        assert main([*whole, "run", "--restart"]) == 130
    said = capsys.readouterr().err
    assert "run has no checkpoint: a new training begins\n" in said
    assert "mdops: interrupted; the same command with --restart continues\n" in said
    assert main([*whole, "run", "--restart"]) == 0
    said = capsys.readouterr().err
    assert "from step 4 of 12" in said and "has no checkpoint" not in said
    assert torch.equal(weights("run/model.safetensors"), weights("whole/model.safetensors"))
    assert main([*whole, "run", "--restart"]) == 0
    assert "the training was complete" in capsys.readouterr().out


def test_an_earlier_training_is_replaced_only_when_told(inputs, capsys):
    command = ["train", inputs(), "--output", "run"]
    assert main(command) == 0
    before = Path("run/model.safetensors").read_bytes()
    assert main(command) == 2
    assert "run/model.ckpt-4.pt belongs to an earlier training" in capsys.readouterr().err
    assert Path("run/model.safetensors").read_bytes() == before
    inputs(numb_steps=2)
    assert main([*command, "--overwrite"]) == 0
    assert [path.name for path in Path("run").glob("*.pt")] == ["model.ckpt-2.pt"]


def test_best_models_are_named_and_replaced_with_the_training_they_are_of(inputs, capsys):
    tree = json.loads(Path(inputs(acc_freq=2)).read_text())
    full = {"full_validation": True, "validation_freq": 4, "full_val_start": 0, "save_best_dir": "best"}
    Path("full.json").write_text(json.dumps({**tree, "validating": full}))
    assert main(["train", "full.json", "--output", "run"]) == 0
    out, err = capsys.readouterr()
    (best,) = Path("run/best").glob("*.safetensors")
    assert f"best by E:MAE: {best}\n" in out and mdops.load(best).type_map == ["Cu", "Al"]
    assert err.count("training.acc_freq: is 2, which has no effect") == 1
    for path in Path("run").glob("*.*"):
        path.unlink()  # all but the best
    assert main(["train", "full.json", "--output", "run"]) == 2
    assert "run/best/best.ckpt" in capsys.readouterr().err
    inputs(numb_steps=2)
    tree = json.loads(Path("input.json").read_text())
    Path("full.json").write_text(json.dumps({**tree, "validating": {"save_best_dir": "best"}}))
    assert main(["train", "full.json", "--output", "run", "--overwrite"]) == 0
    assert not list(Path("run/best").iterdir())


@pytest.mark.parametrize(
    "change, says",
    [
        (
            {"numb_stepz": 3},
            "input.json: training.numb_stepz: there is no such key; the nearest is 'numb_steps'",
        ),
        ({"training_data": {"systems": "nowhere"}}, "nowhere: there is no such file or folder"),
        ({"seed": "x"}, "training.seed: is 'x', expected a whole number or null"),
    ],
)
def test_errors_of_an_input_are_one_line(inputs, capsys, change, says):
    assert main(["train", inputs(**change), "--output", "run"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("mdops: ") and err.count("\n") == 1 and says in err
    assert not Path("run").exists()
    Path("run").mkdir()
    assert main(["train", inputs(**change), "--output", "run"]) == 2
    assert Path("run").is_dir()  # which is not the command's own


def test_an_input_in_yaml_is_no_data(inputs, capsys):
    tree = json.loads(Path(inputs()).read_text())
    tree["training"]["numb_stepz"] = 3
    Path("input.yaml").write_text(yaml.safe_dump(tree))
    assert main(["train", "input.yaml", "--output", "run"]) == 2
    assert "input.yaml: training.numb_stepz: there is no such key" in capsys.readouterr().err
    assert main(["train", "absent.yml", "--output", "run"]) == 2
    assert "absent.yml: No such file" in capsys.readouterr().err


def test_a_training_begins_with_another_model(inputs, capsys):
    assert main(["train", inputs(), "--output", "first"]) == 0
    command = ["train", inputs(numb_steps=2), "--output", "second", "--finetune", "first/model.safetensors"]
    assert main([*command, "--restart"]) == 0
    before, after = (mdops.load(f"{name}/model.safetensors") for name in ("first", "second"))
    assert torch.equal(before.model.descriptor.mean, after.model.descriptor.mean)
    assert not torch.equal(before.model.out_bias, after.model.out_bias)
    assert main([*command, "--restart"]) == 0  # goes on from the checkpoint, not from the model
    out = capsys.readouterr().out
    assert "the training was complete" in out and "first" not in out.splitlines()[-1]
    options = json.loads(Path("input.json").read_text())
    options["model"] = {"type_map": ["Cu", "Al"]}
    Path("input.json").write_text(json.dumps(options))
    command = ["train", "input.json", "--output", "third", "--init-model", "first/model.safetensors"]
    assert main(command) == 2
    assert "model.descriptor.neuron is [25, 50, 100] in the input and [4, 8]" in capsys.readouterr().err
    assert main([*command, "--use-pretrain-script"]) == 0
    assert mdops.load("third/model.safetensors").cutoff == 4.0


@pytest.mark.parametrize("own", [False, True])
def test_an_earlier_model_does_not_pass_for_one_of_a_new_training(inputs, monkeypatch, own):
    """But it stays where the new one begins with it."""
    assert main(["train", inputs(), "--output", "run"]) == 0
    command = ["train", inputs(), "--output", "run", "--overwrite"]
    command += ["--init-model", "run/model.safetensors"] if own else []

    def stopped(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer.Trainer, "_advance", stopped)
    assert main(command) == 130
    assert not list(Path("run").glob("*.pt")) and Path("run/model.safetensors").exists() == own


def test_info_tells_of_a_training(inputs, capsys):
    assert main(["train", inputs(), "--output", "first"]) == 0
    command = [
        "train",
        inputs(numb_steps=20),
        "--output",
        "second",
        "--init-model",
        "first/model.safetensors",
    ]
    with pytest.MonkeyPatch.context() as patch:
        advance = trainer.Trainer._advance
        patch.setattr(trainer.Trainer, "_advance", lambda self: advance(self) if self.step < 11 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(command)
    capsys.readouterr()
    assert main(["info", "second/model.safetensors"]) == 0
    (source,) = re.findall(r"^source +(.*)$", capsys.readouterr().out, re.MULTILINE)
    by = f"mdops {mdops.__version__}"
    assert re.fullmatch(
        rf"mdops \(.safetensors\), by {by}, closest pair in the training data 2\.\d+ A, after step 8 of 20, "
        rf"trained on 20 frames \(20 with energy, 20 with forces, 20 with virial\), begun with a model of {by}",
        source,
    )


def test_a_restart_with_another_model_section_is_refused(inputs, capsys):
    assert main(["train", inputs(), "--output", "run"]) == 0
    changed = json.loads(Path(inputs()).read_text())
    changed["model"]["fitting_net"]["neuron"] = [9]
    Path("input.json").write_text(json.dumps(changed))
    assert main(["train", "input.json", "--output", "run", "--restart"]) == 2
    assert "model.fitting_net.neuron is [9] and was [8, 8]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["absent.json"],
        ["input.json", "--use-pretrain-script"],
        ["input.json", "--device", "tpu"],
        ["input.json", "--finetune", "absent.dp"],
        ["input.json", "--threads", "0"],
        ["input.json", "--threads", "100000000"],
    ],
)
def test_errors_of_the_command_are_one_line(inputs, capsys, command):
    inputs()
    assert main(["train", *command]) == 2
    err = capsys.readouterr().err
    assert err.startswith("mdops: ") and err.count("\n") == 1 and command[-1] in err


def test_every_key_is_listed(capsys):
    assert main(["train", "--keys"]) == 0
    shown = capsys.readouterr().out
    lines = [line.strip() for line in shown.splitlines()]
    assert all(key.path in lines for key in keys())
    assert "the cutoff (a number, A; default 6)" in shown


def test_keys_of_kinds_of_ones_own_are_listed():
    kinds = Path(__file__).parents[2] / "examples" / "custom_model.py"
    done = python("-m", "mdops", "train", "--kinds", str(kinds), "--keys", check=True)
    assert "descriptor[symmetry_functions]." in done.stdout


def test_neither_an_input_nor_data(capsys):
    assert main(["train"]) == 2
    assert "give INPUT" in capsys.readouterr().err


def test_a_terminal_gets_a_bar(inputs, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["train", inputs(), "--output", "run"]) == 0
    err = capsys.readouterr().err
    assert "step 12/12" in err and "━" in err and "validation: loss" in err


def test_test_shows_errors_and_writes_table_and_plots(inputs, capsys):
    pytest.importorskip("matplotlib")
    assert main(["train", inputs(numb_steps=4), "--output", "run"]) == 0
    capsys.readouterr()
    command = ["test", "--model", "run/model.safetensors", "--data", str(SYSTEM)]
    assert main([*command, "--table", "frames.csv", "--plots", "plots"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("20 frames, 640 atoms\n")
    for what, unit, values in (
        ("energy", "meV/atom", 20),
        ("force component", "eV/A", 1920),
        ("virial", "meV/atom", 180),
    ):
        assert re.search(rf"  {what} +\S+ +\S+  {unit} +{values}\n", out)
    assert out.count("wrote ") == 3 and len(Path("frames.csv").read_text().splitlines()) == 21
    assert sorted(path.name for path in Path("plots").iterdir()) == ["learning_curve.png", "parity.png"]


def test_test_shows_each_system(tmp_path, capsys):
    for name in "ab":
        shutil.copytree(SYSTEM, tmp_path / name)
    assert main(["test", "-m", MODEL, "-d", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("40 frames") and f"\n{tmp_path / 'b'}: 20 frames\n" in out


@pytest.mark.parametrize(
    "command, says",
    [
        (["--model", "absent.dp", "--data", str(SYSTEM)], "absent.dp"),
        (["--model", MODEL, "--data", "nowhere"], "nowhere: there is no such file or folder in /"),
        (["--model", MODEL, "--data", str(SYSTEM), "--lcurve", "lcurve.out"], "--plots"),
        (
            ["--model", MODEL, "--data", str(SYSTEM), "--lcurve", "absent.out", "--plots", "plots"],
            "absent.out: is not a learning curve",
        ),
        (["--model", MODEL, "--data", str(SYSTEM), "--table", "absent/t.csv"], "there is no folder absent"),
        (
            ["--model", MODEL, "--data", str(SYSTEM), "--table", "."],
            "--table .: it is a folder, expected a file",
        ),
        (["--model", MODEL, "--data", str(SYSTEM), "--plots", MODEL], "it is a file, expected a folder"),
        (["--model", MODEL, "--data", str(SYSTEM), "--names", "energy"], "expected LABEL=NAME"),
        (["--model", MODEL, "--data", str(SYSTEM), "--names", "Energy=E"], "there is no label 'Energy'"),
    ],
)
def test_errors_of_test_are_one_line(tmp_path, monkeypatch, capsys, command, says):
    monkeypatch.chdir(tmp_path)
    assert main(["test", *command]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("mdops: ") and err.count("\n") == 1 and says in err
    assert not out, "what cannot be written or read is refused before the work"


def test_the_table_replaces_nothing_that_is_tested(tmp_path, capsys):
    data = tmp_path / "frames.extxyz"
    data.write_text("what is tested")
    assert main(["test", "-m", MODEL, "-d", str(data), "--table", str(data)]) == 2
    assert "is an input of this command" in capsys.readouterr().err and data.read_text() == "what is tested"


def test_labels_under_other_names_are_trained_on_and_tested(inputs, capsys):
    frames = [bulk("Cu", cubic=True) for _ in range(6)]
    for seed, atoms in enumerate(frames):
        atoms.rattle(0.1, seed=seed)
        atoms.calc = EMT()
        atoms.info["REF_energy"], atoms.arrays["REF_forces"] = (
            atoms.get_potential_energy(),
            atoms.get_forces(),
        )
        atoms.calc = None
    ase.io.write("ref.extxyz", frames)
    names = {"energy": "REF_energy", "forces": "REF_forces"}
    data = {"systems": ["ref.extxyz"], "names": names}
    assert main(["train", inputs(training_data=data, validation_data=data), "--output", "run"]) == 0
    capsys.readouterr()
    shown = [f"{label}={name}" for label, name in names.items()]
    assert main(["test", "-m", "run/model.safetensors", "-d", "ref.extxyz", "--names", *shown]) == 0
    assert re.search(r"force component .* eV/A +72\n", capsys.readouterr().out)


def test_plots_without_matplotlib_say_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["test", "-m", MODEL, "-d", str(SYSTEM), "--plots", str(tmp_path / "plots")]) == 2
    err = capsys.readouterr().err
    assert "pip install matplotlib" in err and err.count("\n") == 1
    assert not (tmp_path / "plots").exists()


def test_the_example_script_learns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = Path(__file__).parents[2] / "examples" / "train_script.py"
    text = script.read_text()
    assert "STEPS = 400" in text
    exec(compile(text.replace("STEPS = 400", "STEPS = 100"), script, "exec"), {"__file__": str(script)})
    out = capsys.readouterr().out
    size = np.sqrt(np.mean(np.load(SYSTEM / "set.000" / "force.npy") ** 2))
    assert float(re.search(r"^forces: RMSE (\S+),", out, re.MULTILINE)[1]) < 0.75 * size
    assert mdops.load("alloy.safetensors").type_map == ["Cu", "Al"]


def copper(frames, seed=0, **more):
    """Rattled, strained crystals of four atoms with EMT's energies, forces and stresses."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(frames):
        atoms = bulk("Cu", cubic=True, a=3.6)
        strain = rng.normal(0, 0.02, (3, 3))
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + (strain + strain.T) / 2), scale_atoms=True)
        atoms.positions += rng.normal(0, 0.05, atoms.positions.shape)
        atoms.calc = EMT()
        atoms.get_potential_energy(), atoms.get_stress()
        found.append(atoms)
    return found


SMALL = {
    "model": {
        "descriptor": {"rcut": 4.0, "rcut_smth": 2.0, "neuron": [4, 8], "axis_neuron": 3},
        "fitting_net": {"neuron": [8, 8]},
    },
    "training": {"training_data": {"systems": "copper.extxyz", "leave_out": 4}, "numb_steps": 40, "seed": 1},
}


@pytest.fixture
def copper_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ase.io.write("copper.extxyz", copper(12))


def test_data_alone_is_trained_on(copper_file, capsys):
    """By mdops' own recipe, with energies, forces and virials, its elements, a cutoff and steps as told, and
    every tenth frame left out; the input that does the same is written."""
    command = ["train", "copper.extxyz", "--steps", "4", "--cutoff", "4", "-o", "run"]
    assert main(command) == 0
    err = capsys.readouterr().err
    assert "on 11 frames with 44 atoms (Cu), validation on 1; 4 steps" in err
    model = mdops.load("run/model.safetensors")
    assert model.cutoff == 4 and model.type_map == ["Cu"]
    labels = model.source["training"]["labels"]
    assert labels == {"energy": 11, "forces": 11, "virial": 11}  # not atom_energy, which EMT gives
    written = json.loads(Path("run/input.json").read_text())
    assert main(["train", "run/input.json", "-o", "again"]) == 0
    assert mdops.load("again/model.safetensors").cutoff == 4
    assert main(command) == 2
    assert "to an earlier training" in capsys.readouterr().err
    assert main([*command, "--restart"]) == 0
    assert json.loads(Path("run/input.json").read_text()) == written
    Path("own").mkdir()
    Path("own/input.json").write_text("{}")
    assert main([*command[:-1], "own"]) == 2
    assert "own/input.json" in capsys.readouterr().err and Path("own/input.json").read_text() == "{}"


def test_options_of_data_alone_are_refused_with_an_input(copper_file, capsys):
    Path("input.json").write_text(json.dumps(SMALL))
    assert main(["train", "input.json", "--cutoff", "5"]) == 2
    error = capsys.readouterr().err
    assert "--cutoff works only for trainings from data" in error and "as model.descriptor.rcut" in error
    assert main(["train", "input.json", "copper.extxyz"]) == 2
    assert "input.json is a training input: give one input" in capsys.readouterr().err


def test_a_training_ends_with_the_errors_of_its_saved_model(copper_file, capsys):
    """On all data, those that `mdops test` gives; progress is shown twenty times, with the errors of that time."""
    Path("input.json").write_text(json.dumps(SMALL))
    assert main(["train", "input.json", "-o", "run"]) == 0
    out, err = capsys.readouterr()
    shown = re.findall(r"^step (\d+)/40  validation: (.*) steps/s", err, re.MULTILINE)
    assert len(shown) >= 20 and len({text.split(",")[1] for _, text in shown}) > 10
    assert "errors (RMSE) of run/model.safetensors, step 40:" in out
    frames = ase.io.read("copper.extxyz", ":")
    for name, chosen in (
        ("validation", frames[3::4]),
        ("training", [f for k, f in enumerate(frames) if k % 4 != 3]),
    ):
        ase.io.write("part.extxyz", chosen)
        main(["test", "-m", "run/model.safetensors", "-d", "part.extxyz"])
        told = dict(
            re.findall(
                r"^  (energy|force component|virial) +\S+ +(\S+)", capsys.readouterr().out, re.MULTILINE
            )
        )
        (line,) = re.findall(rf"  {name}, {len(chosen)} frames: (.*)", out)
        energy, forces, virial = (float(value) for value in re.findall(r" (\S+) (?:me|e)V", line))
        expected = [float(told[key]) for key in ("energy", "force component", "virial")]
        assert [energy, forces, virial] == pytest.approx(expected, rel=6e-3)


def test_frames_that_are_left_out_are_validated_on(copper_file, recwarn, capsys):
    Path("input.json").write_text(json.dumps(SMALL))
    assert main(["train", "input.json", "-o", "run"]) == 0
    assert "on 9 frames with 36 atoms (Cu), validation on 3" in capsys.readouterr().err
    tree = {**SMALL, "training": {**SMALL["training"], "numb_steps": 2}}
    tree["training"]["training_data"] = {"systems": "copper.extxyz", "leave_out": 13}
    Path("input.json").write_text(json.dumps(tree))
    assert main(["train", "input.json", "-o", "few"]) == 0
    assert "warning: copper.extxyz: no system has 13 frames" in capsys.readouterr().err


def test_labels_without_a_weight_are_counted_and_remembered(copper_file, capsys):
    """DeePMD-kit's loss, which leaves virials out: a warning, `mdops info`, and warnings where the pressure matters."""
    Path("input.json").write_text(json.dumps({**SMALL, "loss": {"type": "ener"}}))
    assert main(["train", "input.json", "-o", "run"]) == 0
    err = capsys.readouterr().err
    assert "9 frames with virial, which the training does not use" in err
    model = "run/model.safetensors"
    assert main(["convert", model, "model.dp"]) == 0
    assert main(["info", "model.dp"]) == 0
    assert "trained on 9 frames (9 with energy, 9 with forces, none with virial" in capsys.readouterr().out
    ase.io.write("start.extxyz", bulk("Cu", cubic=True, a=3.6).repeat(2))
    assert main(["relax", "start.extxyz", "-m", "model.dp", "--steps", "1"]) in (0, 1)
    assert "not on virials" not in capsys.readouterr().err
    command = ["relax", "start.extxyz", "-m", "model.dp", "--steps", "1", "--cell", "all", "--overwrite"]
    assert main(command) in (0, 1)
    assert "the model was trained on energy, forces, not on virials (stress)" in capsys.readouterr().err
    command = ["md", "start.extxyz", "-m", model, "--ensemble", "npt", "-T", "10", "--steps", "1"]
    assert main(command) == 0
    assert "not on virials" in capsys.readouterr().err
    Path("input.json").write_text(json.dumps(SMALL))
    assert main(["train", "input.json", "-o", "all"]) == 0
    assert "training does not use" not in capsys.readouterr().err
    assert main(["md", "start.extxyz", "-m", "all/model.safetensors", *command[4:], "--overwrite"]) == 0
    assert "not on virials" not in capsys.readouterr().err
