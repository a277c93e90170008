"""Writes the table of public names in docs/reference/public.md from the `__all__` of the modules.

.venv/bin/python scripts/document_public.py
"""

import importlib
from pathlib import Path

from build_docs import public_modules

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "public.md"


def main() -> None:
    rows = []
    for module in public_modules():
        names = sorted(importlib.import_module(module).__all__, key=str.lower)
        rows.append(f"| `{module}` | " + ", ".join(f"`{name}`" for name in names) + " |")
    text = PAGE.read_text()
    start = text.index("| `mdops` |")
    PAGE.write_text(text[:start] + "\n".join(rows) + text[text.index("\n\n", start) :])


if __name__ == "__main__":
    main()
