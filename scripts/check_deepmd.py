"""Checks with DeePMD-kit that it can use models that mdops writes.

    python scripts/check_deepmd.py PYTHON_WITH_DEEPMD [--out benchmarks/results/deepmd_interchange.json]

Each reference model (tests/data/reference, tests/data/checkpoints, ../shared/reference if it exists), and one
that `mdops train` makes here, is written as .dp and .yaml. DeePMD-kit, in a process of the given Python, evaluates both
files, loads the .dp into PyTorch, freezes it to .pth (`dp convert-backend`), compresses that (`dp --pt compress`), and
does the same with its own original. The script compares

- energies of the two files, from the NumPy backend, with those of the original,
- energies, forces and virials of the loaded, frozen and compressed model with those of the original, treated equally,
- those of the loaded and the frozen model with the results in systems.npz (for the trained model: mdops' own),
- the tree of the frozen model, as mdops reads it, with the written tree.

All must agree to 1e-10 of the largest value, or to 1e-5 for models that compute in float32 and results of another
machine.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from machine import machine  # noqa: E402

import mdops  # noqa: E402
from mdops.cli import main as mdops_command  # noqa: E402
from mdops.io import describe, read_model, write_model  # noqa: E402

LIMIT, SINGLE_LIMIT = 1e-10, 1e-5
MIN_DISTANCE = 0.5  # A; DeePMD-kit needs one to compress a model, and the reference models were not trained
TRAINING_STEPS = 60
# In float32, DeePMD-kit gives forces of tens of eV/A on single atoms, different ones on each machine. The
# same model in float64, and differences of energies, give hundredths.
WRONG_FORCES = ("water_dpa1",)
LARGE = 1_000_000  # bytes; DeePMD-kit needs minutes to read a YAML file of such a model
QUANTITIES = ("energy", "forces", "virial")
# Keys that a PyTorch file does not keep, or of which DeePMD-kit accepts one value only (docs/reference/formats.md).
NOT_IN_PYTORCH = ("vdata", "rmax", "smin_alpha", "fitting.exclude_types")
VERSIONS = """
import json, deepmd, torch, numpy, h5py
print(json.dumps({"deepmd-kit": deepmd.__version__, "torch": torch.__version__, "numpy": numpy.__version__,
                  "h5py": h5py.__version__}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="a Python with deepmd-kit and its PyTorch backend")
    parser.add_argument("--out", type=Path, help="write the result here, as JSON")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="more reference models")
    parser.add_argument("--cases", nargs="+", help="only cases whose name has one of these words")
    args = parser.parse_args()
    here = machine() | {"python": platform.python_version()}
    with tempfile.TemporaryDirectory() as name:
        jobs = [
            job
            for job in cases(args.shared, Path(name))
            if not args.cases or any(word in job["name"] for word in args.cases)
        ]
        paths = [prepare(job, Path(name)) for job in jobs]
        versions = ask(args.python, "-c", VERSIONS)
        worker = [args.python, ROOT / "scripts/deepmd_answers.py", *paths]
        done = subprocess.run(worker, stderr=subprocess.PIPE, text=True, env=environment())
        if done.returncode:
            raise SystemExit(f"DeePMD-kit's process failed:\n{done.stderr[-3000:]}")
        rows = [compare(job) for job in jobs]
    failed = [row["name"] for row in rows if row["failed"]]
    result = {
        "machine": here,
        "deepmd": json.loads(versions.splitlines()[-1]),
        "limits": {"float64": LIMIT, "float32": SINGLE_LIMIT},
        "summary": summary(rows),
        "cases": rows,
    }
    if args.out:
        lines = [json.dumps(row) for row in rows]
        head = json.dumps({key: value for key, value in result.items() if key != "cases"}, indent=1)
        args.out.write_text(head[:-2] + ',\n "cases": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n")
    print(json.dumps(result["summary"], indent=1))
    print(f"failed: {', '.join(failed)}" if failed else "all agree")
    return 1 if failed else 0


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def ask(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment()).stdout


def cases(shared: Path, folder: Path) -> list[dict[str, Any]]:
    """Name, file to convert, DeePMD-kit's original, systems with (or without) results, folder of pair tables."""
    found = []
    folders = {
        path.name: path for path in (*(shared / "reference").glob("*"), *ROOT.glob("tests/data/reference/*"))
    }
    for _, path in sorted(folders.items()):
        if (path / "systems.npz").exists():
            original = path / "model.dp"
            found.append(case(path.name, original, original, path / "systems.npz", path))
    for path in sorted((ROOT / "tests/data/checkpoints").glob("*.pt*")):
        if (
            path.stem == "dpa4c"
        ):  # DeePMD-kit's PyTorch code lacks it, and its NumPy code makes 999,999 places per atom
            continue
        original = path.with_suffix(".dp")
        found.append(
            case(f"checkpoint {path.name}", path, original, random_systems(original, folder), folder)
        )
    formats = ROOT / "tests/data/formats"
    found += [
        case(f"trained {name}", formats / name, formats / "model.dp", formats / "systems.npz", folder)
        for name in ("model.pth", "model.ckpt.pt")
    ]
    write_table(folder / "pair_table.txt")
    return [*found, train(folder)]


def case(name: str, path: Path, original: Path | None, systems: Path, tables: Path) -> dict[str, Any]:
    return {"name": name, "input": path, "original": original, "systems": systems, "tables": tables}


def write_table(path: Path) -> None:
    """The pair table of tests/data/make_checkpoints.py: DeePMD-kit needs the file to rebuild a frozen model."""
    distance = 0.3 * np.arange(1, 16)
    energy = np.array([[9.0], [5.0], [2.0]]) * np.exp(-distance) / distance
    np.savetxt(path, np.vstack([distance, energy]).T)


def random_systems(original: Path, folder: Path) -> Path:
    """Sixteen atoms in a box, without results: these come from DeePMD-kit's original."""
    rng = np.random.default_rng(4)
    fitting = read_model(original).model.get("fitting", {})
    grid = np.stack(np.meshgrid(*[np.arange(n) for n in (4, 2, 2)], indexing="ij"), -1).reshape(-1, 3)
    arrays = {
        "box/types": rng.integers(0, 2, 16),
        "box/positions": (grid * 2.0 + rng.uniform(-0.3, 0.3, (1, 16, 3))),
        "box/cell": np.diag([8.0, 4.0, 4.0])[None],
    }
    for name, shape in (("fparam", (1,)), ("aparam", (1, 16))):
        if fitting.get(f"numb_{name}"):
            arrays[f"box/{name}"] = rng.normal(size=(*shape, fitting[f"numb_{name}"]))
    path = folder / f"{original.stem}.npz"
    np.savez(path, **arrays)
    return path


def train(folder: Path) -> dict[str, Any]:
    """A model of `mdops train`, with mdops' own results."""
    config = json.loads((ROOT / "tests/data/training/emt.json").read_text())
    config["training"]["training_data"]["systems"] = [str(ROOT / "tests/data/training/emt")]
    config["training"] |= {"numb_steps": TRAINING_STEPS, "save_freq": TRAINING_STEPS}
    (folder / "input.json").write_text(json.dumps(config))
    if mdops_command(["train", str(folder / "input.json"), "--output", str(folder / "training")]):
        raise SystemExit("the training failed")
    path = folder / "training" / "model.safetensors"
    potential = mdops.load(path, dtype="float64", spline=False)
    data = ROOT / "tests/data/training/emt"
    frames = np.load(data / "set.000/coord.npy")[:3].reshape(3, -1, 3)
    cells = np.load(data / "set.000/box.npy")[:3].reshape(3, 3, 3)
    types = np.loadtxt(data / "type.raw", dtype=int)
    from ase import Atoms

    symbols = [potential.type_map[t] for t in types]
    atoms = [
        Atoms(symbols, positions=x, cell=c, pbc=True)
        for x, c in zip(frames.astype(float), cells.astype(float), strict=True)
    ]
    answers = potential.compute(atoms)
    np.savez(
        folder / "training.npz",
        **{
            "alloy/types": types,
            "alloy/positions": frames.astype(float),
            "alloy/cell": cells.astype(float),
            "alloy/energy": answers["energy"].reshape(3, 1),
            "alloy/forces": answers["forces"].reshape(3, -1, 3),
            "alloy/virial": answers["virial"],
        },
    )
    return case("mdops train", path, None, folder / "training.npz", folder)


def prepare(job: dict[str, Any], folder: Path) -> Path:
    """Converts the model, and writes the job for DeePMD-kit."""
    job["folder"] = folder / job["name"].replace(" ", "_")
    job["folder"].mkdir()
    suffixes = ("dp", "yaml") if job["input"].stat().st_size < LARGE else ("dp",)
    written = {suffix: job["folder"] / f"model.{suffix}" for suffix in suffixes}
    file = read_model(job["input"])
    job["distance"] = file.source.setdefault("min_nbor_dist", MIN_DISTANCE)
    for path in written.values():
        write_model(path, file.model, file.source)
    work = {
        "original": None if job["original"] is None else str(job["original"].resolve()),
        "written": {suffix: str(path) for suffix, path in written.items()},
        "systems": str(job["systems"].resolve()),
        "tables": str(job["tables"].resolve()),
        "min_nbor_dist": job["distance"],
        "folder": str(job["folder"]),
    }
    (job["folder"] / "job.json").write_text(json.dumps(work))
    return job["folder"] / "job.json"


def compare(job: dict[str, Any]) -> dict[str, Any]:
    """A row of the result. If DeePMD-kit fails with the original, too, this is noted and is not a failure."""
    folder, tree = job["folder"], read_model(job["input"]).model
    problems = json.loads((folder / "problems.json").read_text())
    row: dict[str, Any] = {"name": job["name"], "kind": str(describe(tree)), "cannot": {}, "failed": {}}

    def check(name: str, found: str, wanted: str | Path, limit: float, quantities: tuple[str, ...]) -> None:
        if found in problems and (job["original"] is None or wanted in problems):
            row["cannot"][found.removeprefix("written_")] = problems[found]
            return
        row[name] = difference(folder, found, wanted, quantities)
        if not row[name] <= limit:
            row["failed"][name] = problems.get(found, row[name])

    answers_limit = SINGLE_LIMIT if "float32" in str(tree) else LIMIT
    answers = ("energy",) if job["name"] in WRONG_FORCES else QUANTITIES
    with np.load(job["systems"]) as arrays:
        has_answers = any(key.endswith("/energy") for key in arrays)
    for suffix in ("dp", "yaml"):
        if (folder / f"model.{suffix}").exists():
            wanted = job["systems"] if job["original"] is None else "numpy_original"
            check(f".{suffix} by NumPy", f"numpy_{suffix}", wanted, LIMIT, ("energy",))
    for way in ("loaded", "frozen", "compressed"):
        found = f"written_{way}"
        if job["original"] is not None:
            check(f"{way}, to original", found, f"original_{way}", LIMIT, QUANTITIES)
        if has_answers and way != "compressed" and found not in problems:
            check(f"{way}, to answers", found, job["systems"], answers_limit, answers)
    if "written_compressed" not in problems:
        row["compressed, to frozen"] = difference(folder, "written_compressed", "written_frozen")
    if "written_frozen" not in problems:
        row["read back"] = read_back(folder / "written_frozen.pth", tree)
        if row["read back"] != "the same":
            row["failed"]["read back"] = row["read back"]
    print(json.dumps(row), flush=True)
    return row


def difference(
    folder: Path, found: str, wanted: str | Path, quantities: tuple[str, ...] = QUANTITIES
) -> float:
    """The largest difference of a quantity relative to its largest value, in any system; infinite if one is missing."""
    paths = [folder / f"{found}.npz", wanted if isinstance(wanted, Path) else folder / f"{wanted}.npz"]
    if not all(path.exists() for path in paths):
        return float("inf")
    worst = 0.0
    with np.load(paths[0]) as first, np.load(paths[1]) as second:
        for key in first:
            if key.split("/")[1] in quantities and key in second:
                largest = np.abs(second[key]).max()
                worst = max(worst, float(np.abs(first[key] - second[key]).max() / (largest or 1.0)))
    return worst


def read_back(path: Path, tree: Any) -> str:
    """Differences between the tree of a frozen model, as mdops reads it, and the written tree."""
    try:
        found = read_model(path).model
    except mdops.errors.MDOpsError as error:
        return str(error).removeprefix(f"{path}: ")
    places = [p for p in differences(found, tree, "model") if not p.endswith(NOT_IN_PYTORCH)]
    return "the same" if not places else f"differs in {', '.join(places[:5])}"


def differences(a: Any, b: Any, place: str) -> list[str]:
    """The places where two trees differ in any bit."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [d for key in a for d in differences(a[key], b[key], f"{place}.{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [
            d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{place}[{i}]")
        ]
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        same = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return [] if same else [place]
    return [] if a == b else [place]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The number of models compared in each way, and the largest difference."""
    found: dict[str, Any] = {"models": len(rows)}
    for name in dict.fromkeys(key for row in rows for key in row if "NumPy" in key or ", to " in key):
        values = [row[name] for row in rows if name in row]
        found[name] = {"models": len(values), "largest": max(values)}
    read = [row["read back"] for row in rows if "read back" in row]
    found["read back the same"] = sum(value == "the same" for value in read)
    return found | {"failed": sum(bool(row["failed"]) for row in rows)}


if __name__ == "__main__":
    raise SystemExit(main())
