"""The cache of compiled libraries: one entry for each key, made in one step and checked before it is used.

<cache>/jit/<key>/library.so
                  entry.json     configuration, digest of the library, results of a calibration
                  build.ninja
<cache>/jit/<key>.lock           locked by the process that builds
<cache>/jit/.<key>.<process>     the folder in which it builds
"""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import stat
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mdops.errors import JitError
from mdops.files.atomic import replace_file
from mdops.files.lock import waiting

LIBRARY, ENTRY, HOW = "library.so", "entry.json", "build.ninja"


def cache_folder() -> Path:
    """$MDOPS_CACHE, or mdops in $XDG_CACHE_HOME or ~/.cache."""
    told = os.environ.get("MDOPS_CACHE")
    if told:
        return Path(told).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache").absolute() / "mdops"
    except RuntimeError as error:
        raise JitError(
            f"there is no home folder for a cache ({error}): set MDOPS_CACHE to a folder"
        ) from error


def jit_folder(*, make: bool) -> Path | None:
    """The folder of the entries. `make` makes it if it is missing; without it, None if it is missing or unreadable.

    Raises:
        JitError: other users could put code into it, or it cannot be made.
    """
    if not make:
        try:
            folder = cache_folder() / "jit"
            if not folder.is_dir():
                return None
        except (OSError, JitError):
            return None
    else:
        folder = cache_folder() / "jit"
        try:
            make_folder(folder)
        except OSError as error:
            raise JitError(
                f"the cache {folder} cannot be made ({error.strerror}): set MDOPS_CACHE to a folder"
            ) from error
    for place in (folder, folder.parent):
        _refuse_others(place)
    for place in folder.parent.parents:
        _refuse_open(place)
    return folder


def make_folder(folder: Path) -> None:
    """Makes the cache and a folder in it if they do not exist. Only the user has access, because the cache may have
    programs that the user runs."""
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for place in (folder.parent, folder):
        place.mkdir(mode=0o700, exist_ok=True)


def _refuse_others(place: Path) -> None:
    status = place.stat()
    if status.st_uid != os.geteuid():
        raise JitError(
            f"{place} belongs to another user, who could put code there: set MDOPS_CACHE to one of yours"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise JitError(
            f"others may write to {place}, and programs in it run with your rights: chmod go-w {place}"
        )


def _refuse_open(place: Path) -> None:
    """Raises JitError for a folder above the cache in which anybody may replace the cache by another folder."""
    mode = place.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise JitError(
            f"anybody may rename folders in {place}, so the cache cannot be below it: set MDOPS_CACHE to another folder"
        )


@dataclass(frozen=True)
class Entry:
    """A compiled library.

    Attributes:
        key, path: of the library.
        configuration: what it was built from (`Recipe.configuration`).
        calibration: measurements with it; empty if there are none.
    """

    key: str
    path: Path
    configuration: dict[str, Any]
    calibration: dict[str, Any]

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def read(folder: Path, key: str) -> Entry | None:
    """The entry; None if it is missing or damaged."""
    about, library = _read_about(folder / key), folder / key / LIBRARY
    try:
        if about.get("digest") != _digest(library):
            return None
        return Entry(key, library, about["configuration"], about.get("calibration", {}))
    except (OSError, KeyError):
        return None


def _read_about(place: Path) -> dict[str, Any]:
    """The contents of entry.json; empty if the file is missing or damaged."""
    try:
        about = json.loads((place / ENTRY).read_bytes())
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) and isinstance(about.get("configuration"), dict) else {}


def entries() -> list[Entry]:
    """All complete entries, sorted by key."""
    return find_all({})


def find_all(wanted: dict[str, Any]) -> list[Entry]:
    """The complete entries whose configurations have these values."""
    folder = jit_folder(make=False)
    if folder is None:
        return []
    found = []
    for name in sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")):
        told = _read_about(folder / name).get("configuration", {})
        if all(told.get(k) == v for k, v in wanted.items()):  # before whole libraries are read
            found.append(read(folder, name))
    return [entry for entry in found if entry is not None]


def clear() -> int:
    """Removes all entries and returns their number. Processes can go on using libraries that they have loaded."""
    folder = jit_folder(make=False)
    if folder is None:
        return 0
    places = [path for path in folder.iterdir() if path.is_dir()]
    for path in places:
        shutil.rmtree(path, ignore_errors=True)
    return len(places)


@contextlib.contextmanager
def building(folder: Path, key: str) -> Iterator[None]:
    """Within this context no other process builds the entry. Warns if the file system has no locks: then several
    processes may build the same entry, and the first complete one stays."""
    with waiting(folder / f"{key}.lock") as locks:
        if locks:
            _remove_unfinished(folder, key)
        else:
            warnings.warn(
                f"the file system of {folder} has no locks: several processes may build the same kernels at once",
                stacklevel=2,
            )
        yield


def _remove_unfinished(folder: Path, key: str) -> None:
    """Removes what killed builders of this entry left."""
    for path in folder.glob(f".{key}.*"):
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def workplace(folder: Path, key: str) -> Iterator[Path]:
    """A new folder to build the entry in; it is removed at the end."""
    place = folder / f".{key}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
    try:
        place.mkdir(mode=0o700)
    except OSError as error:
        raise JitError(
            f"the cache {folder} cannot be written to ({error.strerror}): set MDOPS_CACHE"
        ) from error
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def publish(place: Path, folder: Path, key: str, configuration: dict[str, Any]) -> Entry:
    """Turns the workplace into the entry, in one step. A damaged entry is replaced; a complete one stays."""
    library = place / LIBRARY
    about = {"digest": _digest(library), "configuration": configuration}
    replace_file(place / ENTRY, json.dumps(about, indent=1).encode())
    for path in place.iterdir():
        if path.name not in (LIBRARY, ENTRY, HOW):
            path.unlink()
    final = folder / key
    for _ in range(10):
        try:
            os.rename(place, final)
            break
        except OSError:  # there is an entry: a damaged one, or that of a builder without a lock
            entry = read(folder, key)
            if entry is not None:
                return entry
            aside = place.with_name(place.name + ".old")
            with contextlib.suppress(OSError):
                os.rename(final, aside)
            shutil.rmtree(aside, ignore_errors=True)
    entry = read(folder, key)
    if entry is None:
        raise JitError(f"{final} cannot be replaced or read: remove it, or set MDOPS_CACHE to another folder")
    return entry


def keep_calibration(entry: Entry, measured: dict[str, Any]) -> Entry:
    """Stores the measurements beside the library, if the cache can be written to."""
    about = {"digest": _digest(entry.path), "configuration": entry.configuration, "calibration": measured}
    with contextlib.suppress(OSError):
        path = entry.path.with_name(ENTRY)
        replace_file(path, json.dumps(about, indent=1).encode(), beside=f"{ENTRY}.{os.getpid()}")
    return Entry(entry.key, entry.path, entry.configuration, measured)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
