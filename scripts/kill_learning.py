"""Kills `mdops learn` with SIGKILL at random moments, restarts it each time, and compares with an uninterrupted loop.

python scripts/kill_learning.py FOLDER [--kills 20] [--seconds 20] [--seed 0] [--change JSON] [--json FILE]

The input is a shortened one of examples/learn_alloy.py. Each label on the disk when the loop is killed must
not change, and the final labels of all rounds must have the same bytes.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "learn_alloy.py"
SHORT = {
    "start": {"frames": 20},
    "explore": {"temperatures": [300, 1000], "steps": 60, "interval": 10},
    "students": {"number": 2, "steps": 100, "final_steps": 150},
    "select": {"frames": 8, "fresh": 4},
    "targets": {"forces": 0.001, "frames": 6},
    "budget": {"calls": 50, "rounds": 2},
    "report": {"steps": 0},
}


def start(folder: Path, change: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(EXAMPLE), "--out", str(folder), "--change", change]
    log = (folder.parent / "log").open("ab")
    return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


def labels(folder: Path) -> dict[Path, bytes]:
    """Every label on the disk, as text without the frames' places in files."""
    return {path: path.read_bytes() for path in folder.glob("round-*/labels/*.extxyz")}


def told(folder: Path) -> list[str]:
    """The stages that the loop started, without times."""
    log = folder / "learn.log"
    return [line.partition("  ")[2] for line in log.read_text().splitlines()] if log.exists() else []


def lost(folder: Path, before: dict[Path, bytes]) -> list[Path]:
    """Labels that no longer exist, neither as files nor among those of their round."""
    gone = []
    for path, text in before.items():
        whole = [path.parents[1] / name for name in ("labels.extxyz", "set_aside.extxyz")]
        places = [path, *whole]
        if not any(place.exists() and text in place.read_bytes() for place in places):
            gone.append(path)
    return gone


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, default=20, help="the longest time from its first stage to a kill"
    )
    parser.add_argument("--change", default=json.dumps(SHORT))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    whole, killed = args.folder / "whole", args.folder / "killed"
    if not (whole / "result.json").exists():
        assert start(whole, args.change).wait() == 0
    chance, moments, gone = random.Random(args.seed), list[str](), list[Path]()
    while len(moments) < args.kills:
        lines, known = told(killed), labels(killed)
        process = start(killed, args.change)
        while process.poll() is None and told(killed) == lines:
            time.sleep(0.02)  # until it has started
        time.sleep(args.seconds * chance.random() ** 2)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        moments.append(told(killed)[-1][:60])
        gone += lost(killed, known)
        print(f"kill {len(moments)}: {moments[-1]}", flush=True)
    assert start(killed, args.change).wait() == 0
    files = sorted(path.relative_to(whole) for path in whole.glob("round-*/labels.extxyz"))
    same = [(whole / file).read_bytes() == (killed / file).read_bytes() for file in files]
    answer = {
        "kills": len(moments),
        "labels lost": len(gone),
        "rounds": len(files),
        "rounds with the same labels": sum(same),
        "moments": moments,
    }
    print(json.dumps(answer, indent=1))
    if args.json:
        args.json.write_text(json.dumps(answer, indent=1) + "\n")
    sys.exit(0 if not gone and all(same) else 1)


if __name__ == "__main__":
    main()
