"""DPA-4C, against DeePMD-kit and in use."""

import copy
import dataclasses

import kind_cases as kinds
import numpy as np
import pytest
import torch
from ase.build import bulk
from small_systems import EMT

import mdops
from mdops.data.statistics import neighborhoods
from mdops.errors import ConfigError, DataError, ModelFileError
from mdops.io import read_model
from mdops.io.upgrade import upgrade
from mdops.models import Neighborhood
from mdops.models.moment_invariants import MomentInvariants, degree_channels, gaunt_tensors, unit_harmonics
from mdops.system import from_atoms
from mdops.train import PairLists, load_dataset

INPUT = {"type": "dpa4c", "rcut": 4.0, "channels": 8, "n_radial": 6, "precision": "float64", "seed": 1}


class TestDPA4C(kinds.DescriptorTests):
    CASES = kinds.cases("dpa4c")
    DIFFERENTIATED = ("dpa4c_base", "dpa4c_gaussian")
    INPUT = INPUT
    STEPS = 40
    TRAINED = "dpa4c", 1, None


@pytest.mark.parametrize("case", ["dpa4c_small", "dpa4c_l3"])
def test_larger_models_of_deepmd_kit(case):
    kinds.check_larger(case, spline=False)
    kinds.check_larger(case, double=1e-7)  # splines are no nets


def turned(seed=0):
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return rotation


@pytest.mark.parametrize("lmax", [2, 3, 4])
def test_what_turns_mirrors_or_reorders_a_system_changes_nothing(lmax):
    potential = kinds.new_potential({**INPUT, "lmax": lmax, "radial_modes": 2})
    atoms, rotation = kinds.alloy(), turned()
    order = np.random.default_rng(1).permutation(len(atoms))
    other = atoms[order]
    other.set_cell(atoms.cell.array @ rotation)
    other.positions = atoms.positions[order] @ rotation
    wanted, found = potential.compute(atoms), potential.compute(other)
    largest = np.abs(wanted["forces"]).max()
    assert abs(found["energy"] - wanted["energy"]) < 1e-10 * np.abs(wanted["atom_energy"]).sum()
    assert np.abs(found["forces"] - wanted["forces"][order] @ rotation).max() < 1e-10 * largest


@pytest.mark.parametrize("lmax", [2, 3, 4])
def test_harmonics_and_couplings(lmax):
    """B_l(u) . B_l(v) is a Legendre polynomial of the cosine, and a coupling turned in all indices is what it was."""
    random = np.random.default_rng(0)
    points = random.normal(size=(1, 40, 3))
    points /= np.linalg.norm(points, axis=2, keepdims=True)
    rotation = turned()
    values, others = (unit_harmonics(torch.from_numpy(p), lmax).numpy() for p in (points, points @ rotation))
    cosines, turns = points[0] @ points[0].T, {}
    for degree in range(1, lmax + 1):
        own, other = (x[:, degree**2 : (degree + 1) ** 2] for x in (values, others))
        legendre = np.polynomial.legendre.Legendre.basis(degree)(cosines)
        np.testing.assert_allclose(own @ own.T, legendre, atol=1e-14)
        turns[degree] = np.linalg.lstsq(own, other, rcond=None)[0]
    for triple, g in gaunt_tensors(lmax).items():
        same = np.einsum("ijk,ia,jb,kc->abc", g, *(turns[degree] for degree in triple))
        np.testing.assert_allclose(same, g, atol=1e-13)
        assert np.linalg.norm(g) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize(
    ("channels", "lmax", "width"), [(8, 2, 60), (32, 2, 110), (64, 2, 142), (64, 3, 153), (128, 3, 411)]
)
def test_widths_are_those_of_the_grades(channels, lmax, width):
    c = degree_channels(channels, lmax)
    aligned = [torch.zeros(n, n) for n in c[1:3]]
    probes = [None if k == n else torch.zeros(n, k) for n, k in zip(c[1:], [c[2], 2, 1, 1], strict=False)]
    invariants = MomentInvariants(channels, lmax, aligned, probes)
    assert invariants.width == width
    moments = [torch.randn(3, 2 * degree + 1, n) for degree, n in enumerate(c)]
    assert invariants(moments).shape == (3, width)


def test_statistics_are_deepmd_kits():
    """Each number's root mean square over that of the type embedding; mean and deviation of the divisors."""
    descriptor = kinds.load_case("dpa4c_base").model.descriptor
    data = load_dataset(EMT, ["Cu", "Al"])
    lists = PairLists(data, descriptor.cutoff)
    descriptor.learn_statistics(neighborhoods(data, lists, descriptor.cutoff, np.arange(len(data))), [])
    with np.load(kinds.KINDS / "statistics.npz") as file:
        for name in ("mean", "stddev"):
            np.testing.assert_allclose(
                getattr(descriptor, name), file[f"dpa4c/{name}"], rtol=1e-11, atol=1e-15
            )


