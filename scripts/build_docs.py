"""Builds the site of the documentation: README, guides, examples, and the public modules from their docstrings.

    make docs        # or: .venv/bin/python scripts/build_docs.py [OUT]; needs mdops[docs]

Each folder of docs/ becomes a section of the site, with unchanged pages. Public modules are those with an
`__all__` (docs/reference/public.md). A dead link or anchor, or a name without a docstring, is an error.
"""

import importlib
import inspect
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

import mdops

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = {
    "Tutorials": "tutorials",
    "How to": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
    "Notes": "notes",
}
COPIED = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "docs", "examples")


def main() -> int:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve()
    with tempfile.TemporaryDirectory() as made:
        source = Path(made) / "source"
        write_source(source)
        config = Path(made) / "mkdocs.yml"
        config.write_text(yaml.safe_dump(configuration(source, out), sort_keys=False))
        done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config])
    if done.returncode == 0:
        print(f"the site is {out}/index.html")
    return done.returncode


def write_source(source: Path) -> None:
    """Writes README, guides and examples at their paths in the checkout, so that links between them work; and api/."""
    (source / "api").mkdir(parents=True)
    for name in COPIED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(
                path,
                source / name,
                ignore=shutil.ignore_patterns("__pycache__", *([] if name == "docs" else ["README.md"])),
            )
        else:
            shutil.copy(path, source)
    for module in public_modules():
        (source / "api" / f"{module}.md").write_text(api_page(module))


def public_modules() -> list[str]:
    """The modules with an `__all__`, except those for programs that are not installed."""
    found = []
    names = (module.name for module in pkgutil.walk_packages(mdops.__path__, "mdops."))
    for name in ["mdops", *sorted(name for name in names if not name.endswith("__main__"))]:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "mdops").startswith("mdops"):
                raise
            continue
        if hasattr(module, "__all__"):
            found.append(name)
    return found


def api_page(module: str) -> str:
    """The module's names in alphabetical order. Names that are public modules have their own pages."""
    there = importlib.import_module(module)
    names = [name for name in sorted(there.__all__, key=str.lower) if not name.startswith("__")]
    names = [name for name in names if not inspect.ismodule(getattr(there, name))]
    # A function with the name of its submodule hides it, and is found only here.
    hidden = [name for name in names if f"{module}.{name}" in sys.modules]
    blocks = [
        described(module, members=[name for name in names if name not in hidden], show_root_toc_entry=False)
    ]
    blocks += [described(f"{module}.{name}.{name}", show_root_heading=True) for name in hidden]
    return f"# {module}\n\n" + "\n".join(blocks)


def described(name: str, **options: object) -> str:
    """The text that mkdocstrings replaces by a name's docstrings."""
    return (
        f"::: {name}\n"
        + re.sub("^", "    ", yaml.safe_dump({"options": options}), flags=re.MULTILINE).rstrip()
        + "\n"
    )


def pages(source: Path, folder: str) -> list[str]:
    """The pages of a folder of docs/: first those that its README.md links to, in that order, then the rest."""
    found = sorted(path.name for path in (source / "docs" / folder).glob("*.md"))
    index = source / "docs" / folder / "README.md"
    linked = re.findall(r"\]\(([\w-]+\.md)\)", index.read_text()) if index.exists() else []
    order = list(dict.fromkeys(["README.md", *linked]))
    names = [name for name in order if name in found] + [name for name in found if name not in order]
    return [f"docs/{folder}/{name}" for name in names]


def configuration(source: Path, out: Path) -> dict[str, object]:
    python = {
        "docstring_style": "google",
        # A line may describe several arguments: "q, k: ...".
        "docstring_options": {"warn_unknown_params": False, "warn_missing_types": False},
        "heading_level": 2,
        "line_length": 100,
        "members_order": "alphabetical",
        "merge_init_into_class": True,
        "separate_signature": True,
        "show_if_no_docstring": False,
        "show_signature_annotations": True,
        "show_source": False,
    }
    return {
        "site_name": "mdops",
        "site_description": mdops.__doc__,
        "docs_dir": str(source),
        "site_dir": str(out),
        "use_directory_urls": False,  # so that it also works from the disk
        "theme": {"name": "readthedocs", "highlightjs": False, "navigation_depth": 3},
        "markdown_extensions": ["tables", "fenced_code", {"codehilite": {"guess_lang": False}}],
        "plugins": [
            "search",
            {"mkdocstrings": {"handlers": {"python": {"paths": [str(ROOT)], "options": python}}}},
        ],
        "validation": {
            "links": {"anchors": "warn", "unrecognized_links": "warn"},
            "nav": {"omitted_files": "warn"},
        },
        "nav": [
            {"mdops": "README.md"},
            *({title: pages(source, folder)} for title, folder in SECTIONS.items()),
            {"Python": [{module: f"api/{module}.md"} for module in public_modules()]},
            {"Project": ["CONTRIBUTING.md", "CHANGELOG.md"]},
        ],
    }


if __name__ == "__main__":
    raise SystemExit(main())
