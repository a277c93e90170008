"""What a library is built from: its configuration, whose digest is its key in the cache."""

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mdops
from mdops.jit.errors import JitError
from mdops.jit.toolchain import Tool

_INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def source_folder() -> Path:
    """The C++ and CUDA sources in the installed package, those of its prebuilt libraries."""
    for folder in mdops.__path__:
        path = Path(folder, "source")
        if path.is_dir():
            return path
    raise JitError("the package has no sources: install mdops again")


@dataclass(frozen=True)
class Recipe:
    """A shared library.

    Attributes:
        name: of the family of kernels, for people.
        folder: of the sources, which includes are relative to.
        sources: to compile, relative to the folder.
        compiler, flags: that compile all of them and link.
        target: what it runs on: a processor, a GPU's architecture.
        about: what else tells it from other libraries of the family, such as a model's sizes.
        compile, link: further flags of the one and of the other.
        flags_of: further flags of a source.
        stand_in: a library that the linker is to find, by name and source, for one that is there when this is loaded.
    """

    name: str
    folder: Path
    sources: tuple[str, ...]
    compiler: Tool
    flags: tuple[str, ...]
    target: str
    about: dict[str, Any]
    compile: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    flags_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stand_in: tuple[str, str] | None = None

    def configuration(self) -> dict[str, Any]:
        """All that the library depends on, as data."""
        return {
            "name": self.name,
            "sources": sources_digest(self.folder, self.sources),
            "compiler": self.compiler.version,
            "flags": [*self.flags, *self.compile, *self.link, {k: list(v) for k, v in self.flags_of.items()}],
            "target": self.target,
            "about": self.about,
        }

    @property
    def key(self) -> str:
        told = json.dumps(self.configuration(), sort_keys=True).encode()
        return f"{self.name}-{hashlib.sha256(told).hexdigest()[:24]}"


def sources_digest(folder: Path, sources: tuple[str, ...]) -> str:
    """A number for the sources and all that they include from the folder."""
    found = hashlib.sha256()
    seen: set[str] = set()
    waiting = list(sources)
    while waiting:
        name = waiting.pop()
        path = folder / name
        if name in seen or not path.is_file():  # another header of the same name may be the compiler's own
            continue
        seen.add(name)
        text = path.read_bytes()
        found.update(f"{name} {len(text)}\n".encode() + text)
        waiting += sorted(m.decode() for m in _INCLUDE.findall(text))
    missing = [name for name in sources if name not in seen]
    if missing:
        raise JitError(f"{folder} has no {missing[0]}: install mdops again")
    return found.hexdigest()
