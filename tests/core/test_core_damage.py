"""Damaged and made-up model files: the core refuses them, or answers as before, and goes on. `python
tests/core/test_core_damage.py COUNT` does the same with more files."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_library import DIPOLES, WHOLE, CoreError, Model
from safetensors import safe_open

import mdops
from mdops.io.read import read_model
from mdops.io.safetensors_file import encode_safetensors

ROOT = Path(__file__).parents[2]
POSITIONS = np.random.default_rng(0).uniform(0, 7, (24, 3))
TYPES = np.arange(24) % 2
FLIPS, FORGERIES = 400, 400
# One descriptor, a blend of a model and a table, angles beside sums, attention, and dipoles.
OF_DIPOLES = "outputs/dipole_water.dp"
CASES = (
    "reference/base",
    "reference_kinds/zbl_excluded",
    "reference_kinds/hybrid_r_t",
    "reference_kinds/se_atten_v2_davg_zero",
    OF_DIPOLES,
)


def answer(path: Path, precision: str, part: int) -> float | None:
    """The energy, or None for a file that is refused; whatever else happens ends the test, or the process."""
    try:
        model = Model(path, precision, overflow=1, part=part)
        if model.info().ntypes != 2 or model.info().fparam or model.info().aparam:
            return 0.0
        return model.compute(POSITIONS, TYPES, field=POSITIONS if part == DIPOLES else None)["energy"]
    except CoreError as error:
        assert str(error).startswith("mdops: ") and error.status < 6, error
        return None


def flipped(data: bytes, draw: random.Random) -> bytes:
    """Bits changed, bytes inserted or left out, or the end cut off."""
    kind, place = draw.randrange(4), draw.randrange(min(len(data), draw.choice([16, 4000, len(data)])))
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + draw.randbytes(draw.randrange(1, 9)) + data[place:]
    if kind == 2:
        return data[:place] + data[place + draw.randrange(1, 9) :]
    return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]


def parts_of(about: Any) -> Iterator[dict[str, Any]]:
    """The description, and what it has of descriptions in it."""
    if isinstance(about, dict):
        yield about
    for inner in about.values() if isinstance(about, dict) else about if isinstance(about, list) else ():
        yield from parts_of(inner)


def forged(arrays: dict[str, np.ndarray], draw: random.Random) -> dict[str, np.ndarray]:
    """The core's arrays with one of them changed: its numbers, its shape, its type, or a value of the description."""
    arrays = dict(arrays)
    name = draw.choice(sorted(arrays))
    if draw.random() < 0.5 or name == "core.description":
        name, whole = "core.description", json.loads(bytes(arrays["core.description"]))
        about = draw.choice(list(parts_of(whole)))
        key = draw.choice(sorted(about))
        about[key] = draw.choice(
            [
                0,
                1,
                -1,
                2,
                3,
                255,
                256,
                2**31,
                2**40,
                1e300,
                -0.5,
                True,
                False,
                None,
                "",
                "O",
                [],
                [True],
                [1],
                {},
            ]
            + [about[k] for k in sorted(about)]
        )
        if draw.random() < 0.2:
            del about[key]
        arrays[name] = np.frombuffer(json.dumps(whole).encode(), np.uint8)
        return arrays
    array = arrays[name].copy()
    kind = draw.randrange(5)
    if kind == 0 and array.size:
        array.flat[draw.randrange(array.size)] = draw.choice([0, 1, 77])
        if array.dtype.kind == "f":
            array.flat[draw.randrange(array.size)] = draw.choice([np.nan, np.inf, 1e30, -1e30, 0])
    elif kind == 1:
        array = array.reshape(array.shape[::-1])
    elif kind == 2:
        array = array.astype(draw.choice(["float32", "float64", "int32", "int64", "uint8", "bool"]))
    elif kind == 3:
        array = array[: draw.randrange(len(array) + 1)] if array.ndim else array
    else:
        array = np.concatenate([array, array], draw.randrange(array.ndim)) if array.ndim else array
    arrays[name] = np.ascontiguousarray(array)
    if draw.random() < 0.1:
        del arrays[name]
    return arrays


def attack(folder: Path, flips: int, forgeries: int, seed: int) -> tuple[int, int]:
    """How many files were refused, of how many: as many of each case."""
    done = np.zeros(2, int)
    for k, case in enumerate(CASES):
        done += attack_one(case, folder, flips // len(CASES), forgeries // len(CASES), seed + k)
    return int(done[0]), int(done[1])


def attack_one(case: str, folder: Path, flips: int, forgeries: int, seed: int) -> tuple[int, int]:
    draw = random.Random(seed)
    good, bad = folder / "good.safetensors", folder / "bad.safetensors"
    part = DIPOLES if case == OF_DIPOLES else WHOLE
    path = ROOT / "tests/data" / (case if case == OF_DIPOLES else f"{case}/model.dp")
    mdops.load(path, dtype="float64").save(good, core=["float32", "float64"])
    data, model = good.read_bytes(), read_model(good)
    wanted = {precision: answer(good, precision, part) for precision in ("float32", "float64")}
    assert None not in wanted.values()
    refused = 0
    for _ in range(flips):
        precision = draw.choice(list(wanted))
        bad.write_bytes(flipped(data, draw))
        got = answer(bad, precision, part)
        assert got is None or got == wanted[precision], "a changed file answers as before, or is refused"
        refused += got is None
    with safe_open(good, framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys() if name.startswith("core.")}  # noqa: SIM118
    for _ in range(forgeries):
        bad.write_bytes(encode_safetensors(model.model, model.source, forged(arrays, draw)))
        refused += answer(bad, draw.choice(list(wanted)), part) is None
    return refused, flips + forgeries


def test_damaged_and_made_up_files(tmp_path):
    """In a process of their own, which a crash would end."""
    from children import python

    done = python(__file__, FLIPS, FORGERIES, 1, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    refused, count = map(int, done.stdout.split())
    assert count == FLIPS + FORGERIES and refused > 0.6 * count


if __name__ == "__main__":
    print(*attack(Path(sys.argv[4]), *map(int, sys.argv[1:4])))


pytestmark = pytest.mark.timeout(300)
