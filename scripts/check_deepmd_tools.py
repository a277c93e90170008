"""Compares `DeepPot`, `mdops model-devi`, `neighbor-stat`, `eval-desc` and `change-bias` with DeePMD-kit's own.

    python scripts/check_deepmd_tools.py PYTHON_WITH_DEEPMD [--cases CASE ...] [--json FILE]

For some reference models (tests/data), the script makes a committee of three with shifted weights, and writes their
structures as systems of DeePMD-kit, with labels. DeePMD-kit, in one process of the given Python, computes the same.
Numbers must agree to 1e-9 of the largest, those in text files in all digits but the last; lines without
numbers must be the same. DeePMD-kit 3.2 fails with `--relative_v` for systems of several frames, and with `eval-desc`
for models with parameters: these are left out.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1e-9
CASES = {  # model: the systems of its file that are used
    "reference/se_a_alloy": None,
    "reference/fparam_aparam": None,
    "reference/overflow": None,
    "reference_kinds/dpa1_smooth": ("triclinic", "cluster", "tiny_cell"),
    "reference_kinds/dpa1_attn2": None,
    "reference_kinds/hybrid": None,
}
MODEL_DEVI: dict[str, list[str]] = {
    "plain": [],
    "atomic": ["--atomic"],
    "relative": ["--relative", "0.5", "-f", "10"],
    "error": ["--real_error"],
}
CHANGE_BIAS: dict[str, list[str]] = {"change": ["-m", "change"], "set": ["-m", "set"]}


def main() -> int:
    if "--worker" in sys.argv:
        worker(json.loads(Path(sys.argv[-1]).read_text()))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", help="one that has DeePMD-kit")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--json", type=Path, help="where the largest differences go, beside those that are there"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        jobs = [prepare(case, systems, Path(name)) for case, systems in CASES.items() if case in args.cases]
        job_file = Path(name, "jobs.json")
        job_file.write_text(json.dumps(jobs))
        command = [args.python, __file__, "--worker", str(job_file)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"DeePMD-kit's process failed:\n{done.stderr[-3000:]}")
        failed = 0
        written = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
        for job in jobs:
            found = compare(job)
            written[job["case"]] = {what: float(error) for what, error, _ in found}
            failed += sum(not fine for _, _, fine in found)
            print(job["case"])
            for what, error, fine in found:
                print(f"  {what:<24}{error:>10.2g}  {'' if fine else 'DIFFERS'}")
        print(f"{failed} differ" if failed else "all agree")
        if args.json:
            args.json.write_text(json.dumps(written, indent=1) + "\n")
    return 1 if failed else 0


# -- mdops' side


def prepare(case: str, chosen: tuple[str, ...] | None, folder: Path) -> dict[str, Any]:
    """Models, systems, and mdops' results for them."""
    here = folder / case.replace("/", "_")
    (here / "mdops").mkdir(parents=True)
    (here / "deepmd").mkdir()
    original = ROOT / "tests/data" / case
    models = committee(original / "model.dp", here)
    names = systems(original / "systems.npz", models[0], chosen, here)
    job = {"case": case, "folder": str(here), "models": [str(m) for m in models], "systems": names}
    with np.load(original / "systems.npz") as arrays:
        np.savez(here / "systems.npz", **arrays)
        job["plain"] = not any(key.endswith("param") for key in arrays)
    ours(job)
    return job


def committee(path: Path, folder: Path) -> list[Path]:
    import torch

    import mdops

    paths = []
    for k in range(3):
        model = mdops.load(path, dtype="float64", spline=False)
        generator = torch.Generator().manual_seed(k)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.05 * torch.randn(weight.shape, dtype=weight.dtype, generator=generator)
        paths.append(folder / f"m{k}.dp")
        model.save(paths[-1])
    return paths


