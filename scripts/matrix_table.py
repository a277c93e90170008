"""The table of build_matrix.py: a line for each combination, with its commit, in a file that can be extended in
several runs."""

import re
from dataclasses import dataclass, field
from pathlib import Path

_NAME = 56  # columns of a name
_LINE = re.compile(rf"(?P<name>.{{{_NAME}}}) +(?P<time>[\d.]+) s  (?P<of>\S+) +(?P<told>(ok|FAILED).*)")
_SOURCES = re.compile(r"(?P<of>\S+): (?P<words>of .*)")


@dataclass(frozen=True)
class Line:
    """The result of a combination.

    Attributes:
        time: s.
        of: the short name of the sources.
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
    """Lines by the combinations' names, and the meanings of the short names of sources."""

    lines: dict[str, Line] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Table":
        """The table in the file; empty if there is none."""
        table, last = cls(), ""
        for line in path.read_text().splitlines() if path.exists() else []:
            if found := _LINE.match(line):
                last = found["name"].strip()
                table.lines[last] = Line(float(found["time"]), found["of"], found["told"])
            elif found := _SOURCES.match(line):
                table.sources[found["of"]] = found["words"]
            elif line.startswith("  ") and last:  # a continuation
                one = table.lines[last]
                table.lines[last] = Line(one.time, one.of, f"{one.told}\n{line[2:]}")
        return table

    def text(self, names: list[str], compilers: str) -> str:
        """The file: the lines in the order of the names of all combinations, then others, and text about all of
        them."""
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
