"""Models with magnetic moments, as virtual atoms, and of DPA-4 and DPA-4C as vectors; of DPA-4 both."""

import copy
import dataclasses
import json
import warnings
from pathlib import Path

import ase.io
import ase.units
import numpy as np
import pytest
import torch
from ase import Atoms
from reference_cases import virials_of_energies
from spin_models import DESCRIPTORS, SPIN, VECTORS, crystal, energy, model, section, training_input

import mdops
from mdops import Potential
from mdops.calculator import MDOps
from mdops.core.export import core_arrays
from mdops.data.dataset import load_dataset
from mdops.data.evaluation import evaluate
from mdops.data.labels import SPIN_LABELS
from mdops.deepmd import DeepPot
from mdops.domain import Communication, Domain
from mdops.errors import ConfigError, DataError, InputError, ModelFileError, UnsupportedModelError
from mdops.io import read_model
from mdops.models import Neighborhood, model_of_tree
from mdops.models.registry import find
from mdops.models.spin import Spin
from mdops.models.virtual_types import with_virtual_types, without_virtual_types
from mdops.ops import neighbor_list
from mdops.system import from_atoms
from mdops.train import Trainer, parse_config


@pytest.fixture(scope="module", params=list(DESCRIPTORS))
def potential(request):
    return model(request.param)


def test_atomic_virials_are_the_moments_of_energies(potential):
    """-sum_i dE_i/dx_j (x) (x_j - x_i) at constant moments, in an open system; a cell's sum is its virial."""
    atoms = crystal()
    found = potential.compute(atoms, atom_virial=True)
    np.testing.assert_allclose(found["atom_virial"].sum(0), found["virial"][0], atol=1e-11)
    for name, value in potential.compute(atoms).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-11)
    atoms.pbc, atoms.cell = False, None
    wanted = virials_of_energies(potential, atoms, torch.tensor(atoms.get_initial_magnetic_moments()))
    found = potential.compute(atoms, atom_virial=True)["atom_virial"]
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6 * float(wanted.abs().max()))


def test_an_exchange_has_room_for_the_positions_of_atoms_and_virtual_atoms(monkeypatch):
    """Atomic virials exchange them, and rows of nodes may be shorter."""
    repflow = {**DESCRIPTORS["dpa3"]["repflow"], "n_dim": 2}
    monkeypatch.setitem(DESCRIPTORS, "dpa3", {**DESCRIPTORS["dpa3"], "repflow": repflow})
    potential, atoms, widths = model("dpa3"), crystal(), []
    domain, places = Domain(potential), torch.tensor(atoms.positions)
    types = torch.tensor([potential.type_map.index(name) for name in atoms.symbols], dtype=torch.int32)
    pairs = neighbor_list(places, None, None, types, potential.cutoff, ntypes=2)
    noted = Communication(lambda rows: widths.append(rows.shape[1]) or rows, lambda rows: rows)
    spins = torch.tensor(atoms.get_initial_magnetic_moments())
    found = domain(places, types, pairs, len(atoms), noted, spins=spins, atom_virial=True)
    torch.testing.assert_close(found.atom_virial.sum(0), found.virial, rtol=0, atol=1e-12)
    assert max(widths) == 6 == domain.exchange_width


def test_hessians_are_derivatives_of_forces_at_constant_moments(potential):
    atoms, step = crystal(), 1e-4
    fewer = atoms[1:]
    matrix, other = potential.hessians([atoms, fewer])
    assert matrix.shape == (24, 24) and other.shape == (21, 21)
    largest = np.abs(matrix).max()
    np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=1e-13 * largest)
    for frame, found in ((atoms, matrix), (fewer, other)):
        for coordinate in (4, 20):  # of nickel and of oxygen
            pair = []
            for sign in (1, -1):
                moved = frame.copy()
                moved.positions.reshape(-1)[coordinate] += sign * step
                pair.append(potential.compute(moved)["forces"].ravel())
            wanted = (pair[1] - pair[0]) / (2 * step)
            np.testing.assert_allclose(found[coordinate], wanted, rtol=0, atol=3e-6 * largest)


