"""The choice of products less accurate than float32's: where it is refused, how large its errors are, and that
float32 keeps its own."""

import copy
import io
import os
import pickle
import re

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read
from children import python
from reference_cases import DATA, SHARED, model_path, references, relative_error
from test_fused import listed, moved, repeated

from mdops import Potential, load
from mdops.calculator import MDOps
from mdops.cli import main
from mdops.errors import InputError
from mdops.evaluators import one_op
from mdops.md import EnsembleSettings, Output, run
from mdops.ops import spline_potential_pack
from mdops.system import from_atoms

ALLOY = model_path("se_a_alloy")
WATER = SHARED / "water_se_a" / "model.dp"
WATER_DATA = SHARED.parent / "data" / "water" / "data_0"


@pytest.fixture
def seems_on_gpu(monkeypatch):
    """Potentials say that they are on a GPU."""
    monkeypatch.setattr(Potential, "device", property(lambda self: torch.device("cuda")))


def test_the_default_is_float32():
    assert load(ALLOY).matmul == "float32"
    assert MDOps(ALLOY).parameters["matmul"] == "float32"


def test_a_cpu_refuses_it():
    for ask in (
        lambda: load(ALLOY, matmul="tf32"),
        lambda: load(ALLOY).use_matmul("tf32"),
        lambda: MDOps(ALLOY, matmul="tf32"),
    ):
        with pytest.raises(
            InputError, match=r"matmul is 'tf32', and the model is on cpu.*use matmul 'float32'"
        ):
            ask()


def test_other_names_are_refused():
    for ask in (lambda: load(ALLOY, matmul="high"), lambda: MDOps(ALLOY, matmul="high")):
        with pytest.raises(
            InputError, match="matmul is 'high', expected one of float32, tf32, bf16x6, bf16x3, bf16"
        ):
            ask()


def test_a_calculator_does_not_change_a_potential():
    potential = load(ALLOY)
    with pytest.raises(InputError, match=r"the Potential has another: call its use_matmul\('tf32'\)"):
        MDOps(potential, matmul="tf32")
    assert potential.matmul == "float32"


@pytest.mark.parametrize(
    ("options", "case", "says"),
    [
        ({"dtype": "float64"}, "se_a_alloy", "computes in float64"),
        ({"spline": False}, "se_a_alloy", "evaluated exactly"),
        ({"overflow": "truncate"}, "se_a_alloy", "'truncate' evaluates the steps that drop"),
        ({}, "axis_all", "does not cover this model"),
    ],
)
def test_where_it_has_no_effect_it_is_refused(seems_on_gpu, options, case, says):
    potential = load(model_path(case), **options)
    with pytest.raises(InputError, match=says):
        potential.use_matmul("tf32")
    assert potential.matmul == "float32"


