"""The descriptor of angles and types, against DeePMD-kit and in use."""

import kind_cases as kinds
import numpy as np
import pytest
import torch
from reference_cases import references
from small_systems import EMT

import mdops
from mdops.errors import ConfigError
from mdops.models import environment
from mdops.train.config.read import parse_config

CASES = [*kinds.cases("se_e3_tebd"), "se_t_tebd"]
INPUT = {"type": "se_e3_tebd", "rcut": 4.0, "rcut_smth": 1.0, "neuron": [4, 8], "seed": 1}


class TestSeE3Tebd(kinds.DescriptorTests):
    CASES = CASES
    DIFFERENTIATED = ("se_e3_tebd_options", "se_e3_tebd_strip")
    INPUT = INPUT
    TRAINED = "se_e3_tebd", 1, (24,)


def test_statistics_are_deepmd_kits():
    options = {"sel": 40, "rcut_smth": 2.6, "exclude_types": [[1, 1]], "set_davg_zero": False}
    kinds.check_statistics({**INPUT, **options}, "se_e3_tebd")


def test_what_is_refused():
    kinds.refuses("se_t_tebd", lambda d: d["env_mat"].update(use_exp_switch=True), "use_exp_switch")
    with pytest.raises(ConfigError, match=r"model\.descriptor\.tebd_input_mode: is 'dot'"):
        kinds.training_input({**INPUT, "tebd_input_mode": "dot"}, 1)


def test_types_that_are_no_elements_have_no_electron_configuration():
    tree = {"type_map": ["Cu", "water"], "descriptor": {**INPUT, "use_econf_tebd": True}}
    with pytest.raises(ConfigError, match=r"use_econf_tebd.*water"):
        parse_config({"model": tree, "training": {"training_data": {"systems": str(EMT)}, "numb_steps": 1}})


def test_options_of_a_new_model(tmp_path):
    """Every way of the types into the net is made, saved and loaded."""
    for options in (
        {"tebd_input_mode": "strip", "use_tebd_bias": False, "concat_output_tebd": False, "sel": 44},
        {"use_econf_tebd": True, "sel": [30, 14]},
    ):
        potential = kinds.new_potential({**INPUT, **options})
        assert potential.sel == [44] and potential.model.fitting.shared
        potential.save(tmp_path / "model.dp")
        again = mdops.load(tmp_path / "model.dp", dtype="float64", spline=False)
        for key, value in options.items():
            if key != "sel":
                assert getattr(again.model.descriptor.options, key) == value
        found, wanted = again.compute(kinds.alloy()), potential.compute(kinds.alloy())
        np.testing.assert_allclose(found["forces"], wanted["forces"], rtol=0, atol=1e-14)


@pytest.mark.parametrize("case", ["se_e3_tebd_base", "se_e3_tebd_strip", "se_e3_options"])
def test_runs_of_atoms_change_nothing(case, monkeypatch):
    """With little memory atoms are taken in runs: energies and two derivatives are the same."""
    potential = kinds.load_case(case)
    (one, *_) = references(kinds.KINDS / case)

    def answers():
        evaluator, near = potential.evaluator("differentiate"), potential.neighbor_list(one.system)
        found, _ = evaluator(one.system, near, create_graph=True)
        found["forces"].square().sum().backward()
        gradients = [p.grad.clone() for p in potential.parameters() if p.grad is not None]
        potential.zero_grad()
        return [found["atom_energy"], found["forces"], *gradients]

    whole = answers()
    monkeypatch.setattr(environment, "CHUNK", 2000)
    for a, b in zip(answers(), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)