def test_forces_magnetic_forces_and_virials_are_derivatives(potential):
    atoms, step = crystal(), 4e-5
    found = potential.compute(atoms)
    assert np.abs(found["force_mag"][4:]).max() == 0  # of oxygen
    for name, get, put in (
        ("forces", lambda a: a.positions, lambda a, x: a.set_positions(x)),
        (
            "force_mag",
            lambda a: a.get_initial_magnetic_moments(),
            lambda a, x: a.set_initial_magnetic_moments(x),
        ),
    ):
        pair = []
        for sign in (1, -1):
            moved, values = atoms.copy(), get(atoms).copy()
            values[1, 2] += sign * step
            put(moved, values)
            pair.append(energy(potential, moved))
        assert found[name][1, 2] == pytest.approx(-(pair[0] - pair[1]) / (2 * step), rel=1e-6, abs=1e-9)
    strained = []
    for sign in (1, -1):  # moments do not turn with the cell
        moved, strain = atoms.copy(), np.eye(3)
        strain[0, 1] = sign * step
        moved.set_cell(atoms.cell.array @ strain.T, scale_atoms=True)
        strained.append(energy(potential, moved))
    assert found["virial"][0, 0, 1] == pytest.approx(
        -(strained[0] - strained[1]) / (2 * step), rel=1e-6, abs=1e-9
    )


def test_atomic_virials_sum_to_the_virial():
    found = model("se_e2_a").compute([crystal(), crystal(1)], atom_virial=True)
    sums = found["atom_virial"].reshape(2, 8, 3, 3).sum(1)
    np.testing.assert_allclose(sums, found["virial"], atol=1e-12)


def test_energies_do_not_change_as_all_moments_and_atoms_turn(potential):
    atoms = crystal()
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))[0]
    turn[0] *= np.linalg.det(turn)
    turned = atoms.copy()
    turned.set_cell(atoms.cell.array @ turn.T)
    turned.positions = atoms.positions @ turn.T
    turned.set_initial_magnetic_moments(atoms.get_initial_magnetic_moments() @ turn.T)
    assert energy(potential, turned) == pytest.approx(energy(potential, atoms), rel=1e-12)
    turned.set_initial_magnetic_moments(atoms.get_initial_magnetic_moments())
    assert energy(potential, turned) != pytest.approx(energy(potential, atoms), rel=1e-12)


def test_moments_of_elements_without_spin_do_not_count(potential):
    atoms, other = crystal(), crystal()
    moments = atoms.get_initial_magnetic_moments()
    moments[4:] = 7.0
    other.set_initial_magnetic_moments(moments)
    assert energy(potential, other) == energy(potential, atoms)


@pytest.mark.parametrize("suffix", [".dp", ".yaml", ".safetensors"])
def test_files_keep_the_answers_and_are_deepmd_kits(potential, suffix, tmp_path):
    path = tmp_path / f"model{suffix}"
    potential.save(path)
    again = mdops.load(path, dtype="float64", overflow="extend", spline=False)
    assert energy(again, crystal()) == energy(potential, crystal())
    assert read_model(path).model["spin"] == potential.model.spin.to_tree()
    assert potential.model.spin.use_spin == (True, False)
    if suffix == ".safetensors":
        return
    definition = read_model(path).source["model_def_script"]  # what DeePMD-kit makes the model of
    assert definition["type_map"] == ["Ni", "O"] and definition["spin"]["use_spin"] == [True, False]
    assert with_virtual_types(definition)["type_map"] == potential.type_map


def test_the_fused_step_has_the_exact_answers():
    exact, fast = model("se_e2_a"), model("se_e2_a")
    fast.use_spline()
    assert fast.explain().startswith("fused")
    want, found = exact.compute(crystal()), fast.compute(crystal())
    for name in ("energy", "forces", "force_mag", "virial"):
        np.testing.assert_allclose(found[name], want[name], rtol=0, atol=1e-7 * np.abs(want[name]).max())


