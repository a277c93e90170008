"""Reads every example input of DeePMD-kit, and writes which are accepted into docs/notes/example-inputs.md.

    python scripts/check_example_inputs.py --examples examples

`--examples` is the folder of that name in DeePMD-kit's repository, with its data. Every .json file with a section
`training` counts. An input is accepted if mdops reads it as it is; what it trains is another question
(`check_training.py`, `check_output_training.py`, `check_multi_task.py`).
"""

import argparse
import json
import os
import warnings
from pathlib import Path

from mdops.errors import MDOpsError
from mdops.train import read_input

PAGE = Path(__file__).resolve().parents[1] / "docs" / "notes" / "example-inputs.md"
_LONGEST = 160


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=Path, required=True, help="DeePMD-kit's folder examples")
    root = parser.parse_args().examples.resolve()
    rows = [(path.relative_to(root), said(path)) for path in sorted(root.rglob("*.json")) if is_input(path)]
    accepted = sum(not text for _, text in rows)
    lines = [f"| {path} | {'refused: ' + text if text else 'accepted'} |" for path, text in rows]
    head = PAGE.read_text().partition("<!-- table -->")[0]
    count = f"{accepted} of {len(rows)} are accepted.\n\n| input | |\n|---|---|\n"
    PAGE.write_text(f"{head}<!-- table -->\n\n{count}" + "\n".join(lines) + "\n")
    print(f"{accepted} of {len(rows)}")
    return 0


def is_input(path: Path) -> bool:
    try:
        return "training" in json.loads(path.read_text())
    except ValueError:
        return False


def said(path: Path) -> str:
    """Why it is refused; empty if it is not."""
    os.chdir(path.parent)  # its paths are relative
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
