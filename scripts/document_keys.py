"""Writes the tables of keys in docs/reference/training-input.md and learn-input.md anew, from the options themselves.

python scripts/document_keys.py
"""

import re
from collections.abc import Iterable
from pathlib import Path

from mdops.learn.config import keys as learn_keys
from mdops.options import KeyHelp
from mdops.train.config.read import keys

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
HEAD = "| key | type | unit | default | meaning |\n|---|---|---|---|---|\n"


def table(found: Iterable[KeyHelp]) -> str:
    """The rows of all keys."""
    rows = [f"| `{k.path}` | {k.type} | {k.unit} | {k.default} | {k.doc} |\n" for k in found]
    return HEAD + "".join(rows)


def write(page: Path, found: Iterable[KeyHelp]) -> None:
    text = page.read_text()
    pattern = re.escape(HEAD) + r"(\|.*\n)+"
    if not re.search(pattern, text):
        raise SystemExit(f"{page} has no table that begins with {HEAD!r}")
    page.write_text(re.sub(pattern, lambda _: table(found), text))


if __name__ == "__main__":
    write(REFERENCE / "training-input.md", keys())
    write(REFERENCE / "learn-input.md", learn_keys())