def test_a_committee_may_have_a_model_without_moments():
    """Its energy does not change with them."""
    given = {name: value for name, value in section("dpa4").items() if name != "spin"}
    options = parse_config(
        training_input("dpa4", "nowhere") | {"model": given, "loss": {"type": "ener"}}
    ).model
    plain = Potential(find("model", options.KIND).random(options, 5, torch.float64), overflow="extend").eval()
    with_moments, atoms = model("dpa4"), crystal()
    force_mag = with_moments.compute(atoms)["force_mag"]
    for models in ([plain, with_moments], [with_moments, plain]):
        atoms.calc = MDOps(models)
        np.testing.assert_allclose(atoms.calc.get_property("force_mag", atoms), force_mag / 2, rtol=1e-12)
        energies = [energy(one, atoms) for one in models]
        assert atoms.get_potential_energy() == pytest.approx(np.mean(energies), rel=1e-13)


def test_an_overflow_counts_atoms():
    """Not rows, of which atoms with a moment have two."""
    potential, atoms = model("dpa1"), crystal()
    potential.model.descriptor.options.sel = [20]
    potential.overflow = "error"
    with pytest.raises(InputError, match=r"\(8 atoms overflow\)"):
        potential.compute(atoms)


def test_the_calculator_sees_moments_that_change():
    potential, atoms = model("se_e2_a"), crystal()
    atoms.calc = MDOps(potential)
    before = atoms.get_potential_energy()
    np.testing.assert_array_equal(
        atoms.calc.get_property("force_mag", atoms), potential.compute(atoms)["force_mag"]
    )
    atoms.set_initial_magnetic_moments(np.outer([1.0] * 4 + [0.0] * 4, [0, 0, 1]))
    assert atoms.get_potential_energy() != before
    along_z = Atoms(atoms.symbols, atoms.positions, cell=atoms.cell, pbc=True, magmoms=[1.0] * 4 + [0.0] * 4)
    assert energy(potential, along_z) == pytest.approx(atoms.get_potential_energy(), rel=1e-13)


def test_differentiable_energies_have_the_same_magnetic_forces():
    potential, atoms = model("se_e2_a"), crystal()
    spins = torch.tensor(atoms.get_initial_magnetic_moments(), requires_grad=True)
    found = potential(
        torch.tensor(atoms.positions),
        torch.tensor([0] * 4 + [1] * 4),
        torch.tensor(atoms.cell.array),
        spins=spins,
    )
    (gradient,) = torch.autograd.grad(found["energy"].sum(), spins)
    np.testing.assert_allclose(-gradient.numpy(), potential.compute(atoms)["force_mag"], atol=1e-12)


def frames(folder, potential: Potential, count: int = 6):
    """A system of DeePMD-kit with a model's answers."""
    many = [crystal(seed) for seed in range(count)]
    found = potential.compute(many)
    place = folder / "set.000"
    place.mkdir(parents=True)
    np.savetxt(folder / "type.raw", [0] * 4 + [1] * 4, fmt="%d")
    (folder / "type_map.raw").write_text("Ni\nO\n")
    arrays = {
        "coord": [a.positions for a in many],
        "box": [a.cell.array for a in many],
        "spin": [a.get_initial_magnetic_moments() for a in many],
        "energy": found["energy"],
        "force": found["forces"].reshape(count, -1),
        "force_mag": found["force_mag"].reshape(count, -1),
        "virial": found["virial"],
    }
    for name, values in arrays.items():
        np.save(place / f"{name}.npy", np.reshape(values, (count, -1)))
    return folder


def test_a_model_of_energies_warns_that_it_leaves_magnetic_forces_out(tmp_path):
    folder = frames(tmp_path / "data", model("se_e2_a"))
    with pytest.warns(UserWarning, match=r"data has magnetic forces \(force_mag\), which a model without"):
        load_dataset(str(folder), ["Ni", "O"])
    atoms = crystal()
    atoms.arrays["force_mag"] = np.ones((8, 3))
    atoms.info["energy"] = 1.0
    ase.io.write(tmp_path / "nio.extxyz", atoms)
    with pytest.warns(UserWarning, match=r"nio\.extxyz has magnetic forces"):
        load_dataset(tmp_path / "nio.extxyz", ["Ni", "O"])


