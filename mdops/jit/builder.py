"""Builds recipes into entries of the cache with ninja, once, even if several processes request the same entry."""

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mdops.errors import JitError
from mdops.files import cache
from mdops.jit import toolchain
from mdops.jit.recipe import Recipe

FORBID, STAND_IN = "MDOPS_JIT", "stand_in.cpp"


def is_forbidden() -> bool:
    """Whether MDOPS_JIT=0 forbids compiling."""
    return os.environ.get(FORBID) == "0"


def find(recipe: Recipe) -> cache.Entry | None:
    """The entry of the cache, if there is a complete one."""
    folder = cache.jit_folder(make=False)
    return None if folder is None else cache.read(folder, recipe.key)


def entry_of(recipe: Recipe) -> cache.Entry:
    """The library of a recipe, built if necessary.

    Raises:
        JitError: it is not in the cache, and compiling is forbidden, there is no compiler, the cache cannot be used, or
            the compiler fails.
    """
    found = find(recipe)
    if found is not None:
        return found
    if is_forbidden():
        raise JitError(f"{FORBID}=0 forbids compiling: {describe(recipe)} would have been built")
    ninja = toolchain.ninja()
    folder = cache.jit_folder(make=True)
    assert folder is not None
    with cache.building(folder, recipe.key):
        found = cache.read(folder, recipe.key)  # built by a process that held the lock before
        if found is not None:
            return found
        with cache.workplace(folder, recipe.key) as place:
            _compile(recipe, ninja, place)
            return cache.publish(place, folder, recipe.key, recipe.configuration())


def describe(recipe: Recipe) -> str:
    about = ", ".join(f"{name} {value}" for name, value in recipe.about.items())
    return f"{recipe.key} ({about}{', ' if about else ''}for {recipe.target} by {recipe.compiler.path})"


def _compile(recipe: Recipe, ninja: toolchain.Tool, place: Path) -> None:
    (place / cache.HOW).write_text(ninja_file(recipe), encoding="utf-8")
    if recipe.stand_in is not None:
        (place / STAND_IN).write_text(recipe.stand_in[1], encoding="utf-8")
    done = subprocess.run(
        [ninja.path, "-C", str(place)], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    log = done.stdout + done.stderr
    if done.returncode != 0 or not (place / cache.LIBRARY).is_file():
        last = [
            line for line in log.splitlines() if "error" in line.lower() or "FAILED" in line
        ] or log.splitlines()
        raise JitError(
            f"{recipe.compiler.path} does not build {describe(recipe)}: {' '.join(last[:3])[:600]}"
        )


def ninja_file(recipe: Recipe) -> str:
    """ninja's file for the library: each source is compiled to an object, and all objects are linked."""
    compiler, link = _escaped([recipe.compiler.path]), recipe.link
    lines = [
        f"flags = {_escaped(recipe.flags)}",
        "of_source =",
        "rule compile",
        f"  command = {compiler} $flags {_escaped([*recipe.compile, f'-I{recipe.folder}'])} $of_source -c $in -o $out",
    ]
    objects = []
    for k, source in enumerate(recipe.sources):
        objects.append(f"{k}.o")
        lines += [f"build {k}.o: compile {_path(recipe.folder / source)}"]
        lines += [f"  of_source = {_escaped(recipe.flags_of[source])}"] if source in recipe.flags_of else []
    needs = ""
    if recipe.stand_in is not None:
        name = recipe.stand_in[0]
        needs, link = f" | lib{name}.so", (*link, "-L.", f"-l{name}")
        lines += ["rule share", f"  command = {compiler} $flags -shared $in -o $out"]
        lines += [f"build lib{name}.so: share {STAND_IN}"]
    lines += [
        "rule link",
        f"  command = {compiler} $flags -shared $in {_escaped(link)} -o $out",
        f"build {cache.LIBRARY}: link {' '.join(objects)}{needs}",
    ]
    return "\n".join(lines) + "\n"


def _escaped(words: Sequence[str]) -> str:
    """Words of a shell command, as the value of a ninja variable."""
    return shlex.join(words).replace("$", "$$")


def _path(path: Path) -> str:
    return str(path).replace("$", "$$").replace(":", "$:").replace(" ", "$ ")
