"""Pair tables: DeePMD-kit's answers, files of tables, distances that no table has."""

import copy

import numpy as np
import pytest
import torch
from blend_cases import (
    BlendTests,
    alloy,
    cases,
    check_dynamics,
    check_nan,
    check_slopes,
    config_of,
    folder_of,
    pair,
    potential_of,
    tree_of,
)
from reference_cases import build, references
from trees import differences

import mdops
from mdops import system as systems
from mdops.errors import ConfigError, InputError
from mdops.io import read_model
from mdops.models.pairtab import PairTable, PairTableOptions, read_table
from mdops.train import Trainer

OWN, _ = cases("pairtab")


class TestPairTable(BlendTests):
    CASES = OWN, []
    ON_GPU = ("pairtab",)


def table_tree():
    """Of a pair table alone."""
    return tree_of("pairtab")["models"][0]


def test_a_table_alone():
    whole = potential_of("pairtab")
    bias = whole.model.out_bias + whole.model.models[0].out_bias
    tree = copy.deepcopy(table_tree())
    tree["@variables"]["out_bias"] = bias.numpy()[None, :, None]
    alone = build(tree)
    for reference in references(folder_of("pairtab")):
        found = alone.evaluate(reference.system)
        assert torch.allclose(found["forces"], reference.answers["forces"], rtol=0, atol=1e-12)
        assert torch.allclose(found["energy"], reference.answers["energy"], rtol=1e-12)


@pytest.mark.parametrize("case", [name for name in OWN if (folder_of(name) / "table.txt").exists()])
@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_a_file_gives_deepmd_kits_splines(case):
    node = tree_of(case)["models"][0]
    found = read_table(folder_of(case) / "table.txt", node["rcut"], len(node["type_map"]))
    tab, arrays = node["tab"], node["tab"]["@variables"]
    assert np.allclose(found.rows, arrays["vdata"], rtol=1e-13, atol=1e-13)
    assert np.allclose(found.coefficients.ravel(), arrays["tab_data"], rtol=1e-11, atol=1e-12)
    assert (found.first, found.step, found.last) == (tab["rmin"], tab["hh"], tab["rmax"])
    assert found.coefficients.shape[2] == tab["nspline"]


def test_every_end_of_a_table_is_tested():
    """The cases are what their names say."""
    ends = {name: tree_of(name)["models"][0]["tab"] for name in OWN}
    assert ends["pairtab_cut"]["rmax"] > ends["pairtab_cut"]["rcut"]
    for name in ("pairtab_zeros", "pairtab_cubic", "pairtab_cubic_short"):
        assert ends[name]["rmax"] < ends[name]["rcut"]
    more = {
        name: ends[name]["@variables"]["vdata"][ends[name]["@variables"]["vdata"][:, 0] > 3.75, 1:]
        for name in ends
    }
    assert not more["pairtab_zeros"].any() and more["pairtab_cubic"].any()


GOOD = "# r u\n0.1 5.0\n0.2 2.0\n\n0.3 0.0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 rows, expected two or more"),
        ("0.1 5.0\n", "has 1 rows, expected two or more"),
        (
            "0.1 5.0\n# no\n0.2 2.0 1.0\n",
            "table.txt:3: has 3 columns, expected 2: a distance, and the energies of 1",
        ),
        ("0.1 5.0\n0.2 two\n", "table.txt:2: could not convert string to float: 'two'"),
        ("0.1 5.0\n0.2 nan\n", "table.txt:2: has a value that is not finite"),
        (
            "0.1 5.0\n0.2 2.0\n0.4 0.0\n",
            "table.txt:3: the distance is 0.4 A, expected distances that grow, by the same",
        ),
        ("0.2 5.0\n0.1 2.0\n", "table.txt:2: the distance is 0.1 A, expected distances that grow"),
        ("-0.1 5.0\n0.0 2.0\n", "table.txt:1: the distance is -0.1 A, expected a distance, 0 or more"),
    ],
)
def test_wrong_files(tmp_path, text, message):
    (tmp_path / "table.txt").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_table(tmp_path / "table.txt", 0.3, 1)
    assert message in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("head", "types", "refused"),
    [
        ("# ZBL, eV; r/A Cu-Cu Cu-Al Al-Al", ["Cu", "Al"], False),
        ("# ZBL, eV; r/A Cu-Cu Cu-Al Al-Al", ["Al", "Cu"], True),
        ("# ZBL, eV; r/A O-O O-H H-H", ["H1", "O1"], False),
        ("# my table", ["Al", "Cu"], False),
    ],
)
def test_columns_are_in_the_order_of_the_types(tmp_path, head, types, refused):
    path = tmp_path / "table.txt"
    path.write_text(f"{head}\n0.1 3 2 1\n0.2 0 0 0\n")
    options = PairTableOptions(type_map=types, tab_file=str(path), rcut=0.2, sel=10)
    if not refused:
        assert PairTable.random(options, 0, torch.float64).ntypes == 2
        return
    with pytest.raises(ConfigError, match="columns are of Cu, Al, and the type_map is Al, Cu"):
        PairTable.random(options, 0, torch.float64)


