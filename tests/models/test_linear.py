"""Weighted sums of models: DeePMD-kit's answers, parts of other types, what does not go together, training."""

import copy

import blend_cases as blends
import numpy as np
import pytest
import torch
from reference_cases import DATA, build

from mdops.errors import ConfigError, InputError, UnsupportedModelError
from mdops.io import read_model
from mdops.models.registry import find


class TestLinear(blends.BlendTests):
    CASES = blends.cases("linear")
    ON_GPU = ("linear_tables_types", "linear_net_table")


def sum_of(*parts, weights="sum", **keys):
    """A tree of a linear model of these."""
    tree = copy.deepcopy(blends.tree_of("linear_tables_mean"))
    return {**tree, "models": list(parts), "weights": weights, **keys}


def table(case="pairtab"):
    return copy.deepcopy(blends.tree_of(case)["models"][0])


def test_weights():
    parts = [build(table(case)) for case in ("pairtab", "pairtab_cubic")]
    atoms = blends.alloy()
    first, second = (part.compute(atoms)["forces"] for part in parts)
    trees = [part.model.to_tree() for part in parts]
    for weights, expected in [
        ("sum", first + second),
        ("mean", (first + second) / 2),
        ([2.0, -0.5], 2 * first - 0.5 * second),
    ]:
        found = build(sum_of(*trees, weights=weights)).compute(atoms)["forces"]
        assert np.allclose(found, expected, rtol=0, atol=1e-12)


def test_what_is_too_near_for_a_part():
    """The distance, 0.3 A, is in one of the tables; the other is of a pair of types that is absent."""
    tree = sum_of(table(), table())
    assert build(tree).model.shortest == 0.4
    with pytest.raises(InputError, match=r"atoms 0 and 1 are nearer than 0\.4 A"):
        build(tree).compute(blends.pair(0.3))
    for part in tree["models"]:
        part["pair_exclude_types"] = [[0, 0]]
    assert np.isfinite(build(tree).compute(blends.pair(0.3))["forces"]).all()
    del tree["models"][0]["pair_exclude_types"]
    with pytest.raises(InputError, match="atoms 0 and 1"):
        build({**tree, "models": [{**table()}, tree["models"][1]]}).compute(blends.pair(0.3))
    assert np.isfinite(
        build({**tree, "models": [table()], "pair_exclude_types": [[0, 0]]}).compute(blends.pair(0.3))[
            "energy"
        ]
    )


def test_a_part_may_have_places_for_each_type():
    tree = sum_of(table())
    net = read_model(DATA / "base" / "model.dp").model
    net["type_map"] = net["descriptor"]["type_map"] = net["fitting"]["type_map"] = tree["type_map"]
    tree["models"].append(net)
    atoms, potential = blends.alloy(), build(tree)
    alone = [build(part).compute(atoms)["forces"] for part in tree["models"]]
    np.testing.assert_allclose(potential.compute(atoms)["forces"], sum(alone), atol=1e-12)
    assert not potential.model.mixed_types


def test_parts_of_other_types_and_parameters_are_refused():
    part = table()
    part["type_map"] = ["Cu", "Mg"]
    with pytest.raises(UnsupportedModelError, match=r"models\[0\] does not know the type Al"):
        build(sum_of(part))
    one = copy.deepcopy(blends.tree_of("linear_parameters"))
    other = copy.deepcopy(one["models"][0])
    build({**one, "models": [one["models"][0], other]})
    part = find("model", "standard").from_tree(other, torch.float64)
    part.fitting.fparam.average = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(UnsupportedModelError, match="parts take 2 and 3 values of fparam"):
        model = build(one).model
        type(model)(model.options, model.type_map, model.out_bias, model.out_std, [model.models[0], part])


def test_parameters_go_to_the_parts_that_take_them():
    potential = blends.potential_of("linear_parameters")
    assert potential.parameter_sizes == {"fparam": 2, "aparam": 1}
    atoms = blends.alloy()
    more = {"aparam": np.ones((len(atoms), 1))}
    a, b = (potential.compute(atoms, fparam=[x, 0.0], **more)["energy"] for x in (0.0, 1.0))
    assert abs(a - b) > 1e-6
    with pytest.raises(InputError, match="needs fparam, 2 a row"):
        potential.compute(atoms, **more)
    with pytest.raises(InputError, match="fparam is given, but the model takes none"):
        blends.potential_of("linear_tables_mean").compute(atoms, fparam=[1.0])


