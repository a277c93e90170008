"""A library that is built at once, and compilers that misbehave."""

import stat
from pathlib import Path

from mdops.jit import toolchain
from mdops.jit.recipe import Recipe
from mdops.jit.toolchain import Tool

SOURCE = '#include "answer.h"\nextern "C" int answer() { return ANSWER; }\n'


def tiny(folder: Path, *, compiler: Tool | None = None, answer: int = 42, **changes) -> Recipe:
    """The recipe of a library with one function; what it needs is written into the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "answer.cpp").write_text(SOURCE)
    (folder / "answer.h").write_text(f"#define ANSWER {answer}\n")
    (folder / "other.h").write_text("nothing that it includes\n")
    parts = {
        "name": "tiny",
        "folder": folder,
        "sources": ("answer.cpp",),
        "compiler": compiler or toolchain.host_compiler(),
        "flags": ("-fPIC", "-O0"),
        "target": "this machine",
        "about": {"answer": answer},
    }
    return Recipe(**{**parts, **changes})


def compiler_that(folder: Path, does: str) -> Tool:
    """A shell script that first does something, then compiles; it notes each call in calls.txt."""
    path = folder / "compiler"
    real = toolchain.host_compiler().path
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls.txt\n{does}\nexec {real} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Tool(str(path), "a compiler of the tests")


def calls(folder: Path) -> int:
    told = folder / "calls.txt"
    return len(told.read_text().splitlines()) if told.exists() else 0
