"""Rebuilt kernels of every kind of model that the evaluator `fused` knows, and products by bfloat16 units."""

import pytest
import torch
from parts_cases import A, D, R, V, alloy, potential_of
from test_profiler import ON_CPU
from test_rebuilt import as_before, built_for, called, use_cache_of  # noqa: F401  (a fixture)
from traces import covered

from mdops import Potential
from mdops.cli import main
from mdops.files import cache
from mdops.jit import kernels, models
from mdops.jit.profile import profile
from mdops.jit.sample_box import sample_box
from mdops.system import from_atoms

# Of the same width and axis, as far as they have one, and of the same nets.
KINDS = {
    "plain": {**R, "neuron": [6, 12]},
    "concat": {**D, "axis_neuron": 1},
    "strip": {**D, "axis_neuron": 1, "tebd_input_mode": "strip"},
    "gated": {**V, "axis_neuron": 1},
}
ALONE = ("Cu", "Cu")  # one element of two


@pytest.fixture(autouse=True)
def quickly_compiled(monkeypatch):
    """As right, in less time; those of test_rebuilt.py have all optimisations."""
    monkeypatch.setattr(models, "CPU_FLAGS", (*models.CPU_FLAGS, "-O1"))


def model_of(kind, **options):
    return potential_of(KINDS[kind], dtype=torch.float32, overflow="extend", **options)


def answers(model, elements):
    system = from_atoms([alloy(elements)], model.type_map)
    return model.evaluate(system, atom_virial=True)


@pytest.mark.parametrize("kind", KINDS)
def test_rebuilt_kernels_answer_as_the_prebuilt_ones(kept_cache, kind):
    """Of a model whose types share places for any of these, by one library: the net has an input more for each."""
    model = model_of(kind)
    entry = built_for(model, profiler=True)
    assert called(model, entry)
    for elements in (("Cu", "Al"), ALONE):
        expected = answers(model, elements)
        kernels.use(model, entry.key, True)
        found = answers(model, elements)
        kernels.use(model, entry.key, False)
        assert kernels.in_use(model) is None and torch.equal(
            answers(model, elements)["forces"], expected["forces"]
        )
        for name, value in found.items():
            bound = 3e-5 * float(expected[name].abs().max())
            torch.testing.assert_close(value, expected[name], rtol=0, atol=bound)


@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_of_the_same_sizes_go_on_with_the_prebuilt_kernels(kept_cache, kind):
    entry = built_for(model_of(kind), profiler=True)
    alike = {"concat", "strip"}  # what tells them apart is in the tables alone
    for other in KINDS:
        same = other == kind or {other, kind} == alike
        assert called(model_of(other), entry) == same, other


@pytest.mark.parametrize("kind", ["plain", "concat", "gated"])
def test_the_stages_add_up_to_the_step(kept_cache, tmp_path, kind):
    model = model_of(kind)
    found = profile(model, sample_box(600, model.type_map), 5)
    found.write(tmp_path / "trace.json")
    assert found.key is not None and {span.name for span in found.spans} > ON_CPU
    assert covered(found, tmp_path / "trace.json") == pytest.approx(1, rel=0.05)


def test_what_pays_is_used_by_models_that_come_later(kept_cache, tmp_path, monkeypatch, capsys):
    """And `mdops info` says so."""
    model = model_of("concat")
    assert "types" not in models.wanted(model).sizes, "a system's, not the model's"
    entry = use_cache_of(built_for(model), tmp_path / "cache", monkeypatch)
    cache.keep_calibration(entry, {"prebuilt": 1.0, "rebuilt": 0.9, "atoms": 384, "threads": 1})
    later = model_of("concat", seed=1)
    assert later.explain().endswith(f"by kernels rebuilt for models of these sizes ({entry.key})")
    assert kernels.in_use(later) == kernels.in_use(model) == entry.key
    later.save(tmp_path / "model.dp")
    assert main(["info", str(tmp_path / "model.dp")]) == 0
    assert f"rebuilt for these sizes and this machine: {entry.key}" in capsys.readouterr().out


def test_a_calibration_has_few_of_many_elements(kept_cache, monkeypatch):
    """A box of all that a model knows would have more types than a GPU's kernels take."""
    model = potential_of(
        KINDS["gated"], ("H", "He", "Li", "Be", "B", "C"), dtype=torch.float32, overflow="extend"
    )
    entry = built_for(model, profiler=True)  # as good as without it, and there
    seen, present = set(), Potential.present
    monkeypatch.setattr(Potential, "present", lambda *args: seen.add(found := present(*args)) or found)
    kernels._measure(model, entry.key)
    assert seen == {(0, 1, 2, 3)}


@pytest.mark.skipif(not torch.ops.mdops.cpu_bf16(), reason="this CPU has no bfloat16 units")
def test_rebuilt_kernels_have_the_products_of_bfloat16_units(kept_cache, tmp_path):
    """As the prebuilt ones', with their error; and no library for float32's is called for them."""
    model = potential_of(A, dtype=torch.float32, overflow="extend")
    whole, of_float32 = answers(model, ALONE)["forces"], built_for(model, profiler=True)
    model.use_matmul("bf16")
    entry = built_for(model, profiler=True)
    assert entry.key != of_float32.key and called(model, entry) and not called(model, of_float32)
    expected = answers(model, ALONE)["forces"]
    kernels.use(model, entry.key, True)
    found = answers(model, ALONE)["forces"]
    kernels.use(model, entry.key, False)
    error, apart = (float((x - expected).abs().max()) for x in (whole, found))
    assert 1e-4 * float(whole.abs().max()) < error and 5 * apart < error
    model.use_matmul("float32")
    assert not called(model, entry)
    model.save(tmp_path / "model.dp")
    command = ["profile", str(tmp_path / "model.dp"), "--atoms", "96", "--steps", "1", "--matmul", "bf16"]
    assert main([*command, "-o", str(tmp_path / "out.json")]) == 0
