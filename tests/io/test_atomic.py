"""A file that is replaced is the old one or the new one, whatever happens."""

import os

import pytest

from mdops.files.atomic import replace_file


def test_the_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "file"
    for data in (b"old", memoryview(b"newer")):
        replace_file(path, data)
        assert path.read_bytes() == bytes(data)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_what_fails_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    replace_file(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        with pytest.raises(OSError, match="No space left"):
            replace_file(path, b"new", beside=".mine")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_what_a_kill_left_is_written_over(tmp_path):
    (tmp_path / "file.new").write_bytes(b"half a fi")
    replace_file(tmp_path / "file", b"whole")
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_bytes() == b"whole"


def test_a_folder_that_cannot_be_flushed_is_no_error(tmp_path, monkeypatch):
    real = os.fsync

    def files_only(number):
        if os.path.isdir(f"/proc/self/fd/{number}"):
            raise OSError(22, "Invalid argument")
        real(number)

    monkeypatch.setattr(os, "fsync", files_only)
    replace_file(tmp_path / "file", b"data")
    assert (tmp_path / "file").read_bytes() == b"data"
