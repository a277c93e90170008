"""Loads rebuilt kernels into this process, uses and measures them."""

import ctypes
import statistics
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mdops import _library
from mdops.errors import JitError
from mdops.evaluators.context import EvaluationContext
from mdops.files import cache
from mdops.jit import builder, models
from mdops.jit.sample_box import sample_atoms, sample_elements

PAYS = 0.98  # rebuilt kernels are used automatically if a step takes at most this part of the prebuilt ones' time
_ROUNDS = 25
# Largest allowed differences of forces between rebuilt and prebuilt kernels, which differ in rounding.
_BOUNDS = {"torch.float64": 1e-10, "torch.float32": 1e-4, "bf16x3": 3e-4, "tf32": 3e-3, "bf16": 3e-2}


@dataclass(frozen=True)
class Build:
    """Kernels that were rebuilt for a model.

    Attributes:
        key, path: of the library in the cache.
        prebuilt, rebuilt: the time of a step in the calibration's box with the prebuilt kernels and with these, s.
        used: whether this process uses them now.
    """

    key: str
    path: Path
    prebuilt: float
    rebuilt: float
    used: bool

    @property
    def pays(self) -> bool:
        """Whether they are so much faster that models of these sizes use them automatically."""
        return self.rebuilt <= PAYS * self.prebuilt


_in_use: dict[str, str] = {}  # models.Wanted.place: the key of the kernels in use
_looked_for: set[str] = set()
_warned: set[str] = set()


def build(model: EvaluationContext, *, always: bool = False) -> Build | None:
    """Rebuild the kernels for a model on its device, and use them if they are faster.

    The first call compiles for some seconds (a minute for a GPU), and measures; then both are in the cache. Models of
    the same sizes find them there by themselves.

    Args:
        model: a model of the evaluator `fused`; other models have no such kernels.
        always: use them even if they are not faster.

    Returns:
        The result; None, with one warning that gives the reason, if nothing can be built: then the
        prebuilt kernels are used.
    """
    try:
        return rebuild(model, always=always)
    except JitError as error:
        warn_once(f"{error}. The prebuilt kernels are used")
        return None


def rebuild(model: EvaluationContext, *, always: bool = False) -> Build:
    """As `build`, but raises JitError if nothing can be built."""
    entry = entry_for(model)
    install(model, entry)
    if not entry.calibration:
        entry = cache.keep_calibration(entry, _measure(model, entry.key))
    used = always or _build_of(entry, used=False).pays
    use(model, entry.key, used)
    return _build_of(entry, used=used)


def entry_for(
    model: EvaluationContext, *, architecture: str | None = None, profiler: bool = False
) -> cache.Entry:
    """The entry with a model's kernels, built if necessary. Without a compiler, any that is in the cache.

    Args:
        architecture: of a GPU to build for, such as sm_90, instead of the model's device.
        profiler: build with the profiler.

    Raises:
        JitError: nothing can be built.
    """
    kernels = models.wanted(model, architecture)
    try:
        recipe = models.recipe(kernels, profiler=profiler)
    except JitError:
        for entry in cache.find_all(kernels.configuration(profiler)):
            return entry
        raise
    return builder.entry_of(recipe)


def _build_of(entry: cache.Entry, *, used: bool) -> Build:
    told = entry.calibration
    return Build(entry.key, entry.path, told["prebuilt"], told["rebuilt"], used)


def use_cached(model: EvaluationContext) -> None:
    """Uses kernels from the cache that were measured to be faster for such a model; never compiles."""
    if models.why_not(model) is not None:
        return
    kernels = models.wanted(model)
    if kernels.place in _looked_for:
        return
    _looked_for.add(kernels.place)
    if kernels.place in _in_use:
        return
    try:
        if cache.jit_folder(make=False) is None:
            return
        for entry in cache.find_all(kernels.configuration(profiler=False)):
            if entry.calibration and _build_of(entry, used=False).pays:
                install(model, entry)
                use(model, entry.key, True)
                return
    except JitError as error:
        warn_once(f"rebuilt kernels are not used: {error}")