def test_a_model_that_was_moved_or_changed_refuses_to_answer(monkeypatch):
    """It is kept by copies and pickles, and never forgotten."""
    (reference, *_) = references(DATA / "se_a_alloy")
    potential = load(ALLOY)
    with monkeypatch.context() as patch:
        patch.setattr(Potential, "device", property(lambda self: torch.device("cuda")))
        potential.use_matmul("tf32")
    kept = [potential, copy.deepcopy(potential), pickle.loads(pickle.dumps(potential)), potential.to("cpu")]
    for model in kept:
        assert model.matmul == "tf32"
        with pytest.raises(InputError, match="the model is on cpu"):
            model.evaluate(reference.system)
    with pytest.raises(InputError, match="differentiable energies"):
        potential(reference.system.positions, reference.system.types)
    potential.use_matmul("float32")
    result, expected = potential.evaluate(reference.system), load(ALLOY).evaluate(reference.system)
    assert all(torch.equal(result[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    "command",
    [
        ["md", "start.xyz", "-m", str(ALLOY), "-T", "300", "--steps", "2"],
        ["bench", str(ALLOY), "--atoms", "24"],
        ["bench", "--atoms", "24"],
        ["test", "-m", str(ALLOY), "-d", "start.xyz"],
    ],
    ids=["md", "bench", "bench without a model", "test"],
)
def test_commands_take_it_and_a_cpu_refuses(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    Atoms("Cu", cell=[9] * 3, pbc=True).write("start.xyz")
    assert main([*command, "--matmul", "tf32"]) == 2
    assert "matmul is 'tf32', and the model is on cpu" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command, "--matmul", "half"])
    assert "invalid choice: 'half'" in capsys.readouterr().err


def test_the_op_on_a_cpu_refuses_to_pack_for_it():
    weights = [torch.ones(4, 3), torch.ones(3, 1)]
    rest = [torch.ones(3), torch.ones(1)]
    with pytest.raises(RuntimeError, match='mdops::spline_potential_pack: argument `matmul` is "tf32"'):
        spline_potential_pack(weights, rest, rest, 4, 1, "tf32")


BF16 = pytest.mark.skipif(not torch.ops.mdops.cpu_bf16(), reason="this CPU has no bfloat16 units")


def test_a_gpu_refuses_what_a_cpu_has(seems_on_gpu):
    for matmul in ("bf16x6", "bf16x3", "bf16"):
        with pytest.raises(InputError, match=f"matmul is '{matmul}', and a GPU has no such products"):
            load(ALLOY).use_matmul(matmul)


def test_a_cpu_without_the_units_refuses(tmp_path):
    script = f"import mdops; mdops.load({str(ALLOY)!r}, matmul='bf16')"
    for unit in ({"MDOPS_CPU_BF16": "none"}, {"MDOPS_CPU_ISA": "v2"}):
        run = python("-c", script, env=os.environ | unit)
        assert "neither AMX nor AVX512-BF16" in run.stderr or "not an instruction set" in run.stderr


def test_a_named_instruction_set_is_all_there_is():
    """MDOPS_CPU_ISA switches off what the processor has beyond it, bfloat16 units too, by whatever name."""
    script = "import torch, mdops.ops; print(torch.ops.mdops.cpu_isa(), torch.ops.mdops.cpu_bf16() or 'none')"
    level = {"MDOPS_CPU_ISA": torch.ops.mdops.cpu_isa()}

    def told(**more):
        return python("-c", script, env=os.environ | level | more)

    assert told().stdout.split() == [level["MDOPS_CPU_ISA"], "none"]
    assert told(MDOPS_CPU_BF16="none").stdout.split()[1] == "none"
    for units in ("avx512_bf16", "amx"):
        refused = told(MDOPS_CPU_BF16=units)
        assert f"MDOPS_CPU_BF16={units} is none of the bfloat16 units that may be used" in refused.stderr
        assert "MDOPS_CPU_ISA, where it is set, allows none" in refused.stderr


@BF16
@pytest.mark.parametrize(
    ("matmul", "low", "high"), [("bf16x6", 1e-9, 1e-5), ("bf16x3", 1e-7, 3e-5), ("bf16", 1e-5, 2e-2)]
)
@pytest.mark.parametrize(
    "case", ["se_a_alloy", "se_a_oneside", "three_types", "fitting_resnet_dt", "fparam_aparam", "widths"]
)
def test_errors_of_bfloat16_units(case, matmul, low, high):
    """In nets of all kinds; as large as so many bits make them, so that they are not float32's own."""
    double = load(model_path(case), dtype="float64", overflow="extend")
    (reference, *_) = references(DATA / case)
    fparam, aparam = reference.fparam, reference.aparam
    pairs = listed(double, reference.system)
    expected, _ = double.evaluator()(reference.system, pairs, fparam, aparam)
    potential = load(model_path(case), overflow="extend", matmul=matmul)
    first, _ = potential.evaluator()(reference.system, pairs, fparam, aparam)
    again, _ = potential.evaluator()(reference.system, pairs, fparam, aparam)
    potential.use_matmul("float32")
    exact, _ = potential.evaluator()(reference.system, pairs, fparam, aparam)
    assert torch.equal(first["forces"], again["forces"])
    off = relative_error(first["forces"], exact["forces"])
    assert low < off < high
    assert relative_error(first["forces"], expected["forces"]) < high


@BF16
def test_a_test_tells_what_it_costs(capsys, tmp_path):
    (reference, *_) = references(DATA / "se_a_alloy")
    own = reference.system.batch == 0
    symbols = [load(ALLOY).type_map[t] for t in reference.system.types[own].tolist()]
    frame = Atoms(
        symbols, reference.system.positions[own].numpy(), cell=reference.system.cell[0].numpy(), pbc=True
    )
    frame.calc = SinglePointCalculator(frame, energy=-1.0, forces=np.zeros((len(frame), 3)))
    frame.write(tmp_path / "frame.extxyz")
    assert main(["test", "-m", str(ALLOY), "-d", str(tmp_path / "frame.extxyz"), "--matmul", "bf16"]) == 0
    said = capsys.readouterr().out
    assert float(re.search(r"bf16: forces differ from float32's by (\S+) meV/A", said).group(1)) > 0


def water(times):
    """A frame of water many times over along the first edge, disturbed, as a system."""
    names = (WATER_DATA / "type_map.raw").read_text().split()
    symbols = [names[int(kind)] for kind in (WATER_DATA / "type.raw").read_text().split()]
    frames = sorted(WATER_DATA.glob("set.*"))[0]
    positions, cell = (np.load(frames / f"{name}.npy")[0].reshape(-1, 3) for name in ("coord", "box"))
    atoms = Atoms(symbols, positions, cell=cell, pbc=True) * (times, 1, 1)
    atoms.positions += np.random.default_rng(0).normal(scale=0.01, size=atoms.positions.shape)
    return atoms


def force_error(result, expected):
    """Root mean square over components, eV/A."""
    return float((result["forces"].cpu() - expected["forces"]).square().mean().sqrt())


@pytest.mark.gpu
@pytest.mark.skipif(not (WATER.exists() and WATER_DATA.exists()), reason="../shared is not here")
@pytest.mark.parametrize("times", [1, 12], ids=["kernel a product", "one kernel"])
def test_errors_of_both_choices_on_water(times):
    """The fitting net as a kernel a product for 192 atoms, in one kernel (on Hopper) for 2,304."""
    double = load(WATER, dtype="float64", overflow="extend")
    system = from_atoms([water(times)], double.type_map)
    pairs = listed(double, system)
    expected, _ = double.evaluator()(system, pairs, None, None)
    gpu_args = moved(system, pairs, "cuda")
    results = {}
    for matmul in ("float32", "tf32"):
        gpu = load(WATER, device="cuda", overflow="extend", matmul=matmul)
        results[matmul], _ = gpu.evaluator()(*gpu_args, None, None)
    errors = {matmul: force_error(result, expected) for matmul, result in results.items()}
    assert errors["float32"] < 8e-6
    # Eleven bits in place of 22: if the choice were ignored, or the products were worse, this would tell.
    assert 5e-5 < errors["tf32"] < 2e-3
    off = results["tf32"]["atom_energy"].cpu() - expected["atom_energy"]
    assert 1e-6 < off.square().mean().sqrt() < 2e-3
    assert results["tf32"]["forces"].sum(0).abs().max() == 0


# As in test_fused.py: nets that one kernel takes whole on Hopper, and two that it does not.
MANY = ["se_a_alloy", "se_a_oneside", "three_types", "fitting_resnet_dt", "fparam_aparam", "virtual_atoms"]
MANY += ["activation_gelu", "widths"]


@pytest.mark.gpu
@pytest.mark.parametrize("atoms", [30, 2000, 4300])
@pytest.mark.parametrize("case", MANY)
def test_tf32_on_nets_of_all_kinds(case, atoms):
    """Every kernel of the fitting net, against float64 on the CPU and against float32's results."""
    double = load(model_path(case), dtype="float64", overflow="extend")
    (reference, *_) = references(DATA / case)
    own = reference.system.batch == 0
    times = max(1, atoms // int(own.sum()))
    system = repeated(reference, times)
    fparam = None if reference.fparam is None else reference.fparam[:1].repeat(times, 1)
    aparam = None if reference.aparam is None else reference.aparam[own].repeat(times, 1)
    pairs = listed(double, system, skin=0.5)
    expected, _ = double.evaluator()(system, pairs, fparam, aparam)
    gpu_args = (*moved(system, pairs, "cuda"), *(None if x is None else x.cuda() for x in (fparam, aparam)))
    gpu = load(model_path(case), device="cuda", overflow="extend")
    exact, _ = gpu.evaluator()(*gpu_args)
    gpu.use_matmul("tf32")
    result, _ = gpu.evaluator()(*gpu_args)
    for name, value in expected.items():
        assert relative_error(result[name].cpu(), value) < 5e-3, name
    off, before = (relative_error(r["forces"].cpu(), expected["forces"]) for r in (result, exact))
    assert before < 1e-4 and off > 4 * before


@pytest.mark.gpu
@pytest.mark.parametrize("times", [1, 120])
def test_the_same_bits_every_time_and_in_a_graph(times):
    gpu = load(ALLOY, device="cuda", overflow="extend", matmul="tf32")
    (reference, *_) = references(DATA / "se_a_alloy")
    system = repeated(reference, times)
    on_gpu = moved(system, listed(load(ALLOY), system), "cuda")
    first, _ = gpu.evaluator()(*on_gpu, None, None)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, _ = gpu.evaluator()(*on_gpu, check=False)
    for _ in range(3):
        graph.replay()
        assert all(torch.equal(captured[name], value) for name, value in first.items())


@pytest.mark.gpu
def test_opcheck_and_compile(monkeypatch):
    gpu = load(ALLOY, device="cuda", overflow="extend", matmul="tf32")
    (reference, *_) = references(DATA / "se_a_alloy")
    gpu_args = moved(reference.system, listed(load(ALLOY), reference.system), "cuda")
    calls, op = [], torch.ops.mdops.spline_potential.default
    monkeypatch.setattr(one_op, "spline_potential", lambda *args: calls.append(args) or op(*args))
    expected, _ = gpu.evaluator()(*gpu_args, None, None)
    (args,) = calls
    assert args[-2] == "tf32"
    torch.library.opcheck(op, args)
    energy = torch.compile(lambda *args_of_op: op(*args_of_op)[0], fullgraph=True)(*args)
    assert torch.equal(energy, expected["atom_energy"])


@pytest.mark.gpu
def test_new_weights_and_another_choice_are_seen():
    gpu = load(ALLOY, device="cuda", matmul="tf32")
    (reference, *_) = references(DATA / "se_a_alloy")
    system, _ = moved(reference.system, listed(gpu, reference.system), "cuda")
    first = gpu.evaluate(system)["forces"]
    gpu.use_matmul("float32")
    exact = gpu.evaluate(system)["forces"]
    assert torch.equal(exact, load(ALLOY, device="cuda").evaluate(system)["forces"])
    assert not torch.equal(first, exact)
    gpu.use_matmul("tf32")
    assert torch.equal(gpu.evaluate(system)["forces"], first)
    with torch.no_grad():
        for weight in gpu.parameters():
            weight.mul_(1.01)
    assert not torch.equal(gpu.evaluate(system)["forces"], first)


@pytest.mark.gpu
def test_it_goes_with_copies_and_stays_out_of_files(tmp_path):
    gpu = load(ALLOY, device="cuda", matmul="tf32")
    (reference, *_) = references(DATA / "se_a_alloy")
    system, _ = moved(reference.system, listed(gpu, reference.system), "cuda")
    expected = gpu.evaluate(system)["forces"]
    buffer = io.BytesIO()
    torch.save(gpu, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(gpu), torch.load(buffer, weights_only=False)):
        assert other.matmul == "tf32" and torch.equal(other.evaluate(system)["forces"], expected)
    gpu.save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors", device="cuda").matmul == "float32"
    with pytest.raises(InputError, match="the model is on cpu"):
        gpu.to("cpu").evaluate(reference.system)
    with pytest.raises(InputError, match="computes in float64"):
        load(ALLOY, device="cuda", matmul="tf32").double().evaluate(system)


def crystal():
    """Cu and Al, disturbed."""
    atoms = bulk("Cu", a=4.0, cubic=True) * (2, 2, 2)
    atoms.symbols[::4] = "Al"
    atoms.positions += np.random.default_rng(0).normal(scale=0.05, size=atoms.positions.shape)
    return atoms


@pytest.mark.gpu
def test_simulations_and_commands_take_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = DATA.parent / "formats" / "model.dp"
    start = crystal()
    physics, written = EnsembleSettings("nve", 300, 2), {}

    def simulate(matmul, steps, folder, restart=False):
        atoms = start.copy()
        atoms.calc = MDOps(model, device="cuda", matmul=matmul)
        output = Output(
            steps, folder / "md.restart", 10, folder / "md.traj", folder / "md.log", restart=restart
        )
        return run(atoms, physics, output)

    for matmul in ("float32", "tf32"):
        (folder := tmp_path / matmul).mkdir()
        assert simulate(matmul, 20, folder).steps == 20
        written[matmul] = read(folder / "md.traj", "-1").get_forces()
    assert 0 < np.abs(written["tf32"] - written["float32"]).max() < 0.05
    with pytest.raises(InputError, match=r"matmul of the model \(tf32, now float32\)"):
        simulate("float32", 30, tmp_path / "tf32", restart=True)
    assert simulate("tf32", 30, tmp_path / "tf32", restart=True).steps == 10
    start.write("start.xyz")
    command = ["--device", "cuda", "--matmul", "tf32"]
    assert main(["md", "start.xyz", "-m", str(model), "-T", "300", "--steps", "10", *command]) == 0
    assert main(["bench", str(model), "--atoms", "32", "--seconds", "0.05", *command]) == 0
    assert "float32 with products of tf32" in capsys.readouterr().out
