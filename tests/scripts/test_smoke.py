"""What the benchmarks time runs: each on a few atoms or rows, once or twice. Where it is a GPU's, PyTorch's words for
one mean the CPU here (`as_if_on_a_gpu`)."""

import contextlib
import json

import pytest
import torch
from ase.build import bulk
from ase.io import write
from script_cases import ROOT, loaded
from small_systems import EMT
from torch.overrides import TorchFunctionMode

KINDS, REFERENCE = ROOT / "tests/data/reference_kinds", ROOT / "tests/data/reference"
NETS = {"neuron": [4, 8], "axis_neuron": 2}


@pytest.fixture
def script(request):
    """The script that the test names."""
    with loaded(request.param) as module:
        yield module


def of(path):
    return pytest.mark.parametrize("script", [path], indirect=True)


def called(script, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["script", *map(str, arguments)])
    script.main()


class OnTheCpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        args = ["cpu" if isinstance(a, str) and a == "cuda" else a for a in args]
        kwargs = {
            name: "cpu" if name == "device" and a == "cuda" else a for name, a in (kwargs or {}).items()
        }
        return function(*args, **kwargs)


class Event:
    def __init__(self, **_):
        pass

    def record(self):
        pass

    synchronize = record

    def elapsed_time(self, _):
        return 1.0


class Graph:
    def replay(self):
        pass


@pytest.fixture
def as_if_on_a_gpu(monkeypatch):
    """Tensors for a GPU are made on the CPU; graphs are calls, and events all take a millisecond."""
    generator = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device="cpu": generator())
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    fakes = {
        "CUDAGraph": Graph,
        "Event": Event,
        "graph": lambda *_, **__: contextlib.nullcontext(),
        "stream": lambda *_: contextlib.nullcontext(),
        "Stream": lambda: None,
        "get_device_name": lambda *_: "none",
        **dict.fromkeys(("synchronize", "empty_cache"), lambda: None),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    with OnTheCpu():
        yield


@pytest.fixture
def no_grad():
    """Scripts that set this leave it so."""
    with torch.set_grad_enabled(True):
        yield


@pytest.fixture
def water(tmp_path):
    """A system of DeePMD-kit, two frames of molecules in a box."""
    with loaded("benchmarks/message_passing.py") as script:
        script._write_system(tmp_path, 24)
    return tmp_path


@of("benchmarks/cuda_ops.py")
def test_ops_of_se_e2_a(script, monkeypatch, as_if_on_a_gpu, tmp_path):
    monkeypatch.setattr(script, "bandwidth", lambda: 1.0)
    called(script, monkeypatch, "--atoms", 5, "--json", tmp_path / "out.json")
    assert len(json.loads((tmp_path / "out.json").read_text())["results"]) > 10


@of("benchmarks/net_ops.py")
def test_ops_on_nets(script, monkeypatch, as_if_on_a_gpu):
    monkeypatch.setattr(script, "WATER", (6, 5, 5, 5, 1))
    case = script._Case(3)
    assert [y.shape for y in case.products_of_passes()[0]] == [(3, 5), (3, 5), (3, 5), (3, 1)]
    assert case.passes() and case.by_layers()


@of("benchmarks/ragged_attention.py")
@pytest.mark.parametrize("dpa1", [False, True])
def test_attention_of_sequences(script, as_if_on_a_gpu, dpa1):
    p = script.Problem([3, 1, 5], 2, 8, torch.float32, dpa1)
    assert script.timed(lambda: p.forward("float32")) > 0
    assert max(p.errors("float32")) < 1e-5


@of("benchmarks/linear.py")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_products(script, monkeypatch, as_if_on_a_gpu, no_grad, tmp_path, device):
    for name, sizes in {"_SIZES": [(5, 3, 4)], "_SMALL": [(5, 3, 4)], "_DEGREES": [(4, 3, 5, 6)]}.items():
        monkeypatch.setattr(script, name, sizes)
    for options in ([], ["--degrees"], ["--small"]):
        called(script, monkeypatch, "--device", device, "--json", tmp_path / "out.json", *options)
        rows = json.loads((tmp_path / "out.json").read_text())["rows"]
        assert rows and max(row["error"] for row in rows) < 1e-5


@of("benchmarks/gemm_lowbit.py")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_low_bit_products(script, monkeypatch, as_if_on_a_gpu, tmp_path, device):
    monkeypatch.setattr(script, "WIDE", 16)
    monkeypatch.setattr(script, "bandwidth", lambda: 1.0)
    call = ["--device", device, "--sizes", 16, "--rows", 4, "--json", tmp_path / "out.json"]
    called(script, monkeypatch, *call)
    assert json.loads((tmp_path / "out.json").read_text())["results"]


@of("benchmarks/edge_layers.py")
def test_layers_of_edges(script, monkeypatch, tmp_path):
    monkeypatch.setattr(script, "milliseconds", lambda run, device: float(run() is None))
    for name, sizes in {
        "LAYERS": [(2, 4, True, 1), (2, 4, False, 2)],
        "GRIDS": [(7, 4, 3)],
        "ROTATIONS": [(2, 3)],
    }.items():
        monkeypatch.setattr(script, name, sizes)
    call = ["--device", "cpu", "--edges", 100, "--atoms", 2, "--json", tmp_path / "out.json"]
    called(script, monkeypatch, *call)
    found = json.loads((tmp_path / "out.json").read_text())
    for name in ("so2_layer", "edge_rotate", "order_mix", "scalar_gate"):
        assert all(max(row["errors"]) < 1e-5 for row in found[name]), name
    assert max(found["so2_messages"][0]["errors, one op"]) < 1e-4


@of("benchmarks/nets.py")
def test_nets(script, monkeypatch):
    monkeypatch.setattr(script, "WATER", (6, 5, 5, 1))
    assert script.on_cpu(3)
    whole = script.sample_model
    monkeypatch.setattr(script, "sample_model", lambda sel, cutoff, *_: whole(sel, cutoff, (4, 8), 2, (5, 5)))
    assert script.by_matmul(6)


@of("benchmarks/neighbor.py")
def test_lists(script, monkeypatch):
    called(script, monkeypatch, "--atoms", 1, 24, "--repeat", 1)


@of("benchmarks/attention.py")
def test_attention_on_a_cpu(script, monkeypatch, tmp_path):
    model = KINDS / "dpa1_smooth/model.dp"
    call = ["--model", model, "--atoms", 6, "--sequences", 2, "--rounds", 1, "--out", tmp_path / "out.json"]
    called(script, monkeypatch, *call)
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["sequences"]) == 4 and len(found["dpa1"]) == 2


