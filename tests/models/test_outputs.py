"""Models of other outputs than energies, against DeePMD-kit's answers, and wherever they are used."""

import dataclasses
from pathlib import Path

import ase
import numpy as np
import pytest
import torch
from ase.calculators.calculator import PropertyNotImplementedError

from mdops import load
from mdops.calculator import MDOps
from mdops.cli import main
from mdops.deepmd import DeepPot
from mdops.errors import InputError, ModelFileError, UnsupportedModelError
from mdops.io import read_model, write_model
from mdops.md import Engine, EnsembleSettings
from mdops.models import model_of_tree
from mdops.models.registry import find
from mdops.models.standard import StandardOptions
from mdops.potential import Potential
from mdops.system import System

OUTPUTS = Path(__file__).parents[1] / "data" / "outputs"
SHARED = Path(__file__).parents[3] / "shared" / "reference"
CASES = ("dipole", "polar", "polar_matrix", "dos", "property", "property_sum", "population")
SHARED_CASES = ("dipole_a", "dipole_dpa1", "polar_a", "dos_a", "property_dpa1")
# What DeePMD-kit calls what mdops calls otherwise.
NAMES = {
    "global_dipole": "dipole",
    "dipole": "atom_dipole",
    "global_polar": "polarizability",
    "polar": "atom_polarizability",
    "population": "atom_population",
    "force": "forces",
}


def system_of(arrays):
    frames, atoms, _ = arrays["positions"].shape
    cell = arrays.get("cell", np.zeros((frames, 3, 3)))
    return System(
        torch.from_numpy(arrays["positions"].reshape(-1, 3)),
        torch.from_numpy(arrays["types"]).int().repeat(frames),
        torch.from_numpy(cell),
        torch.full((frames, 3), "cell" in arrays),
        torch.arange(frames, dtype=torch.int32).repeat_interleave(atoms),
    )


def check(potential, arrays, answers, tolerance, **options):
    fparam, aparam = (arrays.get(name) for name in ("fparam", "aparam"))
    result = potential.evaluate(
        system_of(arrays),
        None,
        None if fparam is None else torch.from_numpy(fparam),
        None if aparam is None else torch.from_numpy(aparam.reshape(-1, aparam.shape[-1])),
        **options,
    )
    compared = set()
    for name, expected in answers.items():
        found = result[NAMES.get(name, name)]
        error = np.abs(found.numpy().ravel() - expected.ravel()).max() / np.abs(expected).max()
        assert error < tolerance, f"{name} is off by {error:.1e}"
        compared.add(NAMES.get(name, name))
    assert compared == set(result), "an answer that DeePMD-kit has not, or the other way round"
    return result


def frames_of(case):
    """The frames of a checkpoint, and DeePMD-kit's answers for them."""
    with np.load(OUTPUTS / f"{case}.npz") as file:
        arrays = dict(file)
    answers = {k.removeprefix("answer_"): v for k, v in arrays.items() if k.startswith("answer_")}
    answers.pop("mask")
    return {k: v for k, v in arrays.items() if not k.startswith("answer_")}, answers


