"""What DeePMD-kit's users call: DeepPot, model-devi, neighbor-stat, eval-desc, change-bias.

`scripts/check_deepmd_tools.py` compares with DeePMD-kit itself; here are its answers of the reference models, and the
formulas."""

import errno
import os
import re
import shutil
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

import mdops
from mdops.cli import main
from mdops.deepmd import DeepPot, calc_model_devi, model_deviation
from mdops.errors import DataError, InputError, UnsupportedModelError
from mdops.models import Neighborhood
from mdops.system import from_tensors
from mdops.train import load_dataset

DATA = Path(__file__).parents[1] / "data"
EMT = DATA / "training" / "emt"
ALLOY = DATA / "reference" / "se_a_alloy" / "model.dp"
SHAPES = ("energy", "forces", "virial", "atom_energy", "atom_virial")


def emt_frames():
    """types (n,), positions (F, 3 n) and cells (F, 9) of tests/data/training/emt."""
    arrays = [np.load(EMT / "set.000" / f"{name}.npy") for name in ("coord", "box")]
    return np.loadtxt(EMT / "type.raw", dtype=int), *arrays


def systems(case):
    with np.load(DATA / case / "systems.npz") as file:
        arrays = dict(file)
    for name in dict.fromkeys(key.split("/")[0] for key in arrays):
        yield name, {k.split("/")[1]: v for k, v in arrays.items() if k.split("/")[0] == name}


@pytest.mark.parametrize(
    "case",
    ["reference/se_a_alloy", "reference/fparam_aparam", "reference/overflow", "reference/virtual_atoms",
     "reference_kinds/dpa1_smooth", "reference_kinds/linear_nets_sum"],
)  # fmt: skip
@pytest.mark.parametrize("batch", [True, False, 9])
def test_eval_gives_deepmd_kits_answers_in_its_shapes(case, batch):
    potential = DeepPot(DATA / case / "model.dp", spline=False, auto_batch_size=batch)
    for name, own in systems(case):
        f, n, _ = own["positions"].shape
        cells = own["cell"].reshape(f, 9) if "cell" in own else None
        extra = {key: own[key] for key in ("fparam", "aparam") if key in own}
        found = potential.eval(
            own["positions"].reshape(f, -1), cells, own["types"].tolist(), atomic=True, **extra
        )
        assert [a.shape for a in found] == [(f, 1), (f, n, 3), (f, 9), (f, n, 1), (f, n, 9)]
        for key, array in zip(SHAPES, found, strict=True):
            assert array.dtype == np.float64
            if key in own:
                scale = max(np.abs(own[key]).max(), 1e-3)
                np.testing.assert_allclose(array.ravel(), own[key].ravel(), atol=1e-9 * scale, err_msg=name)
        assert len(potential.eval(own["positions"], cells, own["types"], **extra)) == 3


def test_arguments_of_one_frame_serve_all():
    case = "reference/fparam_aparam"
    potential = DeepPot(DATA / case / "model.dp")
    assert (potential.get_dim_fparam(), potential.get_dim_aparam()) == (1, 2)
    _, own = next(systems(case))
    x, h = np.stack([own["positions"][0]] * 3), np.stack([own["cell"][0]] * 3)
    p, q = own["fparam"][0], own["aparam"][0]
    every = potential.eval(x, h, own["types"], fparam=np.stack([p] * 3), aparam=np.stack([q] * 3))
    for a, b in zip(every, potential.eval(x, h, own["types"], fparam=p, aparam=q), strict=True):
        np.testing.assert_array_equal(a, b)
    one = potential.eval(x, h, own["types"], fparam=p, aparam=q[0])  # the same for all atoms
    np.testing.assert_array_equal(
        one[0], potential.eval(x, h, own["types"], fparam=p, aparam=np.tile(q[0], (8, 1)))[0]
    )
    with pytest.raises(InputError, match=r"aparam has the shape \(5,\), expected \(3, 8, 2\)"):
        potential.eval(x, h, own["types"], fparam=p, aparam=np.zeros(5))


