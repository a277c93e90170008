"""Training on several GPUs beside one: time of a step and the same losses, of se_e2_a and DPA-3 on water.

    python benchmarks/training_gpus.py --inputs examples/water --system deepmd_folder --gpus 1 2 [--json FILE]

`--inputs` is the folder `examples/water` of DeePMD-kit's repository, `--system` a folder of its data; its frames are
repeated to 512, so that every batch size divides their number. Each number of GPUs is a separate `torchrun` with a
process per GPU. Batches have a fixed total size (strong) or size per GPU (weak); efficiency is that of frames/s. Losses
are those of the first steps in float64 with a fixed total size: the largest relative difference from those of one GPU.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine, parser_of

from mdops.train.config.read import parse_config
from mdops.train.loop.distributed import Processes, join_processes, leave_processes
from mdops.train.loop.trainer import Trainer

FRAMES, LOSS_STEPS, LOSS_BATCH = 512, 10, 4
KINDS = {"se_e2_a": "se_e2_a/input_torch.json", "dpa3": "dpa3/input_torch.json"}


def repeated_frames(source: Path, target: Path) -> None:
    """A system of 512 frames, which repeats those of another system's first set."""
    (target / "set.000").mkdir(parents=True)
    for file in source.glob("*.raw"):
        shutil.copy(file, target)
    for file in (source / "set.000").glob("*.npy"):
        rows = np.load(file)
        np.save(target / "set.000" / file.name, rows[np.arange(FRAMES) % len(rows)])


def trainer(inputs: Path, kind: str, system: Path, batch: int, precision: str, device: str) -> Trainer:
    tree: dict[str, Any] = json.loads((inputs / KINDS[kind]).read_text())
    data = {"systems": [str(system)], "batch_size": f"mixed:{batch}"}
    training = {"training_data": data, "numb_steps": 10**6, "disp_freq": 10**6, "save_freq": 10**6}
    tree["training"] |= training | {"seed": 1, "precision": precision}
    for name in ("validation_data", "stat_file"):
        tree["training"].pop(name, None)
    return Trainer(parse_config(tree), tempfile.mkdtemp(), device=device)


def synchronize(training: Trainer) -> None:
    if training.device.type == "cuda":
        torch.cuda.synchronize()
    training.processes.wait()


def step_ms(training: Trainer, *, count: int) -> float:
    """Median time of a step over five rounds of `count` steps."""
    for _ in range(max(5, count)):
        training._advance()
    times = []
    for _ in range(5):
        synchronize(training)
        start = time.perf_counter()
        for _ in range(count):
            training._advance()
        synchronize(training)
        times.append(1e3 * (time.perf_counter() - start) / count)
    return statistics.median(times)


def losses(training: Trainer) -> list[float]:
    """Losses of the whole batch in each step: means over the processes' shares."""
    found = []
    for _ in range(LOSS_STEPS):
        branch = training.branches[""]
        share = branch.share()
        outcome = branch.step(share, training.rate(training.step), 1.0)
        training.step += 1
        found.append(branch.trained(share, outcome)["loss"])
    return found


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """The results of one `torchrun`, in all of its processes."""
    device = str(join_processes(args.device))
    count = Processes.current().count
    found: dict[str, Any] = {"gpus": count, "steps": [], "losses": {}}
    for kind in args.kinds:
        batches = args.batches_dpa3 if kind == "dpa3" else args.batches
        sizes = {(batch, "in all") for batch in batches}
        sizes |= {(batch * count, "a GPU") for batch in batches if count > 1}
        done: dict[int, float] = {}
        for batch, fixed in sorted(sizes):
            if batch < count:
                continue
            if batch not in done:
                training = trainer(args.inputs, kind, args.system, batch, "float32", device)
                done[batch] = step_ms(training, count=max(1, args.steps // (20 if kind == "dpa3" else 1)))
            row = {"kind": kind, "batch": batch, "fixed": fixed, "ms": done[batch]}
            found["steps"].append(row | {"frames/s": 1e3 * batch / done[batch]})
        found["losses"][kind] = losses(trainer(args.inputs, kind, args.system, LOSS_BATCH, "float64", device))
    found["is_first"] = Processes.current().is_first
    leave_processes()
    return found


def largest_difference(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) / abs(a) for a, b in zip(one, other, strict=True))


def report(results: list[dict[str, Any]]) -> None:
    """Adds efficiencies and differences from one GPU, and prints everything."""
    first = {(r["kind"], r["batch"]): r["frames/s"] for r in results[0]["steps"]}
    for result in results:
        gpus = result["gpus"]
        for row in result["steps"]:
            single = row["batch"] if row["fixed"] == "in all" else row["batch"] // gpus
            row["efficiency"] = row["frames/s"] / gpus / first[row["kind"], single]
            print(
                f"{gpus} GPUs  {row['kind']:8} {row['batch']:5} frames (fixed {row['fixed']:6})  {row['ms']:9.3f} ms  "
                f"{row['frames/s']:9.0f} frames/s  efficiency {row['efficiency']:.2f}"
            )
        pairs = {
            kind: largest_difference(results[0]["losses"][kind], own)
            for kind, own in result["losses"].items()
        }
        result["loss_difference"] = pairs
        print(f"{gpus} GPUs  losses differ by {pairs}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--system", type=Path, required=True)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256], help="of se_e2_a")
    parser.add_argument("--batches-dpa3", type=int, nargs="+", default=[4, 8])
    parser.add_argument(
        "--steps", type=int, default=200, help="of se_e2_a in each of five rounds; DPA-3 takes a twentieth"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", help="where the sources are no checkout")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)  # a process of torchrun writes it
    args = parser.parse_args()
    if args.out:
        found = measured(args)
        if found.pop("is_first"):
            args.out.write_text(json.dumps(found))
        return
    results = []
    with tempfile.TemporaryDirectory() as name:
        system, out = Path(name, "water"), Path(name, "out.json")
        repeated_frames(args.system, system)
        for gpus in args.gpus:
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={gpus}",
            ]
            command += [__file__, "--inputs", str(args.inputs), "--system", str(system), "--out", str(out)]
            command += ["--kinds", *args.kinds, "--batches", *map(str, args.batches)]
            command += ["--batches-dpa3", *map(str, args.batches_dpa3)]
            command += ["--steps", str(args.steps), "--device", args.device]
            subprocess.run(command, check=True)
            results.append(json.loads(out.read_text()))
    results.sort(key=lambda result: result["gpus"])
    report(results)
    if args.json:
        args.json.write_text(
            json.dumps({"machine": machine(args.device, args.commit), "runs": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
