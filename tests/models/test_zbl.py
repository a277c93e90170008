"""A net that goes over to a pair table: DeePMD-kit's answers, the switch, training."""

import copy

import blend_cases as blends
import numpy as np
import pytest
import torch
from reference_cases import DATA, build

from mdops import system as systems
from mdops.errors import ConfigError, InputError, UnsupportedModelError
from mdops.io import read_model
from mdops.models.neighborhood import Neighborhood


class TestZBL(blends.BlendTests):
    CASES = blends.cases("zbl")
    ON_GPU = ("zbl_switch",)


def near_weight(potential, atoms):
    system = systems.from_atoms([atoms], potential.type_map, potential.device)
    near = Neighborhood.of(system, potential.neighbor_list(system), potential.cutoff, potential.dtype)
    return potential.model.near_weight(near)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_weight_of_the_table(dtype):
    """Of a pair: by its distance, from sw_rmin = 1.8 to sw_rmax = 2.9 A. Where DeePMD-kit's ratio goes wrong, too: from
    46 smin_alpha = 4.6 A on its denominator is clamped, and atoms count as near ones."""
    tree = blends.tree_of("zbl_switch")
    for part in (
        tree["models"][0]["descriptor"],
        tree["models"][0]["descriptor"]["env_mat"],
        tree["models"][1],
    ):
        part["rcut"] = 9.0
    tree["models"][1]["tab"]["rcut"] = 9.0
    potential = build(tree, dtype)
    half = 0.5 * (1.8 + 2.9)
    for distance, expected in [(0.5, 1.0), (1.79, 1.0), (half, 0.5), (2.91, 0.0), (4.7, 0.0), (8.9, 0.0)]:
        assert near_weight(potential, blends.pair(distance)).tolist() == pytest.approx(
            [expected] * 2, abs=1e-6
        )
    assert near_weight(potential, blends.pair(9.5)).tolist() == [0, 0]
    energies = [potential.compute(blends.pair(d))["energy"][0] for d in (4.55, 4.65, 4.75, 4.85)]
    assert np.ptp(energies) < 0.05


def test_forces_are_slopes():
    """In the switch."""
    weights = near_weight(blends.potential_of("zbl_switch"), blends.alloy((1, 1, 1)))
    assert ((weights > 0) & (weights < 1)).any()
    blends.check_slopes(blends.potential_of("zbl_switch"), blends.alloy((1, 1, 1)))


def test_slopes_where_all_neighbours_are_far():
    """No division by weights that vanish."""
    potential = blends.potential_of("zbl_switch", torch.float32)
    assert np.isfinite(potential.compute(blends.pair(3.7))["forces"]).all()
    assert np.isfinite(potential.compute(blends.pair(30.0))["forces"]).all()


def test_nan_stays_nan():
    blends.check_nan(blends.potential_of("zbl_switch"))


def test_too_near_for_the_table():
    with pytest.raises(InputError, match=r"atoms 0 and 1 are nearer than 0\.4 A"):
        blends.potential_of("zbl_switch").compute(blends.pair(0.3))


def test_a_net_with_places_for_each_type():
    """As DeePMD-kit's TensorFlow backend has: atoms far from others have the net's energies, and slopes are right."""
    tree = copy.deepcopy(blends.tree_of("zbl_switch"))
    net, types = read_model(DATA / "base" / "model.dp").model, tree["type_map"]
    net["type_map"] = net["descriptor"]["type_map"] = net["fitting"]["type_map"] = types
    tree["models"][0] = net
    potential, alone, atoms = build(tree), build(net), blends.alloy((1, 1, 1))
    weights = near_weight(potential, atoms)
    assert ((weights > 0) & (weights < 1)).any() and not potential.model.mixed_types
    blends.check_slopes(potential, atoms)
    wide = blends.alloy((1, 1, 1))
    wide.set_cell(1.3 * wide.cell, scale_atoms=True)
    assert not near_weight(potential, wide).any()
    np.testing.assert_allclose(potential.compute(wide)["forces"], alone.compute(wide)["forces"], atol=1e-12)


def test_other_parts_are_refused():
    tree = copy.deepcopy(blends.tree_of("zbl_switch"))
    with pytest.raises(UnsupportedModelError, match="a zbl model of pairtab and standard is not supported"):
        build({**tree, "models": tree["models"][::-1]})


def test_ase_and_engine():
    blends.check_dynamics(blends.potential_of("zbl_switch"), blends.alloy((2, 2, 2)))


def test_summary():
    parts = blends.potential_of("zbl_switch").model.summary()
    assert parts["part 1"].startswith("standard of dpa1, cutoff 3.8 A; sel 40 of all types")
    assert (
        parts["part 2"]
        == "pairtab, cutoff 3.8 A; pair table 56 intervals, from 0.4 to 6 A; sel 40 of all types"
    )


def section(tmp_path, **keys):
    table = blends.table_section(tmp_path)["tab_file"]
    switch = {"use_srtab": table, "smin_alpha": 0.1, "sw_rmin": 1.9, "sw_rmax": 2.7}
    return {"type_map": ["Cu", "Al"], **blends.net_section(), **switch, **keys}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"sw_rmin": 2.7}, r"model\.sw_rmin: is 2\.7, expected less than sw_rmax"),
        ({"smin_alpha": 0}, r"model\.smin_alpha: is 0\.0, expected more than 0"),
        ({"use_srtab": 3}, r"model\.use_srtab: is 3, expected text"),
        ({"sw_rmax": None}, r"model\.sw_rmax: is None, expected a number"),
    ],
)
def test_wrong_inputs(tmp_path, keys, message):
    with pytest.raises(ConfigError, match=message):
        blends.config_of(section(tmp_path, **keys))


def test_input(tmp_path):
    options = blends.config_of(section(tmp_path)).model
    assert (options.KIND, options.sw_rmin, options.descriptor.KIND) == ("zbl", 1.9, "dpa1")
    assert blends.config_of(section(tmp_path, type="standard")).model == options
    plain = {k: v for k, v in section(tmp_path).items() if k in ("type_map", "descriptor", "fitting_net")}
    assert blends.config_of(plain).model.KIND == "standard"
    missing = {k: v for k, v in section(tmp_path).items() if k != "sw_rmin"}
    with pytest.raises(ConfigError, match=r"model\.sw_rmin: is missing"):
        blends.config_of(missing)


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_training(tmp_path):
    blends.check_training(section(tmp_path), tmp_path)


def test_statistics_are_deepmd_kits(tmp_path):
    blends.check_statistics("zbl", tmp_path)
