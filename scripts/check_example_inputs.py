"""Reads every example input of DeePMD-kit, trains it for some steps, and writes the results into
docs/notes/example-inputs.md.

    python scripts/check_example_inputs.py --examples examples --train 3

`--examples` is the folder of that name in DeePMD-kit's repository, with its data. Every .json file with a section
`training` counts. An input is accepted if mdops reads it unchanged. Each accepted input is then trained by
mdops in its own folder for the given number of steps, with a line of the learning curve for each. Other scripts check
whether it learns the same as DeePMD-kit (`check_training.py`, `check_output_training.py`,
`check_multi_task.py`).
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from mdops.errors import MDOpsError
from mdops.train import read_input

PAGE = Path(__file__).resolve().parents[1] / "docs" / "notes" / "example-inputs.md"
_LENGTH = "numb?_(step|epoch)|stop_batch"  # keys for the length of trainings
_LONGEST = 160
# Inputs that use models of another input's training: the models' names, and that input.
_BEFORE = {
    "water/dplr/train/ener.json": (["dw.pb"], "dw.json"),
    "water/linear/input.json": (["model0.pb", "model1.pb"], "../se_e2_a/input.json"),
}
# Without the errors on all data that the command prints at the end: they take longer than some steps.
_TRAINING = """
import os, sys
from mdops.train import Trainer, read_input
os.makedirs(sys.argv[2])
Trainer(read_input(sys.argv[1]), sys.argv[2]).run()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=Path, required=True, help="DeePMD-kit's folder examples")
    parser.add_argument(
        "--train", type=int, default=3, metavar="STEPS", help="of each input that is accepted"
    )
    parser.add_argument("--seconds", type=float, default=600, help="after which a training is given up")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="these inputs alone; others stay on the page"
    )
    arguments = parser.parse_args()
    root = arguments.examples.resolve()
    paths = [path for path in sorted(root.rglob("*.json")) if is_input(path)]
    head, _, table = PAGE.read_text().partition("<!-- table -->")
    rows = {str(path.relative_to(root)): "" for path in paths}
    rows |= {
        name: text
        for name, text in re.findall(r"^[|] (\S+[.]json) [|] (.*) [|]$", table, re.M)
        if name in rows
    }
    for path in paths:
        name = str(path.relative_to(root))
        if re.search(arguments.only, name):
            refusal = said(path)
            rows[name] = (
                f"refused: {refusal}" if refusal else trained(root, path, arguments.train, arguments.seconds)
            )
            print(name, rows[name], sep=": ", flush=True)
            write(head, rows)
    return int(any(text.startswith("fails") for text in rows.values()))


def write(head: str, rows: dict[str, str]) -> None:
    """Writes the page after each input, because a run may be interrupted."""
    runs = sum(text.startswith("trains") for text in rows.values())
    tried = runs + sum(text.startswith("fails") for text in rows.values())
    accepted = sum(not text.startswith("refused") for text in rows.values())
    count = f"{accepted} of {len(rows)} are accepted; of {tried} of these that were tried, {runs} train."
    lines = [f"| {name} | {text} |\n" for name, text in rows.items()]
    PAGE.write_text(f"{head}<!-- table -->\n\n{count}\n\n| input | |\n|---|---|\n" + "".join(lines))


def is_input(path: Path) -> bool:
    try:
        return "training" in json.loads(path.read_text())
    except ValueError:
        return False


def trained(root: Path, path: Path, steps: int, seconds: float) -> str:
    """The result of a training of `steps` steps: the root of the loss in each step, by branch, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        text = path.read_text()
        names, before = _BEFORE.get(str(path.relative_to(root)), ([], ""))
        if names:
            first = path.parent / before
            problem = _train(first, first.read_text(), f"{folder}/0", steps, seconds)
            if problem:
                return f"fails: {before}: {problem}"
            for name in names:
                text = text.replace(name, f"{folder}/0/model.safetensors")
        problem = _train(path, text, f"{folder}/1", steps, seconds)
        if problem:
            return f"fails: {problem}"
        curves = sorted(Path(folder, "1").rglob("*.out"))
        losses = "; ".join(", ".join(_losses(curve)) for curve in curves)
        return f"trains: {losses or 'no steps, it only combines models'}"


def _train(path: Path, text: str, folder: str, steps: int, seconds: float) -> str:
    """Trains an input with this text at `path`; returns why it failed, or nothing."""
    tree = json.loads(text)
    training = {key: value for key, value in tree["training"].items() if not re.match(_LENGTH, key)}
    steps = 0 if tree["training"].get("numb_steps") == 0 else steps  # the command only combines frozen models
    training |= {"numb_steps": steps, "disp_freq": 1, "save_freq": max(steps, 1), "disp_file": "lcurve.out"}
    rate = tree.get("learning_rate", {})
    if "warmup_steps" in rate:  # which have to fit
        tree["learning_rate"] = {**rate, "warmup_steps": 0}
    given = Path(f"{folder}.json")
    given.write_text(json.dumps({**tree, "training": training}))
    command = [sys.executable, "-c", _TRAINING, str(given), folder]
    try:
        done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"no end after {seconds:g} s"
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1].replace("|", "/")


def _losses(curve: Path) -> list[str]:
    """The second column of a learning curve: the root of the loss on the training's batches."""
    lines = [line.split() for line in curve.read_text().splitlines()]
    names = [name for name in lines[0] if name != "#"]
    return [line[names.index("rmse_trn")] for line in lines[1:] if line[0] != "#"]


def said(path: Path) -> str:
    """Why the input is refused; empty if it is accepted."""
    os.chdir(path.parent)  # paths in the input are relative
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read_input(path.name)
        except MDOpsError as error:
            text = str(error).removeprefix(f"{path.name}: ").partition("; --kinds")[0].replace("|", "/")
            return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return ""


if __name__ == "__main__":
    raise SystemExit(main())
