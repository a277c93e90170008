"""Fine-tuning a model of many elements on a few: the types that it has then, and DeePMD-kit's numbers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_cases import references
from small_systems import EMT

import mdops
from mdops.errors import UnsupportedModelError
from mdops.models.standard import DescriptorFitting, StandardOptions
from mdops.options import parse
from mdops.potential import Potential
from mdops.system import System
from mdops.train.config.read import parse_config
from mdops.train.loop.trainer import Trainer
from mdops.train.model.types import with_elements

DATA = Path(__file__).parents[1] / "data"
# `dp --pt train input.json --finetune` made finetuned.dp of pretrained.dp, of H, Al, O and Cu, with a rate of nothing.
FINETUNE = DATA / "training" / "finetune"


def config(**changes):
    tree = json.loads((FINETUNE / "input.json").read_text())
    tree["training"]["training_data"]["systems"] = [str(EMT)]
    tree["training"] |= {"precision": "float64", **changes}
    return parse_config(tree)


def energies(potential, system, names):
    """Of atoms whose types are places in `names`."""
    types = torch.tensor([potential.type_map.index(name) for name in names], dtype=torch.int32)
    kinds = types[system.types.long()]
    return potential.evaluate(System(system.positions, kinds, system.cell, system.pbc, system.batch))[
        "energy"
    ]


def test_a_model_before_its_first_step_is_deepmd_kits(tmp_path):
    found = Trainer(config(), tmp_path, finetune=FINETUNE / "pretrained.dp").potential
    want = mdops.load(FINETUNE / "finetuned.dp", dtype="float64", spline=False)
    assert found.type_map == want.type_map == ["Cu", "Al"]
    state = found.state_dict()
    for name, value in want.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-12, atol=1e-14)
    before = mdops.load(FINETUNE / "pretrained.dp", dtype="float64")
    assert before.type_map == ["H", "Al", "O", "Cu"]
    assert (found.model.out_bias - before.model.out_bias[[3, 1]]).abs().min() > 0.1


def test_the_trained_model_has_the_inputs_types_and_goes_on(tmp_path):
    Trainer(config(numb_steps=2, save_freq=1), tmp_path, finetune=FINETUNE / "pretrained.dp").run()
    assert mdops.load(tmp_path / "model.safetensors").type_map == ["Cu", "Al"]
    again = Trainer(config(numb_steps=3, save_freq=1), tmp_path, restart=True)
    assert again.step == 2 and again.potential.type_map == ["Cu", "Al"]
    again.run()


def test_init_model_keeps_all_types(tmp_path):
    """It takes the model as it is."""
    trainer = Trainer(config(), tmp_path, init_model=FINETUNE / "pretrained.dp")
    assert trainer.potential.type_map == ["H", "Al", "O", "Cu"]


@pytest.mark.parametrize("part", ["descriptor", "fitting_net"])
@pytest.mark.parametrize("way", ["init_model", "finetune"])
def test_the_input_says_which_parts_are_trained(way, part, tmp_path):
    frozen = config(numb_steps=1)
    getattr(frozen.model, part).trainable = False

    def trained(trainer):
        model = trainer.potential.model
        return [any(p.requires_grad for p in own.parameters()) for own in (model.descriptor, model.fitting)]

    expected = [part != "descriptor", part != "fitting_net"]
    for made in ("pretrained.dp", "finetuned.dp"):
        trainer = Trainer(frozen, tmp_path / made, **{way: FINETUNE / made})
        assert trained(trainer) == expected
    trainer.run()
    assert trained(Trainer(frozen, tmp_path / made, restart=True)) == expected
    # The file says that the part is not trained, and the input says that it is.
    again = Trainer(config(), tmp_path / "again", **{way: tmp_path / made / "model.safetensors"})
    assert trained(again) == [True, True]


@pytest.mark.parametrize(
    "case",
    [
        "dpa1_exclude_types",
        "dpa1_pair_exclude_types",
        "dpa1_residual_types",
        "dpa1_configurations",
        "dpa1_hybrid",
        "se_atten_v2_davg_zero",
        "se_e3_tebd_options",
        "se_e3_tebd_strip_pairs",
    ],
)
def test_another_order_of_types_changes_no_energy(case):
    folder = DATA / "reference_kinds" / case
    potential = mdops.load(folder / "model.dp", dtype="float64", spline=False)
    names = potential.type_map
    other = with_elements(potential, names[::-1])
    assert other.type_map == names[::-1]
    for one in references(folder):
        torch.testing.assert_close(
            energies(other, one.system, names), energies(potential, one.system, names), rtol=1e-13, atol=1e-13
        )


@pytest.mark.parametrize("width", [2, 3, 4, 6, 8])
def test_fewer_types_change_no_energy_of_theirs(width):
    """A type embedding adds its input where it is as wide, or twice: for all types, for those that stay, or neither."""
    descriptor = {
        "type": "se_atten", "sel": 20, "rcut": 4.0, "rcut_smth": 1.0, "neuron": [3, 6], "axis_neuron": 2,
    }  # fmt: skip
    options = {
        "type_map": ["H", "Al", "O", "Cu"],
        "descriptor": {**descriptor, "tebd_dim": width, "attn_layer": 0, "exclude_types": [[0, 3], [1, 3]]},
        "fitting_net": {"neuron": [5, 5]},
        "atom_exclude_types": [2],
    }
    model = DescriptorFitting.random(parse(StandardOptions, options), 1, torch.float64)
    model.out_bias.copy_(torch.arange(4.0))
    potential = Potential(model, overflow="extend").eval()
    few = with_elements(potential, ["Cu", "Al", "O"])
    gen = np.random.default_rng(1)
    atoms = mdops.system.from_tensors(
        torch.from_numpy(5 * gen.random((12, 3))),
        torch.tensor([0, 1, 2] * 4),
        5 * torch.eye(3, dtype=torch.float64),
        None,
        None,
        4,
    )
    names = ["Cu", "Al", "O"]
    torch.testing.assert_close(
        energies(few, atoms, names), energies(potential, atoms, names), rtol=1e-13, atol=1e-13
    )


def test_models_whose_weights_belong_to_types_stay_whole():
    potential = mdops.load(DATA / "reference" / "three_types" / "model.dp")
    assert with_elements(potential, potential.type_map[:2]) is potential


def test_a_part_with_weights_of_types_is_refused():
    """Its nets would go to other types, though those of the other parts serve all."""
    potential = mdops.load(DATA / "reference_kinds" / "hybrid_r_tebd" / "model.dp")
    with pytest.raises(UnsupportedModelError, match="se_r with other types"):
        with_elements(potential, potential.type_map[::-1])