def test_mixed_types_are_those_of_each_frame():
    potential = DeepPot(ALLOY)
    x = bulk("Cu", a=4.0, cubic=True).positions + 0.1 * np.random.default_rng(0).normal(size=(3, 4, 3))
    types = np.array([[0, 1, 2, 0], [1, 1, 0, 0], [2, 0, 0, -1]])
    found = potential.eval(x, None, types, mixed_type=True, atomic=True)
    for k in range(3):
        alone = potential.eval(x[k], None, types[k], atomic=True)
        for a, b in zip(found, alone, strict=True):
            np.testing.assert_allclose(a[k], b[0], atol=1e-12)
    assert (found[1][2, 3] == 0).all() and found[3][2, 3] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((np.zeros(7), None, [0, 1]), r"coords has the shape \(7,\), which is not a whole number of frames of 2 atoms"),
        ((np.zeros((2, 6)), np.eye(3), [0, 1]), r"cells has the shape \(3, 3\), expected \(2, 3, 3\)"),
        ((np.zeros((2, 6)), None, [[0, 1]] * 3), r"atom_types has the shape \(3, 2\), and coords is of 2 frames"),
        ((np.zeros((1, 6)), None, [0, 0.5]), "expected integers"),
        ((np.arange(6.0), None, [0, 3]), r"atom_types\[1\] is 3, expected -1 .. 2"),
        ((["x"] * 6, None, [0, 1]), "coords has something that is not a number"),
        ((np.arange(6.0) + 1j, None, [0, 1]), "coords has something that is not a number: complex numbers"),
        ((np.arange(6.0), None, ["O", "H"]), "atom_types are <U1, expected integers"),
        ((np.arange(6.0), None, [0, 1j]), "atom_types are complex128, expected integers"),
        ((np.arange(6.0), None, None), r"atom_types has the shape \(\)|atom_types are object, expected integers"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_named(arguments, says):
    with pytest.raises(InputError, match=says):
        DeepPot(ALLOY).eval(*arguments)


def test_parameters_of_a_model_without_any_are_refused():
    with pytest.raises(InputError, match="fparam is given, but the model takes none"):
        DeepPot(ALLOY).eval(np.arange(6.0), None, [0, 1], fparam=[1.0])


def test_no_frames_have_no_answers():
    found = DeepPot(ALLOY).eval(np.zeros((0, 2, 3)), None, [0, 1], atomic=True)
    assert [a.shape for a in found] == [(0, 1), (0, 2, 3), (0, 9), (0, 2, 1), (0, 2, 9)]


def test_it_tells_what_programs_ask():
    potential = DeepPot(ALLOY)
    assert potential.get_type_map() == ["Cu", "Al", "Mg"] and potential.get_ntypes() == 3
    assert potential.get_rcut() == 5.2 and potential.get_sel_type() == [0, 1, 2]
    assert not potential.has_default_fparam() and not potential.has_efield
    assert DeepPot(DATA / "reference/default_fparam/model.dp").has_default_fparam()
    with DeepPot(mdops.load(ALLOY)) as used:
        assert used.potential.dtype == torch.float32


@pytest.fixture(scope="module")
def committee(tmp_path_factory):
    """Three models whose weights differ a little."""
    folder = tmp_path_factory.mktemp("committee")
    for k in range(3):
        model = mdops.load(ALLOY, dtype="float64", spline=False)
        generator = torch.Generator().manual_seed(k)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.02 * torch.randn(weight.shape, dtype=weight.dtype, generator=generator)
        model.save(folder / f"{k}.dp")
    return [str(folder / f"{k}.dp") for k in range(3)]


@pytest.fixture(scope="module")
def answers(committee):
    """Of each model, for the frames of tests/data/training/emt one by one."""
    models = [mdops.load(path, dtype="float64", spline=False) for path in committee]
    types, x, h = emt_frames()
    symbols, n = np.array(["Cu", "Al"])[types], len(types)
    frames = [
        Atoms(symbols, a.reshape(n, 3), cell=b.reshape(3, 3), pbc=True) for a, b in zip(x, h, strict=True)
    ]
    return [[m.compute(atoms) for m in models] for atoms in frames]


def expected(answers, real_error, relative, relative_v):
    """The table of tests/data/training/emt, frame by frame."""
    label = {name: np.load(EMT / "set.000" / f"{name}.npy") for name in ("energy", "force", "virial")}
    n, rows = len(emt_frames()[0]), []
    for k, found in enumerate(answers):
        e, f, v = (np.array([a[key] for a in found]) for key in ("energy", "forces", "virial"))
        e, v = e[:, 0] / n, v.reshape(-1, 9) / n
        center = (
            (label["energy"][k] / n, label["force"][k].reshape(n, 3), label["virial"][k].ravel() / n)
            if real_error
            else (e.mean(0), f.mean(0), v.mean(0))
        )
        de, df, dv = (np.sqrt(((a - c) ** 2).mean(0)) for a, c in zip((e, f, v), center, strict=True))
        df = np.linalg.norm(df, axis=1)
        if relative is not None:
            df = df / (np.linalg.norm(center[1], axis=1) + relative)
        if relative_v is not None:
            dv = dv / (np.linalg.norm(center[2]) + relative_v)
        mean = np.sqrt((dv**2).mean())
        rows.append([dv.max(), dv.min(), mean, df.max(), df.min(), df.mean(), float(np.ravel(de)[0]), *df])
    return np.array(rows)


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(
    ("options", "values"),
    [([], (False, None, None)), (["--real_error"], (True, None, None)),
     (["--relative", "0.5"], (False, 0.5, None)), (["--relative_v", "0.1", "--real_error"], (True, None, 0.1))],
)  # fmt: skip
def test_model_devi(committee, answers, tmp_path, capsys, options, values, atomic):
    path = tmp_path / "model_devi.out"
    command = [
        "model-devi",
        "--no-spline",
        "-m",
        *committee,
        "-s",
        str(EMT),
        "-o",
        str(path),
        "-f",
        "5",
        *options,
    ]
    assert main(command + ["--atomic"] * atomic) == 0
    assert "20 frames of 1 systems" in capsys.readouterr().out
    table = np.loadtxt(path)
    assert (table[:, 0] == 5 * np.arange(20)).all()
    wanted = expected(answers, *values)
    np.testing.assert_allclose(table[:, 1:], wanted if atomic else wanted[:, :7], rtol=1e-6)


def test_model_devi_has_deepmd_kits_layout_and_adds_to_a_file(committee, tmp_path):
    """To the byte: what `dp model-devi` of DeePMD-kit 3.2 writes between the numbers."""
    path = tmp_path / "devi.out"
    for name in ("b", "a"):
        shutil.copytree(EMT, tmp_path / "data" / name)
    assert main(["model-devi", "-m", *committee, "-s", str(tmp_path / "data"), "-o", str(path)]) == 0
    first = path.read_text()
    lines = first.splitlines()
    names = [f"{k}_devi_{of}" for of in "vf" for k in ("max", "min", "avg")] + ["devi_e"]
    assert lines[0] == f"# {tmp_path / 'data' / 'a'}"
    assert lines[1] == "# step      " + "".join(f"{name:<19}" for name in names)
    assert re.fullmatch(r" {11}0( {7}\d\.\d{6}e-\d\d){7}", lines[2]) and len(lines[2]) == 12 + 7 * 19
    assert lines[22] == f"# {tmp_path / 'data' / 'b'}" and lines[24].split()[0] == "0"
    assert main(["model-devi", "-m", *committee, "-s", str(tmp_path / "data"), "-o", str(path)]) == 0
    assert path.read_text() == first * 2


@pytest.mark.parametrize(
    ("real_error", "options"), [(False, {}), (True, {}), (False, {"relative": 0.5, "relative_v": 0.1})]
)
def test_calc_model_devi(committee, answers, tmp_path, real_error, options):
    """DeePMD-kit's function, on arrays."""
    types, x, h = emt_frames()
    models = [DeepPot(path, spline=False) for path in committee]
    label = {name: np.load(EMT / "set.000" / f"{name}.npy") for name in ("energy", "force", "virial")}
    label = {name: value / (1 if name == "force" else len(types)) for name, value in label.items()}
    real = label if real_error else None
    path = tmp_path / "devi.out"
    found = calc_model_devi(
        x, h, types, models, fname=path, frequency=3, atomic=True, real_data=real, **options
    )
    assert found.shape == (20, 8 + 32) and (found[:, 0] == 3 * np.arange(20)).all()
    wanted = expected(answers, real_error, options.get("relative"), options.get("relative_v"))
    np.testing.assert_allclose(found[:, 1:], wanted, rtol=1e-8)
    np.testing.assert_allclose(np.loadtxt(path), found, rtol=1e-6)
    assert calc_model_devi(x, h, types, models).shape == (20, 8)
    with pytest.raises(InputError, match="the same elements in the same order"):
        calc_model_devi(x, h, types, [models[0], DeepPot(DATA / "formats/model.dp")])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_devices(device, dtype):
    _, own = next(systems("reference/se_a_alloy"))
    potential = DeepPot(ALLOY, device=device, dtype=dtype, auto_batch_size=True)
    found = potential.eval(own["positions"], own["cell"], own["types"], atomic=True)
    for key, array in zip(SHAPES, found, strict=True):
        if key in own:
            scale = np.abs(own[key]).max()
            accuracy = 1e-6 if dtype == "float64" else 1e-4
            np.testing.assert_allclose(array.ravel(), own[key].ravel(), atol=accuracy * scale)
    descriptor = potential.eval_descriptor(own["positions"], own["cell"], own["types"])
    assert descriptor.dtype == dtype
    same = DeepPot(ALLOY, spline=False).eval_descriptor(own["positions"], own["cell"], own["types"])
    np.testing.assert_allclose(descriptor, same, atol=1e-5)


def test_model_devi_takes_structures_without_labels(committee, tmp_path):
    path = tmp_path / "frames.extxyz"
    frames = [bulk("Cu", a=a, cubic=True) * n for a, n in ((3.9, 1), (4.1, 1), (4.0, 2))]
    for k, atoms in enumerate(frames):
        atoms.rattle(0.1, seed=k)
    ase.io.write(path, frames)
    out = tmp_path / "devi.out"
    command = ["model-devi", "-m", *committee, "-s", str(path), "-o", str(out)]
    assert main(command) == 0
    assert np.loadtxt(out).shape == (3, 8)
    assert main([*command, "--atomic"]) == 2  # frames of 4 and of 32 atoms


def test_model_devi_says_what_is_wrong(committee, tmp_path, capsys):
    def fails(*command, says):
        assert main(["model-devi", *command]) == 2
        assert says in capsys.readouterr().err

    out = ["-o", str(tmp_path / "x.out")]
    fails("-m", committee[0], "-s", str(EMT), *out, says="at least two")
    fails("-m", *committee, "-s", str(tmp_path), *out, says="no system of DeePMD-kit")
    fails("-m", *committee, "-s", str(EMT), "-o", str(tmp_path / "no" / "x"), says="there is no folder")
    shutil.copytree(EMT, tmp_path / "bare")
    (tmp_path / "bare/set.000/virial.npy").unlink()
    fails(
        "-m",
        *committee,
        "-s",
        str(tmp_path / "bare"),
        "--real_error",
        *out,
        says="has no virial to compare with",
    )
    assert not (tmp_path / "x.out").exists()
    other = mdops.load(DATA / "formats/model.dp")
    with pytest.raises(InputError, match="the same elements in the same order"):
        model_deviation([mdops.load(committee[0]), other], load_dataset(EMT, ["Cu", "Al", "Mg"]))


def test_neighbor_stat(tmp_path, capsys):
    assert main(["neighbor-stat", "-s", str(EMT), "-r", "5", "-t", "Al", "Mg", "Cu"]) == 0
    shown = capsys.readouterr().out.splitlines()
    types, x, h = emt_frames()
    most, together, nearest = np.zeros(2, int), 0, np.inf
    for positions, cell in zip(x.reshape(len(x), -1, 3), h.reshape(-1, 3, 3), strict=True):
        i, j, d = ase.neighborlist.neighbor_list(
            "ijd", Atoms(f"Cu{len(types)}", positions, cell=cell, pbc=True), 5.0
        )
        counts = np.zeros((len(types), 2), int)
        np.add.at(counts, (i, types[j]), 1)
        most, together = np.maximum(most, counts.max(0)), max(together, counts.sum(1).max())
        nearest = min(nearest, d.min())
    assert shown == [f"min_nbor_dist: {nearest:f}", f"max_nbor_size: {np.array([most[1], 0, most[0]])}"]
    assert main(["neighbor-stat", "-s", str(EMT), "-r", "5", "--mixed-type"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["type_map: Cu Al", f"min_nbor_dist: {nearest:f}", f"max_nbor_size: [{together}]"]
    shutil.copytree(EMT, tmp_path / "nameless")
    (tmp_path / "nameless/type_map.raw").unlink()
    assert main(["neighbor-stat", "-s", str(tmp_path / "nameless"), "-r", "5"]) == 0
    assert capsys.readouterr().out.splitlines()[::2] == ["type_map: 0 1", f"max_nbor_size: {most}"]
    assert main(["neighbor-stat", "-s", str(EMT), str(tmp_path / "nameless"), "-r", "5"]) == 2
    assert "give the elements" in capsys.readouterr().err
    assert main(["neighbor-stat", "-s", str(EMT), "-r", "0.5"]) == 2
    assert "no two atoms are within 0.5 A" in capsys.readouterr().err
    ase.io.write(tmp_path / "crystal.xyz", bulk("Cu", a=4.0))
    assert main(["neighbor-stat", "-s", str(tmp_path / "crystal.xyz"), "-r", "3", "-t", "Ni"]) == 2
    assert "the type map does not know Cu; its elements are Ni" in capsys.readouterr().err
    assert main(["neighbor-stat", "-s", str(tmp_path / "crystal.xyz"), "-r", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "type_map: Cu",
        "min_nbor_dist: 2.828427",
        "max_nbor_size: [12]",
    ]


@pytest.mark.parametrize("kind", ["fp32", "fp64", "native"])
def test_eval_desc(tmp_path, monkeypatch, kind):
    """A fitting net that is the sum of its inputs gives the sum of the descriptor."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EMT, "data/emt")
    Path("list.txt").write_text("data/emt\n\n")
    command = ["eval-desc", "-m", str(ALLOY), "-f", "list.txt", "--dtype", kind]
    assert main(command) == 0
    found = np.load("desc/emt.npy")
    assert found.shape == (20, 32, 80) and found.dtype == (np.float32 if kind == "fp32" else np.float64)
    model = mdops.load(ALLOY, dtype="float64", spline=False)
    data = load_dataset("data/emt", model.type_map)
    atoms = Atoms(
        [model.type_map[t] for t in data.types[:32]], data.positions[:32], cell=data.cell[0], pbc=True
    )
    before = model.compute(atoms)["atom_energy"]
    fitting, seen = model.model.fitting, []
    monkeypatch.setattr(
        fitting,
        "forward",
        lambda values, *rest, was=fitting.forward: (seen.append(values), was(values, *rest))[1],
    )
    np.testing.assert_allclose(model.compute(atoms)["atom_energy"], before)
    np.testing.assert_allclose(found[0], seen[0].detach().numpy(), atol=1e-6 if kind == "fp32" else 1e-13)
    shutil.copytree(EMT, "other/emt")
    assert main([*command[:3], "-s", "data/emt", "other/emt"]) == 2


def test_models_without_a_descriptor_are_refused():
    with pytest.raises(UnsupportedModelError, match="has no descriptor of its own"):
        DeepPot(DATA / "reference_kinds/linear_nets_sum/model.dp").eval_descriptor(
            np.arange(6.0), None, [0, 1]
        )


@pytest.mark.parametrize(
    "case", ["reference/overflow", "reference_kinds/dpa1_smooth", "reference_kinds/se_e3_base"]
)
def test_descriptors_lead_to_the_energies(case):
    """Also where they are made for runs of atoms, and of the nearest neighbours alone."""
    potential = DeepPot(DATA / case / "model.dp", spline=False)
    fitting = potential.potential.model.fitting
    for _, own in systems(case):
        f, n, _ = own["positions"].shape
        if "fparam" in own or "aparam" in own or (own["types"] < 0).any():
            continue
        cells = own.get("cell")
        found = potential.eval_descriptor(own["positions"], cells, own["types"])
        model = potential.potential
        system = from_tensors(
            torch.from_numpy(own["positions"].reshape(-1, 3)),
            torch.from_numpy(np.tile(own["types"], f)),
            None if cells is None else torch.from_numpy(cells),
            None,
            torch.arange(f).repeat_interleave(n),
            len(model.type_map),
        )
        near = Neighborhood.of(system, model.neighbor_list(system), model.cutoff, torch.float64)
        with torch.no_grad():
            energy = fitting(torch.from_numpy(found.reshape(f * n, -1)), near)["energy"]
            energy += model.model.out_bias[system.types.long()]
        np.testing.assert_allclose(energy.numpy(), own["atom_energy"].ravel(), atol=1e-9)


class TestChangeBias:
    def biases(self, path):
        return mdops.load(path, dtype="float64").model.out_bias.numpy()

    def test_errors_are_fitted(self, tmp_path, capsys):
        out = tmp_path / "changed.dp"
        assert main(["change-bias", str(ALLOY), "-s", str(EMT), "-o", str(out)]) == 0
        assert "Cu" in capsys.readouterr().out
        before, after = mdops.load(ALLOY, dtype="float64"), mdops.load(out, dtype="float64")
        data = load_dataset(EMT, before.type_map)
        frames = [
            Atoms([data.type_map[t] for t in data.types[a]], data.positions[a], cell=data.cell[f], pbc=True)
            for f, a in enumerate(map(data.atoms, range(len(data))))
        ]
        rest = data.labels["energy"] - before.compute(frames)["energy"]
        shift = np.linalg.lstsq(data.composition().astype(float), rest)[0]
        np.testing.assert_allclose(self.biases(out) - self.biases(ALLOY), shift, atol=1e-7)
        assert shift[2] == pytest.approx(0)  # no atom is magnesium
        moved = after.compute(frames)["energy"] - before.compute(frames)["energy"]
        np.testing.assert_allclose(moved, data.composition() @ shift, atol=1e-9)

    def test_labels_are_fitted(self, tmp_path):
        out = tmp_path / "set.safetensors"
        assert main(["change-bias", str(ALLOY), "-s", str(EMT), "-m", "set", "-o", str(out)]) == 0
        data = load_dataset(EMT, ["Cu", "Al", "Mg"])
        wanted = np.linalg.lstsq(data.composition().astype(float), data.labels["energy"])[0]
        np.testing.assert_allclose(self.biases(out), wanted, atol=1e-9)

    def test_some_frames(self, tmp_path):
        (tmp_path / "list").write_text(f"{EMT}\n")
        command = ["change-bias", str(ALLOY), "-f", str(tmp_path / "list"), "-m", "set", "-o"]
        assert main([*command, str(tmp_path / "all.dp"), "-n", "20"]) == 0
        assert main([*command, str(tmp_path / "some.dp"), "-n", "2"]) == 0
        data = load_dataset(EMT, ["Cu", "Al", "Mg"])
        wanted = np.linalg.lstsq(data.composition()[[0, 19]].astype(float), data.labels["energy"][[0, 19]])[0]
        np.testing.assert_allclose(self.biases(tmp_path / "some.dp"), wanted, atol=1e-9)
        assert np.abs(self.biases(tmp_path / "all.dp") - wanted).max() > 1e-4

    def test_values_are_taken(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        shutil.copy(DATA / "formats/model.pth", "model.pth")
        assert main(["change-bias", "model.pth", "-b", "-1.5", "2"]) == 0
        assert self.biases("model_updated.dp").tolist() == [-1.5, 2.0]
        assert main(["change-bias", "model.pth", "-b", "-1.5", "2"]) == 2
        assert "--overwrite" in capsys.readouterr().err
        assert main(["change-bias", "model.pth", "-b", "1", "-o", "other.dp"]) == 2
        assert "has 1 energies, but the model's elements are Cu, Al" in capsys.readouterr().err

    def test_data_without_energies_is_refused(self, tmp_path, capsys):
        shutil.copytree(EMT, tmp_path / "bare")
        (tmp_path / "bare/set.000/energy.npy").unlink()
        out = tmp_path / "x.dp"
        assert main(["change-bias", str(ALLOY), "-s", str(tmp_path / "bare"), "-o", str(out)]) == 2
        assert "no frame has energies to fit to" in capsys.readouterr().err and not out.exists()


def test_eval_desc_leaves_no_part_of_a_file(tmp_path, monkeypatch, capsys):
    """As on a full disk: a part of an array would pass for a file of another run."""

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert main(["eval-desc", "-m", str(ALLOY), "-s", str(EMT), "-o", str(tmp_path / "d")]) == 2
    assert "emt.npy: No space left on device" in capsys.readouterr().err
    assert not any((tmp_path / "d").iterdir())


def test_frames_of_many_sizes_have_no_array_of_descriptors(tmp_path, capsys):
    ase.io.write(tmp_path / "x.extxyz", [bulk("Cu", a=4.0), bulk("Cu", a=4.0, cubic=True)])
    assert (
        main(["eval-desc", "-m", str(ALLOY), "-s", str(tmp_path / "x.extxyz"), "-o", str(tmp_path / "d")])
        == 2
    )
    assert "another number of atoms" in capsys.readouterr().err
    with pytest.raises(DataError, match="nothing to learn from"):
        load_dataset(tmp_path / "x.extxyz", ["Cu"])


def test_the_example_runs(example):
    pytest.importorskip("dpdata", reason="dpdata is not installed (pip install 'mdops[dpdata]')")
    assert "are new" in example("dpdata_labels")


class TestDpdata:
    @pytest.fixture(autouse=True)
    def driver(self):
        pytest.importorskip("dpdata", reason="dpdata is not installed (pip install 'mdops[dpdata]')")
        import mdops.dpdata  # noqa: F401

    @pytest.mark.parametrize("pbc", [True, False])
    def test_systems_are_labelled(self, tmp_path, pbc):
        import dpdata

        frames = []
        for k in range(3):
            atoms = bulk("Cu", a=4.0, cubic=True)
            atoms.symbols[1] = "Al"
            atoms.rattle(0.1, seed=k)
            atoms.pbc = pbc
            frames.append(atoms)
        system = dpdata.System(data={
            "atom_names": ["Xe", "Al", "Cu"], "atom_numbs": [0, 1, 3], "atom_types": np.array([2, 1, 2, 2]),
            "orig": np.zeros(3), "coords": np.array([a.positions for a in frames]),
            "cells": np.array([a.cell.array for a in frames]), "nopbc": not pbc,
        })  # fmt: skip
        labelled = system.predict(ALLOY, driver="mdops")
        wanted = mdops.load(ALLOY, dtype="float64").compute(frames)
        np.testing.assert_allclose(labelled.data["energies"], wanted["energy"], atol=1e-9)
        np.testing.assert_allclose(labelled.data["forces"].reshape(-1, 3), wanted["forces"], atol=1e-9)
        np.testing.assert_allclose(labelled.data["virials"], wanted["virial"], atol=1e-9)
        labelled.to("deepmd/npy", str(tmp_path / "data"))
        if pbc:
            assert main(["test", "-m", str(ALLOY), "-d", str(tmp_path / "data"), "--dtype", "float64"]) == 0

    def test_unknown_elements_are_named(self):
        import dpdata

        data = {"atom_names": ["Xe"], "atom_numbs": [1], "atom_types": np.array([0]), "orig": np.zeros(3)}
        system = dpdata.System(
            data={**data, "coords": np.zeros((1, 1, 3)), "cells": np.zeros((1, 3, 3)), "nopbc": True}
        )
        with pytest.raises(InputError, match="the model does not know Xe"):
            system.predict(ALLOY, driver="mdops")