@of("benchmarks/evaluators.py")
def test_evaluators(script, monkeypatch):
    called(script, monkeypatch, REFERENCE / "base/model.dp", "--atoms", 6, "--rounds", 1)


@of("benchmarks/atomic_virials.py")
def test_atomic_virials(script, monkeypatch):
    called(script, monkeypatch, REFERENCE / "base/model.dp", "--atoms", 6, "--rounds", 1)


@of("benchmarks/atomic_virials.py")
def test_atomic_virials_of_messages(script, monkeypatch, tmp_path):
    out = tmp_path / "out.json"
    options = "--rounds", 1, "--engine", "--check", "--dtype", "float64", "--out", out
    called(script, monkeypatch, KINDS / "dpa3_base/model.dp", "--atoms", 6, *options)
    (row,) = json.loads(out.read_text())["steps"]
    assert row["ghosts"] > 6 and row["engine_with_virials"] > 0 and max(row["differences"].values()) < 1e-12


@of("benchmarks/inference.py")
def test_steps(script, monkeypatch):
    monkeypatch.setattr(script, "REBUILD", 1)
    call = ["--model", REFERENCE / "base/model.dp", "--atoms", 6, "--repeat", 1]
    called(script, monkeypatch, *call)


@of("benchmarks/core.py")
def test_steps_of_the_core(script, monkeypatch, tmp_path):
    box = bulk("Cu", a=3.8, cubic=True)
    box.symbols[1:] = "Al"
    write(tmp_path / "box.xyz", box)
    model = REFERENCE / "base/model.dp"
    called(script, monkeypatch, "--model", model, "--structure", tmp_path / "box.xyz", "--steps", 1)


@of("benchmarks/descriptors.py")
def test_descriptors(script, monkeypatch, tmp_path):
    for tree in script.DESCRIPTORS.values():
        for part in tree.get("list", [tree]):
            part |= {name: value for name, value in (NETS | {"attn": 4}).items() if name in part}
    for name in script.DESCRIPTORS:
        found = script.on_cpu(name, 6, 1, None, "perf_counter", tmp_path)
        assert found["simulation"] and found["training"], name
    assert script.in_turn(["concat", "radial"], 6, 1, "perf_counter")


