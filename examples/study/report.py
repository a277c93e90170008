"""One HTML file with everything in it: pictures, table, commands. It needs no other file and no network."""

import base64
import platform
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import torch

import mdops

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


def write_report(
    path: Path,
    title: str,
    text: str,
    picture: Path,
    table: Mapping[str, str],
    figures: Mapping[str, Path],
    commands: Sequence[str],
) -> None:
    """Writes the report: title and text beside the picture, the table, a card for each figure, and commands."""
    rows = "\n".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in table.items())
    cards = "\n".join(_card(caption, _image(file, caption)) for caption, file in figures.items())
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
<div class="top">
<div><h1>{escape(title)}</h1><p>{escape(text)}</p></div>
{_image(picture, "the structure at the end of the dynamics")}
</div>
{_card("Figures", f"<table>{rows}</table>")}
{cards}
{_card("Next", f"<pre>{escape(chr(10).join(commands))}</pre>")}
<footer>{escape(machine())}</footer>
</main></body>
</html>
""",
        encoding="utf-8",
    )


def machine() -> str:
    """What the times were measured on."""
    names = [
        line.partition(":")[2].strip()
        for file in (Path("/proc/cpuinfo"),)
        if file.is_file()
        for line in file.read_text().splitlines()
        if line.startswith("model name")
    ]
    processor = names[0] if names else platform.processor() or platform.machine()
    versions = f"mdops {mdops.__version__}, PyTorch {torch.__version__}, Python {platform.python_version()}"
    return f"{processor}, {torch.get_num_threads()} threads; {versions}"


def _card(heading: str, inside: str) -> str:
    return f'<section class="card"><h2>{escape(heading)}</h2>{inside}</section>'


def _image(file: Path, caption: str) -> str:
    data = base64.b64encode(file.read_bytes()).decode()
    return f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
