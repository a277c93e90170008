"""The descriptor of distances alone, against DeePMD-kit and in use."""

import numpy as np
import pytest
import torch
from kind_cases import (
    DescriptorTests,
    cases,
    check_statistics,
    load_case,
    new_potential,
    refuses,
    training_input,
)

from mdops.errors import ConfigError

CASES = cases("se_e2_r", "se_r")
INPUT = {"type": "se_e2_r", "rcut": 4.0, "rcut_smth": 1.0, "neuron": [4, 8], "seed": 1}


class TestSeE2R(DescriptorTests):
    CASES = CASES
    DIFFERENTIATED = ("se_e2_r_base", "se_e2_r_options")
    INPUT = INPUT

    def check_trained(self, potential):
        assert potential.sel == [20, 12] and potential.kind == "a standard model of se_r"


def test_statistics_are_deepmd_kits():
    options = {"sel": [80, 60], "rcut": 5.0, "rcut_smth": 2.6, "exclude_types": [[0, 1]]}
    (part,) = new_potential({**INPUT, **options}).model.descriptors
    check_statistics(part, "se_e2_r")


def test_type_one_side_changes_nothing_as_in_deepmd_kit():
    one, two = (new_potential({**INPUT, "type_one_side": value}) for value in (True, False))
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_what_is_refused():
    def two_sided(descriptor):
        nets = descriptor["embeddings"]
        nets |= {"ndim": 2, "networks": nets["networks"] * 2}

    refuses("se_r", two_sided, "pairs of types")
    refuses("se_r", lambda d: d.update(spin={"use_spin": [True]}), "spin")
    with pytest.raises(ConfigError, match=r"model\.descriptor\.axis_neuron: there is no such key"):
        training_input({**INPUT, "axis_neuron": 4}, 1)


def test_summary():
    summary = load_case("se_r").model.summary()
    assert summary["sel"] == "O 40, H 60" and summary["embedding nets"] == "2 of 5-10-20"


def test_an_atom_alone_has_the_features_of_empty_places():
    """All its places are empty: G at minus the mean over the deviation, by each type's share of the places."""
    potential = load_case("se_e2_r_base")
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