def test_errors_beside_its_own_answers_are_nothing(potential, tmp_path):
    data = load_dataset(str(frames(tmp_path / "data", potential)), potential.type_map, known=SPIN_LABELS)
    errors = evaluate(potential, data).errors()
    assert {name: e.count for name, e in errors.items()} == {
        "energy": 6, "forces": 6 * 8 * 3, "virial": 6 * 9, "force_mag": 6 * 4 * 3
    }  # fmt: skip
    assert max(e.rmse for e in errors.values()) < 1e-10


def test_a_loss_that_does_not_fit_the_moments_names_the_other_one():
    tree = training_input("se_e2_a", "nio")
    with pytest.raises(ConfigError, match="A model with magnetic moments takes 'ener_spin'"):
        parse_config({**tree, "loss": {"type": "ener"}})
    del tree["model"]["spin"]
    with pytest.raises(ConfigError, match="Give the model a section 'spin', or take 'ener'"):
        parse_config(tree)


def test_moments_are_told_as_the_descriptor_takes_them():
    for kind, spin, what in (
        (
            "se_e2_a",
            {**SPIN, "scheme": "native"},
            "se_e2_a in a model of type standard takes no spins as vectors",
        ),
        ("dpa4c", SPIN, "dpa4c in a model of type standard takes spins as vectors alone"),
        ("dpa4c", {"scheme": "native", "use_spin": ["Fe"]}, "names of types"),
    ):
        tree = training_input(kind, "nio")
        tree["model"]["spin"] = spin
        with pytest.raises((ConfigError, UnsupportedModelError), match=what):
            parse_config(tree)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pair_exclude_types", [1]),
        ("atom_exclude_types", 0.5),
        ("atom_exclude_types", [0, "Ni"]),
        ("descriptor", 0.5),
        ("descriptor", {"type": [2]}),
        ("descriptor", {"type": "se_e2_a", "sel": [40, 40], "exclude_types": [1]}),
        ("type_map", ["Ni", True]),
    ],
)
def test_keys_of_the_wrong_type_beside_spins_are_refused(name, value):
    tree = training_input("se_e2_a", "nio")
    tree["model"] |= {"spin": SPIN, name: value}
    with pytest.raises(ConfigError, match=f"^model.{name}"):
        parse_config(tree)


@pytest.mark.parametrize(("kind", "sel"), [("se_e2_a", [10, 12]), ("se_e2_r", [10, 12]), ("dpa1", [30])])
def test_virtual_atoms_have_places_where_types_have_places_of_their_own(kind, sel):
    elements = ["Ni", "O"][: len(sel)]
    section = {"use_spin": [True, False][: len(sel)], "virtual_scale": 0.3}
    model = {"type_map": elements, "spin": section, "descriptor": {"type": kind, "sel": sel}}
    whole = with_virtual_types(model)
    assert whole["type_map"] == elements + [f"{element}_spin" for element in elements]
    assert whole["descriptor"]["sel"] == (sel if kind == "dpa1" else 2 * sel)
    assert without_virtual_types(whole)["descriptor"]["sel"] == sel


