"""Downloads of published models."""

import glob
import hashlib
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from mdops.errors import DownloadError
from mdops.files.atomic import replacing
from mdops.files.lock import waiting
from mdops.files.published import PUBLISHED, addresses
from mdops.progress import StepProgress

_TIMEOUT = 30.0  # s, without an answer or any more data
_MB = 1 << 20


class _HostError(Exception):
    """A host does not give the file; the message says why."""


def is_whole(name: str, path: Path) -> bool:
    """Whether the file is there and has the digest of the published model. Raises OSError if it cannot be read."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == PUBLISHED[name].digest


def fetch(name: str, to: Path) -> None:
    """Downloads a published model from the first host that gives the file of its digest, and tells on stderr how far it
    is. A file that is there is replaced in one step, unless it is that file already.

    Where several processes download the same file, one does it, and the others wait for it. A download that ends before
    the file is whole leaves a hidden file beside the other. The next one goes on behind it where a host can do that.

    Args:
        name: of `PUBLISHED`.
        to: the file; its folder must be there.

    Raises:
        DownloadError: no host gives the file, or it cannot be written.
    """
    try:
        with waiting(to.with_name(f".{to.name}.lock"), remove=True) as locks:
            if locks:
                part = f".{to.name}.{PUBLISHED[name].digest[:16]}.part"
            else:  # others may be writing
                part = f".{to.name}.{socket.gethostname()}.{os.getpid()}.part"
            there = is_whole(name, to)
            for left in to.parent.glob(f".{glob.escape(to.name)}.*.part") if locks else ():
                if there or left.name != part:
                    left.unlink(missing_ok=True)
            if there:
                return
            with replacing(to, beside=part, goes_on=locks) as file:
                _receive_from_one(name, file, to)
    except OSError as error:
        raise DownloadError(
            f"{to} cannot be written ({error.strerror or error}): make room for it or name another file with -o, or "
            "another folder for the cache in the environment variable MDOPS_CACHE"
        ) from error


def _receive_from_one(name: str, file: BinaryIO, to: Path) -> None:
    """Asks the hosts one after the other."""
    failures = []
    for address in addresses(name):
        host = urlsplit(address).netloc
        try:
            _receive(address, file, PUBLISHED[name].digest)
            return
        except _HostError as error:
            failures.append(f"{host}: {error}")
    raise DownloadError(
        f"{name} cannot be downloaded ({'; '.join(failures)}). If this machine has no network, download "
        f"{addresses(name)[0]} on another one, and copy it to {to}"
    )


def _receive(address: str, file: BinaryIO, digest: str) -> None:
    """Writes what the address gives to the file, behind what is there if that is the beginning of the same."""
    begun = file.seek(0, os.SEEK_END)
    try:
        received, found = _receive_rest(address, file, begun)
        if found != digest and begun:  # it began with something else
            received, found = _receive_rest(address, file, 0)
    finally:
        file.flush()
    if found != digest:
        file.truncate(0)
        raise _HostError(f"it gives another file ({received:,} bytes, SHA-256 {found}, expected {digest})")


def _receive_rest(address: str, file: BinaryIO, begun: int) -> tuple[int, str]:
    """Writes what the address gives behind the first bytes of the file, so many, if the host can leave these out; else
    all of it. The file's size and SHA-256."""
    host = urlsplit(address).netloc
    answer = _ask(address, begun)
    if answer is None:  # nothing is behind those bytes
        return begun, _digest(file, begun)
    with answer:
        if answer.status != HTTPStatus.PARTIAL_CONTENT or not _begins_at(answer, begun):
            begun = 0
        file.seek(begun)
        file.truncate()
        told = answer.headers.get("Content-Length", "")
        size = begun + int(told) if told.isdigit() else 0
        received = begun
        with StepProgress(_megabytes(begun), max(_megabytes(size), 1), "MB") as progress:
            while True:
                with _of_network():
                    data = answer.read(_MB)
                if not data:
                    break
                file.write(data)
                received += len(data)
                if size and progress.is_due(_megabytes(received)):
                    rate = (received - begun) / _MB / progress.seconds
                    progress.show(_megabytes(received), f"{rate:.1f} MB/s from {host}")
    if received < size:
        raise _HostError(f"the connection ended after {received:,} of {size:,} bytes")
    return received, _digest(file, received)


def _ask(address: str, begun: int) -> HTTPResponse | None:
    """The answer of the host; None if the file has so many bytes, or fewer."""
    headers = {"User-Agent": f"mdops/{_version()}"} | ({"Range": f"bytes={begun}-"} if begun else {})
    request = urllib.request.Request(address, headers=headers)
    with _of_network():
        try:
            answer: HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            if begun and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return None
            raise
    return answer


def _begins_at(answer: HTTPResponse, begun: int) -> bool:
    """Whether it says that it gives what is behind so many bytes."""
    return answer.headers.get("Content-Range", "").strip().startswith(f"bytes {begun}-")


def _digest(file: Any, size: int) -> str:
    """Of the first bytes, which are all of the file."""
    file.seek(0)
    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(size)
    return found


def _megabytes(size: int) -> int:
    """Begun ones."""
    return -(-size // _MB)


@contextmanager
def _of_network() -> Iterator[None]:
    """Errors of the network as those of the host: others of the system are those of the file."""
    try:
        yield
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None)  # of a URLError, what is the matter
        if isinstance(error, urllib.error.HTTPError):
            reason = f"HTTP status {error.code}, {reason}"
        if isinstance(reason, OSError):
            reason = reason.strerror or reason
        raise _HostError(str(reason or error or type(error).__name__)) from error


def _version() -> str:
    with suppress(PackageNotFoundError):
        return version("mdops")
    return "unknown"
