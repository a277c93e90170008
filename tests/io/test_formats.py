"""Every format gives the tree that is in it; the formats of one model give one tree."""

import json
import re

import h5py
import numpy as np
import pytest
import torch
import yaml
from trees import CHECKPOINTS, DATA, FORMATS, ONE_SIDE, OUTPUTS, REFERENCE, compiled, differences

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io import describe, read_model, write_model
from mdops.io.upgrade import upgrade
from mdops.train.loop.checkpoint import save_checkpoint


def tree_by_h5py(path):
    """The model in a .dp file, read in the plainest way."""
    with h5py.File(path) as file:

        def walk(node, variable=False):
            if isinstance(node, dict):
                return {k: walk(v, variable or k == "@variables") for k, v in node.items()}
            if isinstance(node, list):
                return [walk(v, variable) for v in node]
            return file[node][()] if variable and node is not None else node

        return walk(json.loads(file.attrs["json"])["model"])


def arrays(node):
    if isinstance(node, dict):
        return [a for v in node.values() for a in arrays(v)]
    if isinstance(node, list):
        return [a for v in node for a in arrays(v)]
    return [node] if isinstance(node, np.ndarray) else []


DP_FILES = [
    FORMATS / "model.dp",
    ONE_SIDE / "model.dp",
    *(REFERENCE / case / "model.dp" for case in ("dpa1_attn2", "hybrid", "se_t", "se_r", "water_dpa1")),
]


@pytest.mark.parametrize("path", DP_FILES, ids=lambda path: path.parent.name)
def test_hdf5_gives_what_h5py_gives(path):
    if not path.exists():
        pytest.skip(f"{path} is not there")
    assert differences(read_model(path).model, upgrade(tree_by_h5py(path))) == []


def keys(node, place=""):
    if isinstance(node, dict):
        return {f"{place}.{key}" for key in node} | {
            k for key in node for k in keys(node[key], f"{place}.{key}")
        }
    if isinstance(node, list):
        return {k for i, part in enumerate(node) for k in keys(part, f"{place}[{i}]")}
    return set()


@pytest.mark.parametrize(
    "path", sorted([*CHECKPOINTS.glob("*.dp"), *OUTPUTS.glob("*.dp")]), ids=lambda path: path.name
)
def test_the_tree_has_the_keys_of_deepmd_kits_file(path):
    """A key too many, such as spin in se_e3, and DeePMD-kit does not take what is written of the tree. Those that it
    takes, of its code for other versions, are a net's trainable and arrays that are None."""
    new = keys(read_model(path).model) - keys(tree_by_h5py(path))
    arrays = ("@variables.degree_gain_raw", "@variables.default_fparam_tensor")
    taken = ("networks[0].trainable", "embedding.trainable", *arrays)
    assert all(re.sub(r"\[\d+\]", "[0]", key).endswith(taken) for key in new), new
    assert keys(tree_by_h5py(path)) <= keys(read_model(path).model)


@pytest.mark.parametrize("name", ["model.pth", "model.ckpt.pt"])
def test_trained_model_is_the_same_in_every_format(name):
    wanted, found = read_model(FORMATS / "model.dp"), read_model(FORMATS / name)
    assert differences(found.model, wanted.model) == []
    for key in ("min_nbor_dist", "model_def_script", "software", "backend"):
        assert found.source[key] == wanted.source[key]


@pytest.mark.parametrize(
    "path", sorted([*CHECKPOINTS.glob("*.pt*"), *OUTPUTS.glob("*.pt*")]), ids=lambda path: path.name
)
def test_pytorch_files_give_the_serialised_tree(path):
    found, wanted = read_model(path), read_model(path.with_suffix(".dp"))
    for place in RAW_TABLES.get(path.stem, []):
        assert_same_table(part_of(found.model, place), part_of(wanted.model, place))
    assert differences(found.model, wanted.model) == []
    assert found.source["min_nbor_dist"] == 0.88


# Where a case has a pair table: PyTorch files have its splines, and not the numbers that they were made of.
RAW_TABLES = {"linear": [("models", 1, "tab")], "zbl": [("models", 1, "tab")]}


def part_of(tree, place):
    for key in place:
        tree = tree[key]
    return tree


def assert_same_table(found, wanted):
    """The rows are those of the table to rounding. What is compared here is taken out of both."""
    rows, wanted_rows = found["@variables"].pop("vdata"), wanted["@variables"].pop("vdata")
    np.testing.assert_allclose(rows, wanted_rows, rtol=1e-14, atol=1e-15)
    assert found.pop("rmax") == rows[-1, 0] and wanted.pop("rmax") <= rows[-1, 0]


def test_yaml_and_json_give_the_tree_of_the_dp_file(tmp_path):
    wanted = read_model(ONE_SIDE / "model.dp").model
    assert differences(read_model(ONE_SIDE / "model.yaml").model, wanted) == []
    text = (ONE_SIDE / "model.yaml").read_text()
    (tmp_path / "model.json").write_text(json.dumps(yaml.load(text, yaml.CSafeLoader)))
    assert differences(read_model(tmp_path / "model.json").model, wanted) == []


