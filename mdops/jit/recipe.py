"""The configuration of a library; its digest is the library's key in the cache."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mdops.files.package import sources_digest
from mdops.jit.toolchain import Tool


@dataclass(frozen=True)
class Recipe:
    """A shared library.

    Attributes:
        name: of the family of kernels, for people.
        folder: of the sources; includes are relative to it.
        sources: the files to compile, relative to the folder.
        compiler, flags: of all compilations and of the link.
        target: a processor, or a GPU's architecture.
        about: what else distinguishes it from other libraries of the family, such as a model's sizes.
        compile, link: further flags of compilations, and of the link.
        flags_of: further flags of a source.
        stand_in: name and source of a library for the linker, in place of one that is present when this is loaded.
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
        """Everything on which the library depends, as data."""
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