def test_data_without_directions_is_refused():
    descriptor = kinds.load_case("dpa4c_base").model.descriptor
    lonely = neighborhood(bulk("Cu", a=40.0))
    with pytest.raises(DataError, match="are zero in all frames"):
        descriptor.learn_statistics([lonely], [])
    with pytest.raises(DataError, match="have the same neighbourhood"):
        descriptor.learn_statistics([neighborhood(bulk("Cu", a=3.7, cubic=True))], [])


def neighborhood(atoms):
    atoms = atoms.copy()
    system = from_atoms([atoms], ["Cu", "Al"])
    potential = kinds.load_case("dpa4c_base")
    return Neighborhood.of(system, potential.neighbor_list(system), potential.cutoff, torch.float64)


def test_a_model_of_fewer_types_has_the_same_answers():
    kinds.check_fewer_types("dpa4c_pairs")


def test_options_of_a_new_model(tmp_path):
    """What is made of an input has its options, and is the same once it was saved."""
    for options in (
        {"lmax": 4, "radial_modes": 1, "basis_type": "gaussian", "n_radial": 1},
        {"channels": 32, "exclude_types": [[0, 1]], "precision": "float32"},
    ):
        potential = kinds.new_potential({**INPUT, **options})
        potential.save(tmp_path / "model.dp")
        again = mdops.load(tmp_path / "model.dp", dtype="float64", spline=False)
        assert (
            dataclasses.replace(again.model.descriptor.options, seed=1) == potential.model.descriptor.options
        )
        found, wanted = again.compute(kinds.alloy()), potential.compute(kinds.alloy())
        limit = 1e-5 if "precision" in options else 1e-12  # statistics are rounded when they are saved
        np.testing.assert_allclose(found["forces"], wanted["forces"], atol=limit)
    assert potential.model.descriptor.options.precision == "float32"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 24}, "channels: is 24, expected 8 or 16"),
        ({"lmax": 1}, "lmax: is 1, expected 2 or 3 or 4"),
        ({"basis_type": "sine"}, "basis_type: is 'sine', expected 'bessel' or 'gaussian'"),
        ({"use_spin": [True, False]}, "use_spin: .*the section `spin` of the model"),
        ({"add_chg_spin_ebd": True}, "add_chg_spin_ebd: .*charge"),
        ({"sel": 100}, "sel: there is no such key"),
    ],
)
def test_options_that_there_are_not(options, message):
    with pytest.raises(ConfigError, match=message):
        kinds.training_input({**INPUT, **options}, 1)


def test_bfloat16_training_is_told_to_have_no_effect():
    with pytest.warns(UserWarning, match="use_amp"):
        kinds.training_input({**INPUT, "use_amp": True}, 1)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("channels",), 16, "embed_dim"),
        (("lmax",), 3, "lmax"),
        (("n_radial",), 7, "n_radial"),
        (("radial_modes",), 1, "radial_mode_head"),
        (("ntypes",), 3, "ntypes"),
        (("type_embedding", "@variables", "adam_type_embedding"), np.ones((2, 8)), "adam_type_embedding"),
        (("radial_basis", "config", "apply_envelope"), True, "apply_envelope"),
        (("radial_embedding", "output_scale"), 2.0, "output_scale"),
        (("radial_embedding", "@variables", "0.matrix"), np.ones((6, 47)), "0.matrix"),
        (("pair_film", "network", "mlp_layers"), [16, 40, 16], "mlp_layers"),
        (("readout", "channel_alignment", 0, "resnet"), False, "resnet"),
        (("readout", "probe_projections", 1), None, "probe_projections"),
        (("@variables", "mean"), np.ones(3), "mean"),
        (("@variables", "stddev"), np.zeros(70), "not positive"),
        (("@variables", "mean"), np.full(70, np.nan), "NaN"),
    ],
)
def test_files_whose_parts_do_not_fit(place, value, message):
    with pytest.raises(ModelFileError, match=message):
        upgrade(kinds.with_value("dpa4c_base", ("descriptor", *place), value))


def test_charge_is_refused_by_name():
    kinds.refuses("dpa4c_base", lambda tree: tree.update(add_chg_spin_ebd=True), "add_chg_spin_ebd")


def test_tables_of_compressed_models_are_not_needed():
    tree = copy.deepcopy(read_model(kinds.KINDS / "dpa4c_base" / "model.dp").model)
    tree["descriptor"]["compress"] = {"@variables": {"radial": np.zeros(3)}}
    assert "compress" not in upgrade(tree)["descriptor"]
