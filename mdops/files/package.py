"""Where the files of the installed package are."""

import hashlib
import importlib.util
import re
from pathlib import Path

from mdops.errors import JitError

_INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def find(*parts: str) -> Path | None:
    """A file or folder of the package, by the parts of its path; None if it is not there."""
    package = importlib.util.find_spec("mdops")
    folders = package.submodule_search_locations if package is not None else None
    paths = [Path(folder, *parts) for folder in folders or ()]  # an editable install has two
    return next((path for path in paths if path.exists()), None)


def source_folder() -> Path:
    """The C++ and CUDA sources in the installed package, from which its libraries were compiled."""
    path = find("source")
    if path is None:
        raise JitError("the package has no sources: install mdops again")
    return path


def sources_digest(folder: Path, sources: tuple[str, ...]) -> str:
    """The SHA-256 of the sources and of all files of the folder that they include."""
    found = hashlib.sha256()
    seen: set[str] = set()
    waiting = list(sources)
    while waiting:
        name = waiting.pop()
        path = folder / name
        if name in seen or not path.is_file():  # a header that is not here may be the compiler's own
            continue
        seen.add(name)
        text = path.read_bytes()
        found.update(f"{name} {len(text)}\n".encode() + text)
        waiting += sorted(m.decode() for m in _INCLUDE.findall(text))
    missing = [name for name in sources if name not in seen]
    if missing:
        raise JitError(f"{folder} has no {missing[0]}: install mdops again")
    return found.hexdigest()
