"""The op for a whole step against the same model composed of the single ops, on every model option."""

import dataclasses
import warnings

import pytest
import torch
from children import in_threads
from reference_cases import CASES, DATA, composed, loaded, model_path, references, relative_error

from mdops import Potential, load
from mdops.cli.sample_model import sample_model
from mdops.evaluators import Autograd
from mdops.evaluators.from_moments import MomentSteps
from mdops.evaluators.one_op import Fused
from mdops.jit.sample_box import sample_box
from mdops.models import DescriptorFitting
from mdops.models.ener import EnergyFitting
from mdops.models.se_e2_a import SeE2A
from mdops.models.standard import StandardOptions
from mdops.nn.net import Layer, NetCollection
from mdops.ops import NeighborList, neighbor_list, spline_potential_why_not
from mdops.system import System, from_atoms
from mdops.tables.spline import SplineGrid

# Vacuum energies that depend on further inputs, and a first fitting layer as wide as its input.
COMPOSED_ONLY = ("atom_ener_shared", "axis_all")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_fused_is_composed(case, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        potential = loaded(case, dtype)
        if potential.grid is None:
            pytest.skip("a net with kinks has no spline within the error bound")
        assert isinstance(potential.evaluator(), Autograd) == (case in COMPOSED_ONLY)
        for reference in references(DATA / case):
            asked = (reference.system, None, reference.fparam, reference.aparam)
            fused, plain = potential.evaluate(*asked, atom_virial=True), potential.evaluate(*asked)
            expected = composed(potential, *asked[:1], *asked[2:])
            tolerance = 1e-10 if dtype == "float64" else 1e-4
            assert fused.keys() == expected.keys()
            for name, value in fused.items():
                assert relative_error(value, expected[name]) < tolerance, (reference.name, name)
            for name, value in plain.items():
                assert torch.equal(value, fused[name]), (reference.name, name)


def test_new_weights_are_seen():
    potential = load(model_path("se_a_alloy"), dtype=torch.float64)
    (reference, *_) = references(DATA / "se_a_alloy")
    before = potential.evaluate(reference.system)["energy"]
    with torch.no_grad():
        for weight in potential.parameters():
            weight.mul_(1.01)
    after = potential.evaluate(reference.system)
    expected = composed(potential, reference.system)
    assert not torch.allclose(before, after["energy"], rtol=1e-6)
    assert relative_error(after["forces"], expected["forces"]) < 1e-9


def test_the_result_does_not_depend_on_the_list():
    """A list with skin, and one with a longer row, name the same pairs within the cutoff."""
    potential = load(model_path("se_a_alloy"), dtype=torch.float64)
    (reference, *_) = references(DATA / "se_a_alloy")
    s = reference.system
    plain = potential.evaluate(s)
    for skin, capacity in ((0.0, 300), (1.5, None)):
        longer = neighbor_list(
            s.positions,
            s.cell,
            s.pbc,
            s.types,
            potential.cutoff + skin,
            batch=s.batch,
            ntypes=3,
            capacity=capacity,
        )
        other = potential.evaluate(s, longer)
        for name, value in plain.items():
            assert relative_error(other[name], value) < 1e-12, name


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(threads):
    potential = load(model_path("se_a_alloy"), dtype=torch.float64)
    (reference, *_) = references(DATA / "se_a_alloy")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = potential.evaluate(reference.system)
        torch.set_num_threads(threads)
        several = potential.evaluate(reference.system)
    finally:
        torch.set_num_threads(before)
    for name, value in one.items():
        assert relative_error(several[name], value) < 1e-12


def moved(system, pairs, device):
    """A system and its list on another device."""
    fields = (system.positions, system.types, system.cell, system.pbc, system.batch)
    lists = (pairs.neighbors, pairs.images, pairs.counts)
    return System(*(x.to(device) for x in fields)), NeighborList(*(x.to(device) for x in lists), pairs.cutoff)


def listed(potential, system, skin=0.0):
    cutoff, kinds = potential.cutoff + skin, len(potential.type_map)
    return neighbor_list(
        system.positions, system.cell, system.pbc, system.types, cutoff, batch=system.batch, ntypes=kinds
    )


def many(case, most):
    """Its first frame so often that it has up to `most` atoms, and the parameters of all of them."""
    (reference, *_) = references(DATA / case)
    own = reference.system.batch == 0
    times = most // int(own.sum())
    fparam = None if reference.fparam is None else reference.fparam[:1].repeat(times, 1)
    aparam = None if reference.aparam is None else reference.aparam[own].repeat(times, 1)
    return repeated(reference, times), fparam, aparam


def repeated(reference, times):
    """The reference's first frame many times over, as many systems: enough atoms for the large tiles."""
    s = reference.system
    own = s.batch == 0
    atoms = int(own.sum())
    random = torch.Generator().manual_seed(0)
    positions = s.positions[own].repeat(times, 1)
    positions += 0.02 * torch.randn(positions.shape, generator=random, dtype=torch.float64)
    batch = torch.arange(times, dtype=torch.int32).repeat_interleave(atoms)
    return System(
        positions,
        s.types[own].repeat(times),
        s.cell[:1].repeat(times, 1, 1),
        s.pbc[:1].repeat(times, 1),
        batch,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_gpu_is_the_float64_cpu(case):
    """float32 on a GPU against float64 on the CPU: energies, forces, virials, and what the neighbours told."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        double = load(model_path(case), dtype=torch.float64, overflow="extend")
        gpu = load(model_path(case), dtype=torch.float32, overflow="extend").to("cuda")
        if double.grid is None or gpu.grid is None or isinstance(double.evaluator(), Autograd):
            pytest.skip("the fused step does not stand for this model")
    for reference in references(DATA / case):
        pairs = listed(double, reference.system, skin=0.5)
        expected, moments = double.evaluator()(reference.system, pairs, reference.fparam, reference.aparam)
        parameters = (None if x is None else x.cuda() for x in (reference.fparam, reference.aparam))
        result, report = gpu.evaluator()(*moved(reference.system, pairs, "cuda"), *parameters)
        for name, value in expected.items():
            assert relative_error(result[name].cpu(), value) < 1e-4, (reference.name, name)
        assert torch.equal(report.within[0].cpu(), moments.within[0])
        assert relative_error(report.nearest.cpu(), moments.nearest) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("block", ["", "32", "64"])
@pytest.mark.parametrize("times", [1, 120])
def test_gpu_has_the_same_bits_every_time(times, block, monkeypatch):
    """Few atoms and many; eagerly and in a graph; also by blocks of mma.sync. All forces add up to zero exactly."""
    monkeypatch.setenv("MDOPS_BLOCK_ROWS", block)
    gpu = load(model_path("se_a_alloy"), dtype=torch.float32, overflow="extend").to("cuda")
    double = load(model_path("se_a_alloy"), dtype=torch.float64, overflow="extend")
    (reference, *_) = references(DATA / "se_a_alloy")
    system = repeated(reference, times)
    pairs = listed(double, system)
    expected, _ = double.evaluator()(system, pairs, None, None)
    on_gpu = moved(system, pairs, "cuda")
    first, _ = gpu.evaluator()(*on_gpu, None, None)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured, _ = gpu.evaluator()(*on_gpu, check=False)
    for _ in range(3):
        graph.replay()
        for name, value in first.items():
            assert torch.equal(captured[name], value), name
    for name, value in expected.items():
        assert relative_error(first[name].cpu(), value) < 1e-4, name
    assert first["forces"].sum(0).abs().max() == 0


# Nets that one kernel takes whole, on Hopper: of two and three layers, with timesteps and with further inputs. And two
# that it does not: another activation, layers twice as wide as their input.
MANY = ["se_a_alloy", "se_a_oneside", "three_types", "fitting_resnet_dt", "fparam_aparam", "virtual_atoms"]
MANY += ["activation_gelu", "widths"]


# Ways of the net: the one that is quickest here, kinds of chain, kinds of block by mma.sync, a kernel a product.
WAYS = [None, *(("CHAIN", rows) for rows in (32, 64, 96, 128)), *(("BLOCK", rows) for rows in (32, 64, 1))]


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", MANY)
def test_gpu_is_the_float64_cpu_for_many_atoms(case, way, monkeypatch):
    """Enough atoms for large tiles, several blocks of every type, the last ones not full."""
    if way:
        monkeypatch.setenv(f"MDOPS_{way[0]}_ROWS", str(way[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        double = load(model_path(case), dtype=torch.float64, overflow="extend")
        gpu = load(model_path(case), dtype=torch.float32, overflow="extend").to("cuda")
    system, fparam, aparam = many(case, 4300)
    pairs = listed(double, system, skin=0.5)
    expected, moments = double.evaluator()(system, pairs, fparam, aparam)
    parameters = (None if x is None else x.cuda() for x in (fparam, aparam))
    result, report = gpu.evaluator()(*moved(system, pairs, "cuda"), *parameters)
    for name, value in expected.items():
        assert relative_error(result[name].cpu(), value) < 1e-4, name
    assert torch.equal(report.within[0].cpu(), moments.within[0])


@pytest.mark.gpu
@pytest.mark.parametrize("atoms", [150, 400, 800, 1600])
@pytest.mark.parametrize(
    "case", ["reference/fparam_aparam", "reference_kinds/se_e2_r_base", "reference_kinds/dpa1_attn0_strip"]
)
def test_gpu_with_one_or_several_warps_an_atom(case, atoms):
    """As many atoms as share warps by eights, fours and twos on an H100, and one warp each; the same bits again."""
    folder = DATA.parent / case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        double = load(folder / "model.dp", dtype=torch.float64, overflow="extend")
        gpu = load(folder / "model.dp", dtype=torch.float32, overflow="extend", device="cuda")
    (reference, *_) = references(folder)
    own = reference.system.batch == 0
    times = -(-atoms // int(own.sum()))
    system = repeated(reference, times)
    fparam = None if reference.fparam is None else reference.fparam[:1].repeat(times, 1)
    aparam = None if reference.aparam is None else reference.aparam[own].repeat(times, 1)
    expected = double.evaluate(system, None, fparam, aparam, atom_virial=True)
    assert isinstance(gpu.evaluator(), Fused)
    fields = (system.positions, system.types, system.cell, system.pbc, system.batch)
    parameters = (None if x is None else x.cuda() for x in (fparam, aparam))
    asked = (System(*(x.cuda() for x in fields)), None, *parameters)
    result, again = (gpu.evaluate(*asked, atom_virial=True) for _ in range(2))
    for name, value in expected.items():
        assert relative_error(result[name].cpu(), value) < 1e-4, name
        assert torch.equal(result[name], again[name]), name
    assert result["forces"].sum(0).abs().max() == 0


@pytest.mark.gpu
@pytest.mark.parametrize("block", ["", "32", "64"])
def test_gpu_answers_wrong_input_with_nan(block, monkeypatch):
    """In the systems that it is in, and in no others."""
    monkeypatch.setenv("MDOPS_BLOCK_ROWS", block)
    gpu = load(model_path("se_a_alloy"), dtype=torch.float32, overflow="extend").to("cuda")
    (reference, *_) = references(DATA / "se_a_alloy")
    many = repeated(reference, 3)
    system, pairs = moved(many, listed(gpu, many), "cuda")
    own = system.batch == 1
    atom = int(own.nonzero()[4])

    def answer(changed_system=None, **changed):
        return gpu.evaluator()(changed_system or system, pairs._replace(**changed), None, None)[0]

    def assert_spoiled_alone(result):
        assert torch.isnan(result["forces"][own]).all() and torch.isnan(result["virial"][1]).all()
        assert torch.isnan(result["atom_energy"][own]).all()
        for name, value in answer().items():
            kept = torch.tensor([0, 2], device="cuda") if name == "virial" else ~own
            assert torch.equal(result[name][kept], value[kept]), name

    assert all(torch.isfinite(value).all() for value in answer().values())
    wrong = pairs.neighbors.clone()
    wrong[atom, 0] = system.atoms
    assert_spoiled_alone(answer(neighbors=wrong))
    wrong = pairs.counts.clone()
    wrong[atom] += pairs.neighbors.shape[1]
    assert_spoiled_alone(answer(counts=wrong))
    for name, value in (("types", 7), ("positions", float("nan"))):
        wrong = getattr(system, name).clone()
        wrong[atom] = value
        assert_spoiled_alone(answer(dataclasses.replace(system, **{name: wrong})))
    wrong = system.batch.clone()
    wrong[atom] = 3  # of no system: it is alone
    result = answer(dataclasses.replace(system, batch=wrong))
    assert torch.isnan(result["forces"][atom]).all() and torch.isnan(result["atom_energy"][atom])
    assert torch.isfinite(result["forces"][system.batch != 1]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("block", ["", "32"])
def test_gpu_answers_weights_that_are_no_numbers_with_nan(block, monkeypatch):
    monkeypatch.setenv("MDOPS_BLOCK_ROWS", block)
    (reference, *_) = references(DATA / "se_a_alloy")
    for part in ("descriptor", "fitting"):
        gpu = load(model_path("se_a_alloy"), dtype=torch.float32, overflow="extend").to("cuda")
        system, pairs = moved(reference.system, listed(gpu, reference.system), "cuda")
        with torch.no_grad():
            for weight in getattr(gpu.model, part).parameters():
                weight.view(-1)[0] = torch.nan
        result, _ = gpu.evaluator()(system, pairs, check=False)
        assert not any(torch.isfinite(value).any() for value in result.values()), part


@pytest.mark.gpu
def test_gpu_takes_empty_systems_and_virtual_atoms():
    gpu = load(model_path("se_a_alloy"), dtype=torch.float32, overflow="extend").to("cuda")
    (reference, *_) = references(DATA / "se_a_alloy")
    s = reference.system
    nothing = System(s.positions[:0], s.types[:0], s.cell, s.pbc, s.batch[:0])
    result, _ = gpu.evaluator()(*moved(nothing, listed(gpu, nothing), "cuda"), None, None)
    assert result["forces"].shape == (0, 3) and bool((result["virial"] == 0).all())
    virtual = System(s.positions, torch.full_like(s.types, -1), s.cell, s.pbc, s.batch)
    result, report = gpu.evaluator()(*moved(virtual, listed(gpu, virtual), "cuda"), None, None)
    assert all(bool((value == 0).all()) for value in result.values())
    assert bool((report.within[0] == 0).all())


@pytest.mark.gpu
def test_float64_on_a_gpu_goes_another_way():
    gpu = load(model_path("se_a_alloy"), dtype=torch.float64).to("cuda")
    assert isinstance(gpu.evaluator(), MomentSteps)


def of_many_types(ntypes, intervals, dtype=torch.float32, device="cpu"):
    """The model of `sample_model` with its nets for each of many types, and splines of so many intervals."""
    few = sample_model((4, 4), 4.0, (4, 8), 4, (16, 16), dtype).model
    names = [f"T{t}" for t in range(ntypes)]
    nets = {
        kind: NetCollection([part[t % 2] for t in range(ntypes)], 1, ntypes, f"{kind}_network")
        for kind, part in (("embedding", few.descriptor.embeddings), ("fitting", few.fitting.nets))
    }
    options = dataclasses.replace(few.descriptor.options, sel=[4] * ntypes)
    mean, std = few.descriptor.mean[:1].repeat(ntypes), few.descriptor.std[:1].repeat(ntypes, 1)
    descriptor = SeE2A(options, names, mean, std, nets["embedding"])
    fitting, zeros = few.fitting, torch.zeros(ntypes, dtype=torch.float64)
    nothing = torch.empty(0, dtype=dtype)
    fitting = EnergyFitting(
        fitting.options, names, nets["fitting"], zeros, fitting.fparam, fitting.aparam, nothing
    )
    options = StandardOptions(type_map=names, descriptor=options, fitting_net=fitting.options)
    model = Potential(
        DescriptorFitting(options, names, zeros, zeros.clone(), descriptor, fitting), overflow="extend"
    ).eval()
    model.grid = SplineGrid(1 / 0.9, intervals, 0.9, 1e-5)
    return model.to(device)


def box_of(model, count):
    """A box with atoms of all its types."""
    system = from_atoms([sample_box(count, ["O", "H"])], ["O", "H"], model.device)
    system.types[:] = torch.arange(count, device=model.device) % len(model.type_map)
    return system


def test_more_splines_than_the_op_takes_go_another_way():
    """16 types of 2,053 functions are 32,848 rows."""
    small, large = of_many_types(16, 256, torch.float64), of_many_types(16, 2048, torch.float64)
    system = box_of(small, 40)
    assert isinstance(small.evaluator(), Fused) and not isinstance(large.evaluator(), Fused)
    expected, result = small.evaluate(system), large.evaluate(system)
    assert relative_error(result["forces"], expected["forces"]) < 1e-5
    sizes = {"tables": 16, "width": 8, "axis": 4, "neurons": [16, 16]}
    assert spline_potential_why_not(large.model.descriptor.mean, intervals=256, **sizes) is None
    assert "16 types of 2053 spline functions" in spline_potential_why_not(
        large.model.descriptor.mean, intervals=2048, **sizes
    )


@pytest.mark.gpu
def test_gpu_goes_another_way_beyond_its_shared_memory(monkeypatch):
    """What an H100 holds, and no GPU does; and the same model on a GPU with less."""
    fits, large = of_many_types(59, 207, device="cuda"), of_many_types(62, 207, device="cuda")
    if torch.cuda.get_device_properties(0).shared_memory_per_block_optin >= 227 * 1024:
        assert isinstance(fits.evaluator(), Fused)
        result, exact = fits.evaluate(box_of(fits, 200)), of_many_types(59, 207, torch.float64)
        expected = exact.evaluate(box_of(exact, 200))
        assert relative_error(result["forces"].cpu(), expected["forces"]) < 1e-4
    assert not isinstance(large.evaluator(), Fused)
    assert torch.isfinite(large.evaluate(box_of(large, 200))["forces"]).all()
    monkeypatch.setenv("MDOPS_GPU_SHARED_BYTES", str(99 * 1024))
    assert not isinstance(of_many_types(59, 207, device="cuda").evaluator(), Fused)


@pytest.mark.gpu
@pytest.mark.parametrize("block", ["", "1"], ids=["block", "product"])
@pytest.mark.parametrize("matmul", ["float32", "tf32"])
@pytest.mark.parametrize("case", ["se_a_alloy", "fparam_aparam", "activation_gelu", "widths"])
def test_gpu_with_little_shared_memory(case, matmul, block, monkeypatch):
    """As much as chips of compute capability 8.6, 8.9 and 12 have, and more atoms than small tiles are for; as one
    kernel, and a kernel a product."""
    monkeypatch.setenv("MDOPS_GPU_SHARED_BYTES", str(99 * 1024))
    monkeypatch.setenv("MDOPS_BLOCK_ROWS", block)
    double = load(model_path(case), dtype=torch.float64, overflow="extend")
    gpu = load(model_path(case), device="cuda", overflow="extend", matmul=matmul)
    system, fparam, aparam = many(case, 5000)
    pairs = listed(double, system)
    expected, _ = double.evaluator()(system, pairs, fparam, aparam)
    parameters = (None if x is None else x.cuda() for x in (fparam, aparam))
    result, _ = gpu.evaluator()(*moved(system, pairs, "cuda"), *parameters)
    for name, value in expected.items():
        assert relative_error(result[name].cpu(), value) < (1e-4 if matmul == "float32" else 5e-3), name


@pytest.mark.gpu
def test_gpu_takes_models_of_different_size_in_threads():
    """Each needs more shared memory than a block has without asking, and not as much as the others."""
    models = [of_many_types(n, 207, device="cuda") for n in (16, 24, 32, 40)]
    calls = []
    for model in models:
        system = box_of(model, 60)
        calls.append((model.evaluator(), system, listed(model, system)))
    expected = [fused(system, pairs, None, None)[0]["forces"] for fused, system, pairs in calls]
    errors = []

    def work(k):
        try:
            for turn in range(1500):
                fused, system, pairs = calls[(k + turn) % 4]
                result, _ = fused(system, pairs, None, None)
            assert torch.equal(result["forces"], expected[(k + turn) % 4])
        except Exception as error:
            errors.append(error)

    in_threads(work, 4)
    assert not errors, errors[0]


def errors_of_rounding(potential: Potential) -> dict[str, float]:
    """What factors of 11 bits in the fitting net do, as `tf32` has them, by PyTorch on the CPU. Changes the nets."""
    system = from_atoms([sample_box(192, potential.type_map)], potential.type_map)
    given = system, listed(potential, system), None, None
    exact, _ = Autograd(potential)(*given)
    for module in potential.model.fitting.modules():
        if isinstance(module, Layer):
            with torch.no_grad():
                module.weight.copy_(module.weight.half())
            module.register_forward_pre_hook(lambda _, args: (args[0] + (args[0].half() - args[0]).detach(),))
    answers, _ = Autograd(potential)(*given)
    return {name: relative_error(answers[name], exact[name]) for name in ("atom_energy", "forces", "virial")}


@pytest.mark.gpu
@pytest.mark.parametrize("atoms", [96, 1920])
@pytest.mark.parametrize("activation", ["tanh", "gelu", "softplus"])
@pytest.mark.parametrize(
    "widths",
    [
        (120, 240, 240),
        (24, 48, 48, 96),
        (104, 208),
        (12, 24, 48),
        (240,) * 16,
        (60,) * 9,
        (256, 256),
        (128, 256, 250),
        (384,) * 3,
        (160, 320, 8),
        (512, 512, 512),
        (80, 400, 470, 30, 60),
        (120, 240, 480),
        (400,) * 9,
        (520, 520),
        (5, 10),
    ],
)
def test_nets_of_many_shapes_on_a_gpu(widths, activation, atoms):
    """As one kernel on Hopper, of clusters or of each kind of chain, or a kernel a product: layers twice as wide as
    their input, and many layers."""
    check_net(widths, activation, atoms)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [32, 48, 64, 96, 128])
@pytest.mark.parametrize(
    "widths",
    [
        (120, 240, 240),
        (24, 48, 48, 96),
        (240,) * 16,
        (128, 256, 250),
        (192, 384, 80),
        (256, 512, 80),
        (512, 128, 256),
    ],
)
@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_nets_by_every_kind_of_chain(widths, activation, rows, monkeypatch):
    """With as many rows a block as are named, where there is such a kernel for the widths; otherwise another way."""
    monkeypatch.setenv("MDOPS_CHAIN_ROWS", str(rows))
    check_net(widths, activation, 300)


@pytest.mark.gpu
@pytest.mark.parametrize("shared", ["", str(99 * 1024)], ids=["all memory", "99 KiB"])
@pytest.mark.parametrize("rows", ["32", "64"])
@pytest.mark.parametrize(
    "widths",
    [
        (8,),
        (5, 10),
        (24, 48, 48, 96),
        (120, 240, 240),
        (240,) * 16,
        (128, 256, 250),
        (192, 384, 80),
        (256, 512, 512),
        (512, 128, 256),
    ],
)
def test_nets_by_every_kind_of_block(widths, rows, shared, monkeypatch):
    """By mma.sync, where the block fits: 64 rows of more than 256 neurons do not in 99 KiB, and go another way."""
    monkeypatch.setenv("MDOPS_BLOCK_ROWS", rows)
    monkeypatch.setenv("MDOPS_GPU_SHARED_BYTES", shared)
    check_net(widths, "tanh", 300)


ACTIVATIONS = ["linear", "relu", "relu6", "sigmoid", "silu", "silut", "silut:-1.0", "gelu"]


@pytest.mark.gpu
@pytest.mark.parametrize("weight", [1.0, 0.03])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nets_of_every_activation_on_a_gpu(activation, weight):
    """Also with small weights."""
    check_net((100, 200, 200, 240), activation, 1920, weight)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ["32", "64"])
@pytest.mark.parametrize("activation", [*ACTIVATIONS, "softplus"])
def test_nets_of_every_activation_by_blocks(activation, rows, monkeypatch):
    monkeypatch.setenv("MDOPS_BLOCK_ROWS", rows)
    check_net((100, 200, 200, 240), activation, 200)


def check_net(widths, activation, atoms, weight=1.0):
    """A GPU's answers against float64's, with so many times the weights and biases of the hidden layers."""
    shape = ((46, 92), 6.0, (25, 50, 100), 16, widths)
    double = sample_model(*shape, torch.float64, activation=activation)
    single = sample_model(*shape, activation=activation)
    for model in (double, single):
        with torch.no_grad():
            for number in (
                p for t in (0, 1) for x in model.model.fitting.net(t).layers[:-1] for p in x.parameters()
            ):
                number.mul_(weight)
        model.use_spline(0.5)
    single = single.to("cuda")
    system = from_atoms([sample_box(atoms, double.type_map)], double.type_map)
    pairs = listed(double, system)
    expected, _ = double.evaluator()(system, pairs, None, None)
    result, _ = single.evaluator()(*moved(system, pairs, "cuda"), None, None)
    bounds = {"atom_energy": 3e-5, "forces": 2e-4, "virial": 2e-4}
    for name, bound in bounds.items():
        assert relative_error(result[name].cpu(), expected[name]) < bound, name
    rounded = errors_of_rounding(double)
    single.use_matmul("tf32")
    result, _ = single.evaluator()(*moved(system, pairs, "cuda"), None, None)
    for name, bound in bounds.items():
        assert relative_error(result[name].cpu(), expected[name]) < 5 * rounded[name] + 100 * bound, name