def in_use(model: EvaluationContext) -> str | None:
    """The key of the rebuilt kernels that a model's steps call; None if they call the prebuilt ones."""
    return None if models.why_not(model) is not None else _in_use.get(models.wanted(model).place)


def taken_from_cache(model: EvaluationContext) -> str | None:
    """`in_use`, after a search of the cache."""
    use_cached(model)
    return in_use(model)


def install(model: EvaluationContext, entry: cache.Entry) -> None:
    """Loads a library for the life of the process, without using it yet. Raises JitError if it cannot be loaded."""
    library = _ops_library(model)
    why = ctypes.create_string_buffer(1000)
    path, key = str(entry.path).encode(), entry.key.encode()
    if library.mdops_install_kernels(path, key, why, ctypes.c_int64(len(why))):
        raise JitError(f"rebuilt kernels do not load: {why.value.decode(errors='replace')}")


def use(model: EvaluationContext, key: str, used: bool) -> None:
    """Sets whether the op calls an installed library, instead of any other, for all models of these sizes."""
    place = models.wanted(model).place
    other = _in_use.pop(place, key)
    if other != key and used:
        _switch(model, other, False)
    elif other != key:
        _in_use[place] = other
    _switch(model, key, used)
    if used:
        _in_use[place] = key


def _switch(model: EvaluationContext, key: str, used: bool) -> None:
    if _ops_library(model).mdops_use_kernels(key.encode(), int(used)) < 0:
        raise JitError(f"{key} is not installed")


def _ops_library(model: EvaluationContext) -> ctypes.CDLL:
    name = "libmdops.so" if model.device.type == "cpu" else "libmdops_cuda.so"
    path = _library.library_path(name) if name == "libmdops.so" else _library.cuda_library_path()
    if path is None:
        raise JitError(f"{name} is not in the package")
    return ctypes.CDLL(str(path))


def _measure(model: EvaluationContext, key: str) -> dict[str, Any]:
    """Times steps with and without the kernels, in turns, after a comparison of their results."""
    count = 384 if model.device.type == "cpu" else 12288
    system = model.system_of([sample_atoms(count, sample_elements(model), model)])
    near = model.neighbor_list(system)
    parameters = blank_parameters(model, system.atoms)
    evaluator = model.evaluator()

    def step() -> Any:
        answers, _ = evaluator(system, near, **parameters, check=False)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        return answers

    times: dict[bool, list[float]] = {False: [], True: []}
    answers: dict[bool, Any] = {}
    with torch.no_grad():
        for turn in range(_ROUNDS):
            for rebuilt in (turn % 2 == 0, turn % 2 == 1):
                use(model, key, rebuilt)
                answers[rebuilt] = step()["forces"]
                begin = time.perf_counter()
                step()
                times[rebuilt].append(time.perf_counter() - begin)
    use(model, key, False)
    _refuse_other_answers(
        key, answers[False], answers[True], _BOUNDS.get(model.matmul, _BOUNDS[str(model.dtype)])
    )
    prebuilt = statistics.median(times[False])
    # Ratios of consecutive measurements, because the load of the machine changes.
    ratio = statistics.median(new / old for old, new in zip(times[False], times[True], strict=True))
    return {
        "prebuilt": prebuilt,
        "rebuilt": ratio * prebuilt,
        "atoms": count,
        "threads": torch.get_num_threads(),
    }


def blank_parameters(model: EvaluationContext, count: int) -> dict[str, Any]:
    """Frame and atomic parameters of a system with `count` atoms, all zero, for models that have them."""
    shapes = {"fparam": (1,), "aparam": (count,)}
    sizes = {name: size for name, size in model.parameter_sizes.items() if size}
    return {
        name: torch.zeros((*shapes[name], size), dtype=model.dtype, device=model.device)
        for name, size in sizes.items()
    }


def _refuse_other_answers(key: str, prebuilt: Any, rebuilt: Any, bound: float) -> None:
    """Raises an error if a force differs by more than `bound` times the largest force."""
    error = float((rebuilt - prebuilt).abs().max())
    if not error <= bound * float(prebuilt.abs().max()):
        raise JitError(
            f"{key} is not used, because its forces are off by {error:.1e} eV/A. Report this with the compiler's name"
        )


def warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=3)
