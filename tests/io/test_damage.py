"""Damaged files, and files that are something else, give a ModelFileError with the path and what is wrong."""

import io
import pickle
import random
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from trees import CHECKPOINTS, FORMATS, compiled, differences

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io import describe, read_model, write_model

# Good files of each format, small ones, since they are read hundreds of times: as DeePMD-kit writes them, or, by the
# case that they are made of, as mdops does.
MADE_BY_DEEPMD = {
    "model.dp": FORMATS / "model.dp",
    "hybrid.pth": CHECKPOINTS / "hybrid.pth",
    "se_e2_a_options.pt": CHECKPOINTS / "se_e2_a_options.pt",
    "se_e3_tebd_strip.pt": CHECKPOINTS / "se_e3_tebd_strip.pt",
    "linear.pt": CHECKPOINTS / "linear.pt",
    "zbl.dp": CHECKPOINTS / "zbl.dp",
    "zbl.pth": CHECKPOINTS / "zbl.pth",
}
MADE_HERE = (
    "se_e2_r.dp", "se_e2_r.yaml", "se_e2_r.json", "se_e2_r.safetensors",
    "linear.dp", "zbl.yaml", "zbl.json", "zbl.safetensors", "se_e3_tebd.dp",
)  # fmt: skip
FILES = (*MADE_BY_DEEPMD, *(f"written {name}" for name in MADE_HERE), "se_e2_r.pt2")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats")
    made = {f"written {name}": folder / name for name in MADE_HERE}
    for path in made.values():
        file = read_model(CHECKPOINTS / f"{path.stem}.dp")
        write_model(path, file.model, file.source)
    made["se_e2_r.pt2"] = compiled(folder / "se_e2_r.pt2", made["written se_e2_r.json"])
    return {**MADE_BY_DEEPMD, **made}


# Options that nothing else in a model repeats, so that one digit may change unseen.
NUMBERS = ("@version", "env_protection", "protection", "sw_rmin", "sw_rmax", "smin_alpha", "rmax", ".sel")


@pytest.mark.parametrize("name", FILES)
def test_cut_at_200_places(files, tmp_path, name):
    data = files[name].read_bytes()
    wanted = read_model(files[name]).model
    path = tmp_path / f"cut{files[name].suffix}"
    lengths = {0, 1, 4, 7, 8, 9, 63, len(data) - 1, len(data) - 2}
    lengths |= {len(data) * i // 200 for i in range(200)}
    whole = 0
    for length in sorted(lengths):
        path.write_bytes(data[:length])
        try:
            found = read_model(path)
        except ModelFileError as error:
            assert str(error).startswith(f"{path}: ")
        else:
            # Text may lose its last lines, which are not of the model, and still hold the whole model.
            assert path.suffix in (".yaml", ".json") and differences(found.model, wanted) == []
            whole += 1
    assert whole <= 12


@pytest.mark.parametrize("name", FILES)
def test_changed_bytes(files, tmp_path, name):
    """A changed byte is an error, has no effect, or (without checksums) changes one number."""
    data = files[name].read_bytes()
    wanted = read_model(files[name]).model
    path = tmp_path / f"changed{files[name].suffix}"
    rng = random.Random(7)
    for _ in range(100):
        damaged = bytearray(data)
        at = rng.choice([rng.randrange(len(data)), rng.randrange(2000), len(data) - 1 - rng.randrange(12000)])
        damaged[at] = rng.choice([0, 255, damaged[at] ^ (1 << rng.randrange(8)), rng.randrange(256)])
        path.write_bytes(damaged)
        try:
            found = read_model(path).model
        except (ModelFileError, UnsupportedModelError):
            continue
        if describe(found) != describe(wanted):
            continue  # a kind of model that mdops does not have; whoever builds the model refuses it by name
        places = differences(found, wanted)
        if path.suffix in (".pth", ".pt", ".safetensors"):
            assert places == []
        assert len(places) <= 1
        assert all("@variables" in place or place.endswith(NUMBERS) for place in places), places


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.dp", b"", "it is empty"),
        ("model.pb", b"\x0a\x20\x0a\x05Const", "begins with a node"),
        ("graph", b"\x0a\x20\x0a\x05model\x12\x05Const", "cut short"),
        ("notes.txt", b"Dear reader,\nthis is not a model.\n", "text file"),
        ("input.json", b'{"model": {"descriptor": {}, "fitting_net": {}}}', "training input"),
        ("other.json", b'{"a": 1}', "no 'model'"),
        ("other.yaml", b"- 1\n- 2\n", "not a model"),
        ("old.pt", pickle.dumps({"a": 1}, protocol=2), "pickle"),
        ("image.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not a model file"),
        ("short.dp", b"\x89HDF", "cut short"),
    ],
)
def test_other_files_are_told_apart(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelFileError, match=message) as error:
        read_model(tmp_path / name)
    assert name in str(error.value)


def test_folder_and_missing_file(tmp_path):
    with pytest.raises(ModelFileError, match="folder"):
        read_model(tmp_path)
    with pytest.raises(ModelFileError, match="no such file"):
        read_model(str(tmp_path / "absent.dp"))


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")]
)
def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path, monkeypatch, error):
    path = tmp_path / "model.dp"
    path.write_bytes(b"x" * 100)

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(ModelFileError, match=rf"model.dp: it cannot be read: {error.strerror}$"):
        read_model(path)


