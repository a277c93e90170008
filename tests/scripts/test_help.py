"""Every script of benchmarks/ and scripts/ finds what it imports, and its parser says its help."""

import re

import pytest
from script_cases import ROOT, loaded

SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for folder in ("benchmarks", "scripts")
    for path in (ROOT / folder).glob("*.py")
)
# Of other programs, in whose environments these scripts run.
OTHERS = {"deepmd", "torch_sim"}


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_script_can_be_imported_and_says_its_help(path, monkeypatch, capsys):
    with loaded(path, missing=OTHERS) as script:
        text = (ROOT / path).read_text()
        if re.search(r"ArgumentParser\(|parser_of\(__doc__", text) and hasattr(script, "main"):
            monkeypatch.setattr("sys.argv", [path, "--help"])
            with pytest.raises(SystemExit) as end:
                script.main()
            assert end.value.code == 0 and capsys.readouterr().out.startswith("usage: ")
