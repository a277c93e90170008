"""Low-bit models: their numbers, every way to evaluate them, their files, and where they are refused."""

import copy
import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from ase.io import read, write
from reference_cases import loaded, model_path, references, relative_error
from small_systems import EMT, small_config

import mdops
from mdops import load
from mdops.calculator import MDOps
from mdops.cli import main
from mdops.cli import quantize as command
from mdops.errors import InputError, ModelFileError
from mdops.evaluators.autograd import Autograd
from mdops.evaluators.from_moments import MomentTraining
from mdops.evaluators.one_op import FusedTraining
from mdops.evaluators.splines import Splines
from mdops.io import read_model, write_model
from mdops.md import BatchEngine, Engine, EnsembleSettings
from mdops.nn.net import Layer, Net
from mdops.nn.quantized import SCHEMES, LowBitLayer, calibrated_net, low_bit_weights, rounded_net
from mdops.quantization import compare as costs
from mdops.quantization import energy_drift, first_frame, quantize, slope, verdict
from mdops.train import load_dataset

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ROUNDED = [name for name, scheme in SCHEMES.items() if scheme.inputs is not None]
EXACT = [name for name, scheme in SCHEMES.items() if scheme.inputs is None]
ALLOY = model_path("se_a_alloy")


@pytest.fixture(scope="module")
def data():
    return load_dataset(EMT, ["Cu", "Al"])


@pytest.fixture(scope="module")
def alloy():
    return first_frame(load_dataset(EMT, ["Cu", "Al"]))


def layer(inputs=24, outputs=10, activation="tanh", device="cpu", dtype=torch.float32, residual=False):
    torch.manual_seed(0)
    weight = (torch.randn(inputs, outputs) / inputs**0.5).to(device, dtype)
    bias, timestep = (torch.rand(outputs).to(device, dtype) for _ in range(2))
    return Layer(weight, bias, timestep, activation, residual)


def rms(value):
    return float(value.detach().square().mean().sqrt())


