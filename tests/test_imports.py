"""The modules of mdops import each other in one direction (docs/explanation/design.md, "Layers")."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Each layer imports its own modules and those of the layers before it. A folder stands for all of its modules.
LAYERS = [
    "errors flags options memory plots html progress stopping tracing files",
    "_library ops testing",
    "nn",
    "system verlet",
    "models",
    "tables",
    "evaluators",
    "io",
    "jit core export hessian",
    "potential",
    "loading inputs digest long_range",
    "applicability",
    "data",
    "calculator md train",
    "domain quantization deepmd dpdata ipi learn lammps model_server openmm spectra torchsim zbl",
    "cli",
    "__main__",
]
PLACES = {name: k for k, layer in enumerate(LAYERS) for name in layer.split()}


def modules():
    """The path of each module by its name."""
    found = {}
    for path in (ROOT / "mdops").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imported(node):
    """The modules of mdops that a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & MODULES.keys()
    assert not node.level, "imports name the whole module"
    below = {f"{node.module}.{alias.name}" for alias in node.names}
    rest = {node.module} if below - MODULES.keys() else set()
    return (below | rest) & MODULES.keys()


def imports(tree):
    """Each statement that imports from mdops, those in functions and for type checkers too, with what it imports."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return [(node, found) for node in statements if (found := imported(node))]


def layer(module):
    return PLACES.get(module.split(".")[1], len(LAYERS))


@pytest.fixture(scope="module")
def trees():
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


@pytest.fixture(scope="module")
def graph(trees):
    return {name: {m for _, found in imports(tree) for m in found} for name, tree in trees.items()}


INSIDE = [name for name in MODULES if name != "mdops"]  # the package itself gives its public names when asked


def test_every_module_has_a_layer():
    assert {name.split(".")[1] for name in INSIDE} == PLACES.keys()


def test_no_modules_import_each_other_in_a_circle(graph):
    try:
        TopologicalSorter({name: graph[name] for name in INSIDE}).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


def test_modules_import_from_their_own_layer_and_those_before(graph):
    later = {name: [m for m in graph[name] if m == "mdops" or layer(m) > layer(name)] for name in INSIDE}
    assert not {name: found for name, found in later.items() if found}


def test_imports_in_functions_say_why(trees):
    """They are for what is not always installed and for what is slow to import, which a comment says. Commands import
    what they need when they run, so that `mdops --help` needs none of it."""
    silent = []
    for name, tree in trees.items():
        lines = MODULES[name].read_text().splitlines()
        top = {id(node) for node in tree.body} | {
            id(node) for outer in tree.body if isinstance(outer, ast.If | ast.Try) for node in ast.walk(outer)
        }
        for node, _ in imports(tree):
            if id(node) not in top and layer(name) != layer("mdops.cli"):
                near = lines[node.lineno - 2 : node.end_lineno]
                silent += [f"{name}:{node.lineno}"] if not any("#" in line for line in near) else []
    assert not silent
