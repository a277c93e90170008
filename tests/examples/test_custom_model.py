"""examples/custom_model.py: a kind of one's own trains, saves, loads and runs like any other."""

import importlib
import itertools
import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from children import python

import mdops
from mdops import system as systems
from mdops.calculator import MDOps
from mdops.cli import main as command
from mdops.errors import InputError, UnsupportedModelError
from mdops.md import Engine, EnsembleSettings
from mdops.models import Neighborhood, registry
from mdops.ops import neighbor_list
from mdops.train import Trainer, load_dataset, parse_config


@pytest.fixture(scope="module")
def example(examples):
    return importlib.import_module("custom_model")


@dataclass(frozen=True)
class Trained:
    """A training of some steps, the errors on the way, and the folder that it wrote into."""

    trainer: Trainer
    reports: list
    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model.safetensors"


@pytest.fixture(scope="module")
def trained(example, tmp_path_factory):
    """One for all tests: they leave its folder as it is."""
    folder = tmp_path_factory.mktemp("trained")
    trainer, reports = Trainer(parse_config(example.training_input(40)), folder), []
    trainer.run(reports.append)
    return Trained(trainer, reports, folder)


def test_it_learns_and_a_saved_model_is_the_trained_one(example, trained):
    trainer, reports = trained.trainer, trained.reports
    errors = [report.training["forces"] for report in reports]
    assert errors[-1] < 0.6 * errors[0]
    atoms = example.first_frame(trainer.frames.data)
    loaded = mdops.load(trained.model)
    assert isinstance(loaded.model.descriptor, example.SymmetryFunctions)
    # Weights are saved in float64, and were trained in float32.
    for name, value in trainer.potential.compute(atoms).items():
        np.testing.assert_allclose(loaded.compute(atoms)[name], value, rtol=1e-6, atol=1e-6)
    assert loaded.explain() == (
        "autograd: PyTorch's operations, with derivatives by autograd; "
        "mdops has no faster evaluator for a standard model of symmetry_functions"
    )


def test_features_are_the_formula(example, tmp_path):
    """Behler's sums, pair by pair of neighbours, on an atom with neighbours of both types and one beyond the cutoff."""
    options = example.SymmetryOptions(rcut=4.0, radial=3, zeta=[1, 3])
    descriptor = example.SymmetryFunctions.random(options, ["Cu", "Al"], 0, torch.float64)
    random = np.random.default_rng(2)
    positions = np.vstack([np.zeros(3), random.uniform(-2, 2, (7, 3)), [[0, 0, 4.5]]])
    types = np.array([0, 0, 1, 1, 0, 1, 0, 0, 1])
    system = systems.from_tensors(torch.from_numpy(positions), torch.from_numpy(types), None, None, None, 2)
    pairs = neighbor_list(system.positions, None, False, system.types, 5.0, ntypes=2)
    near = Neighborhood.of(system, pairs, 4.0, torch.float64)
    found = descriptor(near).values[0].detach().numpy()
    assert len(found) == descriptor.width == 2 * 3 + 3 * 4

    def fade(r):
        return 0.5 * (1 + np.cos(np.pi * r / 4.0))

    neighbors = [(t, x, np.linalg.norm(x)) for t, x in zip(types[1:8], positions[1:8], strict=True)]

    def radial(kind, center):
        return sum(np.exp(-((r - center) ** 2)) * fade(r) for t, _, r in neighbors if t == kind)

    def angular(zeta, sign, kinds):
        pairs = [(a, b) for a in neighbors for b in neighbors if a is not b and (a[0], b[0]) == kinds]
        return sum(
            (0.5 * (1 + sign * (x @ y) / (r * q))) ** zeta * np.exp(-(r**2 + q**2) / 4) * fade(r) * fade(q)
            for (_, x, r), (_, y, q) in pairs
        )

    expected = [radial(kind, center) for kind in (0, 1) for center in (1, 2, 3)]
    powers = itertools.product((1, 3), (1, -1), ((0, 0), (0, 1), (1, 1)))
    expected += [angular(*which) for which in powers]
    np.testing.assert_allclose(found, np.array(expected) / 4, rtol=1e-12)


