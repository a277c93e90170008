"""What is written is read back bit for bit, in every format, and is never half there."""

import json
import os

import h5py
import numpy as np
import pytest
import yaml
from children import python
from safetensors.numpy import load_file
from trees import CHECKPOINTS, DATA, FORMATS, differences

import mdops
from mdops.errors import ModelFileError
from mdops.io import read_model, write_model
from mdops.io.write import require_writable

SUFFIXES = (".safetensors", ".dp", ".yaml", ".yml", ".json")
FILES = [
    *(FORMATS / name for name in ("model.dp", "model.pth", "model.ckpt.pt")),
    *sorted(path for path in CHECKPOINTS.iterdir() if path.suffix in (".dp", ".pt", ".pth")),
    DATA / "reference" / "float32" / "model.dp",
]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_model_comes_back(tmp_path, path, suffix):
    file = read_model(path)
    write_model(tmp_path / f"model{suffix}", file.model, file.source)
    again = read_model(tmp_path / f"model{suffix}")
    assert differences(again.model, file.model) == []
    definition = {key: value for key, value in again.source.items() if key in file.source}
    assert definition == {**file.source, "format": again.source["format"]}
    assert again.source["imported_from"] == file.source["format"]
    assert os.listdir(tmp_path) == [f"model{suffix}"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_shapes_types_and_digits_are_kept(tmp_path, suffix):
    rng = np.random.default_rng(3)
    variables = {
        "scalar": np.array(1.5),
        "empty": np.zeros((0, 3), np.float32),
        "transposed": np.arange(6.0).reshape(2, 3).T,
        "half": rng.normal(size=5).astype(np.float16),
        "single": rng.normal(size=(4, 5)).astype(np.float32),
        "double": rng.normal(size=50) * 10.0 ** rng.integers(-300, 300, 50),
        "extremes": np.array([5e-324, -0.0, 1.7976931348623157e308, 0.1]),
        "swapped": np.arange(3, dtype=">f8"),
        "integers": np.arange(3),
        "none": None,
    }
    model = {"type": "another kind", "@variables": variables, "list": [1, 0.1, 1e-05, "x", None, True]}
    write_model(tmp_path / f"m{suffix}", model)
    model["@variables"]["swapped"] = np.arange(3.0)
    assert differences(read_model(tmp_path / f"m{suffix}").model, model) == []


def test_a_model_has_the_same_bytes_in_every_process(tmp_path):
    code = """if True:
        import sys
        from mdops.io import read_model, write_model
        file = read_model(sys.argv[1])
        write_model(sys.argv[2], file.model, file.source)
    """
    paths = [tmp_path / f"{k}.safetensors" for k in range(4)]
    for path in paths:
        python("-c", code, DATA / "formats" / "model.dp", path, check=True)
    assert len({path.read_bytes() for path in paths}) == 1
    read_model(paths[0])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_words_that_yaml_takes_for_values_stay_text(tmp_path, suffix):
    words = [
        "none",
        "null",
        "yes",
        "1.0",
        "1e5",
        "",
        "~",
        "@a",
        "a: b",
        "#",
        "\u00e5\U0001f600",
        "two\nlines",
    ]
    model = {"type": "another kind", "words": words, "on": {word: word for word in words}}
    write_model(tmp_path / f"m{suffix}", model)
    assert differences(read_model(tmp_path / f"m{suffix}").model, model) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_failed_write_leaves_the_old_file(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    path.write_text("old")
    for model, message in [
        ({"type": "standard", "x": object()}, r"model\.x holds a object"),
        ({"x": [1.0, float("nan")]}, r"model\.x\[1\] is nan"),
        ({1: "x"}, "not text"),
        ({"@variables": {"w": np.array([1.0, np.nan])}}, r"model\.@variables\.w holds NaN"),
        ({"@variables": {"w": np.array([np.inf], np.float32)}}, r"model\.@variables\.w holds NaN"),
        ({"@variables": {"w": np.array(["1"])}}, r"model\.@variables\.w holds <U1, not numbers"),
    ]:
        with pytest.raises(ModelFileError, match=f"not written: .*{message}"):
            write_model(path, model)
    with pytest.raises(ModelFileError, match="not written"):
        write_model(path, {"type": "x"}, {"time": float("inf")})
    assert path.read_text() == "old" and os.listdir(tmp_path) == [path.name]
    with pytest.raises(ModelFileError, match=r"no folder .*absent"):
        write_model(tmp_path / "absent" / path.name, {})


def test_disk_full_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.dp"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_model(path, {"type": "x"})
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["model.dp"]


@pytest.mark.parametrize("name", ["model", "model.pth", "model.pb", "model.DP", ".dp"])
def test_other_suffixes_are_refused_with_what_there_is(tmp_path, name):
    for refuse in (lambda path: write_model(path, {}), require_writable):
        with pytest.raises(ModelFileError, match=r"suffix .* \.safetensors, \.dp, \.yaml, \.yml, \.json"):
            refuse(tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_a_folder_is_refused(tmp_path):
    (tmp_path / "model.dp").mkdir()
    with pytest.raises(ModelFileError, match="it is a folder"):
        write_model(tmp_path / "model.dp", {})


def test_what_dp_files_have_no_place_for_is_refused(tmp_path):
    with pytest.raises(ModelFileError, match=r"model\.@variables\.w holds bool"):
        write_model(tmp_path / "m.dp", {"@variables": {"w": np.array([True])}})
    with pytest.raises(ModelFileError, match=r"model\.w is an array outside"):
        write_model(tmp_path / "m.dp", {"w": np.ones(2)})
    assert os.listdir(tmp_path) == []


class TestHeader:
    """What DeePMD-kit's own files have beside the weights."""

    def header(self, path):
        if path.suffix == ".dp":
            with h5py.File(path) as file:
                header = json.loads(file.attrs["json"])
                distance = header["@variables"].get("min_nbor_dist")
                return header, None if distance is None else file[distance][()]
        text = path.read_text()
        header = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        distance = header["@variables"].get("min_nbor_dist")
        return header, None if distance is None else np.array(distance["value"], distance["dtype"])

    @pytest.mark.parametrize("suffix", [".dp", ".yaml", ".json"])
    def test_it_is_that_of_the_models_origin(self, tmp_path, suffix):
        file = read_model(FORMATS / "model.dp")
        path = tmp_path / f"m{suffix}"
        write_model(path, file.model, file.source)
        header, distance = self.header(path)
        wanted, wanted_distance = self.header(FORMATS / "model.dp")
        for key in ("software", "version", "time", "backend", "pt_version", "model_def_script"):
            assert header[key] == wanted[key]
        assert distance == wanted_distance
        assert header["model"].keys() == wanted["model"].keys()

    @pytest.mark.parametrize("suffix", [".dp", ".yaml", ".json"])
    def test_without_an_origin_it_names_mdops(self, tmp_path, suffix):
        path = tmp_path / f"m{suffix}"
        write_model(path, {"type": "another kind", "type_map": ["Cu"]})
        header, distance = self.header(path)
        assert (header["software"], header["version"]) == ("mdops", mdops.__version__)
        assert header["time"].endswith("+00:00") and distance is None
        assert header["model_def_script"] == {"type_map": ["Cu"]}

    @pytest.mark.parametrize("case", ["se_e2_a_options", "se_e2_r", "dpa1_strip", "hybrid", "linear", "zbl"])
    def test_a_missing_definition_is_made_from_the_model(self, tmp_path, case):
        """The definition that a checkpoint of the same model has, with every option that it names."""
        model = read_model(CHECKPOINTS / f"{case}.dp").model
        write_model(tmp_path / "m.json", model)
        made = read_model(tmp_path / "m.json").source["model_def_script"]
        wanted = read_model(CHECKPOINTS / f"{case}.pt").source["model_def_script"]
        renamed = {"type": {"se_atten": "dpa1", "se_e2_r": "se_r"}, "precision": {"default": "float64"}}
        ignored = {"smin_alpha", "trainable"}  # DeePMD-kit does not take them into the tree as they are

        def assert_has(found, options):
            for key, value in options.items():
                if isinstance(value, dict):
                    assert_has(found[key], value)
                elif isinstance(value, list) and value and isinstance(value[0], dict):
                    for part, part_options in zip(found[key], value, strict=True):
                        assert_has(part, part_options)
                elif key == "sel":
                    assert np.sum(found[key]) == np.sum(value)
                elif key not in ignored:
                    assert found[key] == renamed.get(key, {}).get(str(value), value), key

        assert_has(made, wanted)

    def test_a_kind_of_ones_own_has_its_options(self, tmp_path):
        """Nets and arrays under any name are no options."""
        model = read_model(CHECKPOINTS / "se_e2_r.dp").model
        net = {"layers": [{"@variables": {"w": np.ones((2, 3))}}]}
        model["descriptor"] = {"@class": "Descriptor", "type": "mine", "rcut": 4.0, "net": net, "nets": [net]}
        write_model(tmp_path / "m.dp", model)
        again = read_model(tmp_path / "m.dp")
        assert differences(again.model, model) == []
        assert again.source["model_def_script"]["descriptor"] == {"type": "mine", "rcut": 4.0}

    def test_a_model_without_a_part_is_refused(self, tmp_path):
        with pytest.raises(ModelFileError, match="not written: the model lacks 'descriptor'"):
            write_model(tmp_path / "m.dp", {"type": "standard", "type_map": ["Cu"]})
        assert os.listdir(tmp_path) == []

    def test_what_dp_files_have_no_key_for_is_kept(self, tmp_path):
        source = {"format": "x", "training": {"step": 5, "steps": 9}, "began_with": {"version": "1"}}
        for suffix in (".dp", ".yaml", ".json"):
            write_model(tmp_path / f"m{suffix}", {"type": "another kind"}, source)
            found = read_model(tmp_path / f"m{suffix}").source
            assert found["training"] == source["training"] and found["began_with"] == source["began_with"]


def test_what_the_c_core_computes_with_has_the_digits_of_the_file(tmp_path):
    """Whatever the model computes in."""
    found = []
    for dtype in ("float64", "float32"):
        path = tmp_path / f"{dtype}.safetensors"
        mdops.load(DATA / "reference" / "base" / "model.dp", dtype=dtype).save(path, core=["float64"])
        found.append({name: value for name, value in load_file(path).items() if name.startswith("core.net")})
    assert found[0] and found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)
