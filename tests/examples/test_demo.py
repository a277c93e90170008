"""`make demo` and examples/molecule.py, shortened, and the parts they are made of."""

import json
import re
import runpy
import sys
import types
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.emt import EMT

import mdops
from mdops.md.compare import pair_distributions

SHORT = ["--runs", "11", "--training-steps", "20", "--steps", "50"]
PARTS = ("data/test.extxyz", "input.json", "start.extxyz", "model/lcurve.out", "plots/parity.png")


def run(examples, script, out, monkeypatch):
    """In this process, which has imported what the script imports."""
    monkeypatch.setattr(sys, "argv", [script, "--out", str(out), *SHORT])
    runpy.run_path(str(examples / script), run_name="__main__")


def check_files(out, told):
    assert f"Report: {out / 'report.html'}" in told
    for part in PARTS:
        assert (out / part).is_file()


def check_report(path, *says):
    """One file: every picture is in it, and nothing is loaded from elsewhere."""
    text = path.read_text(encoding="utf-8")
    sources = re.findall(r'src="([^"]*)"', text)
    assert len(sources) == 5 and all(source.startswith("data:image/png;base64,iVBOR") for source in sources)
    assert "http" not in re.sub(r'src="[^"]*"', "", text) and "<link" not in text
    for part in ("force RMSE", "µs/atom", "µeV/atom/ps", "mdops md", "threads", *says):
        assert part in text, part


@pytest.mark.long
def test_demo(tmp_path, examples, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    run(examples, "demo.py", tmp_path, monkeypatch)
    told = capsys.readouterr()
    check_files(tmp_path, told.out)
    check_report(tmp_path / "report.html", "EMT: time of a step", "virial RMSE")
    assert "step 20/20" in told.err  # the progress of the training, in lines where there is no terminal
    model = mdops.load(tmp_path / "model/model.safetensors")
    assert sorted(model.type_map) == ["Al", "Cu"]
    ours, theirs = (ase.io.read(tmp_path / f"{name}.extxyz", ":") for name in ("model", "reference"))
    assert len(ours) == len(theirs) == 6
    np.testing.assert_allclose(ours[0].positions, theirs[0].positions)
    assert np.abs(ours[-1].positions - theirs[-1].positions).max() > 0.01
    splits = {name: ase.io.read(tmp_path / f"data/{name}.extxyz", ":") for name in ("training", "test")}
    formulas = {name: {f.get_chemical_formula() for f in frames} for name, frames in splits.items()}
    assert len(splits["test"]) == 10 and formulas["test"] - formulas["training"]


@pytest.mark.long
def test_molecule_with_emt_in_place_of_tblite(tmp_path, examples, monkeypatch, capsys):
    """EMT knows the elements too: with it the example runs where tblite is not installed."""
    pytest.importorskip("matplotlib")
    tblite = types.SimpleNamespace(TBLite=lambda method, verbosity: EMT())
    monkeypatch.setitem(sys.modules, "tblite", types.SimpleNamespace(ase=tblite))
    monkeypatch.setitem(sys.modules, "tblite.ase", tblite)
    run(examples, "molecule.py", tmp_path / "out", monkeypatch)
    check_files(tmp_path / "out", capsys.readouterr().out)
    check_report(tmp_path / "out/report.html", "GFN2-xTB: time of a step")
    assert json.loads((tmp_path / "out/input.json").read_text())["model"]["type_map"] == ["H", "C"]


def test_molecule_without_tblite_says_what_to_install(tmp_path, examples, monkeypatch):
    """Python writes the text of a SystemExit to stderr, without a traceback, and ends with 1."""
    monkeypatch.setitem(sys.modules, "tblite", None)  # its import fails
    monkeypatch.delitem(sys.modules, "tblite.ase", raising=False)
    with pytest.raises(SystemExit, match="pip install tblite"):
        run(examples, "molecule.py", tmp_path, monkeypatch)


def test_distributions_count_neighbours():
    crystal, width = bulk("Cu", a=3.6, cubic=True).repeat(2), 0.1
    crystal.symbols[::4] = "Al"  # as in Cu3Au: an Al atom has 12 Cu atoms nearest, a Cu atom 4 Al and 8 Cu
    r, found = pair_distributions([crystal, crystal], 3.0, width)
    shells = 4 * np.pi * r**2 * width * len(crystal) / crystal.get_volume()
    neighbours = {pair: (g * shells).sum() for pair, g in found.items()}  # over the second element's share
    assert neighbours == pytest.approx({"Al-Al": 0, "Al-Cu": 12 / 0.75, "Cu-Cu": 8 / 0.75})

    r, found = pair_distributions([molecule("CH3CH2OH")], 10.0, width)
    pairs = {pair: counts.sum() * width for pair, counts in found.items()}
    assert pairs == pytest.approx({"C-C": 1, "C-H": 12, "C-O": 2, "H-H": 15, "H-O": 6, "O-O": 0})


def test_pictures_show_what_is_in_front(examples):
    from study.render import render

    view = {"turn": 0.0, "tilt": 0.0, "scale": 1.0}  # along +y
    image = render(Atoms("CuAl", [[0, 0, 0], [0, 3, 0]]), 40, **view)
    assert image.shape == (40, 40, 4) and image.min() >= 0 and image.max() <= 1
    assert image[0, 0, 3] == 0 and image[20, 20, 3] == 1
    red, _, blue, _ = image[20, 20]
    assert red > 1.5 * blue  # copper hides aluminium
    red, _, blue, _ = render(Atoms("CuAl", [[0, 3, 0], [0, 0, 0]]), 40, **view)[20, 20]
    assert blue > red


def test_whole_runs_go_to_one_part_of_the_data(tmp_path, examples):
    from study.sampling import write_splits

    runs = [[Atoms("Cu", info={"run": k}) for _ in range(3)] for k in range(20)]
    splits = write_splits(runs, tmp_path)
    numbers = {name: {frame.info["run"] for frame in frames} for name, frames in splits.items()}
    assert numbers["test"] == {0, 10} and numbers["validation"] == {5, 15}
    assert len(splits["training"]) == 48 and not numbers["training"] & {0, 5, 10, 15}
    assert all(Path(tmp_path / f"{name}.extxyz").is_file() for name in splits)
