"""The contents of a folder of `mdops learn`: rounds, each with its labels and results."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mdops.errors import InputError
from mdops.files.atomic import replace_file
from mdops.learn.labels import LabelFolder

FINISHED = "round.json"  # it is written last


@dataclass
class Summary:
    """A finished round.

    Attributes:
        kind: "first" (the first set), "explore", or "final".
        labels: the number of labels on which its students were trained.
        calls: the number of structures given to the teacher. set_aside: reasons why some labels were set aside.
        trust: the fields of `mdops.learn.trust.Trust`. errors: of the first student on fresh frames: "forces" (eV/A),
            "energy" (eV/atom). student: its index.
        stopped, runs: the numbers of stopped runs and of all runs.
        seconds: wall time of each stage. cpu_seconds: processor time of the calls in all stages.
    """

    kind: str
    labels: int = 0
    calls: int = 0
    set_aside: list[str] = field(default_factory=list)
    trust: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    student: int = 0
    fresh: int = 0
    stopped: int = 0
    runs: int = 0
    deviation: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0


class Round:
    """The folder of a round: `folder`, its `number`, `labels` (its LabelFolder)."""

    def __init__(self, top: Path, number: int) -> None:
        self.number, self.folder = number, top / f"round-{number:02d}"
        self.labels = LabelFolder(self.folder)

    def summary(self) -> Summary | None:
        """The summary; None if the round is not finished."""
        path = self.folder / FINISHED
        return Summary(**read(path)) if path.exists() else None

    def finish(self, summary: Summary) -> None:
        write(self.folder / FINISHED, asdict(summary))


def finished_rounds(top: Path) -> list[tuple[Round, Summary]]:
    """The finished rounds of a folder, in order."""
    found: list[tuple[Round, Summary]] = []
    while (summary := (now := Round(top, len(found))).summary()) is not None:
        found.append((now, summary))
    return found


def write(path: Path, tree: Any) -> None:
    """Writes JSON, replacing the file at once."""
    replace_file(path, (json.dumps(tree, indent=1) + "\n").encode())


def read(path: Path) -> Any:
    """The tree of such a file. Raises InputError if it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from None
