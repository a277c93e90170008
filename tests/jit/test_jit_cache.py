"""What is built is built once, by whoever comes first, and never used when it is broken or not ours."""

import ctypes
import errno
import fcntl
import os
import signal
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from recipes import calls, compiler_that, tiny

from mdops.files import cache
from mdops.jit import JitError, builder, entries
from mdops.jit.builder import entry_of


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MDOPS_JIT", raising=False)
    return tmp_path / "cache"


def answer(entry) -> int:
    return ctypes.CDLL(str(entry.path)).answer()


def in_child(work) -> int:
    """Runs work() in a process that has not yet done anything else; gives what it ends with, 1 for an exception."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_library_is_built_once_and_found_again(tmp_path):
    recipe = tiny(tmp_path / "source", compiler=compiler_that(tmp_path, ""))
    built = entry_of(recipe)
    assert answer(built) == 42 and calls(tmp_path) == 2  # an object, and the library
    assert entry_of(recipe) == built and calls(tmp_path) == 2
    assert entries() == [built]
    assert cache.clear() == 1 and entries() == []


def test_eight_processes_at_once_build_once(tmp_path):
    recipe = tiny(tmp_path / "source", compiler=compiler_that(tmp_path, "sleep 0.2"))

    def build():
        assert answer(entry_of(recipe)) == 42

    children = [in_child(build) for _ in range(8)]
    assert [ended(child) for child in children] == [0] * 8
    assert calls(tmp_path) == 2


def test_without_locks_each_builds_and_says_so(tmp_path, monkeypatch):
    recipe = tiny(tmp_path / "source", compiler=compiler_that(tmp_path, "sleep 0.2"))

    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)

    def build():
        with pytest.warns(UserWarning, match="has no locks"):
            assert answer(entry_of(recipe)) == 42

    children = [in_child(build) for _ in range(4)]
    assert [ended(child) for child in children] == [0] * 4
    assert calls(tmp_path) > 2
    assert len(entries()) == 1 and len(list(Path(entries()[0].path.parent.parent).iterdir())) == 2


def test_a_killed_compiler_is_an_error_and_the_next_one_builds(tmp_path):
    recipe = tiny(
        tmp_path / "source", compiler=compiler_that(tmp_path, f"[ -e {tmp_path}/well ] || kill -9 $$")
    )
    with pytest.raises(JitError, match=r"compiler does not build tiny-\w+ \(answer 42, for this machine"):
        entry_of(recipe)
    assert entries() == []
    (tmp_path / "well").touch()
    assert answer(entry_of(recipe)) == 42


def test_a_killed_builder_leaves_nothing_that_is_used(tmp_path, empty_cache):
    recipe = tiny(
        tmp_path / "source", compiler=compiler_that(tmp_path, f"[ -e {tmp_path}/well ] || sleep 60")
    )
    child = in_child(lambda: (os.setpgid(0, 0), entry_of(recipe)))
    while not calls(tmp_path):
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)  # with its compiler
    assert ended(child) == -signal.SIGKILL
    assert len(list((empty_cache / "jit").glob(".tiny-*"))) == 1
    (tmp_path / "well").touch()
    assert answer(entry_of(recipe)) == 42
    assert not list((empty_cache / "jit").glob(".tiny-*"))


@pytest.mark.parametrize(
    "harm", ["cut short", "other bytes", "no library", "no entry", "half an entry", "other json"]
)
def test_a_broken_entry_is_built_again(tmp_path, harm):
    recipe = tiny(tmp_path / "source", compiler=compiler_that(tmp_path, ""))
    library = entry_of(recipe).path
    told = library.with_name("entry.json")
    match harm:
        case "cut short":
            library.write_bytes(library.read_bytes()[:1000])
        case "other bytes":
            library.write_bytes(library.read_bytes()[:-1] + b"?")
        case "no library":
            library.unlink()
        case "no entry":
            told.unlink()
        case "half an entry":
            told.write_bytes(told.read_bytes()[:50])
        case "other json":
            told.write_text("[1, 2]")
    assert entries() == []
    assert entry_of(recipe).path == library and calls(tmp_path) == 4


def test_what_fails_to_compile_names_the_error(tmp_path):
    recipe = tiny(tmp_path / "source")
    (tmp_path / "source/answer.cpp").write_text("int f() { return entry; }\n")
    with pytest.raises(JitError, match=r"entry.* was not declared"):
        entry_of(recipe)


def test_everything_that_a_library_depends_on_is_in_its_key(tmp_path):
    recipe = tiny(tmp_path / "source")
    others = [
        replace(recipe, flags=("-fPIC", "-O1")),
        replace(recipe, link=("-s",)),
        replace(recipe, flags_of={"answer.cpp": ("-g",)}),
        replace(recipe, target="another machine"),
        replace(recipe, about={"answer": 42, "profiler": True}),
        replace(recipe, compiler=replace(recipe.compiler, version="another one")),
    ]
    keys = [recipe.key, *(other.key for other in others)]
    (tmp_path / "source/answer.h").write_text("#define ANSWER 40 + 2\n")
    keys.append(recipe.key)
    assert len(set(keys)) == 8
    (tmp_path / "source/other.h").write_text("changed\n")
    assert recipe.key == keys[-1]


def test_forbidden_compiling_says_what_would_have_been_built(tmp_path, monkeypatch):
    recipe, other = tiny(tmp_path / "source"), tiny(tmp_path / "other", answer=43)
    built = entry_of(recipe)
    monkeypatch.setenv("MDOPS_JIT", "0")
    assert entry_of(recipe) == built
    with pytest.raises(
        JitError, match=rf"MDOPS_JIT=0 forbids compiling: {other.key} \(answer 43, .*would have been built"
    ):
        entry_of(other)


def test_a_cache_that_cannot_be_written_to_is_read(tmp_path):
    """By a user without the right to write, which root has everywhere."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        recipe = tiny(Path(folder, "source"))
        os.environ["MDOPS_CACHE"] = str(Path(folder, "cache"))
        built = entry_of(recipe)
        nobody = 65534 if os.geteuid() == 0 else os.geteuid()
        for path in [Path(folder, "cache"), *Path(folder, "cache").rglob("*")]:
            os.chmod(path, 0o555 if path.is_dir() else 0o444)
            os.chown(path, nobody, -1)

        def build():
            os.setuid(nobody)
            assert entry_of(recipe) == built
            with pytest.raises(
                JitError, match=r"cannot be written to \(Permission denied\): set MDOPS_CACHE"
            ):
                entry_of(replace(recipe, target="another machine"))

        assert ended(in_child(build)) == 0
        for path in Path(folder, "cache").rglob("*"):
            os.chmod(path, 0o700)


