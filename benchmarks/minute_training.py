"""A minute of training of each of DeePMD-kit's example inputs, with mdops and with DeePMD-kit, all at once.

    python benchmarks/minute_training.py PYTHON_WITH_DEEPMD --inputs examples/water --data water [--device cuda]
        [--seconds 60] [--json FILE]

`--inputs` is the folder `examples/water` of DeePMD-kit's repository, `--data` that of its systems data_0 to data_3.
Both programs get the same input: the example's with fewer steps, in which its learning rates fall to their ends. Both
are stopped after --seconds, including the start. Errors are from the programs' own learning curves for the validation
system, geometric means over the last five points: at the last step that both reached, and at mdops' last step.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine

from mdops.train.report.learning_curve import read_curve

# With about as many steps as mdops makes in a minute on a shared H100.
INPUTS = {
    "se_e2_a/input.json": 12000,
    "se_e2_r/input.json": 12000,
    "se_e3/input.json": 6000,
    "se_e3_tebd/input_torch.json": 4000,
    "hybrid/input.json": 6000,
    "zbl/input.json": 4000,
    "linear/input_pt.json": 4000,
    "se_atten/input.json": 2000,
}
EVERY, POINTS = 50, 5
PLACES = [46, 92]  # for inputs that leave them to the data, because DeePMD-kit takes long to count


def start(program: str, python: str, source: Path, steps: int, folder: Path, device: str) -> subprocess.Popen:
    """A training with an input in its own folder."""
    shutil.copytree(source.parent, folder, ignore=shutil.ignore_patterns("*.json"))
    tree = json.loads(source.read_text())
    training, descriptor = tree["training"], tree["model"].get("descriptor", {})
    if descriptor.get("sel") == "auto":
        descriptor["sel"] = PLACES
    training.pop("num_epoch", None)
    training |= {"numb_steps": steps, "disp_freq": EVERY, "save_freq": 10 * steps}
    (folder / "input.json").write_text(json.dumps(tree, indent=1))
    command = [sys.executable, "-m", "mdops", "train", "--device", device]
    if program == "deepmd":
        command = [python, "-m", "deepmd", "--pt", "train", "--skip-neighbor-stat"]
    names = ("OMP_NUM_THREADS", "DP_INTRA_OP_PARALLELISM_THREADS", "DP_INTER_OP_PARALLELISM_THREADS")
    gpus = {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            [*command, "input.json"], cwd=folder, stdout=log, stderr=log, start_new_session=True,
            env=os.environ | dict.fromkeys(names, "1") | {"NUM_WORKERS": "0"} | gpus,
        )  # fmt: skip


def errors_at(curve: dict[str, np.ndarray], step: float) -> dict[str, float]:
    """Mean errors of the last points up to a step."""
    rows = np.flatnonzero(curve["step"] <= step)[-POINTS:]
    names = {"energy, eV/atom": "rmse_e_val", "forces, eV/A": "rmse_f_val"}
    return {
        name: float(f"{np.exp(np.mean(np.log(curve[key][rows]))):.4g}")
        for name, key in names.items()
        if key in curve
    }


def curve_of(folder: Path) -> dict[str, np.ndarray] | None:
    """The learning curve of a training; None if there is none yet."""
    with contextlib.suppress(Exception):  # the last line may be incomplete
        curve = read_curve(folder / "lcurve.out")
        return curve if len(curve["step"]) else None
    return None


def result_of(curves: dict[str, dict[str, np.ndarray] | None]) -> dict[str, Any]:
    own, other = curves["mdops"], curves["deepmd"]
    found: dict[str, Any] = {
        p: None if c is None else {"steps": int(c["step"][-1])} for p, c in curves.items()
    }
    if own is not None:
        found["mdops"]["errors"] = errors_at(own, own["step"][-1])
    if own is not None and other is not None:
        both = min(own["step"][-1], other["step"][-1])
        found["at the same step"] = {
            "step": int(both), "mdops": errors_at(own, both), "deepmd": errors_at(other, both)
        }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python")
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--names", nargs="+", default=[*INPUTS])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the trainings
    with tempfile.TemporaryDirectory() as name:
        work, python = Path(name), os.path.abspath(args.python)
        (work / "data").symlink_to(args.data.resolve())
        runs = {}
        begin = time.perf_counter()
        for path in args.names:
            for program in ("mdops", "deepmd"):
                folder = work / f"{path.replace('/', '-')}-{program}"
                process = start(
                    program, python, args.inputs.resolve() / path, INPUTS[path], folder, args.device
                )
                runs[path, program] = folder, process
        try:
            time.sleep(max(0.0, args.seconds - (time.perf_counter() - begin)))
        finally:
            for _, process in runs.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        results = {}
        for path in args.names:
            curves = {program: curve_of(runs[path, program][0]) for program in ("mdops", "deepmd")}
            results[path] = result_of(curves)
            for program, curve in curves.items():
                if curve is None:
                    log = (runs[path, program][0] / "log").read_text().strip().splitlines()
                    results[path][program] = f"nothing yet: {log[-1][:200] if log else ''}"
            print(path, json.dumps(results[path]), flush=True)
    if args.json:
        head = {"machine": machine(args.device), "seconds": args.seconds}
        args.json.write_text(json.dumps({**head, "inputs": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