def test_a_training_lowers_its_loss_and_goes_on_as_it_was(potential, request, tmp_path):
    kind = request.node.callspec.params["potential"]
    data = frames(tmp_path / "data", potential)
    reports = []
    steps = 120 if kind == "dpa4c" else 30  # whose gate for moments opens first
    tree = training_input(kind, str(data), numb_steps=steps, disp_freq=steps, save_freq=steps // 2)
    Trainer(parse_config(tree), tmp_path / "run").run(reports.append)
    assert reports[-1].training["loss"] < 0.5 * reports[0].training["loss"]
    trained = mdops.load(tmp_path / "run/model.safetensors", dtype="float64", overflow="extend")
    assert trained.model.spin == potential.model.spin
    (tmp_path / f"run/model.ckpt-{steps}.pt").unlink()
    Trainer(parse_config(tree), tmp_path / "run", restart=True).run()
    again = mdops.load(tmp_path / "run/model.safetensors", dtype="float64", overflow="extend")
    assert energy(again, crystal()) == energy(trained, crystal())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", DESCRIPTORS)
def test_captured_training_steps_take_the_moments_of_their_frames(kind, tmp_path):
    data, energies = frames(tmp_path / "data", model(kind)), []
    tree = training_input(kind, str(data), numb_steps=12)
    for device in ("cpu", "cuda"):
        trainer = Trainer(parse_config(tree), tmp_path / device, device=device)
        assert (trainer.branches[""]._graphs is not None) == (device == "cuda")
        trainer.run()
        trained = mdops.load(tmp_path / device / "model.safetensors", dtype="float64", overflow="extend")
        energies.append([energy(trained, crystal(seed)) for seed in range(3)])
    np.testing.assert_allclose(energies[1], energies[0], rtol=1e-7)


def test_what_does_not_fit_is_refused(tmp_path):
    potential, atoms = model("se_e2_a"), crystal()
    plain = atoms.copy()
    del plain.arrays["initial_magmoms"]
    with pytest.raises(InputError, match="set_initial_magnetic_moments"):
        potential.compute(plain)
    still = atoms.copy()
    still.set_initial_magnetic_moments(atoms.get_initial_magnetic_moments() * [[1], [0], *[[1]] * 6])
    with pytest.raises(InputError, match="atom 1 has a moment of zero"):
        potential.compute(still)
    with pytest.raises(InputError, match="none are given"):
        potential(torch.tensor(atoms.positions), torch.tensor([0] * 4 + [1] * 4))
    with pytest.raises(UnsupportedModelError, match="magnetic moments"):
        core_arrays(potential, ["float64"])
    folder = frames(tmp_path / "data", potential)
    (folder / "set.000/spin.npy").unlink()
    with pytest.raises(DataError, match="has no spin"):
        Trainer(parse_config(training_input("se_e2_a", str(folder))), tmp_path / "run")


def test_nobody_knows_which_neighbours_of_mixed_types_deepmd_kit_drops():
    potential = model("dpa1")
    potential.model.descriptor.options = dataclasses.replace(potential.model.descriptor.options, sel=[20])
    potential.overflow = "truncate"
    with pytest.raises(InputError, match="placeholders"):
        potential.compute(crystal())


def test_deep_pot_takes_spins(potential):
    """In several frames, with the results in DeePMD-kit's order."""
    frames, pot = [crystal(0), crystal(1)], DeepPot(potential)
    assert pot.has_spin and pot.use_spin == [True, False] and pot.get_type_map() == ["Ni", "O"]
    types = np.repeat([0, 1], 4)
    coords, spins, cells = (
        np.stack(rows)
        for rows in zip(
            *((a.positions, a.get_initial_magnetic_moments(), a.cell.array) for a in frames), strict=True
        )
    )
    energy, force, virial, force_mag, mask_mag = pot.eval(coords, cells, types, spin=spins)
    assert mask_mag.shape == (2, 8, 1) and mask_mag[:, :4].all() and not mask_mag[:, 4:].any()
    for k, atoms in enumerate(frames):
        wanted = potential.compute(atoms)
        for got, name in (
            (energy, "energy"),
            (force, "forces"),
            (virial, "virial"),
            (force_mag, "force_mag"),
        ):
            np.testing.assert_allclose(got[k].ravel(), wanted[name].ravel(), rtol=0, atol=1e-9)
    if potential.reach == 1:
        *_, of_atoms, atom_virial, _, _ = pot.eval(coords, cells, types, atomic=True, spin=spins)
        np.testing.assert_allclose(of_atoms.sum((1, 2)), energy[:, 0], atol=1e-10)
        np.testing.assert_allclose(atom_virial.sum(1), virial, atol=1e-9)
    for rows in (pot.eval_descriptor, pot.eval_fitting_last_layer):
        both, second = rows(coords, cells, types, spin=spins), rows(coords[1], cells[1], types, spin=spins[1])
        np.testing.assert_allclose(both[1:], second, atol=1e-12)
        assert both.shape[:2] == (2, 8) and np.abs(both[0] - both[1]).max() > 1e-6
    with pytest.raises(InputError, match="has magnetic moments, but none are given"):
        pot.eval(coords, cells, types)


def reference(kind: str) -> tuple[Path, list[tuple[Atoms, dict[str, np.ndarray]]]]:
    """The folder of a model, and systems with DeePMD-kit's answers."""
    folder = Path(__file__).parents[1] / "data/reference_spin" / kind
    type_map = read_model(folder / "model.dp").model["type_map"]
    systems: dict[str, dict[str, np.ndarray]] = {}
    with np.load(folder / "systems.npz") as arrays:
        for key in arrays:
            name, _, what = key.partition("/")
            systems.setdefault(name, {})[what] = arrays[key]
    found = []
    for one in systems.values():
        atoms = Atoms([type_map[t] for t in one["types"]], one["positions"], cell=one.get("cell"))
        atoms.pbc = "cell" in one
        atoms.set_initial_magnetic_moments(one["spins"])
        found.append((atoms, one))
    return folder, found


@pytest.mark.parametrize("ending", ["dp", "pt"])
@pytest.mark.parametrize("kind", [*VECTORS, "dpa4_virtual"])
def test_answers_of_deepmd_kit(kind, ending):
    folder, systems = reference(kind)
    for dtype, limit in (("float64", 1e-9), ("float32", 3e-5)):
        potential = mdops.load(folder / f"model.{ending}", dtype=dtype, overflow="truncate")
        for atoms, one in systems:
            found = potential.compute(atoms)
            for name in ("energy", "forces", "force_mag", "virial"):
                wanted = one[name].reshape(found[name].shape)
                np.testing.assert_allclose(
                    found[name], wanted, rtol=0, atol=limit * max(np.abs(wanted).max(), 1)
                )


def test_virtual_atoms_of_dpa4_take_no_places():
    """The model has places for 9 atoms; `test_answers_of_deepmd_kit` compares what is dropped."""
    folder, systems = reference("dpa4_virtual")
    atoms, one = systems[0]
    with pytest.raises(InputError, match=r"atom 0 has 12 neighbours .* sel is 9 \(19 atoms overflow\)"):
        mdops.load(folder / "model.dp", dtype="float64").compute(atoms)
    found = mdops.load(folder / "model.dp", dtype="float64", overflow="extend").compute(atoms)
    assert abs(found["energy"] - one["energy"]) > 1e-3


@pytest.mark.parametrize(
    ("sel", "rule", "places"), [("auto:1.5", "error", 40), (60, "error", 60), (12, "truncate", 12)]
)
def test_a_training_of_dpa4_counts_atoms_alone(sel, rule, places, tmp_path):
    data = frames(tmp_path / "data", model("dpa4_virtual"))
    tree = training_input("dpa4_virtual", str(data), numb_steps=1)
    tree["model"]["descriptor"]["sel"] = sel
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Trainer(parse_config(tree), tmp_path / "run").run()
    assert any("[21] neighbours in all" in str(one.message) for one in told) == (rule == "truncate")
    trained = mdops.load(tmp_path / "run/model.safetensors")
    assert trained.model.neighbors[0].sel == (places,)


def test_files_of_dpa4_with_virtual_atoms_are_deepmd_kits(tmp_path):
    folder, systems = reference("dpa4_virtual")
    potential = mdops.load(folder / "model.pt", dtype="float64", overflow="truncate")
    potential.save(tmp_path / "model.json")
    node = json.loads((tmp_path / "model.json").read_text())["model"]
    assert node["type"] == "sezm_spin" and node["real_sel"] == [9]
    assert node["spin"] == {"use_spin": [True, False], "virtual_scale": [0.314, 0.0]}
    assert node["atomic_model"]["descriptor"]["config"]["sel"] == [19]
    definition = potential.model.definition_of_tree(potential.model.to_tree())
    assert definition["type"] == "dpa4" and definition["descriptor"]["sel"] == 9
    assert definition["pair_exclude_types"] == [[1, 1]]
    tree = {"model": definition, "training": {"training_data": {"systems": "nio"}}}
    assert parse_config(tree).model.descriptor == potential.model.options.descriptor
    again = mdops.load(tmp_path / "model.json", dtype="float64", overflow="truncate")
    for atoms, _ in systems:
        assert energy(again, atoms) == energy(potential, atoms)


def test_places_of_dpa4_are_of_atoms_and_virtual_atoms():
    for sel in (60, [60], [20, 40], None):
        tree = training_input("dpa4_virtual", "nowhere")
        del tree["model"]["descriptor"]["sel"]
        tree["model"]["descriptor"] |= {} if sel is None else {"sel": sel}
        options = parse_config(tree).model
        assert options.type_map == ["Ni", "O", "Ni_spin", "O_spin"]
        assert options.descriptor.sel == [121 if sel else 513]
    assert "env_protection" not in with_virtual_types(tree["model"])["descriptor"]
    made = find("model", options.KIND).random(options, 3, torch.float64)
    assert made.neighbors == ((3.5, (256,), True, 2),)


@pytest.mark.parametrize("state", ["open", "closed"])
def test_statistics_of_dpa4c_are_deepmd_kits(state):
    folder = Path(__file__).parents[1] / "data/reference_spin/dpa4c"
    potential = mdops.load(folder / "model.dp", dtype="float64")
    descriptor = potential.model.descriptor
    if state == "closed":
        descriptor.spin.gate.data.zero_()
    with np.load(folder / "systems.npz") as arrays:
        one = {name: arrays[f"cell/{name}"] for name in ("types", "positions", "cell", "spins")}
    names = [potential.type_map[t] for t in one["types"]]
    system = from_atoms([Atoms(names, one["positions"], cell=one["cell"], pbc=True)], potential.type_map)
    system = potential.system_with_spins(system, torch.from_numpy(one["spins"]))
    near = Neighborhood.of(system, potential.neighbor_list(system), potential.cutoff, torch.float64)
    descriptor.learn_statistics([near], [])
    found = {"mean": descriptor.mean, "stddev": descriptor.stddev, "reference": descriptor.spin.reference}
    with np.load(folder / "statistics.npz") as wanted:
        for name, value in found.items():
            np.testing.assert_allclose(value, wanted[f"{state}/{name}"][: len(value)], rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("kind", VECTORS)
def test_a_moment_of_zero_is_no_special_one_as_a_vector(kind):
    potential, atoms = model(kind), crystal()
    moments = atoms.get_initial_magnetic_moments()
    moments[1] = 0
    atoms.set_initial_magnetic_moments(moments)
    found, pair = potential.compute(atoms)["force_mag"], []
    for sign in (1, -1):
        moments[1, 0] = sign * 1e-4
        atoms.set_initial_magnetic_moments(moments)
        pair.append(energy(potential, atoms))
    assert np.isfinite(found).all() and abs(found[1, 0]) > 1e-6
    assert found[1, 0] == pytest.approx(-(pair[0] - pair[1]) / 2e-4, rel=1e-5)


@pytest.mark.parametrize("kind", VECTORS)
def test_what_turns_structure_and_moments_together_changes_nothing(kind):
    potential, atoms = model(kind), crystal()
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    rotation *= np.linalg.det(rotation)  # moments do not change sign in a mirror as vectors do
    other = atoms.copy()
    other.set_cell(atoms.cell.array @ rotation, scale_atoms=False)
    other.positions = atoms.positions @ rotation
    other.set_initial_magnetic_moments(atoms.get_initial_magnetic_moments() @ rotation)
    wanted, found = potential.compute(atoms), potential.compute(other)
    assert abs(found["energy"] - wanted["energy"]) < 1e-10 * np.abs(wanted["atom_energy"]).sum()
    for name in ("forces", "force_mag"):
        np.testing.assert_allclose(
            found[name], wanted[name] @ rotation, rtol=0, atol=1e-10 * np.abs(wanted[name]).max()
        )


def test_files_before_version_1_2_have_the_square_root_of_the_factor():
    potential = model("dpa4")
    tree = potential.model.to_tree()
    variables = tree["descriptor"]["@variables"]
    variables["env_seed_embedding.spin_scale"] = np.array([0.7])
    new = Potential(model_of_tree(copy.deepcopy(tree))).eval()
    variables["env_seed_embedding.spin_scale"] = np.array([np.sqrt(0.7)])
    old = Potential(model_of_tree({**tree, "descriptor": {**tree["descriptor"], "@version": 1.1}})).eval()
    assert energy(old, crystal()) == pytest.approx(energy(new, crystal()), rel=1e-14)
    assert energy(old, crystal()) != pytest.approx(energy(potential, crystal()), rel=1e-9)
    assert old.model.descriptor.version == 1.2


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"spin": SPIN, "type": "standard"}, "takes spins as vectors alone"),
        ({"spin": {**SPIN, "scheme": "other"}}, "by the scheme 'other' are not supported"),
        ({"spin": {**SPIN, "virtual_scale": [-1]}}, "not negative"),
        ({"spin": {"scheme": "native", "use_spin": ["Fe"]}}, "names of types"),
        ({"descriptor": {**DESCRIPTORS["dpa4"], "lmax": 0, "mmax": 0, "kmax": 0}}, "lmax: is 0, expected 1 or more"),
        ({"descriptor": {**DESCRIPTORS["dpa4"], "use_spin": [True, False]}}, "the section `spin` of the model"),
        ({"fitting_net": {"type": "property", "property_name": "gap", "neuron": [8]}}, "energies alone"),
    ],
)  # fmt: skip
def test_inputs_of_dpa4_that_are_refused(changes, what):
    tree = training_input("dpa4", "nowhere")
    tree["model"] |= changes
    del tree["loss"]
    with pytest.raises((ConfigError, UnsupportedModelError), match=what):
        parse_config(tree)


