"""The descriptor of distances alone, against DeePMD-kit and in use."""

import copy
from pathlib import Path

import kind_cases as kinds
import numpy as np
import pytest
import torch
from ase.build import molecule

import mdops
from mdops.errors import ConfigError
from mdops.io import read_model
from mdops.models import model_of_tree
from mdops.potential import Potential

REAL = Path(__file__).parents[3] / "shared" / "real"
CASES = kinds.cases("se_e2_r", "se_r")
INPUT = {"type": "se_e2_r", "rcut": 4.0, "rcut_smth": 1.0, "neuron": [4, 8], "seed": 1}


class TestSeE2R(kinds.DescriptorTests):
    CASES = CASES
    DIFFERENTIATED = ("se_e2_r_base", "se_e2_r_options")
    INPUT = INPUT
    TRAINED = "se_r", 1, (20, 12)


def test_statistics_are_deepmd_kits():
    options = {"sel": [80, 60], "rcut": 5.0, "rcut_smth": 2.6, "exclude_types": [[0, 1]]}
    kinds.check_statistics({**INPUT, **options}, "se_e2_r")


def test_type_one_side_changes_nothing_as_in_deepmd_kit():
    one, two = (kinds.new_potential({**INPUT, "type_one_side": value}) for value in (True, False))
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def two_sided(change=0.0):
    """The case se_r with a net for each pair of types, alike for all centres but for a `change` of (0, 1)."""
    tree = read_model(kinds.KINDS / "se_r" / "model.dp").model
    nets = tree["descriptor"]["embeddings"]
    one, two = nets["networks"]
    nets |= {
        "ndim": 2,
        "networks": [copy.deepcopy(net) for net in (one, one, two, two)],
    }  # (0, 0), (1, 0), (0, 1), (1, 1)
    tree["descriptor"]["type_one_side"] = False
    nets["networks"][2]["layers"][-1]["@variables"]["b"] += change
    return Potential(model_of_tree(tree, torch.float64))


@pytest.mark.parametrize("spline", [False, True])
def test_nets_by_pairs_of_types(spline, tmp_path):
    """As DeePMD-kit's TensorFlow code writes them: a net that only oxygen sees changes the energies of oxygen alone."""
    atoms = molecule("H2O", vacuum=3.0)
    atoms.rattle(0.1, seed=1)
    potentials = [kinds.load_case("se_r"), two_sided(), two_sided(change=0.1)]
    for potential in potentials:
        if spline:
            potential.use_spline(0.5)
    same, also, changed = (potential.compute(atoms) for potential in potentials)
    for name in ("energy", "forces", "virial"):
        np.testing.assert_allclose(also[name], same[name], atol=1e-8 if spline else 1e-12)
    moved = np.abs(changed["atom_energy"] - same["atom_energy"]) > 1e-6
    assert list(moved) == [symbol == "O" for symbol in atoms.symbols]
    potentials[2].save(tmp_path / "model.dp")
    again = mdops.load(tmp_path / "model.dp", dtype="float64", spline=spline, r_min=0.5)
    np.testing.assert_allclose(again.compute(atoms)["forces"], changed["forces"], atol=1e-12)
    assert not again.model.to_tree()["descriptor"]["type_one_side"]


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the users' models of shared/")
def test_models_that_deepmd_kit_wrote_load():
    """se_e2_r by pairs of types, and the default of a parameter as an array."""
    atoms = molecule("H2O", vacuum=3.0)
    exact, fast = (
        mdops.load(REAL / "deeppot-r.yaml", dtype="float64", spline=spline).compute(atoms)["forces"]
        for spline in (False, True)
    )
    np.testing.assert_allclose(fast, exact, atol=1e-8)
    model = mdops.load(REAL / "fparam_aparam_default.yaml", dtype="float64")
    assert model.model.default_parameters == {"fparam"}


def test_what_is_refused():
    kinds.refuses("se_r", lambda d: d.update(spin={"use_spin": [True]}), "spin")
    with pytest.raises(ConfigError, match=r"model\.descriptor\.axis_neuron: there is no such key"):
        kinds.training_input({**INPUT, "axis_neuron": 4}, 1)


def test_summary():
    summary = kinds.load_case("se_r").model.summary()
    assert summary["sel"] == "O 40, H 60" and summary["embedding nets"] == "2 of 5-10-20"


def test_an_atom_alone_has_the_features_of_empty_places():
    """All its places are empty: G at minus the mean over the deviation, by each type's share of the places."""
    potential = kinds.load_case("se_e2_r_base")
    descriptor = potential.model.descriptor
    atom = torch.zeros(1, 3, dtype=torch.float64)
    energy = potential(atom, torch.tensor([1]))["energy"]
    s = -(descriptor.mean / descriptor.std[:, 0])[1].reshape(1, 1)
    g = sum(n * descriptor.embeddings.net(t)(s) for t, n in enumerate(descriptor.sel)) / (
        5 * descriptor.slots
    )
    fitting = potential.model.fitting
    wanted = fitting.net(1)(g)[0, 0] + fitting.bias[1] + potential.model.out_bias[1]
    np.testing.assert_allclose(energy.detach().numpy(), wanted.detach().numpy(), rtol=1e-13)
