"""A file that is replaced is the old one or the new one, whatever happens."""

import os
from pathlib import Path

import pytest
from ase import Atoms
from children import python

from mdops.files.atomic import replace_file
from mdops.files.named import naming
from mdops.md.outputs import TextFile
from mdops.md.relax import write_atomically

MODEL = Path(__file__).parents[1] / "data" / "formats" / "model.dp"


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
        with pytest.raises(OSError, match=rf"No space left.*'.*{path.name}'"):
            replace_file(path, b"new", beside=".mine")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_errors_of_the_system_name_the_file(tmp_path):
    file = tmp_path / "file"
    for raised, says in (
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("8192 requested and 4096 written"), "8192 requested"),  # NumPy
    ):
        with pytest.raises(OSError, match=says) as caught, naming(file):
            raise raised
        assert str(file) in str(caught.value)
    with pytest.raises(FileNotFoundError, match="other"), naming(file):
        os.stat(tmp_path / "other")


@pytest.mark.parametrize("write", [replace_file, lambda path, _: write_atomically(path, [Atoms("Cu")])])
def test_a_folder_that_cannot_be_written_to_is_said_of_the_file(tmp_path, monkeypatch, write):
    """Not of what is written beside it first."""
    path = tmp_path / "file.eps"

    def refuse(name, *_, **__):
        raise PermissionError(13, "Permission denied", str(name))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr("ase.io.write", refuse)
    with pytest.raises(PermissionError) as error:
        write(path, b"data")
    assert error.value.filename == str(path)


@pytest.mark.parametrize("name", ["md.traj", "md.xyz"])
def test_a_run_on_a_full_disk_says_which_file(tmp_path, name):
    """A limit on the size of files stands for the disk."""
    code = f"""if True:
        import resource, sys
        from ase.build import bulk
        from mdops.cli import main
        (bulk("Cu", a=4.0, cubic=True) * (2, 2, 2)).write("start.xyz")
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        sys.exit(main(["md", "start.xyz", "-m", {str(MODEL)!r}, "-T", "300", "--steps", "60", "--interval", "1",
                       "-o", {name!r}]))
    """
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith(f"mdops: {name}: ")


def test_a_log_that_is_closed_on_a_full_disk_says_its_name():
    """What could not be written is tried once more then."""
    file = TextFile(Path("/dev/full"), None)
    for act in (lambda: file.write("a line"), file.close):
        with pytest.raises(OSError, match="No space left") as error:
            act()
        assert error.value.filename == "/dev/full"


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
