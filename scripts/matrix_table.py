"""The table of build_matrix.py: a line for each combination, with the commit that it is of, in a file that pieces of
the work can be added to."""

import re
from dataclasses import dataclass, field
from pathlib import Path

_NAME = 56  # columns
_LINE = re.compile(rf"(?P<name>.{{{_NAME}}}) +(?P<time>[\d.]+) s  (?P<of>\S+) +(?P<told>(ok|FAILED).*)")
_SOURCES = re.compile(r"(?P<of>\S+): (?P<words>of .*)")


@dataclass(frozen=True)
class Line:
    """What became of a combination.

    Attributes:
        time: s.
        of: the sources, by a short name.
        told: ok or FAILED, and more, in one or several lines.
    """

    time: float
    of: str
    told: str

    @property
    def failed(self) -> bool:
        return self.told.startswith("FAILED")


@dataclass
class Table:
    """Lines by the combinations' names, and what the short names of sources stand for."""

    lines: dict[str, Line] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Table":
        """What is in the file; nothing if there is none."""
        table, last = cls(), ""
        for line in path.read_text().splitlines() if path.exists() else []:
            if found := _LINE.match(line):
                last = found["name"].strip()
                table.lines[last] = Line(float(found["time"]), found["of"], found["told"])
            elif found := _SOURCES.match(line):
                table.sources[found["of"]] = found["words"]
            elif line.startswith("  ") and last:  # goes on
                one = table.lines[last]
                table.lines[last] = Line(one.time, one.of, f"{one.told}\n{line[2:]}")
        return table

    def text(self, names: list[str], compilers: str) -> str:
        """The file: the lines in the order of the names of all combinations, then others, and what there is to say of
        all."""
        order = [*(name for name in names if name in self.lines), *(n for n in self.lines if n not in names)]
        missing = [" ".join(name.split()) for name in names if name not in self.lines]
        failed = sum(line.failed for line in self.lines.values())
        count = (
            f"{len(order) + len(missing)} combinations, {len(missing)} not run, {failed} failed; {compilers}"
        )
        used = sorted({line.of for line in self.lines.values()})
        return "\n".join(
            [
                *(shown(name, self.lines[name]) for name in order),
                "",
                count,
                *([f"not run: {'; '.join(missing)}"] if missing else []),
                *(f"{of}: {self.sources[of]}" for of in used if of in self.sources),
                "",
            ]
        )


def shown(name: str, line: Line) -> str:
    told = line.told.replace("\n", "\n  ")
    return f"{name:<{_NAME}} {line.time:6.1f} s  {line.of:<9}{told}"