@pytest.mark.parametrize(("kind", "filed"), [("dpa4", "sezm_native_spin"), ("dpa4c", "native_spin")])
def test_a_file_with_vectors_whose_descriptor_and_model_differ_is_refused(kind, filed, tmp_path):
    path = tmp_path / "model.json"
    model(kind).save(path)
    tree = json.loads(path.read_text())
    assert tree["model"]["type"] == filed
    tree["model"]["spin"]["use_spin"] = [True, True]
    path.write_text(json.dumps(tree))
    with pytest.raises(ModelFileError, match="use_spin"):
        mdops.load(path)


@pytest.mark.parametrize(
    ("spin", "what"),
    [
        ({"use_spin": [True]}, "use_spin and virtual_scale"),
        ({"use_spin": ["Fe"], "virtual_scale": 0.3}, "names of types"),
        ({"use_spin": True, "virtual_scale": 0.3}, "names of types"),
        ({"use_spin": [True, True], "virtual_scale": [0.3]}, "expected one"),
        ({"use_spin": [True, False], "virtual_scale": [-0.3]}, "not negative"),
        ({"use_spin": [True, False], "virtual_scale": 0.3, "allow_missing_label": True}, "every frame"),
        (
            {"use_spin": [True, False], "virtual_len": [0.4], "spin_norm": [1.25]},
            r"write virtual_scale, their ratio \(\[0.32\]\), and give .* spin.npy",
        ),
        ({"use_spin": [True, False], "virtual_len": [0.4], "spin_norm": ["x"]}, "their ratio, and give"),
        ({"use_spin": [True, False], "virtual_len": 0.4, "spin_norm": 1.25}, "their ratio, and give"),
    ],
)
def test_sections_that_do_not_fit_are_refused(spin, what):
    with pytest.raises(ConfigError, match=what):
        Spin.of(spin, ["Ni", "O"])


def test_types_may_be_told_by_name_and_number():
    want = Spin((True, False), (0.3, 0.0))
    for use in ([True, False], ["Ni"], [0]):
        assert Spin.of({"use_spin": use, "virtual_scale": [0.3]}, ["Ni", "O"]) == want


def test_a_damaged_section_of_a_file_is_refused(tmp_path):
    path = tmp_path / "model.json"
    model("se_e2_a").save(path)
    tree = json.loads(path.read_text())
    assert tree["model"]["type"] == "spin_ener"
    tree["model"]["spin"]["use_spin"] = [True]
    path.write_text(json.dumps(tree))
    with pytest.raises(ModelFileError, match="spin"):
        mdops.load(path)
