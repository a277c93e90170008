"""The descriptor of angles between neighbours, against DeePMD-kit and in use."""

import pytest
import torch
from kind_cases import DescriptorTests, cases, check_statistics, load_case, refuses, training_input

from mdops.errors import ConfigError

CASES = [*(case for case in cases("se_e3_") if "tebd" not in case), "se_t"]
INPUT = {"type": "se_e3", "rcut": 4.0, "rcut_smth": 1.0, "neuron": [4, 8], "seed": 1}


class TestSeE3(DescriptorTests):
    CASES = CASES
    DIFFERENTIATED = ("se_e3_base", "se_e3_options")
    INPUT = INPUT
    TRAINED = "se_e3", 1, (20, 12)


def test_statistics_are_deepmd_kits():
    options = {"sel": [40, 30], "rcut": 4.0, "rcut_smth": 2.6, "env_protection": 0.05}
    check_statistics({**INPUT, **options}, "se_e3")


def test_what_is_refused():
    refuses("se_t", lambda d: d["env_mat"].update(use_exp_switch=True), "use_exp_switch")
    refuses("se_t", lambda d: d["@variables"]["davg"].__setitem__((..., 1), 0.1), "davg")
    with pytest.raises(ConfigError, match=r"model\.descriptor\.type_one_side: there is no such key"):
        training_input({**INPUT, "type_one_side": True}, 1)


@pytest.mark.parametrize("name", ["se_at", "se_a_3be", "se_t"])
def test_other_names(name):
    config = training_input({**INPUT, "type": name}, 1)
    assert config.model.descriptor == training_input(INPUT, 1).model.descriptor


def test_an_atom_with_one_neighbour_sees_its_square():
    """theta of a neighbour and itself is the square of its row: no angle is needed for it."""
    potential = load_case("se_e3_base")
    d = potential.model.descriptor
    pair, cell = torch.zeros(2, 3, dtype=torch.float64), None
    pair[1, 0] = r = 1.3
    theta = torch.tensor([[(r / r**2 / d.std[0, 1]) ** 2]], dtype=torch.float64)
    features = d.embeddings.net(1, 1)(theta) * theta / d.sel[1] ** 2
    wanted = potential.model.fitting.net(0)(features)[0, 0]
    found = potential(pair, torch.tensor([0, 1]), cell)["atom_energy"][0]
    found = found - potential.model.fitting.bias[0] - potential.model.out_bias[0]
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