INNER = {"rcut": 3.5, "rcut_smth": 2.5, "nsel": 20, "nlayers": 1, "g1_dim": 8, "g2_dim": 6, "axis_neuron": 2}
MESSAGES = {
    "dpa2": {
        "type": "dpa2",
        "repinit": NETS | {"rcut": 4.5, "rcut_smth": 1.0, "nsel": 60, "tebd_dim": 4},
        "repformer": INNER | {"attn1_hidden": 4, "attn1_nhead": 2, "attn2_hidden": 4, "attn2_nhead": 2},
    },
    "dpa3": {
        "type": "dpa3",
        "repflow": {
            "n_dim": 8,
            "e_dim": 6,
            "a_dim": 4,
            "nlayers": 1,
            "axis_neuron": 2,
            "smooth_edge_update": True,
        }
        | {"e_rcut": 4.0, "e_rcut_smth": 3.0, "e_sel": 60, "a_rcut": 3.0, "a_rcut_smth": 2.5, "a_sel": 20},
    },
    "dpa4": {"type": "dpa4", "rcut": 3.5, "channels": 4, "n_radial": 5, "lmax": 1, "n_blocks": 1},
}


@of("benchmarks/message_passing.py")
@pytest.mark.parametrize("kind", MESSAGES)
def test_models_that_pass_messages(script, monkeypatch, water, kind):
    monkeypatch.setattr(script, "_STEPS", 1)
    model = {"type_map": ["O", "H"], "descriptor": MESSAGES[kind], "fitting_net": {"neuron": [5, 5]}}
    training = {"training_data": {"systems": [str(water)]}, "numb_steps": 10}
    file = water / script.INPUTS[kind]
    file.parent.mkdir()
    file.write_text(json.dumps({"model": model, "training": training}))
    call = ["--inputs", water, "--model", kind, "--atoms", 6]
    called(script, monkeypatch, *call, "--rounds", 1, "--training", 24)
    called(script, monkeypatch, *call, "--memory", 12, "--at-once", 6)
    called(script, monkeypatch, *call, "--calls", 1)


@of("benchmarks/deepmd_examples.py")
def test_calls_of_calculators(script, monkeypatch, tmp_path):
    """Each of DeePMD-kit, which need not be here, takes two milliseconds."""
    monkeypatch.setattr(script, "DeePMDKit", lambda *_: contextlib.nullcontext(Timed()))
    call = ["python", "--inputs", tmp_path, "--calculator", "--threads", 1, "--names"]
    out = tmp_path / "out.json"
    called(script, monkeypatch, *call, "--files", REFERENCE / "base/model.dp", "--rounds", 1, "--json", out)
    found = json.loads(out.read_text())["runs"]["model"]
    cells = found["ms"]["1 threads"]
    assert len(cells) == 5 and all(row["mdops"] > 0 for row in (found["first"], *cells.values()))
    assert {row["deepmd"] for row in cells.values()} == {2.0}


class Timed:
    def use_threads(self, _):
        pass

    def milliseconds(self, *_):
        return 2.0


@of("benchmarks/training.py")
@pytest.mark.parametrize("other", ["", "attention", "radial"])
def test_steps_of_trainings(script, monkeypatch, water, other):
    whole = script.training_input

    def small(*arguments):
        tree = whole(*arguments)
        tree["model"]["fitting_net"]["neuron"] = [5, 5]
        descriptor = tree["model"]["descriptor"]
        descriptor |= {name: value for name, value in (NETS | {"attn": 4}).items() if name in descriptor}
        return tree

    monkeypatch.setattr(script, "training_input", small)
    row = script.measure([str(water)], 1, "float32", "cpu", 1, other)
    assert row["atoms"] == 24 and row["step/inference"] > 0


@of("benchmarks/spline_error.py")
def test_errors_of_splines(script, monkeypatch):
    call = [REFERENCE / "base/model.dp", "--data", EMT, "--intervals", 64, "--frames", 1]
    called(script, monkeypatch, *call)


@of("benchmarks/loading.py")
def test_times_of_loading(script, monkeypatch):
    call = [REFERENCE / "base/model.dp", "--dtypes", "float32", "--repeats", 1]
    called(script, monkeypatch, *call)


@of("benchmarks/quantize.py")
def test_low_bit_models(script, monkeypatch):
    call = ["--data", EMT, "--test", EMT, "--schemes", "w8a8", "--picoseconds", 0.004, "--warm-up", 0.002]
    called(script, monkeypatch, REFERENCE / "base/model.dp", *call, "--atoms", 24)


@of("scripts/sanitize_ops.py")
def test_calls_for_the_sanitizer(script, monkeypatch, as_if_on_a_gpu):
    script.larger_lists(torch.float32, 72, False, True)
    script.whole_steps()