def test_hdf5_that_is_not_a_model(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.ones(3)
    with pytest.raises(ModelFileError, match="not a model of DeePMD-kit"):
        read_model(tmp_path / "a.h5")


def test_hdf5_datasets_that_overlap(tmp_path):
    with h5py.File(FORMATS / "model.dp") as old, h5py.File(tmp_path / "m.dp", "w") as new:
        for name in old:
            new[name] = old[name][()]
        text = old.attrs["json"]
        new.attrs["json"] = text.replace("/variable_0004", "/variable_0010")
    with pytest.raises(ModelFileError, match="shares bytes"):
        read_model(tmp_path / "m.dp")


def test_nan_weights_are_refused(tmp_path):
    path = tmp_path / "m.dp"
    path.write_bytes((FORMATS / "model.dp").read_bytes())
    with h5py.File(path, "r+") as file:
        file["variable_0004"][0, 0] = np.nan
    with pytest.raises(ModelFileError, match=r"embeddings.*w holds NaN"):
        read_model(path)


def repacked(source: Path, target: Path, change, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for member in old.infolist():
            new.writestr(member.filename, change(member.filename, old.read(member)))


def test_compressed_archive_is_refused(tmp_path):
    repacked(FORMATS / "model.pth", tmp_path / "m.pth", lambda name, data: data, zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelFileError, match="compressed"):
        read_model(tmp_path / "m.pth")


def test_storage_shorter_than_its_tensor(tmp_path):
    repacked(FORMATS / "model.pth", tmp_path / "m.pth", lambda n, d: d[:-8] if n.endswith("data/10") else d)
    with pytest.raises(ModelFileError, match="storage 10"):
        read_model(tmp_path / "m.pth")


def test_program_of_paddle(tmp_path):
    (tmp_path / "model.json").write_text('{"base_code": {"magic": "pir"}, "program": {"regions": []}}')
    with pytest.raises(UnsupportedModelError, match=r"model\.json: .*Paddle.* take the \.dp"):
        read_model(tmp_path / "model.json")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_zip_and_pytorch_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x/readme.txt", "hello")
    with pytest.raises(ModelFileError, match=r"no member data\.pkl"):
        read_model(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.pt2", "w") as archive:  # as `dp --pt freeze` writes it
        archive.writestr("a/byteorder", "little")
        archive.writestr("model/extra/metadata.json", "{}")
    with pytest.raises(ModelFileError, match=r"weights have no names, .* load .* the checkpoint"):
        read_model(tmp_path / "a.pt2")
    torch.save({"weight": torch.ones(2)}, tmp_path / "a.pt")
    with pytest.raises(ModelFileError, match="not a checkpoint of DeePMD-kit"):
        read_model(tmp_path / "a.pt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "a.pth")
    with pytest.raises(ModelFileError, match="not a model frozen"):
        read_model(tmp_path / "a.pth")


def test_foreign_and_changed_safetensors(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.ones(2)}, tmp_path / "a.safetensors")
    with pytest.raises(ModelFileError, match="not a model written by mdops"):
        read_model(tmp_path / "a.safetensors")
    save_file({"x": np.ones(2)}, tmp_path / "b.safetensors", {"format": "mdops", "version": "9"})
    with pytest.raises(ModelFileError, match="version 9"):
        read_model(tmp_path / "b.safetensors")


UNFOLDING = "model:\n  x0: &x0 [1, 1]\n" + "".join(
    f"  x{i}: &x{i} [*x{i - 1}, *x{i - 1}]\n" for i in range(1, 60)
)
UNFOLDING_ARRAY = UNFOLDING.replace("model:", "a:") + (
    "model:\n  type: x\n  y: {'@is_variable': true, '@class': np.ndarray, dtype: float64, value: *x59}\n"
)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        UNFOLDING,
        UNFOLDING_ARRAY,
        "model: &m\n  type: standard\n  again: *m\n",
        "model: !!python/object/apply:os.system ['true']\n",
        "model: {a: 1, a: 2}\n",
        "model: *nothing\n",
    ],
    ids=["deep", "unfolding", "unfolding array", "circle", "tag", "twice", "no anchor"],
)
def test_yaml_made_to_do_harm(tmp_path, text):
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(ModelFileError):
        read_model(tmp_path / "m.yaml")


def test_deep_json(tmp_path):
    (tmp_path / "m.json").write_text('{"model": ' + "[" * 100_000)
    with pytest.raises(ModelFileError):
        read_model(tmp_path / "m.json")


def test_no_code_runs(tmp_path):
    """Pickles that would run code in Python's unpickler leave no trace here."""
    trace = tmp_path / "trace"

    class Evil:
        def __reduce__(self):
            return (exec, (f"open({str(trace)!r}, 'w')",))

    buffer = io.BytesIO()
    pickle.dump({"model": Evil(), "_extra_state": Evil()}, buffer, protocol=2)

    def change(name, data):
        return buffer.getvalue() if name.endswith("data.pkl") else data

    for name in ("model.pth", "model.ckpt.pt"):
        repacked(FORMATS / name, tmp_path / name, change)
        with pytest.raises(ModelFileError):
            read_model(tmp_path / name)
    assert not trace.exists()