def systems(answers: Path, model: Path, chosen: tuple[str, ...] | None, folder: Path) -> list[str]:
    """Folders in DeePMD-kit's format, with labels that differ slightly from the model's results."""
    from mdops.io import read_model

    type_map, names = read_model(model).model["type_map"], []
    with np.load(answers) as file:
        arrays = dict(file)
    for name in dict.fromkeys(key.split("/")[0] for key in arrays):
        if chosen is not None and name not in chosen:
            continue
        own = {key.split("/")[1]: value for key, value in arrays.items() if key.split("/")[0] == name}
        place, frames = folder / "data" / name, len(own["positions"])
        (place / "set.000").mkdir(parents=True)
        np.savetxt(place / "type.raw", own["types"], fmt="%d")
        (place / "type_map.raw").write_text("\n".join(type_map) + "\n")
        if "cell" not in own:
            (place / "nopbc").touch()
        noise = np.random.default_rng(len(names))
        write = {"coord": own["positions"], "fparam": own.get("fparam"), "aparam": own.get("aparam")}
        write["box"] = own.get("cell", np.zeros((frames, 9)))
        for label, key in (("energy", "energy"), ("force", "forces"), ("virial", "virial")):
            write[label] = own[key] + noise.normal(size=own[key].shape)
        for label, value in write.items():
            if value is not None:
                np.save(place / "set.000" / f"{label}.npy", value.reshape(frames, -1))
        names.append(str(place))
    return names


def ours(job: dict[str, Any]) -> None:
    from mdops.cli import main as mdops
    from mdops.deepmd import DeepPot

    here = Path(job["folder"])
    answers(DeepPot(job["models"][0], spline=False), here / "systems.npz", here / "mdops")

    def run(*command: str) -> None:
        if mdops([*command]):
            raise SystemExit(f"mdops {' '.join(command)} failed")

    out = os.dup(1)
    log = os.open(here / "mdops/log", os.O_WRONLY | os.O_CREAT)
    sys.stdout.flush()
    os.dup2(log, 1)
    try:
        data = str(here / "data")
        for name, options in MODEL_DEVI.items():
            target = str(here / f"mdops/{name}.out")
            run("model-devi", "--no-spline", "-m", *job["models"], "-s", data, "-o", target, *options)
        run("neighbor-stat", "-s", data, "-r", "4.0")
        run("neighbor-stat", "-s", data, "-r", "4.0", "--mixed-type")
        run("eval-desc", "-m", job["models"][0], "-s", data, "-o", str(here / "mdops/desc"))
        for name, options in CHANGE_BIAS.items():
            target = str(here / f"mdops/{name}.dp")
            run("change-bias", job["models"][0], "-s", data, "-o", target, *options)
    finally:
        sys.stdout.flush()
        os.dup2(out, 1)


def answers(potential: Any, path: Path, folder: Path) -> None:
    """Results of `eval` of either DeepPot for the systems of a file, with all shapes of its arguments."""
    with np.load(path) as file:
        arrays = dict(file)
    found: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(key.split("/")[0] for key in arrays):
        own = {key.split("/")[1]: value for key, value in arrays.items() if key.split("/")[0] == name}
        f = len(own["positions"])
        cells, extra = own.get("cell"), {k: own[k] for k in ("fparam", "aparam") if k in own}
        flat = own["positions"].reshape(f, -1), None if cells is None else cells.reshape(f, 9)
        first = {key: value[0] for key, value in extra.items()}  # one frame's values, for all frames
        calls = {
            "plain": (*flat, own["types"], False),
            "atomic": (own["positions"], cells, own["types"], True),
        }
        for way, arguments in calls.items():
            result = potential.eval(*arguments, **(extra if way == "plain" else first))
            found |= {f"{name}/{way}/{k}": value for k, value in enumerate(result)}
        mixed = np.tile(own["types"], (f, 1))
        if (mixed >= 0).all():
            mixed[1:] = mixed[1:, ::-1]  # different order of types
        result = potential.eval(*flat, mixed, mixed_type=True, **extra)
        found |= {f"{name}/mixed/{k}": value for k, value in enumerate(result)}
        found[f"{name}/descriptor"] = potential.eval_descriptor(*flat, own["types"], **extra)
    np.savez(folder / "answers.npz", **found)


# -- DeePMD-kit's side


