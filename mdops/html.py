"""One HTML file with everything in it: pictures, table, commands. It needs neither other files nor a network."""

import base64
import platform
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2733; background: #f4f6f8; margin: 0 }
main { max-width: 1080px; margin: auto; padding: 2rem 1rem 4rem }
h1 { margin: 0 0 .3rem; font-size: 1.9rem } h2 { font-size: 1.05rem; margin: 0 0 .6rem }
.top { display: grid; grid-template-columns: 3fr 2fr; gap: 1.2rem; align-items: center }
.card { background: white; border: 1px solid #dfe4ea; border-radius: 10px; padding: 1rem 1.2rem; margin-top: 1.2rem }
img { display: block; width: 100% } table { border-collapse: collapse; width: 100% }
td { padding: .25rem .3rem; border-bottom: 1px solid #eef1f4 }
td:last-child { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
pre { background: #1d2733; color: #e8eef4; padding: 1rem; border-radius: 8px; overflow-x: auto; margin: 0 }
footer { color: #66717d; font-size: .85rem; margin-top: 1.2rem }
@media (max-width: 760px) { .top { grid-template-columns: 1fr } }
"""


def write_page(
    path: Path,
    title: str,
    text: str,
    tables: Mapping[str, Mapping[str, str]],
    figures: Mapping[str, Path],
    commands: Sequence[str],
    footer: str,
    picture: Path | None = None,
) -> None:
    """Writes a page: title and text, a picture beside them if given, a card for each table and figure, commands."""
    top = f"<div><h1>{escape(title)}</h1><p>{escape(text)}</p></div>"
    if picture is not None:
        top = f'<div class="top">{top}{_image(picture, title)}</div>'
    cards = [_card(heading, _table(rows)) for heading, rows in tables.items()]
    cards += [_card(caption, _image(file, caption)) for caption, file in figures.items()]
    inside = "\n".join([top, *cards, _card("Next", f"<pre>{escape(chr(10).join(commands))}</pre>")])
    path.write_text(
        f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body><main>
{inside}
<footer>{escape(footer)}</footer>
</main></body>
</html>
""",
        encoding="utf-8",
    )


def processor() -> str:
    """The processor's name and the versions of mdops and Python, for the foot of a page."""
    names = [
        line.partition(":")[2].strip()
        for file in (Path("/proc/cpuinfo"),)
        if file.is_file()
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}; mdops {version('mdops')}, Python {platform.python_version()}"


def _table(rows: Mapping[str, str]) -> str:
    lines = "\n".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in rows.items())
    return f"<table>{lines}</table>"


def _card(heading: str, inside: str) -> str:
    return f'<section class="card"><h2>{escape(heading)}</h2>{inside}</section>'


def _image(file: Path, caption: str) -> str:
    data = base64.b64encode(file.read_bytes()).decode()
    return f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
