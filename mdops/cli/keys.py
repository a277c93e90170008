"""The keys of an input file as text."""

import shutil
import textwrap
from collections.abc import Iterable

from mdops.options import KeyHelp


def keys_text(keys: Iterable[KeyHelp]) -> list[str]:
    """Lines with all keys, their types, units, defaults and meanings."""
    width, lines = shutil.get_terminal_size().columns - 2, ["keys of INPUT (type, unit; default):"]
    for key in keys:
        unit = f", {key.unit}" if key.unit else ""
        default = key.default if key.default == "required" else f"default {key.default}"
        text = f"{key.doc} ({key.type}{unit}; {default})"
        indent = " " * 6
        lines += [
            f"  {key.path}",
            textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent),
        ]
    return lines
