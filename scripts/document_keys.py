"""Writes the tables of keys in docs/reference/training-input.md and learn-input.md from the options.

python scripts/document_keys.py
"""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from mdops.learn.config import keys as learn_keys
from mdops.options import KeyHelp
from mdops.train.config.read import keys

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
KEYS = "## Keys\n"  # the tables are the rest of the page
HEAD = "| key | type | unit | default | meaning |\n|---|---|---|---|---|\n"


def section(key: KeyHelp) -> str:
    return key.path.partition(".")[0]


def tables(found: Iterable[KeyHelp]) -> str:
    """A table for each section of the input."""
    text = ""
    for name, group in groupby(found, section):
        rows = [f"| `{k.path}` | {k.type} | {k.unit} | {k.default} | {k.doc} |\n" for k in group]
        text += f"\n### {name}\n\n{HEAD}{''.join(rows)}"
    return text


def write(page: Path, found: Iterable[KeyHelp]) -> None:
    before, heading, _ = page.read_text().partition(KEYS)
    if not heading:
        raise SystemExit(f"{page} has no heading {KEYS!r}")
    page.write_text(before + heading + tables(found))


if __name__ == "__main__":
    write(REFERENCE / "training-input.md", keys())
    write(REFERENCE / "learn-input.md", learn_keys())