def test_forces_are_slopes_and_turned_atoms_have_the_same_energy(example, trained):
    potential = mdops.load(trained.model, dtype="float64")
    atoms = example.first_frame(trained.trainer.frames.data)
    answers, random, step = potential.compute(atoms), np.random.default_rng(0), 1e-5
    for _ in range(3):
        direction, energies = random.standard_normal(atoms.positions.shape), []
        for sign in (1, -1):
            moved = atoms.copy()
            moved.positions += sign * step * direction
            energies.append(potential.compute(moved)["energy"][0])
        slope = (energies[0] - energies[1]) / (2 * step)
        assert slope == pytest.approx(-(answers["forces"] * direction).sum(), rel=1e-6)
    turn = np.linalg.qr(random.standard_normal((3, 3)))[0]
    turned = atoms.copy()
    turned.set_cell(atoms.cell.array @ turn, scale_atoms=False)
    turned.positions = atoms.positions @ turn
    assert potential.compute(turned)["energy"][0] == pytest.approx(answers["energy"][0], rel=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_it_runs_in_ase_and_in_the_engine(example, trained, device, dtype):
    potential = mdops.load(trained.model, device=device, dtype=dtype)
    atoms = example.first_frame(trained.trainer.frames.data)
    atoms.calc = MDOps(potential)
    energy = atoms.get_potential_energy()
    frames = list(Engine(atoms, potential, EnsembleSettings("nve", 100, timestep=1.0)).run(20, every=1))
    assert frames[0].energy == pytest.approx(energy, abs=1e-2)
    total = np.array([frame.energy + frame.kinetic for frame in frames])
    assert np.ptp(total) < 2e-3


def test_a_killed_training_goes_on(example, trained, tmp_path):
    folder = shutil.copytree(trained.folder, tmp_path / "copy")
    again = Trainer(parse_config(example.training_input(45)), folder, restart=True)
    assert again.step == 40
    again.run()
    assert again.step == 45 and mdops.load(folder / "model.safetensors").source["training"]["step"] == 45


def test_the_command_line_knows_the_kind(example, examples, tmp_path, capsys, monkeypatch):
    """In a process that has not imported it: an input is refused, and with the file's name trained."""
    monkeypatch.delenv("MDOPS_KINDS", raising=False)
    path, file = tmp_path / "input.json", examples / "custom_model.py"
    path.write_text(json.dumps(example.training_input(3)))
    both = """if True:
        import sys
        from mdops.cli import main
        path, no, yes, file = sys.argv[1:]
        codes = main(["train", path, "-o", no]), main(["train", path, "-o", yes, "--kinds", file])
        sys.exit(0 if codes == (2, 0) else f"{codes}")
    """
    done = python("-c", both, path, tmp_path / "no", tmp_path / "yes", file, check=True)
    assert "expected one of" in done.stderr and "; --kinds FILE" in done.stderr
    assert (tmp_path / "yes/model.safetensors").is_file()


def test_info_test_and_md_have_the_model(example, examples, trained, tmp_path, capsys):
    kinds, model = ["--kinds", str(examples / "custom_model.py")], str(trained.model)
    assert command(["info", model, *kinds]) == 0
    assert "standard model with descriptor symmetry_functions" in capsys.readouterr().out
    assert command(["test", "-m", model, "-d", str(example.DATA / "emt"), *kinds]) == 0
    shown = next(line for line in capsys.readouterr().out.splitlines() if "force component" in line)
    assert 0.02 < float(shown.split()[3]) < 0.4  # eV/A, of 0.8 without a model
    ase.io.write(
        tmp_path / "alloy.xyz", example.first_frame(load_dataset(example.DATA / "emt", ["Cu", "Al"]))
    )
    trajectory, log = tmp_path / "run.xyz", tmp_path / "run.csv"
    asked = [
        "-T",
        "300",
        "--steps",
        "20",
        "--interval",
        "10",
        "--trajectory",
        str(trajectory),
        "--log",
        str(log),
    ]
    assert command(["md", str(tmp_path / "alloy.xyz"), "-m", model, *asked, *kinds]) == 0
    frames = ase.io.read(trajectory, ":")
    assert len(frames) == 3 and not np.allclose(frames[0].positions, frames[-1].positions)


def test_the_page_has_the_shapes_of_what_a_descriptor_is_given(example):
    """docs/reference/descriptors.md."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "descriptors.md").read_text()
    rows = re.findall(
        r"^\| `([\w.]+)` \| (\([^)]+\)),? ?(int32|int64|float64|compute dtype) \|", page, re.MULTILINE
    )
    atoms = example.first_frame(load_dataset(example.DATA / "emt", ["Cu", "Al"]))
    system = systems.from_atoms([atoms, atoms], ["Cu", "Al"])
    pairs = neighbor_list(
        system.positions, system.cell, system.pbc, system.types, 5.0, batch=system.batch, ntypes=2
    )
    near = Neighborhood.of(system, pairs, 5.0, torch.float32)
    sizes = {"N": 2 * len(atoms), "S": 2, "K": pairs.neighbors.shape[1], "T": 2, "3": 3}
    dtypes = {"compute dtype": torch.float32}
    shown = rows[: [name for name, *_ in rows].index("values")]
    assert len(shown) == 10
    for name, shape, dtype in shown:
        found = near
        for part in name.split("."):
            found = getattr(found, part)
        assert tuple(found.shape) == tuple(sizes[word] for word in re.findall(r"\w+", shape)), name
        assert found.dtype == dtypes.get(dtype, getattr(torch, dtype.split()[0], None)), name


def test_a_kind_without_a_seed_trains(example, tmp_path, examples):
    """Alone and in a hybrid."""
    text = (examples / "custom_model.py").read_text()
    start = text.index("    seed: int | None = key(")
    text = text[:start] + text[text.index("\n\n", start) + 1 :]
    (tmp_path / "seedless.py").write_text(text.replace("symmetry_functions", "seedless"))
    given = example.training_input(2)
    own = {**given["model"]["descriptor"], "type": "seedless"}
    own.pop("seed", None)
    code = """if True:
        import json, sys
        from mdops.cli import main
        path, *args = sys.argv[1:]
        codes = [main(["train", p, "-o", p + "out", *args]) for p in (path, path + "h")]
        sys.exit(0 if codes == [0, 0] else f"{codes}")
    """
    for name, descriptor in (("input", own), ("inputh", {"type": "hybrid", "list": [own, own]})):
        changed = {**given, "model": {**given["model"], "descriptor": descriptor}}
        (tmp_path / name).write_text(json.dumps(changed))
    python("-c", code, tmp_path / "input", "--kinds", tmp_path / "seedless.py", check=True)


def test_a_file_that_fails_is_refused_each_time_and_leaves_nothing(tmp_path):
    path = tmp_path / "fails.py"
    path.write_text(
        "from mdops.models import register\nfrom mdops.models.se_e2_r import SeE2R\n"
        "class Mine(SeE2R):\n    class Options(SeE2R.Options):\n        KIND, NAMES = 'mine', ('mine',)\n"
        "register(Mine)\n1/0\n"
    )
    for _ in range(2):
        with pytest.raises(InputError, match="ZeroDivisionError"):
            registry.load_kinds(str(path))
        with pytest.raises(UnsupportedModelError, match=r"descriptor mine is not supported.*--kinds FILE"):
            registry.find("descriptor", "mine")
    path.write_text(path.read_text().replace("1/0\n", ""))
    registry.load_kinds(str(path))
    assert registry.find("descriptor", "mine").__name__ == "Mine"
    for known in registry._KINDS.values():
        known.pop("mine", None)


@pytest.mark.parametrize("name", ["fractions", "json", "new_kinds"])
def test_a_file_may_be_called_as_a_module_that_is_there(tmp_path, name):
    path = tmp_path / f"{name}.py"
    path.write_text("LOADED = True\n")
    before = sys.modules.get(name)
    registry.load_kinds(str(path))
    registry.load_kinds(str(path))
    loaded = [m for m in list(sys.modules.values()) if getattr(m, "__file__", "") == str(path)]
    assert sys.modules.get(name) is before and len(loaded) == 1 and loaded[0].LOADED


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such Python file"):
        registry.load_kinds(str(tmp_path / "nothing.py"))
    (tmp_path / "broken_kinds.py").write_text("1/0")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        registry.load_kinds(str(tmp_path / "broken_kinds.py"))
