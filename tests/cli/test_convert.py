"""`mdops convert`: every format into every other, nothing replaced by mistake."""

import json
from pathlib import Path

import pytest

import mdops
from mdops.cli import main
from mdops.errors import InputError
from mdops.io import read_model, write_model

DATA = Path(__file__).parents[1] / "data"
FORMATS, CHECKPOINTS = DATA / "formats", DATA / "checkpoints"


def tree(path, folder):
    """The model in a file with all its digits, spelled out."""
    write_model(folder / "tree.json", read_model(path).model)
    text = (folder / "tree.json").read_text()
    (folder / "tree.json").unlink()
    return json.loads(text)["model"]


@pytest.mark.parametrize("suffix", [".dp", ".yaml", ".json", ".safetensors"])
@pytest.mark.parametrize("path", [FORMATS / "model.pth", CHECKPOINTS / "zbl.pt"], ids=lambda path: path.name)
def test_a_converted_model_is_the_same(tmp_path, capsys, path, suffix):
    first, second = tmp_path / f"first{suffix}", tmp_path / "second.dp"
    assert main(["convert", str(path), str(first)]) == 0
    assert main(["convert", str(first), str(second)]) == 0
    assert tree(second, tmp_path) == tree(path, tmp_path)
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrote ")]
    assert shown[0].startswith(f"wrote {first} ({first.stat().st_size:,} bytes): a ")
    assert shown[1].startswith(f"wrote {second}")


def test_a_saved_model_has_the_same_answers(tmp_path):
    from ase.build import bulk

    potential = mdops.load(FORMATS / "model.dp", dtype="float64", spline=False)
    atoms = bulk("Cu", a=3.9, cubic=True)
    wanted = potential.compute(atoms)
    for suffix in (".dp", ".yaml", ".json"):
        potential.save(tmp_path / f"model{suffix}")
        found = mdops.load(tmp_path / f"model{suffix}", dtype="float64", spline=False).compute(atoms)
        assert all((found[key] == wanted[key]).all() for key in wanted)


@pytest.mark.parametrize(
    "case", ["reference/base", "reference_kinds/linear_messages", "reference_kinds/dpa4_base"]
)
@pytest.mark.parametrize("suffix", [".dp", ".safetensors"])
def test_types_under_other_names_are_the_same(tmp_path, capsys, case, suffix):
    from ase import Atoms

    path, new = DATA / case / "model.dp", tmp_path / f"new{suffix}"
    first, second, *_ = mdops.load(path, spline=False).type_map
    words = ["--rename", f"{first}=XW", f"{second}={first}"]
    assert main(["convert", str(path), str(new), *words]) == 0
    assert f'"{second}"' not in json.dumps(read_model(new).model, default=str)
    positions = [[0, 0, 0], [2.1, 0.2, 0], [0, 2.3, 0.1]]
    wanted = mdops.load(path, spline=False).compute(Atoms([second, first, second], positions[::-1]))
    renamed = mdops.load(new, spline=False)
    assert renamed.type_map[:2] == ["XW", first]
    with pytest.raises(InputError, match=rf"convert --rename XW={second} IN OUT"):
        renamed.compute(Atoms([second], positions[:1]))
    back = tmp_path / f"back{suffix}"
    assert main(["convert", str(new), str(back), "--rename", f"XW={second}"]) == 0
    again = mdops.load(back, spline=False).compute(Atoms([first, second, first], positions[::-1]))
    assert all((again[name] == value).all() for name, value in wanted.items())
    capsys.readouterr()


@pytest.mark.parametrize(
    "case, words, message",
    [
        ("reference/base", ["Cu"], "--rename Cu: expected OLD=NEW"),
        ("reference/base", ["U=V"], "--rename U: the model's types are"),
        ("reference/base", ["Cu=Al"], "two types of the model would be Al"),
        ("reference_kinds/se_e3_tebd_econf", ["Cu=Ag"], "by their names"),
        ("reference_kinds/dpa4_bridged", ["Cu=Ag"], "by their names"),
    ],
)
def test_names_that_cannot_be_are_refused(tmp_path, capsys, case, words, message):
    path = DATA / case / "model.dp"
    assert main(["convert", str(path), str(tmp_path / "new.dp"), "--rename", *words]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_kept(tmp_path, capsys):
    path = tmp_path / "model.dp"
    path.write_text("precious")
    command = ["convert", str(FORMATS / "model.pth"), str(path)]
    assert main(command) == 2
    assert "--overwrite" in capsys.readouterr().err and path.read_text() == "precious"
    assert main([*command, "--overwrite"]) == 0
    assert read_model(path).source["imported_from"] == "frozen TorchScript (.pth)"
    assert main(["convert", str(path), str(path), "--overwrite"]) == 0
    assert tree(path, tmp_path) == tree(FORMATS / "model.dp", tmp_path)


def test_tables_of_a_compressed_model_are_said_to_be_left_out(tmp_path, capsys):
    file = read_model(FORMATS / "model.dp")
    write_model(tmp_path / "a.safetensors", file.model, {**file.source, "compressed": True})
    assert main(["convert", str(tmp_path / "a.safetensors"), str(tmp_path / "b.dp")]) == 0
    assert "compression tables are left out" in capsys.readouterr().out
    assert main(["convert", str(FORMATS / "model.dp"), str(tmp_path / "c.dp")]) == 0
    assert "compression" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("model.pth", "model.pb", "a model is written as .safetensors, .dp, .yaml, .yml, .json"),
        ("model.pth", "absent/model.dp", "no folder"),
        ("absent.pth", "model.dp", "no such file"),
        ("systems.npz", "model.dp", "no member data.pkl"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(tmp_path, capsys, source, target, says):
    assert main(["convert", str(FORMATS / source), str(tmp_path / target)]) == 2
    shown = capsys.readouterr().err
    assert says in shown and shown.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