@pytest.mark.parametrize("ending", ["dp", "pt"])
@pytest.mark.parametrize("spline", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_answers_are_deepmd_kits(case, spline, ending):
    potential = load(OUTPUTS / f"{case}.{ending}", dtype="float64", spline=spline, overflow="truncate")
    options = {"atom_virial": True} if case == "dipole" else {}
    check(potential, *frames_of(case), 1e-6 if spline else 1e-9, **options)


@pytest.mark.parametrize("ending", ["dp", "pt"])
def test_messages_make_dipoles(ending):
    """DPA-3 has vectors, too, which the fitting takes."""
    potential = load(OUTPUTS / f"dipole_dpa3.{ending}", dtype="float64")
    arrays, answers = frames_of("dipole_dpa3")
    del answers["atom_virial"]
    check(potential, arrays, answers, 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_answers_in_float32(case):
    potential = load(OUTPUTS / f"{case}.dp", dtype="float32", overflow="truncate")
    options = {"atom_virial": True} if case == "dipole" else {}
    check(potential, *frames_of(case), 1e-4, **options)


@pytest.mark.parametrize("spline", [False, True])
@pytest.mark.parametrize("case", SHARED_CASES)
def test_shared_cases(case, spline):
    if not (SHARED / case).is_dir():
        pytest.skip("../shared is not here")
    potential = load(SHARED / case / "model.dp", dtype="float64", spline=spline)
    assert potential.explain().startswith("splines") is spline
    with np.load(SHARED / case / "systems.npz") as file:
        arrays = dict(file)
    for name in dict.fromkeys(key.split("/")[0] for key in arrays):
        own = {k.split("/")[1]: v for k, v in arrays.items() if k.split("/")[0] == name}
        inputs = {k: own.pop(k) for k in ("positions", "types", "cell") if k in own}
        check(potential, inputs, own, 1e-7 if spline else 1e-9)


@pytest.mark.parametrize("suffix", [".dp", ".yaml", ".json", ".safetensors"])
@pytest.mark.parametrize("case", CASES)
def test_saved_files_have_the_same_answers(case, suffix, tmp_path):
    potential = load(OUTPUTS / f"{case}.dp", dtype="float64", spline=False, overflow="truncate")
    potential.save(tmp_path / f"model{suffix}")
    again = load(tmp_path / f"model{suffix}", dtype="float64", spline=False, overflow="truncate")
    check(again, *frames_of(case), 1e-9, **({"atom_virial": True} if case == "dipole" else {}))


def test_frozen_models_have_the_nodes_of_serialised_ones():
    frozen, serialised = (read_model(OUTPUTS / f"polar.{ending}").model for ending in ("pth", "dp"))
    nodes = [node["fitting"].pop("@variables") for node in (frozen, serialised)]
    assert {k: v for k, v in frozen["fitting"].items() if k != "nets"} == {
        k: v for k, v in serialised["fitting"].items() if k != "nets"
    }
    assert set(nodes[0]) == set(nodes[1])
    for name, value in nodes[0].items():
        np.testing.assert_array_equal(value, nodes[1][name])


def test_dipoles_turn_with_the_atoms_and_their_derivatives_are_right():
    potential = load(OUTPUTS / "dipole.dp", dtype="float64", spline=False, overflow="truncate")
    arrays, _ = frames_of("dipole")
    system = system_of({name: value[:1] if name != "types" else value for name, value in arrays.items()})
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))
    turn = torch.from_numpy(turn)
    first = potential.evaluate(system)
    other = potential.evaluate(
        dataclasses.replace(system, positions=system.positions @ turn.T, cell=system.cell @ turn.T)
    )
    torch.testing.assert_close(other["dipole"], first["dipole"] @ turn.T)
    atom, step = 0, 1e-5
    for axis in range(3):
        ends = []
        for sign in (1, -1):
            moved = system.positions.clone()
            moved[atom, axis] += sign * step
            ends.append(potential.evaluate(dataclasses.replace(system, positions=moved))["dipole"][0])
        slope = -(ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(first["forces"][atom, :, axis], slope, rtol=1e-5, atol=1e-4)
    strain = torch.zeros(3, 3, dtype=torch.float64)
    strain[0, 1] = step  # y grows with x
    ends = [
        potential.evaluate(
            dataclasses.replace(
                system,
                positions=system.positions + sign * system.positions @ strain,
                cell=system.cell + sign * system.cell @ strain,
            )
        )["dipole"][0]
        for sign in (1, -1)
    ]
    slope = -(ends[0] - ends[1]) / (2 * step)
    torch.testing.assert_close(first["virial"][0, :, 1, 0], slope, rtol=1e-5, atol=1e-4)


def atoms_of(case, frame=0):
    arrays, answers = frames_of(case)
    symbols = ["OH"[t] for t in arrays["types"]]
    atoms = ase.Atoms(symbols, positions=arrays["positions"][frame], cell=arrays["cell"][frame], pbc=True)
    if "fparam" in arrays:
        atoms.info["fparam"] = arrays["fparam"][frame]
    return atoms, answers


def test_ase_gives_dipoles_and_their_derivatives():
    atoms, answers = atoms_of("dipole")
    atoms.calc = MDOps(OUTPUTS / "dipole.dp", dtype="float64", spline=False, overflow="truncate")
    np.testing.assert_allclose(atoms.get_dipole_moment(), answers["global_dipole"][0], rtol=1e-9)
    results = atoms.calc.results
    np.testing.assert_allclose(results["atom_dipole"], answers["dipole"][0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(results["dipole_forces"], answers["force"][0], rtol=1e-9, atol=1e-9)
    assert results["dipole_virial"].shape == (3, 3, 3)
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_forces()
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_potential_energy()


def test_ase_gives_polarizabilities_of_several_models():
    atoms, answers = atoms_of("polar")
    path = OUTPUTS / "polar.dp"
    atoms.calc = MDOps([path, path], dtype="float64", spline=False, overflow="truncate")
    found = atoms.calc.get_property("polarizability", atoms)
    np.testing.assert_allclose(found, answers["global_polar"][0], rtol=1e-9, atol=1e-9)
    assert not atoms.calc.results["polarizability_std"].any()


def test_models_of_different_outputs_are_refused_together():
    with pytest.raises(InputError, match="the first has dipole, another one polarizability"):
        MDOps([OUTPUTS / "dipole.dp", OUTPUTS / "polar.dp"], overflow="truncate")


@pytest.mark.parametrize(
    "use",
    [
        lambda model, atoms: Engine(atoms, model, EnsembleSettings()),
        lambda model, atoms: DeepPot(model),
        lambda model, atoms: model.export(),
    ],
)
def test_what_needs_energies_says_so(use):
    model = load(OUTPUTS / "dipole.dp", dtype="float64", spline=False)
    with pytest.raises(UnsupportedModelError, match="needs energies and conservative forces, not dipole"):
        use(model, atoms_of("dipole")[0])


def test_mdops_md_says_that_there_are_no_energies(tmp_path, capsys):
    atoms, _ = atoms_of("dipole")
    atoms.write(tmp_path / "atoms.xyz")
    files = ["--trajectory", str(tmp_path / "md.xyz"), "--log", str(tmp_path / "md.log")]
    path = str(OUTPUTS / "dipole.dp")
    assert main(["md", str(tmp_path / "atoms.xyz"), "--steps", "1", *files, "-m", path]) == 2
    assert "a simulation needs energies and conservative forces" in capsys.readouterr().err
    assert not (tmp_path / "md.xyz").exists()


def test_benchmarks_say_that_there_are_no_energies(capsys):
    assert main(["bench", str(OUTPUTS / "dos.dp")]) == 2
    assert "needs energies and conservative forces, not dos" in capsys.readouterr().err


def test_data_without_labels_of_the_output_is_refused(capsys):
    data = str(OUTPUTS.parent / "training" / "emt")
    assert main(["test", "-m", str(OUTPUTS / "dos.dp"), "-d", data]) == 2
    assert "Cu" in capsys.readouterr().err


def test_descriptors_without_vectors_are_refused():
    tree = read_model(OUTPUTS / "dos.dp").model
    other = read_model(OUTPUTS / "polar_matrix.dp").model
    tree |= {key: other[key] for key in ("fitting", "@variables")}
    with pytest.raises(UnsupportedModelError, match=r"the fitting polar needs 8 vectors.* se_e3 has 0"):
        model_of_tree(tree)


def test_a_bias_of_another_width_is_refused(tmp_path):
    file = read_model(OUTPUTS / "polar.dp")
    variables = file.model["@variables"]
    variables["out_bias"] = variables["out_bias"][..., :4]
    write_model(tmp_path / "model.dp", file.model, file.source)
    with pytest.raises(ModelFileError, match="out_bias has 4 values a type, and its output 9"):
        load(tmp_path / "model.dp")


def test_info_and_convert(tmp_path, capsys):
    assert main(["info", str(OUTPUTS / "polar.pt")]) == 0
    shown = capsys.readouterr().out
    assert "answers           polarizability (3 x 3)" in shown and "fitting polar" in shown
    hybrid = OUTPUTS.with_name("reference_kinds") / "dpa1_hybrid" / "model.dp"
    assert main(["info", str(hybrid)]) == 0 and "part 1, descriptor dpa1" in capsys.readouterr().out
    assert main(["convert", str(OUTPUTS / "property.pt"), str(tmp_path / "model.safetensors")]) == 0
    assert "needs energies and conservative forces" in capsys.readouterr().out
    check(
        load(tmp_path / "model.safetensors", dtype="float64", spline=False, overflow="truncate"),
        *frames_of("property"),
        1e-9,
    )


def test_compute_answers_under_the_propertys_name():
    atoms, answers = atoms_of("property")
    found = load(OUTPUTS / "property.dp", dtype="float64", overflow="truncate").compute([atoms])
    assert set(found) == {"gap", "atom_gap"} and found["gap"].shape == (1, 2)
    np.testing.assert_allclose(found["gap"][0], answers["gap"][0], rtol=1e-6)


def test_means_leave_virtual_atoms_out():
    potential = load(OUTPUTS / "property.dp", dtype="float64", overflow="truncate")
    arrays, answers = frames_of("property")
    system = system_of(arrays)
    more = dataclasses.replace(
        system,
        positions=torch.cat([system.positions, torch.zeros(1, 3, dtype=torch.float64)]),
        types=torch.cat([system.types, torch.tensor([-1], dtype=torch.int32)]),
        batch=torch.cat([system.batch, torch.tensor([1], dtype=torch.int32)]),
    )
    np.testing.assert_allclose(potential.evaluate(more)["gap"], answers["gap"], rtol=1e-6)


def test_means_leave_types_without_the_property_out(tmp_path):
    model = read_model(OUTPUTS / "property.dp").model
    model["atom_exclude_types"] = [0]
    write_model(tmp_path / "m.dp", model)
    potential = load(tmp_path / "m.dp", dtype="float64")
    assert potential.model.outputs[0].intensive
    found = potential.compute([ase.Atoms("OHH", [[0, 0, 0], [1, 0, 0], [0, 1.1, 0]])])
    assert np.all(found["atom_gap"][0] == 0)
    assert np.allclose(found["gap"][0], found["atom_gap"][1:].mean(0), rtol=1e-12, atol=0)


def test_potentials_are_made_of_random_weights():
    """Each kind is made for training by its options alone, and written and read again."""
    descriptor = {
        "type": "se_e2_a", "sel": [6, 8], "rcut": 5.0, "rcut_smth": 0.5, "neuron": [4, 8], "axis_neuron": 4,
    }  # fmt: skip
    kinds = [
        {"type": "dipole"},
        {"type": "polar"},
        {"type": "polar", "fit_diag": False},
        {"type": "dos", "numb_dos": 4},
        {"type": "property", "property_name": "gap", "task_dim": 2},
        {"type": "population"},
    ]
    for kind in kinds:
        fitting = find("fitting", kind["type"]).Options(
            neuron=[6, 6], seed=1, **{k: v for k, v in kind.items() if k != "type"}
        )
        own = find("descriptor", "se_e2_a").Options(
            seed=1, **{k: v for k, v in descriptor.items() if k != "type"}
        )
        options = StandardOptions(type_map=["O", "H"], descriptor=own, fitting_net=fitting)
        model = find("model", "standard").random(options, 3, torch.float64)
        again = model_of_tree(model.to_tree())
        arrays, _ = frames_of("dipole")
        for key, value in Potential(model, overflow="truncate").evaluate(system_of(arrays)).items():
            torch.testing.assert_close(
                Potential(again, overflow="truncate").evaluate(system_of(arrays))[key], value
            )