def worker(jobs: list[dict[str, Any]]) -> None:
    import torch
    from deepmd.entrypoints.neighbor_stat import neighbor_stat
    from deepmd.infer import DeepPot
    from deepmd.main import main as dp

    torch._C._jit_set_profiling_executor(False)  # otherwise it compiles every model for every shape
    for job in jobs:
        here = Path(job["folder"])
        frozen = [str(Path(path).with_suffix(".pth")) for path in job["models"]]
        for path, target in zip(job["models"], frozen, strict=True):
            dp(["convert-backend", path, target])
        answers(DeepPot(frozen[0]), here / "systems.npz", here / "deepmd")
        data = str(here / "data")
        for name, options in MODEL_DEVI.items():
            dp(
                [
                    "--pt",
                    "model-devi",
                    "-m",
                    *frozen,
                    "-s",
                    data,
                    "-o",
                    str(here / f"deepmd/{name}.out"),
                    *options,
                ]
            )
        for mixed in (False, True):
            nearest, most = neighbor_stat(
                system=data, rcut=4.0, type_map=None, mixed_type=mixed, backend="pytorch"
            )
            with open(here / "deepmd/log", "a") as log:  # the command's log
                log.write(f"min_nbor_dist: {nearest:f}\nmax_nbor_size: {most!s}\n")
        if job["plain"]:
            dp(
                [
                    "--pt",
                    "eval-desc",
                    "-m",
                    frozen[0],
                    "-s",
                    str(here / "data"),
                    "-o",
                    str(here / "deepmd/desc"),
                ]
            )
        for name, options in CHANGE_BIAS.items():
            target = str(here / f"deepmd/{name}.pth")
            dp(["--pt", "change-bias", frozen[0], "-s", data, "-o", target, *options])
            changed = torch.jit.load(target, map_location="cpu").state_dict()
            keys = ("out_bias", "out_std", "fparam_avg", "fparam_inv_std", "aparam_avg", "aparam_inv_std")
            variables = {
                key: changed[path].numpy().ravel()
                for key in keys
                for path in changed
                if path.endswith("." + key)
            }
            np.savez(here / f"deepmd/{name}.npz", **variables)


# -- Both


def compare(job: dict[str, Any]) -> list[tuple[str, float, bool]]:
    """The compared quantities, the largest error relative to the largest number, and whether it is small enough."""
    here = Path(job["folder"])
    ours, theirs = here / "mdops", here / "deepmd"
    found = []
    with np.load(ours / "answers.npz") as a, np.load(theirs / "answers.npz") as b:
        keys = sorted(b.files)
        errors = [error(a[key], b[key]) if a[key].shape == b[key].shape else np.inf for key in keys]
        found.append(("DeepPot.eval", max(errors), sorted(a.files) == keys and max(errors) < LIMIT))
    for name in MODEL_DEVI:
        off, alike = text_error(*(sections(place / f"{name}.out") for place in (ours, theirs)))
        found.append((f"model-devi {name}", off, alike and off < 2e-6))
    stats = [
        re.findall("(?:min_nbor_dist|max_nbor_size): .*", (p / "log").read_text()) for p in (ours, theirs)
    ]
    found.append(("neighbor-stat", 0.0, stats[0] == stats[1] and len(stats[0]) == 4))
    for path in sorted((theirs / "desc").glob("*.npy")):
        a, b = np.load(ours / "desc" / path.name), np.load(path)
        off = error(a, b) if a.shape == b.shape and a.dtype == b.dtype else np.inf
        found.append((f"eval-desc {path.stem}", off, off < LIMIT))
    for name in CHANGE_BIAS:
        off = bias_error(ours / f"{name}.dp", theirs / f"{name}.npz")
        found.append((f"change-bias {name}", off, off < LIMIT))
    return found


def error(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-6)) if b.size else 0.0


def sections(path: Path) -> str:
    """The tables of a model_devi.out, ordered by system; DeePMD-kit writes them in any order."""
    return "".join(sorted(re.split(r"^(?=# /)", path.read_text(), flags=re.MULTILINE)))


def text_error(a: str, b: str) -> tuple[float, bool]:
    """The largest relative error of a number, and whether everything else is the same, also the numbers' places."""
    number = re.compile(r"-?\d\.\d{6}e[+-]\d\d")
    x, y = (np.array(number.findall(text), dtype=float) for text in (a, b))
    alike = len(x) == len(y) > 0 and number.sub("#", a) == number.sub("#", b)
    return (float((np.abs(x - y) / np.maximum(np.abs(y), 1e-9)).max()) if alike else np.inf), alike


def bias_error(model: Path, variables: Path) -> float:
    import mdops

    inner = mdops.load(model, dtype="float64", spline=False).model
    mine = {"out_bias": inner.out_bias, "out_std": inner.out_std}
    for name in ("fparam", "aparam"):
        if inner.parameter_sizes[name]:
            own = getattr(inner.fitting, name)
            mine |= {f"{name}_avg": own.average, f"{name}_inv_std": own.inverse_deviation}
    with np.load(variables) as file:
        return max(error(value.numpy().ravel(), file[name]) for name, value in mine.items())


if __name__ == "__main__":
    raise SystemExit(main())