# -- Layers


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["int8", "ternary", "e4m3"])
def test_rounded_weights_stay_what_they_are(kind, device):
    """Weights that went through a file are rounded to the same numbers with the same scales, to the last bit."""
    weight = torch.randn(40, 12, device=device, generator=torch.Generator(device).manual_seed(0))
    weight[:, 3] = 0
    values, scale = low_bit_weights(weight, kind)
    rounded = values.float() * scale
    assert torch.equal(rounded.double(), values.double() * scale.double())  # exact in float32
    again, same = low_bit_weights(rounded, kind)
    assert torch.equal(again.float(), values.float())
    assert torch.equal(same, scale)
    limit = {"int8": 0.01, "e4m3": 0.03, "ternary": 0.6}[kind]
    assert rms(rounded - weight) < limit * rms(weight)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_a_layer_multiplies_low_bit_numbers(scheme, dtype, device):
    """Beside the same in NumPy: rows by their largest number, columns by theirs, with a balance of powers of two."""
    full, kinds = layer(device=device, dtype=dtype), SCHEMES[scheme]
    shifts = torch.randint(-3, 4, (24,), generator=torch.Generator().manual_seed(1))
    low = LowBitLayer(full, kinds, shifts)
    x = torch.randn(7, 24, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    d = 2.0 ** shifts.numpy().astype(np.float64)
    weight, rows = full.weight.detach().cpu().double().numpy() / d[:, None], x.cpu().double().numpy() * d
    if kinds.weights == "int8":
        scale = np.abs(weight).max(0) / 127
        weight = np.round(weight / scale) * scale
    elif kinds.weights == "ternary":
        values = np.clip(np.round(weight / np.abs(weight).mean(0)), -1, 1)
        weight = values * (np.abs(weight) * (values != 0)).sum(0) / (values != 0).sum(0)
    else:
        scale = np.abs(weight).max(0) / 448
        weight = torch.from_numpy(weight / scale).to(torch.float8_e4m3fn).double().numpy() * scale
    if kinds.inputs == "int8":
        size = np.abs(rows).max(1, keepdims=True) / 127
        rows = np.round(rows / size) * size
    elif kinds.inputs == "e4m3":
        size = np.abs(rows).max(1, keepdims=True) / 448
        rows = torch.from_numpy(rows / size).to(torch.float8_e4m3fn).double().numpy() * size
    wanted = np.tanh(rows @ weight + full.bias.detach().cpu().double().numpy())
    wanted = wanted * full.timestep.detach().cpu().double().numpy()
    found = low(x)
    assert found.dtype == dtype
    # A GPU sums float8 with fewer bits (docs/reference/ops.md).
    fewer = 2.0**-10 if kinds.inputs == kinds.weights == "e4m3" and device == "cuda" else 0.0
    size = np.abs(rows) @ np.abs(weight) * np.abs(full.timestep.detach().cpu().double().numpy())
    off = np.abs(found.detach().cpu().double().numpy() - wanted)
    assert (off <= 3e-5 + 1e-7 * np.abs(wanted) + fewer * size).all()
    np.testing.assert_allclose(
        low.frozen()(x).detach().cpu().numpy(), found.detach().cpu().numpy(), atol=1e-7
    )


@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_gradients_go_straight_through_the_rounding(scheme):
    """First and second derivatives are those of a product of the rounded factors that forgets the rounding."""
    low = LowBitLayer(layer(activation="linear", dtype=torch.float64), SCHEMES[scheme], torch.zeros(24))
    x = torch.randn(6, 24, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(6, 10, dtype=torch.float64, requires_grad=True)
    by_x, by_weight = torch.autograd.grad(low.product(x), [x, low.weight], grad, create_graph=True)
    rounded = low.rounded()
    inputs = x.detach()
    if low.scheme.inputs is not None:
        values, scale = mdops.ops.quantize(x, low.scheme.inputs, per="row")
        inputs = (values.float() * scale[:, None]).double()
    torch.testing.assert_close(by_x, grad @ rounded.T)
    torch.testing.assert_close(by_weight, inputs.T @ grad)
    u = torch.randn_like(by_x)
    by_grad, second = torch.autograd.grad(by_x, [grad, low.weight], u)
    torch.testing.assert_close(by_grad, u @ rounded)
    torch.testing.assert_close(second, u.T @ grad)


def test_calibration_leaves_less_error_than_rounding_alone():
    """Of inputs that differ in size by thousands, and of means."""
    torch.manual_seed(0)
    rows = torch.randn(500, 24) * torch.logspace(-3, 0, 24) + torch.logspace(-3, 0, 24)
    last = layer(10, 1)
    net = Net([layer(), layer(10, 10), Layer(last.weight, last.bias, None, "none", False)]).requires_grad_(
        False
    )
    for scheme in SCHEMES.values():
        plain, fitted = (
            made(rows) - net(rows) for made in (rounded_net(net, scheme), calibrated_net(net, scheme, rows))
        )
        assert rms(fitted) < (0.5 if scheme.weights == "int8" else 1.1) * rms(plain), scheme.name
        assert float(fitted.mean().abs()) < 1e-6 < 1e-3 * rms(net(rows))
    balanced = calibrated_net(net, SCHEMES["w8a8"], rows).layers[0]
    assert len(balanced.balance.unique()) > 3
    assert torch.equal(net.layers[0].weight, layer().weight)  # the full net is not touched


# -- Models


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scheme", ROUNDED)
@pytest.mark.parametrize(
    "case",
    ["base", "fparam_aparam", "atom_ener", "atom_exclude_types", "exclude_types", "virtual_atoms", "overflow",
     "fitting_shared", "fitting_resnet_dt", "activation_silu", "pair_exclude_types", "three_types"],
)  # fmt: skip
def test_all_evaluators_round_alike(case, scheme, dtype, device):
    """Beside PyTorch's own way: as near as rounding allows, where a last bit may turn a number into the next one."""
    full = loaded(case, dtype)
    if device != "cpu":
        full = copy.deepcopy(full).to(device)
    model = quantize(full, scheme)
    name = model.evaluator().name
    assert name == ("splines" if "exclude_types" in case and "atom" not in case else "low-bit")
    assert f"({scheme}: {SCHEMES[scheme].words})" in model.explain()
    for one in references(model_path(case).parent):
        where = [None if v is None else v.to(device) for v in (one.fparam, one.aparam)]
        system = on(one.system, device)
        found = model.evaluate(system, None, *where)
        answers, _ = Splines(model)(system, model.neighbor_list(system), *where)
        wanted = model.with_sums(answers, system)
        before = full.evaluate(system, None, *where)
        for key in ("energy", "forces", "virial", "atom_energy"):
            off, lost = rms(found[key] - wanted[key]), rms(found[key] - before[key])
            assert off <= 0.3 * lost + 1e-9, (one.name, key, off, lost)
            assert lost > 0 or case == "virtual_atoms"


def on(system, device):
    names = [field.name for field in dataclasses.fields(system)]
    moved = {n: v.to(device) for n in names if isinstance(v := getattr(system, n), torch.Tensor)}
    return dataclasses.replace(system, **moved)


@pytest.mark.parametrize("scheme", EXACT)
def test_weights_alone_keep_every_evaluator_and_exact_forces(scheme, alloy):
    model = quantize(load(ALLOY, dtype="float64"), scheme)
    assert model.evaluator().name == "fused" and scheme in model.explain()
    assert model.evaluator("train").name == "fused training"
    system = mdops.system.from_atoms([read_alloy(alloy, model)], model.type_map)
    pairs = model.neighbor_list(system)
    found = model.evaluate(system, pairs)
    for way in (Splines(model), Autograd(model)):
        answers, _ = way(system, pairs)
        assert relative_error(found["forces"], answers["forces"].detach()) < 1e-6
    h, moved = 1e-4, []
    for sign in (1, -1):
        positions = system.positions.clone()
        positions[0, 0] += sign * h
        moved.append(model(positions, system.types, system.cell, system.pbc)["energy"].item())
    assert (moved[1] - moved[0]) / (2 * h) == pytest.approx(found["forces"][0, 0].item(), abs=1e-6)


def read_alloy(atoms, model):
    """Atoms of the model's elements, at a density that its sel allows."""
    atoms = atoms.copy()
    symbols = np.array(model.type_map)
    atoms.symbols[:] = symbols[np.arange(len(atoms)) % len(symbols)]
    return atoms


def test_training_evaluators_agree(data):
    """Rounded weights train by every evaluator, with the same gradients."""
    model = quantize(small_model(data), "w8").train()
    system = mdops.system.from_atoms([first_frame(data)], model.type_map)
    pairs, gradients = model.neighbor_list(system), []
    for way in (FusedTraining(model), MomentTraining(model), Splines(model)):
        options = {"create_graph": True} if isinstance(way, Autograd) else {}
        answers, _ = way(system, pairs, **options)
        loss = answers["forces"].square().sum() + answers["atom_energy"].sum()
        gradients.append(torch.autograd.grad(loss, list(model.model.fitting.parameters())))
    for others in gradients[:2]:
        for a, b in zip(others, gradients[2], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    rounded = quantize(small_model(data), "w8a8").train()
    assert rounded.evaluator("train").name == "splines"
    assert "low-bit numbers (w8a8)" in rounded.explain("train")


def small_model(data, dtype="float64"):
    from small_systems import new_model

    from mdops.train import PairLists

    model = new_model(small_config(), data, PairLists(data, 4.0), dtype=getattr(torch, dtype))
    model.use_spline(0.8)
    return model


@pytest.mark.parametrize(
    "kind", ["dpa1_attn0_strip", "se_e2_r_base", "hybrid", "zbl_alpha", "linear_net_table"]
)
def test_models_of_every_kind(kind, tmp_path):
    """Any descriptor, and the parts of composed models; they run by autograd, and their files bring them back."""
    from reference_cases import DATA

    folder = DATA.parent / "reference_kinds" / kind
    full = load(folder / "model.dp", dtype="float64", overflow="truncate")
    one = references(folder)[0]
    for scheme in ("w8a8", "w8"):
        model = quantize(full, scheme)
        assert model.scheme is SCHEMES[scheme] and full.scheme is None
        found = model.evaluate(one.system, None, one.fparam, one.aparam)
        before = full.evaluate(one.system, None, one.fparam, one.aparam)
        assert 0 < rms(found["forces"] - before["forces"]) < 0.1 * rms(before["forces"])
        for suffix in ("dp", "safetensors"):
            model.save(tmp_path / f"model.{suffix}")
            again = load(tmp_path / f"model.{suffix}", dtype="float64", overflow="truncate")
            same = again.evaluate(one.system, None, one.fparam, one.aparam)
            assert again.scheme is SCHEMES[scheme]
            assert torch.equal(same["forces"], found["forces"])


def test_the_packed_numbers_follow_the_weights(alloy):
    model = quantize(load(ALLOY), "w8a8")
    atoms = read_alloy(alloy, model)
    before = model.compute(atoms)["energy"]
    kept = model.evaluator()
    assert model.evaluator() is kept
    with torch.no_grad():
        for p in model.model.fitting.parameters():
            p *= 1.5
    assert model.evaluator() is not kept
    assert abs(model.compute(atoms)["energy"] - before) > 1e-3
    assert not any(p.requires_grad for p in model.model.fitting.frozen().parameters())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_what_is_not_a_number_stays_so(scheme, device, alloy):
    model = quantize(load(ALLOY, device=device), scheme)
    with torch.no_grad():
        model.model.fitting.net(0).layers[0].weight[5, 3] = float("nan")
    kinds = mdops.system.from_atoms([read_alloy(alloy, model)], model.type_map, model.device)
    found = model.evaluate(kinds)["atom_energy"]
    assert found[kinds.types == 0].isnan().all()


# -- Files


@pytest.mark.parametrize("suffix", ["dp", "yaml", "json", "safetensors"])
@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_files_bring_back_the_same_bits(scheme, suffix, data, tmp_path):
    model = quantize(small_model(data, "float32"), scheme, data)
    path, again = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    model.save(path)
    found = load(path)
    assert found.scheme is SCHEMES[scheme] and found.source["quantized"] == scheme
    for one, other in zip(model.model.fitting.nets.nets, found.model.fitting.nets.nets, strict=True):
        for a, b in zip(one.layers[:-1], other.layers[:-1], strict=True):
            assert torch.equal(a.balance, b.balance)
            assert all(
                torch.equal(x.float(), y.float()) for x, y in zip(a.numbers(), b.numbers(), strict=True)
            )
    found.save(again)
    assert trees_are_same(read_model(path).model, read_model(again).model)
    assert main(["convert", str(path), str(tmp_path / "c.safetensors")]) == 0
    assert trees_are_same(read_model(path).model, read_model(tmp_path / "c.safetensors").model)


def trees_are_same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(trees_are_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(trees_are_same, one, other))
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


@pytest.mark.parametrize("suffix", ["dp", "yaml", "json"])
def test_files_for_deepmd_kit_have_the_rounded_weights_and_no_key_of_ours(suffix, data, tmp_path):
    """Who does not know of schemes computes with weights of low-bit numbers and inputs that are not rounded."""
    model = quantize(small_model(data, "float32"), "w8a8", data)
    path = tmp_path / f"model.{suffix}"
    model.save(path)
    file = read_model(path)
    assert "quantized" in file.model["fitting"]
    text = path.read_bytes() if suffix != "dp" else header(path)
    document = json.loads(text) if suffix != "yaml" else __import__("yaml").safe_load(text)
    assert "quantized" not in document["model"]["fitting"] and "mdops_quantized" in document
    del file.model["fitting"]["quantized"]
    write_model(tmp_path / "plain.safetensors", file.model)
    plain = load(tmp_path / "plain.safetensors")
    atoms, alone = first_frame(data), quantize(model_without_calibration(data), "w8a8")
    assert plain.scheme is None and alone.scheme is not None
    for one, other in zip(plain.model.fitting.nets.nets, model.model.fitting.nets.nets, strict=True):
        for a, b in zip(one.layers, other.layers, strict=True):
            assert torch.equal(a.weight, b.multiplied)
    off = plain.compute(atoms)["forces"] - model.compute(atoms)["forces"]
    assert 0 < np.abs(off).max() < 0.02 * np.abs(plain.compute(atoms)["forces"]).max()


def model_without_calibration(data):
    return small_model(data, "float32")


def header(path):
    import h5py

    with h5py.File(path) as file:
        return file.attrs["json"]


def test_damaged_schemes_are_refused(data, tmp_path):
    tree = quantize(small_model(data), "w8a8").model.to_tree()
    node = tree["fitting"]["quantized"]
    for change, says in (
        ({"scheme": "w3"}, "quantized.scheme cannot be 'w3'"),
        ({"@variables": {}}, "lacks 'shifts'"),
        ({"@variables": {"shifts": np.zeros(3, np.int8)}}, "the shape of model.fitting.quantized shifts"),
        ({"@variables": {"shifts": node["@variables"]["shifts"] * 0.5}}, "shifts that are not whole numbers"),
        ({"bits": 3}, "has the key 'bits'"),
    ):
        broken = {**tree, "fitting": {**tree["fitting"], "quantized": {**node, **change}}}
        write_model(tmp_path / "broken.safetensors", broken)
        with pytest.raises(ModelFileError, match=says):
            load(tmp_path / "broken.safetensors")
    quantize(small_model(data), "w8a8").save(tmp_path / "model.json")
    document = json.loads((tmp_path / "model.json").read_text())
    document["mdops_quantized"] = {"model.models[0].fitting": document["mdops_quantized"]["model.fitting"]}
    (tmp_path / "model.json").write_text(json.dumps(document))
    with pytest.raises(ModelFileError, match="which is not a fitting of the model"):
        load(tmp_path / "model.json")


def test_copies_pickles_and_digests(data):
    from mdops.digest import digest

    model = quantize(small_model(data), "w8a8")
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    assert digest(torch.load(stream, weights_only=False)) == digest(copy.deepcopy(model)) == digest(model)
    assert digest(quantize(small_model(data), "w8")) != digest(model) != digest(small_model(data))


# -- Where they are refused


def test_quantize_refuses_what_it_cannot(data):
    model = small_model(data)
    with pytest.raises(InputError, match="scheme is 'int4', expected one of w8a8, fp8"):
        quantize(model, "int4")
    with pytest.raises(InputError, match=r"low-bit already \(w8a8\)"):
        quantize(quantize(model, "w8a8"), "ternary")
    from reference_cases import DATA

    table = load(DATA.parent / "reference_kinds" / "pairtab" / "model.dp")
    with pytest.raises(InputError, match="a linear model has no fitting net"):
        quantize(table, "w8a8")
    with pytest.raises(InputError, match=r"matmul is 'bf16', and .*low-bit numbers \(w8a8\)|has neither AMX"):
        quantize(small_model(data, "float32"), "w8a8").use_matmul("bf16")


def test_dynamics_want_to_be_told(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = quantize(small_model(data, "float32"), "w8a8", data)
    model.save("low.safetensors")
    atoms = first_frame(data)
    write("start.xyz", atoms)
    says = "w8a8.*allow_low_bit=True"
    for ask in (
        lambda: MDOps("low.safetensors"),
        lambda: MDOps(model),
        lambda: Engine(atoms, model, EnsembleSettings("nvt", 300)),
        lambda: BatchEngine([atoms], load("low.safetensors"), EnsembleSettings("nvt", 300)),
    ):
        with pytest.raises(InputError, match=says):
            ask()
    run = ["md", "start.xyz", "--model", "low.safetensors", "--steps", "3", "-T", "300", "-o", "a.traj"]
    assert main(run) == 2
    assert "--allow-low-bit" in capsys.readouterr().err
    assert main([*run, "--allow-low-bit", "--overwrite"]) == 0
    assert "low-bit: spline moments" in capsys.readouterr().err
    atoms.calc = MDOps("low.safetensors", allow_low_bit=True)
    forces = atoms.get_forces()
    np.testing.assert_allclose(forces, load("low.safetensors").compute(atoms)["forces"], atol=1e-9)
    assert np.isfinite(read("a.traj").get_positions()).all()


def test_info_tells_the_scheme(data, tmp_path, capsys):
    quantize(small_model(data), "ternary").save(tmp_path / "low.dp")
    assert main(["info", str(tmp_path / "low.dp")]) == 0
    out = capsys.readouterr().out
    assert "one a type, ternary: ternary weights, inputs in 8-bit integers\n" in out
    assert "low-bit: spline moments" in out


# -- What they cost


def test_the_report_has_the_errors_of_evaluate_and_the_drift(data):
    from mdops.data.evaluation import evaluate

    full = small_model(data, "float32")
    models = {name: quantize(full, name, data) for name in ("w8a8", "ternary")}
    rows = costs(full, models, data, 0.02)
    assert [row.name for row in rows] == ["float32", "w8a8", "ternary"]
    for row, model in zip(rows, [full, *models.values()], strict=True):
        errors = evaluate(model, data).errors()
        assert row.force_rmse == errors["forces"].rmse and row.energy_rmse == errors["energy"].rmse
        assert row.step > 0 and row.drift is not None
    assert rows[0].force_off == rows[0].energy_off == 0 and rows[0].step == 1
    assert 0 < 3 * rows[1].force_off < rows[2].force_off


def test_a_scheme_that_loses_accuracy_says_so():
    from mdops.quantization import QuantizationReport

    full = QuantizationReport("float32", 0.1, 1e-3, 0, 0, 1)
    lost = verdict(full, QuantizationReport("ternary", 0.2, 1e-3, 0.1, 0, 1), SCHEMES["ternary"])
    assert "LOSES ACCURACY: force RMSE 200 instead of 100 meV/A;" in lost
    assert "drifts: use a thermostat, or the scheme wternary, whose inputs are not rounded" in lost
    kept = verdict(full, QuantizationReport("w8", 0.101, 1e-3, 0.1, 0, 1), SCHEMES["w8"])
    assert "within 5%" in kept and "derivatives of its energy" in kept
    blind = verdict(full, QuantizationReport("w8", None, None, 0.1, 0, 1), SCHEMES["w8"])
    assert "no labels" in blind


def test_the_slope_of_a_line_and_its_error():
    times = np.linspace(0, 1, 1000)
    noise = np.random.default_rng(0).normal(0, 1e-3, 1000)
    found, error = slope(times, 0.5 * times + noise)
    assert abs(found - 0.5) < 4 * error < 2e-3


def test_dynamics_that_break_have_no_drift(data):
    model = small_model(data, "float32")
    atoms = first_frame(data)
    found, error = energy_drift(model, atoms, 5.0, timestep=60.0)
    assert np.isnan(found) and np.isnan(error)


def test_the_command_knows_all_schemes():
    assert tuple(SCHEMES) == command.SCHEMES