@pytest.mark.parametrize("suffix", [".pt2", ".pte"])
def test_a_compiled_model_gives_the_tree_that_is_beside_its_code(tmp_path, suffix):
    wanted = read_model(CHECKPOINTS / "se_e2_r.dp")
    write_model(tmp_path / "a.json", wanted.model, wanted.source)
    document = json.loads((tmp_path / "a.json").read_text()) | {"min_nbor_dist": 0.75}
    (tmp_path / "a.json").write_text(json.dumps(document))
    found = read_model(compiled(tmp_path / f"a{suffix}", tmp_path / "a.json"))
    assert differences(found.model, wanted.model) == []
    assert found.source["min_nbor_dist"] == 0.75
    assert found.source["model_def_script"] == {"descriptor": {"type": "se_e2_r"}}


def test_content_decides_and_not_the_name(tmp_path):
    wanted = read_model(FORMATS / "model.dp").model
    for name in ("model.dp", "model.pth", "model.ckpt.pt"):
        path = tmp_path / "model.dat"
        path.write_bytes((FORMATS / name).read_bytes())
        assert differences(read_model(path).model, wanted) == []


def test_weights_are_writable_and_in_native_order():
    for name in ("model.dp", "model.pth", "model.ckpt.pt"):
        for array in arrays(read_model(FORMATS / name).model):
            assert array.dtype.isnative and array.flags.writeable and array.flags.c_contiguous


def test_later_hdf5_layout(tmp_path):
    path = tmp_path / "model.dp"
    with h5py.File(FORMATS / "model.dp") as old, h5py.File(path, "w", libver="latest") as new:
        for name in old:
            new.create_dataset(name, data=old[name][()], compression="gzip" if old[name].size > 100 else None)
        new.attrs["json"] = old.attrs["json"]
    assert differences(read_model(path).model, read_model(FORMATS / "model.dp").model) == []


def test_describe():
    assert str(describe(read_model(CHECKPOINTS / "hybrid.dp").model)) == (
        "a standard model with descriptor hybrid(dpa1, se_e2_a) and fitting ener"
    )
    assert str(describe(read_model(CHECKPOINTS / "zbl.dp").model)) == (
        "a zbl (of 2) model with descriptor dpa1 + pairtab and fitting ener + none"
    )
    assert describe({}).model == "unknown"


def edited_checkpoint(path, edit):
    checkpoint = torch.load(FORMATS / "model.ckpt.pt", weights_only=True)
    state = checkpoint["model"]
    edit(state["_extra_state"]["model_params"], state)
    torch.save(checkpoint, path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda p, s: p["descriptor"].update(type="se_a_ebd"), "descriptor se_a_ebd"),
        (lambda p, s: p["fitting_net"].update(type="wave"), "fitting wave"),
        (lambda p, s: p.update(spin={"scheme": "native"}), "scheme 'native'"),
        (lambda p, s: p.update(type="frozen"), "frozen model"),
        (lambda p, s: p.update(type="linear_ener", models=[{}], shared_dict={"a": {}}), "share weights"),
        (lambda p, s: p.update(type="linear_ener", models=[{"type": "dipole"}]), "part of type dipole"),
    ],
)
def test_unsupported_checkpoints_are_named(tmp_path, edit, message):
    edited_checkpoint(tmp_path / "m.pt", edit)
    with pytest.raises(UnsupportedModelError, match=message):
        read_model(tmp_path / "m.pt")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda p, s: p["descriptor"].update(neuron=[8, 16, 64]), "neuron|shape"),
        (lambda p, s: p["descriptor"].update(sel=[80, 61]), "davg"),
        (lambda p, s: p["descriptor"].pop("rcut"), "rcut"),
        (lambda p, s: p["descriptor"].update(axis_neuron=7), "dim_descrpt"),
        (lambda p, s: p["descriptor"].update(type_one_side=True), "more nets"),
        (lambda p, s: p.update(type_map=["Cu", "Al", "Fe"]), "shape"),
        (lambda p, s: p.pop("type_map"), "type_map"),
        (lambda p, s: s.pop("model.Default.atomic_model.out_bias"), "out_bias are missing"),
        (lambda p, s: s["model.Default.atomic_model.out_bias"].fill_(float("inf")), "NaN or infinite"),
    ],
)
def test_checkpoints_whose_parts_do_not_fit(tmp_path, edit, message):
    edited_checkpoint(tmp_path / "m.pt", edit)
    with pytest.raises(ModelFileError, match=message):
        read_model(tmp_path / "m.pt")


def test_a_checkpoint_of_mdops_is_named_with_what_to_do(tmp_path):
    save_checkpoint(tmp_path / "model.ckpt-5.pt", {"step": 5, "weights": torch.ones(2)})
    with pytest.raises(ModelFileError, match=r"mdops' training.* Load model\.safetensors .*--restart"):
        read_model(tmp_path / "model.ckpt-5.pt")


def test_bfloat16_weights_become_float32(tmp_path):
    key = "model.Default.atomic_model.out_std"
    stored = torch.tensor([[[1.5], [0.203125]]], dtype=torch.bfloat16)
    edited_checkpoint(tmp_path / "m.pt", lambda p, s: s.update({key: stored}))
    found = read_model(tmp_path / "m.pt").model["@variables"]["out_std"]
    assert differences(found, stored.float().numpy()) == []


def test_every_reference_case_is_read():
    paths = list(DATA.glob("reference/*/model.dp"))
    assert len(paths) > 40
    for path in paths:
        assert describe(read_model(path).model).model == "standard"
