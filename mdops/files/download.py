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
    """A host does not send the file; the message says why."""


def is_whole(name: str, path: Path) -> bool:
    """Whether the file exists and has the digest of the published model. Raises OSError if it cannot be read."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == PUBLISHED[name].digest


def fetch(name: str, to: Path) -> None:
    """Downloads a published model from the first host that sends a file with its digest, and shows the progress on
    stderr. An existing file is replaced in one step, unless it has this digest already.

    If several processes download the same file, one does it, and the others wait. An interrupted download leaves a
    hidden file in the same folder. The next download continues it if the host supports this.

    Args:
        name: a key of `PUBLISHED`.
        to: the file; its folder must exist.

    Raises:
        DownloadError: no host sends the file, or it cannot be written.
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
    """Downloads the address to the file. If the file already has the beginning, only the rest is downloaded."""
    begun = file.seek(0, os.SEEK_END)
    try:
        received, found = _receive_rest(address, file, begun)
        if found != digest and begun:  # the file began with other data
            received, found = _receive_rest(address, file, 0)
    finally:
        file.flush()
    if found != digest:
        file.truncate(0)
        raise _HostError(f"it gives another file ({received:,} bytes, SHA-256 {found}, expected {digest})")


def _receive_rest(address: str, file: BinaryIO, begun: int) -> tuple[int, str]:
    """Keeps the first `begun` bytes of the file and downloads the rest if the host can leave these out, else downloads
    all. Returns the file's size and SHA-256."""
    host = urlsplit(address).netloc
    answer = _ask(address, begun)
    if answer is None:  # no data follow those bytes
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
    """The host's response with the data behind the first `begun` bytes; None if there are none."""
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
    """Whether the response says that its data begin after this number of bytes."""
    return answer.headers.get("Content-Range", "").strip().startswith(f"bytes {begun}-")


def _digest(file: Any, size: int) -> str:
    """The SHA-256 of the file, which has this size. Moves to its end."""
    file.seek(0)
    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(size)
    return found


def _megabytes(size: int) -> int:
    """The size in MB, rounded up."""
    return -(-size // _MB)


@contextmanager
def _of_network() -> Iterator[None]:
    """Turns errors of the network into _HostError. Other OSErrors are about the file."""
    try:
        yield
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None)  # the cause of a URLError
        if isinstance(error, urllib.error.HTTPError):
            reason = f"HTTP status {error.code}, {reason}"
        if isinstance(reason, OSError):
            reason = reason.strerror or reason
        raise _HostError(str(reason or error or type(error).__name__)) from error


def _version() -> str:
    with suppress(PackageNotFoundError):
        return version("mdops")
    return "unknown"
