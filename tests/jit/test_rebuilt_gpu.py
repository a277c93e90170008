"""Rebuilt kernels and the profiler on a GPU. Without nvcc MDOPS_TEST_CACHE names a cache with what they need, made by
`mdops build --arch` elsewhere."""

import json
import os

import pytest
import torch
from test_rebuilt import as_before  # noqa: F401  (a fixture)

from mdops.cli.sample_model import sample_box, water_model
from mdops.jit import JitError, kernels, toolchain
from mdops.jit.profile import profile
from mdops.jit.trace import Span, shares
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


def water(activation="tanh", matmul="float32"):
    model = water_model(torch.float32).to("cuda")
    for net in (model.model.fitting.net(t) for t in range(2)):
        for layer in net.layers[:-1]:
            layer.activation_name = activation
    model.use_matmul(matmul)
    return model


def near(model, atoms, systems=1):
    frames = [sample_box(atoms // systems, model.type_map) for _ in range(systems)]
    system = from_atoms(frames, model.type_map, "cuda")
    return system, model.neighbor_list(system)


@pytest.mark.parametrize(
    ("activation", "matmul"), [("tanh", "float32"), ("silu", "float32"), ("tanh", "tf32")]
)
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


def test_the_stages_add_up_to_the_step(gpu_cache, tmp_path):
    """Within 5% of the time by CUDA's events, in the file as it was written."""
    model = water()
    found = profile(model, sample_box(24576, model.type_map), 2)
    found.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    of = shares(
        [
            Span(e["name"], round(1000 * e["ts"]), round(1000 * (e["ts"] + e["dur"])), (e["pid"], e["tid"]))
            for e in events
            if e["ph"] == "X"
        ]
    )
    print(found.table())
    assert set(of) == {"order of the atoms", "moments", "moments to T", "features", "net up", "net down",
                       "features back", "T to moments", "forces", "sums"}  # fmt: skip
    assert sum(of.values()) == pytest.approx(found.total, rel=0.05)
    assert kernels.in_use(model) is None