def test_good_and_missing_files(tmp_path):
    (tmp_path / "table.txt").write_text(GOOD)
    table = read_table(tmp_path / "table.txt", 0.3, 1)
    assert table.rows.tolist() == [[0.1, 5.0], [0.2, 2.0], [0.3, 0.0]]
    with pytest.raises(ConfigError, match=r"none\.txt: No such file"):
        read_table(tmp_path / "none.txt", 0.3, 1)


def test_energies_that_are_cut_are_told(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text(GOOD)
    with pytest.warns(UserWarning, match=r"not zero at the cutoff, 0.2 A"):
        read_table(path, 0.2, 1)
    path.write_text("0.1 5.0\n0.2 2.0\n0.3 1.0\n")
    with pytest.warns(UserWarning, match=r"not zero at the cutoff, 0.3 A"):
        read_table(path, 0.3, 1)
    with pytest.warns(UserWarning, match=r"ends at 0.3 A, before the cutoff, 0.9 A"):
        read_table(path, 0.9, 1)


def test_cubics_run_through_the_rows():
    model = potential_of("pairtab").model.models[0]
    rows = model.rows
    inside = rows[:, 0] < model.cutoff - 1e-6
    r = rows[inside, 0]
    found = model.pair_energies(torch.tensor(0), torch.tensor(1), r)
    assert torch.allclose(found, rows[inside, 2], rtol=1e-10, atol=1e-12)
    beyond = model.pair_energies(torch.tensor(0), torch.tensor(1), torch.tensor([3.8, 5.0, 60.0]))
    assert beyond.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_distances_below_the_first_row(dtype):
    potential = potential_of("pairtab", dtype)  # which begins at 0.4 A
    assert np.isfinite(potential.compute(pair(0.41))["forces"]).all()
    with pytest.raises(InputError, match=r"atoms 0 and 1 are nearer than 0.4 A, where the model's table"):
        potential.compute(pair(0.39))
    system = systems.from_atoms([pair(0.39), pair(0.5)], potential.type_map, potential.device)
    answers, _ = potential.evaluator()(system, potential.neighbor_list(system), check=False)
    assert answers["atom_energy"].isnan().tolist() == [True, True, False, False]
    assert answers["forces"][:2, 2].isnan().all() and answers["forces"][2:].isfinite().all()


def test_pairs_that_are_absent_may_be_near():
    tree = copy.deepcopy(table_tree()) | {"pair_exclude_types": [[0, 0]]}
    assert np.isfinite(build(tree).compute(pair(0.2))["forces"]).all()
    with pytest.raises(InputError, match="atoms 0 and 1 are nearer"):
        build(tree).compute(pair(0.2, "CuAl"))


def test_nan_stays_nan():
    check_nan(build(table_tree()))


def test_parameters_are_refused():
    with pytest.raises(InputError, match="fparam is given, but the model takes none"):
        build(table_tree()).compute(alloy(), fparam=[1.0])


def test_forces_are_slopes():
    check_slopes(build(table_tree()), alloy((1, 1, 1)))


@pytest.mark.parametrize("suffix", [".dp", ".yaml", ".json", ".safetensors"])
def test_saved_and_read(tmp_path, suffix):
    potential = build(table_tree())
    potential.save(tmp_path / f"model{suffix}")
    assert not differences(read_model(tmp_path / f"model{suffix}").model, table_tree())
    again = mdops.load(tmp_path / f"model{suffix}", dtype="float64")
    assert np.array_equal(again.compute(alloy())["forces"], potential.compute(alloy())["forces"])


def test_ase_and_engine():
    check_dynamics(potential_of("pairtab_zeros"), alloy((2, 2, 2)))


def model_section(tmp_path, **keys):
    (tmp_path / "table.txt").write_text(
        "".join(f"{0.5 + 0.1 * i:.2f} {3 - 0.1 * i} 1 2\n" for i in range(30))
    )
    return {
        "type": "pairtab",
        "type_map": ["Cu", "Al"],
        "tab_file": str(tmp_path / "table.txt"),
        "rcut": 4.0,
        "sel": "auto",
        **keys,
    }


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_options(tmp_path):
    options = config_of(model_section(tmp_path, sel=[30, 20])).model
    assert options.sel == 50 and options.cutoff == 4.0
    options = config_of(model_section(tmp_path)).model.resolve_sel(lambda cutoff: ([20, 30], 41), "model")
    assert options.sel == 48  # 41 x 1.1, in fours
    model = PairTable.random(options, 1, torch.float32)
    assert model.dtype == torch.float32 and model.out_std.tolist() == [1, 1]
    for keys, message in [
        ({"sel": "much"}, r"model\.sel: is 'much'"),
        ({"sel": -1}, r"model\.sel: is -1, expected 0 or more"),
        ({"rcut": 0}, r"model\.rcut: is 0.0, expected more than 0"),
    ]:
        with pytest.raises(ConfigError, match=message):
            config_of(model_section(tmp_path, **keys))
    for name in ("tab_file", "rcut", "sel"):
        with pytest.raises(ConfigError, match=rf"model\.{name}: is missing"):
            config_of({k: v for k, v in model_section(tmp_path).items() if k != name})
    with pytest.raises(ConfigError, match="has no slot for a neighbour"):
        config_of(model_section(tmp_path, sel=0)).model.resolve_sel(None, "model")


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_nothing_to_train_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no trainable weights"):
        Trainer(config_of(model_section(tmp_path)), tmp_path / "run")
