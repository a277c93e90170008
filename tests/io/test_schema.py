"""What a node of a kind may hold: its options, which stand with the kind, and what is no option."""

import copy

import pytest
from reference_cases import DATA

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io import read_model
from mdops.io.torch import model as torch_model
from mdops.io.upgrade import upgrade
from mdops.models import model_of_tree, registry


@pytest.mark.parametrize("name", [name for name in registry.nodes() if " " in name])
def test_no_option_is_written_twice(name):
    sort, kind = name.split()
    known = registry.find(sort.lower(), kind)
    options = {field.name for field in known.Options.keys("file")}
    assert not options & known.NODE.keys.keys()


@pytest.fixture
def model():
    return read_model(DATA / "base" / "model.dp").model


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("rcut", value) for value in (0.0, -1.0, True, "6", None, float("inf"))),
        *(("neuron", value) for value in ([4, 0], [4, 8.0], 4, None)),
        *(("exclude_types", value) for value in ([[0]], [[0, -1]], [0, 1])),
        *(("sel", value) for value in ("auto", [-1, 2], [1.0, 2.0])),
        ("trainable", "yes"),
        ("precision", "float8"),
        ("resnet_dt", 1),
    ],
)
def test_values_that_an_option_cannot_have_are_refused(model, key, value):
    model["descriptor"][key] = value
    with pytest.raises(ModelFileError, match=rf"model\.descriptor\.{key} cannot be"):
        upgrade(model)


def test_absent_options_have_the_value_that_their_version_implied(model):
    wanted = upgrade(copy.deepcopy(model))["descriptor"]
    for key in ("env_protection", "exclude_types", "resnet_dt", "set_davg_zero", "activation_function"):
        tree = copy.deepcopy(model)
        del tree["descriptor"][key]
        assert upgrade(tree)["descriptor"][key] == wanted[key]
    for key in ("rcut", "sel", "neuron", "axis_neuron", "type_one_side"):
        tree = copy.deepcopy(model)
        del tree["descriptor"][key]
        with pytest.raises(ModelFileError, match=f"lacks '{key}'"):
            upgrade(tree)


@pytest.mark.parametrize(
    ("case", "places"),
    [
        ("dpa1_attn2", ["descriptor"]),
        ("dpa1_attn0_strip", ["descriptor"]),
        ("se_e3_tebd_strip", ["descriptor"]),
        ("dpa2_base", ["descriptor", "repinit_args"]),
    ],
)
def test_nets_that_take_other_types_than_the_options_say_are_refused(case, places):
    tree = read_model(DATA.parent / "reference_kinds" / case / "model.dp").model
    for key in ("type_one_side", "tebd_input_mode"):
        changed = copy.deepcopy(tree)
        options = changed
        for place in places:
            options = options[place]
        if key not in options:
            continue
        other = {"concat": "strip", "strip": "concat"}
        options[key] = other[options[key]] if key == "tebd_input_mode" else not options[key]
        with pytest.raises(ModelFileError, match=r"in_dim of |has embeddings_strip"):
            upgrade(changed)


def test_what_is_no_array_of_a_module_is_refused():
    tree = upgrade(read_model(DATA.parent / "reference_kinds" / "dpa4_base" / "model.dp").model)
    arrays = tree["descriptor"]["@variables"]
    name = next(name for name, value in arrays.items() if value.ndim)
    arrays[name] = []
    with pytest.raises(ModelFileError, match=f"{name} of the descriptor dpa4 is no array"):
        model_of_tree(tree)


def test_precisions_of_files_are_more_than_those_of_inputs(model):
    for name, full in (("half", "float16"), ("bfloat16", "bfloat16"), ("default", "float64")):
        model["fitting"]["precision"] = name
        assert upgrade(copy.deepcopy(model))["fitting"]["precision"] == full


def test_a_linear_model_may_say_that_its_parts_share_nothing(monkeypatch):
    """As the checkpoints of DeePMD-kit's trainings do."""
    monkeypatch.setattr(torch_model, "_model", lambda *parts: {})
    params = {"models": [], "weights": "mean", "shared_dict": {}}
    assert torch_model._linear(params, None, ["O", "H"])["models"] == []
    with pytest.raises(UnsupportedModelError, match="share weights"):
        torch_model._linear({**params, "shared_dict": {"net": {}}}, None, ["O", "H"])


def test_nets_of_another_kind_are_not_called_damaged(model):
    """The file is right, and mdops has not the kind."""
    model["fitting"]["nets"]["network_type"] = "wave_network"
    with pytest.raises(UnsupportedModelError, match="nets of the kind wave_network"):
        upgrade(model)
