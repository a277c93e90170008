"""Rebuilt kernels and profiles on a GPU. Without nvcc MDOPS_TEST_CACHE names a cache with what they need, made by
`mdops build --arch` elsewhere; with it, what `wanted_entries` names can be built there beforehand, many at once."""

import os

import pytest
import torch
from parts_cases import ATTENTIVE, A, D, R, V, potential_of
from test_rebuilt import as_before  # noqa: F401  (a fixture)
from traces import spans_of

from mdops.cli.sample_model import water_model
from mdops.jit import JitError, by_ops, kernels, toolchain
from mdops.jit.profile import profile
from mdops.jit.sample_box import sample_box, sample_elements
from mdops.jit.steps import Steps
from mdops.jit.trace import GPU, shares
from mdops.system import from_atoms

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu_cache(kept_cache, monkeypatch):
    if "MDOPS_TEST_CACHE" in os.environ:
        monkeypatch.setenv("MDOPS_CACHE", os.environ["MDOPS_TEST_CACHE"])
        return
    try:
        toolchain.cuda_compiler()
    except JitError as error:
        pytest.skip(str(error))


WATER = [("tanh", "float32"), ("silu", "float32"), ("tanh", "tf32")]
STANDARD = {"rcut": 6.0, "neuron": [25, 50, 100]}
KINDS = {
    "plain": {**R, **STANDARD},
    "concat": {**D, **STANDARD, "axis_neuron": 16},
    "gated": {**V, **STANDARD, "axis_neuron": 16},
}
STAGES = {"order of the atoms", "moments", "moments to T", "features", "net up", "net down", "features back",
          "T to moments", "forces", "sums"}  # fmt: skip


def wanted_entries():
    """Models for which the tests rebuild kernels, and whether with the profiler."""
    yield from ((lambda of=of: water(*of), False) for of in WATER)
    yield (water, True)
    yield from ((lambda kind=kind: of_kind(kind), profiler) for kind in KINDS for profiler in (False, True))


def of_kind(kind):
    """Of the standard size, which have the chain."""
    model = potential_of(
        KINDS[kind], ("O", "H"), dtype=torch.float32, overflow="extend", fitting={"neuron": [240, 240, 240]}
    )
    return model.to("cuda")


def water(activation="tanh", matmul="float32"):
    model = water_model(torch.float32).to("cuda")
    for net in (model.model.fitting.net(t) for t in range(2)):
        for layer in net.layers[:-1]:
            layer.activation_name = activation
    model.use_matmul(matmul)
    return model


def near(model, atoms, systems=1, elements=None):
    frames = [sample_box(atoms // systems, elements or model.type_map) for _ in range(systems)]
    system = from_atoms(frames, model.type_map, "cuda")
    return system, model.neighbor_list(system)


@pytest.mark.parametrize(("activation", "matmul"), WATER)
def test_rebuilt_kernels_answer_as_the_prebuilt_ones(gpu_cache, activation, matmul):
    """With the tiles for small systems and with the chain, which has other activations than tanh only when rebuilt."""
    model = water(activation, matmul)
    entry = kernels.entry_for(model)
    kernels.install(model, entry)
    for atoms, systems in ((192, 1), (4096, 2)):
        system, pairs = near(model, atoms, systems)
        expected = model.evaluate(system, pairs)
        kernels.use(model, entry.key, True)
        found = model.evaluate(system, pairs)
        kernels.use(model, entry.key, False)
        bound = 3e-3 if matmul == "tf32" else 3e-5
        for name, value in found.items():
            torch.testing.assert_close(
                value, expected[name], rtol=0, atol=bound * float(expected[name].abs().max())
            )


def test_rebuilt_kernels_run_in_a_cuda_graph(gpu_cache):
    model = water()
    entry = kernels.entry_for(model)
    kernels.install(model, entry)
    kernels.use(model, entry.key, True)
    system, pairs = near(model, 4096)
    evaluator = model.evaluator()
    expected, _ = evaluator(system, pairs, check=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answers, _ = evaluator(system, pairs, check=False)
    answers["forces"].zero_()
    graph.replay()
    torch.cuda.synchronize()
    kernels.use(model, entry.key, False)
    assert torch.equal(answers["forces"], expected["forces"]), "the same bits in every run"


@pytest.mark.parametrize("kind", KINDS)
def test_rebuilt_kernels_of_each_kind_answer_as_the_prebuilt_ones(gpu_cache, kind):
    """Where types share places for any of them, by one library; of few atoms by teams of warps."""
    model = of_kind(kind)
    entry = kernels.entry_for(model)
    kernels.install(model, entry)
    for atoms, elements in ((192, ["O", "H"]), (4096, ["O", "H"]), (4096, ["O"])):
        system, pairs = near(model, atoms, elements=elements)
        expected = model.evaluate(system, pairs, atom_virial=True)
        kernels.use(model, entry.key, True)
        found = model.evaluate(system, pairs, atom_virial=True)
        kernels.use(model, entry.key, False)
        for name, value in found.items():
            torch.testing.assert_close(
                value, expected[name], rtol=0, atol=3e-5 * float(expected[name].abs().max())
            )


@pytest.mark.parametrize("kind", ["water", *KINDS])
def test_the_stages_add_up_to_the_step(gpu_cache, tmp_path, kind):
    """Within 5% of the time by CUDA's events, in the file as it was written, of so many atoms that it does not show
    that a step's kernels begin and end (of 24,576 these 40 us are 5 to 7%)."""
    model = water() if kind == "water" else of_kind(kind)
    found = profile(model, sample_box(98304, model.type_map), 2)
    found.write(tmp_path / "trace.json")
    of = shares(spans_of(tmp_path / "trace.json"))
    print(found.way, found.table(), sep="\n")
    assert set(of) == STAGES
    assert sum(of.values()) == pytest.approx(found.record.total, rel=0.05)
    assert kernels.in_use(model) is None


def attentive():
    model = potential_of({**ATTENTIVE, "rcut": 5.0}, dtype=torch.float32, overflow="extend")
    return model.to("cuda")


@pytest.mark.fills_gpu
def test_kernels_of_a_cuda_graph_add_up_to_the_step(tmp_path):
    """Of a model whose kernels are not rebuilt, by PyTorch's profiler: within 5% of the time by CUDA's events."""
    model = attentive()
    found = profile(model, sample_box(12288, sample_elements(model)), 3)
    found.write(tmp_path / "trace.json")
    print(found.way, found.table(), sep="\n")
    assert found.key is None and {span.track[0] for span in found.spans} == {GPU}
    in_file = [span for span in spans_of(tmp_path / "trace.json") if span.track[0] == GPU]
    assert len(in_file) > len(found.spans) > 3 * 10, "the file has the replay before the first, too"
    assert sum(shares(found.spans).values()) == pytest.approx(found.record.total, rel=0.05)


def test_ops_and_kernels_of_steps_without_a_graph_add_up(tmp_path):
    model = potential_of(A, dtype=torch.float32, overflow="extend", spline=False).to("cuda")
    steps = Steps(model, sample_box(3000, model.type_map), 1.0)
    steps.captures = False
    found = by_ops.record(steps, 3, lambda _: None)
    of = shares(found.spans)
    kernels_of = {span.name for span in found.spans if span.track[0] == GPU}
    assert kernels_of and "around the ops" in of and "mdops::env_mat" in {s.name for s in found.spans}
    assert sum(of.values()) == pytest.approx(found.total, rel=0.05)
