"""What scripts/check_deepmd.py found, as committed: it is of all models here, and DeePMD-kit agreed on each."""

import json
from pathlib import Path

from trees import CHECKPOINTS, DATA

RESULT = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "results" / "deepmd_interchange.json").read_text()
)
ROWS = {row["name"]: row for row in RESULT["cases"]}


def test_every_model_here_was_checked():
    names = {path.name for path in (DATA / "reference").iterdir()}
    names |= {f"checkpoint {path.name}" for path in CHECKPOINTS.glob("*.pt*")}
    names.remove("checkpoint dpa4c.pt")  # DeePMD-kit has it in another backend: test_dpa4c.py
    assert names | {"mdops train", "trained model.pth"} <= ROWS.keys()
    assert RESULT["machine"]["cpu"] and RESULT["deepmd"]["deepmd-kit"]


def test_deepmd_kit_agreed():
    for name, row in ROWS.items():
        assert row["failed"] == {}, name
        compared = {key: value for key, value in row.items() if key.endswith("to original")}
        assert all(value <= RESULT["limits"]["float64"] for value in compared.values()), name
        assert compared or name == "mdops train"
        assert row["loaded, to original" if compared else "loaded, to answers"] <= RESULT["limits"]["float64"]
