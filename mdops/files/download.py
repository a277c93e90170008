"""Downloads of published models."""

import glob
import hashlib
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO
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

    Where several processes download the same file, one does it, and the others wait for it. A download that is killed
    may leave a hidden file beside the other, which the next one removes.

    Args:
        name: of `PUBLISHED`.
        to: the file; its folder must be there.

    Raises:
        DownloadError: no host gives the file, or it cannot be written.
    """
    try:
        with waiting(to.with_name(f".{to.name}.lock"), remove=True) as locks:
            if locks:
                for left in to.parent.glob(f".{glob.escape(to.name)}.*.part"):
                    left.unlink(missing_ok=True)
            if is_whole(name, to):
                return
            part = f".{to.name}.{socket.gethostname()}.{os.getpid()}.part"
            with replacing(to, beside=part) as file:
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
        file.seek(0)
        file.truncate()
    raise DownloadError(
        f"{name} cannot be downloaded ({'; '.join(failures)}). If this machine has no network, download "
        f"{addresses(name)[0]} on another one, and copy it to {to}"
    )


def _receive(address: str, file: BinaryIO, digest: str) -> None:
    """Writes what the address gives to the file."""
    host = urlsplit(address).netloc
    request = urllib.request.Request(address, headers={"User-Agent": f"mdops/{_version()}"})
    with _of_network():
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    found, received = hashlib.sha256(), 0
    with answer:
        told = answer.headers.get("Content-Length", "")
        size = int(told) if told.isdigit() else 0
        with StepProgress(0, max(_megabytes(size), 1), "MB") as progress:
            while True:
                with _of_network():
                    data = answer.read(_MB)
                if not data:
                    break
                file.write(data)
                found.update(data)
                received += len(data)
                if size and progress.is_due(_megabytes(received)):
                    rate = received / _MB / progress.seconds
                    progress.show(_megabytes(received), f"{rate:.1f} MB/s from {host}")
    if received < size:
        raise _HostError(f"the connection ended after {received:,} of {size:,} bytes")
    if found.hexdigest() != digest:
        raise _HostError(
            f"it gives another file ({received:,} bytes, SHA-256 {found.hexdigest()}, expected {digest})"
        )


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