@pytest.mark.parametrize("case", ["linear_tables_list", "linear_net_table"])
def test_forces_are_slopes(case):
    blends.check_slopes(blends.potential_of(case), blends.alloy((1, 1, 1)))


@pytest.mark.parametrize("case", ["linear_tables_types", "linear_net_types", "linear_nets_sum"])
def test_ase_and_engine(case):
    """Of tables that are cut, a net whose absent neighbours are not nothing (davg), and smooth ones."""
    blends.check_dynamics(blends.potential_of(case), blends.alloy((2, 2, 2)), jumps=case != "linear_nets_sum")


def section(tmp_path, *parts, **keys):
    return {
        "type": "linear_ener",
        "type_map": ["Cu", "Al"],
        "models": list(parts)
        or [blends.net_section(), blends.net_section(sel=30), blends.table_section(tmp_path)],
        "weights": "mean",
        **keys,
    }


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"weights": "most"}, r"model\.weights: is 'most', expected 'mean', 'sum' or a list of numbers"),
        ({"weights": [1.0]}, r"model\.weights: has 1 numbers for 3 models"),
        ({"models": []}, r"model\.models: is a list, expected a list of sections"),
        (
            {"models": [{"type": "linear_ener"}]},
            r"model\.models\[0\]\.type: is 'linear_ener', expected one of",
        ),
        ({"models": [{"type": "pairtab"}]}, r"model\.models\[0\]\.tab_file: is missing"),
        (
            {"models": [{"type_map": ["Al", "Cu"]}]},
            r"models\[0\]\.type_map: is \['Al', 'Cu'\], expected that",
        ),
        ({"shared_dict": {"d": {}}}, r"model\.shared_dict: is .*; this is not supported"),
        (
            {"models": [{"preset_out_bias": {"energy": [0, 0]}}]},
            r"preset_out_bias: only that of the sum counts",
        ),
        ({"model": []}, r"model\.model: there is no such key; the nearest is 'models'"),
    ],
)
def test_wrong_inputs(tmp_path, keys, message):
    with pytest.raises(ConfigError, match=message):
        blends.config_of(section(tmp_path, **keys))


def test_types_are_those_of_the_parts_where_the_sum_names_none(tmp_path):
    config = blends.config_of(section(tmp_path, type_map=None))
    assert config.model.type_map == ["Cu", "Al"] == config.model.models[2].type_map


def test_a_part_that_there_is_not_is_named_without_a_type_map_too(tmp_path):
    tree = section(tmp_path, models=[{"type": "spin", "model_file": "model0.pb"}])
    del tree["type_map"]
    with pytest.raises(ConfigError, match=r"^model\.models\[0\]\.type: is 'spin', expected one of"):
        blends.config_of(tree)


def test_input(tmp_path):
    options = blends.config_of(section(tmp_path, shared_dict={})).model
    assert [part.type_map for part in options.models] == [["Cu", "Al"]] * 3
    assert options.cutoff == 4.0 and options.models[1].descriptor.sel != options.models[0].descriptor.sel


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_new_parts_have_weights_of_their_own(tmp_path):
    options = blends.config_of(section(tmp_path)).model.resolve_sel(lambda cutoff: ([20, 30], 41), "model")
    model = find("model", "linear_ener").random(options, 7, torch.float64)
    first, second = (list(part.parameters()) for part in model.models[:2])
    assert not torch.equal(first[0], second[0])
    assert all((part.out_std == 1).all() and (part.out_bias == 0).all() for part in model.models)


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_training(tmp_path):
    blends.check_training(section(tmp_path, weights=[1.0, 1.5, 1.0]), tmp_path)


def test_statistics_are_deepmd_kits(tmp_path):
    blends.check_statistics("linear", tmp_path)
