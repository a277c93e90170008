"""What changes of the input mean for earlier results."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mdops.errors import InputError
from mdops.learn.rounds import Round, finished_rounds, read, write

NAME = "config.json"

# The stages of an unfinished round that sections of the input determine; later stages follow from earlier ones.
_STAGES = ("students", "explored", "asked")
_FROM = {
    "students": "students",
    "explore": "explored",
    "select": "asked",
    "targets": "asked",
    "start": "explored",
    "seed": "students",
}


def adapt(top: Path, now: Mapping[str, Any], identity: str) -> list[str]:
    """Compares the input (a tree of its sections) with the one stored in the folder, removes results that are no longer
    valid, and stores the new input. The teacher's labels are always kept.

    Returns:
        What is kept and what is repeated, in sentences; empty if nothing changed.

    Raises InputError if the teacher changed: labels of two teachers cannot be mixed.
    """
    path, told = top / NAME, dict(now) | {"teacher": identity}
    if not path.exists():
        write(path, told)
        return []
    before = read(path)
    if before.get("teacher") != identity:
        raise InputError(
            f"{top}: its labels come from the teacher {before.get('teacher')}, not from {identity}, and "
            "cannot be mixed: choose another folder with --output"
        )
    changed = [name for name in told if told[name] != before.get(name)]
    if not changed:
        return []
    done = finished_rounds(top)
    calls = sum(summary.calls for _, summary in done)
    lines = [
        f"the input changed in {', '.join(changed)}; kept: {calls} labels of {len(done)} finished rounds"
    ]
    lines += _undo(Round(top, len(done)), changed)
    write(path, told)
    return lines


def _undo(round_: Round, changed: list[str]) -> list[str]:
    """Removes those results of the unfinished round that depend on the changed sections."""
    if not round_.folder.is_dir():
        return []
    if round_.labels.asked.exists() and (round_.labels.answered() or round_.labels.labels.exists()):
        return [
            f"round {round_.number} is being labelled: it continues as before, and later rounds use the new input"
        ]
    wanted = [_FROM[name] for name in changed if name in _FROM]
    first = next((k for k, stage in enumerate(_STAGES) if stage in wanted), None)
    if first is None:
        return []
    anew = {"students": "trainings", "explored": "exploration", "asked": "selection"}
    paths = {
        "students": [*round_.folder.glob("student-*"), round_.folder / "trust.json"],
        "explored": [round_.folder / "explored"],
        "asked": [round_.labels.asked],
    }
    for stage in _STAGES[first:]:
        for found in paths[stage]:
            if found.is_dir():
                shutil.rmtree(found)
            else:
                found.unlink(missing_ok=True)
    return [f"repeated in round {round_.number}: {', '.join(anew[stage] for stage in _STAGES[first:])}"]
