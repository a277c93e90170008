"""Writes the table of the training input's keys in docs/reference/training-input.md anew, from the options themselves.

python scripts/document_keys.py
"""

import re
from pathlib import Path

from mdops.train.config.read import keys

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "training-input.md"
HEAD = "| key | type | unit | default | meaning |\n|---|---|---|---|---|\n"


def table() -> str:
    """The rows of all keys."""
    rows = [f"| `{k.path}` | {k.type} | {k.unit} | {k.default} | {k.doc} |\n" for k in keys()]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    text = PAGE.read_text()
    pattern = re.escape(HEAD) + r"(\|.*\n)+"
    if not re.search(pattern, text):
        raise SystemExit(f"{PAGE} has no table that begins with {HEAD!r}")
    PAGE.write_text(re.sub(pattern, lambda _: table(), text))