def test_a_cache_that_cannot_be_made_says_so(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(JitError, match=r"cannot be made .*: set MDOPS_CACHE"):
        entry_of(tiny(tmp_path / "source"))


def test_without_a_home_there_is_nothing_to_find_and_no_place_to_build(tmp_path, monkeypatch):
    monkeypatch.delenv("MDOPS_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert entries() == []
    with pytest.raises(JitError, match=r"there is no home folder for a cache .*: set MDOPS_CACHE"):
        entry_of(tiny(tmp_path / "source"))


def test_the_cache_is_the_users_alone(tmp_path, empty_cache):
    recipe = tiny(tmp_path / "source")
    entry_of(recipe)
    for path in (empty_cache, empty_cache / "jit", empty_cache / "jit" / recipe.key):
        assert path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
@pytest.mark.parametrize("part", ["", "jit"])
def test_a_cache_that_others_may_write_to_is_refused(tmp_path, empty_cache, part, mode):
    recipe = tiny(tmp_path / "source")
    entry_of(recipe)
    (empty_cache / part).chmod(mode)
    for use in (lambda: entry_of(recipe), entries):
        with pytest.raises(JitError, match=r"others may write to .*chmod go-w"):
            use()


def test_a_cache_below_an_open_folder_is_refused(tmp_path, monkeypatch):
    recipe = tiny(tmp_path / "source")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "open/cache"))
    with pytest.raises(JitError, match="anybody may rename folders in"):
        entry_of(recipe)
    (tmp_path / "open").chmod(0o1777)  # as /tmp
    assert answer(entry_of(recipe)) == 42


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_cache_of_another_user_is_refused(tmp_path, empty_cache):
    recipe = tiny(tmp_path / "source")
    entry_of(recipe)
    os.chown(empty_cache / "jit", 65534, -1)
    with pytest.raises(JitError, match="belongs to another user"):
        entry_of(recipe)


def test_the_cache_is_where_the_variables_say(tmp_path, monkeypatch):
    assert cache.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("MDOPS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg/mdops"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache/mdops"


def test_paths_with_odd_characters_build(tmp_path, monkeypatch):
    monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "a cache $HOME: 'x'"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recipe = tiny(tmp_path / "so urce$:'x", flags=("-fPIC", "-DTOLD=$HOME 'x'"))
        assert answer(entry_of(recipe)) == 42
    assert "$$HOME" in builder.ninja_file(recipe)
