"""Trainings of low-rank adapters, against DeePMD-kit and in use."""

import copy
import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from processes import together
from reference_cases import references
from small_systems import EMT, stop_after

import mdops
from mdops.cli.train import _announcement
from mdops.errors import ConfigError
from mdops.models.contract import decayed_of, tables_of
from mdops.models.keys import AdapterOptions
from mdops.train.config.read import parse_config, parse_input
from mdops.train.config.sections import OptimizerConfig
from mdops.train.loop.adapters import Adapters
from mdops.train.loop.factories import make_optimizer
from mdops.train.loop.schedule import WeightAverage
from mdops.train.loop.trainer import Trainer
from mdops.train.loop.update import train_step

DATA = Path(__file__).parents[1] / "data"
with np.load(DATA / "adapters.npz") as file:  # DeePMD-kit's
    ARRAYS = {name: file[name] for name in file.files}
OPTIONS, TRAINED = (json.loads(str(ARRAYS.pop(name))) for name in ("options", "trained"))
SMALL = AdapterOptions(rank=OPTIONS["rank"], alpha=OPTIONS["alpha"])


def loaded(case):
    folder = DATA / ("reference_spin" if case == "dpa4" else "reference_kinds") / case
    return mdops.load(folder / "model.dp", dtype="float64", spline=False)


def test_deepmd_kits_weights_are_trained():
    for case, wanted in TRAINED.items():
        potential = loaded(case)
        weights = potential.model.adapt()
        adapters, names = Adapters(weights, SMALL, 0), {}
        for name, weight in potential.model.descriptor.named_parameters():
            names.setdefault(weight.requires_grad + any(weight is own for own in weights), []).append(name)
        assert sorted(names[1]) == wanted["trained"], case
        assert sorted(names[2]) == wanted["adapted"], case
        trained = adapters.trained_of(p for p in potential.parameters() if p.requires_grad)
        assert sum(p.numel() for p in trained) == wanted["number"], case


class WeightedSum:
    """The loss of make_adapters.py."""

    terms = ()

    def __call__(self, result, *_):
        frames = len(result["energy"])
        parts = result["energy"], result["forces"].double().view(frames, -1, 3)
        return sum(
            (part * torch.arange(part.numel()).double().cos().view(part.shape)).sum() for part in parts
        )


@pytest.mark.parametrize("optimizer", ["Adam", "HybridMuon"])
def test_steps_are_deepmd_kits(optimizer):
    """From the same weights and adapters; also the average of the weights after them."""
    potential = loaded("dpa4_wide").train()
    one = references(DATA / "reference_kinds" / "dpa4_wide")[0]
    batch = SimpleNamespace(
        system=one.system, neighbors=potential.neighbor_list(one.system), fparam=None, aparam=None
    )
    batch.taken_by = lambda potential: batch
    names = {weight: name for name, weight in potential.model.descriptor.named_parameters()}
    weights = sorted(potential.model.adapt(), key=names.__getitem__)
    adapters, random = Adapters(weights, SMALL, 0), np.random.default_rng(0)
    for first in adapters.first:
        first.data.copy_(torch.from_numpy(random.normal(size=tuple(first.shape))))
    more = {"enable_gram": False} if optimizer == "HybridMuon" else {"adam_beta2": 0.999}
    section = OptimizerConfig(type=optimizer, weight_decay=OPTIONS["weight_decay"], **more)
    config = SimpleNamespace(optimizer=section, learning_rate=SimpleNamespace(start_lr=OPTIONS["rate"]))
    trained = adapters.trained_of(potential.parameters())
    rule = make_optimizer(config, trained, tables_of(potential), decayed_of(potential))
    average = WeightAverage(trained, OPTIONS["ema_decay"], adapters.set_weights)
    answers = [potential.evaluate(one.system)]
    for _ in range(len(ARRAYS[f"{optimizer}/energy"]) - 1):
        options = {"rate": OPTIONS["rate"], "fraction": 1.0, "max_norm": OPTIONS["max_norm"]}
        train_step(potential, WeightedSum(), rule, batch, **options, adapters=adapters)
        average.update()
        answers.append(potential.evaluate(one.system))
    before = [w.clone() for w in adapters.weights]
    average.swap()
    averaged = potential.evaluate(one.system)["forces"]
    average.swap()
    assert all(map(torch.equal, before, adapters.weights))
    frames = len(one.answers["energy"])
    for name in ("energy", "forces"):
        wanted = ARRAYS[f"{optimizer}/{name}"]
        found = np.array([answer[name].numpy().reshape(wanted[0].shape) for answer in answers])
        change = np.abs(wanted[-1] - wanted[0]).max()
        assert np.abs(found - wanted).max() < 1e-9 * change, name
    wanted = ARRAYS[f"{optimizer}/averaged_forces"]
    assert np.abs(averaged.view(frames, -1, 3).numpy() - wanted).max() < 1e-9 * change


def test_gradients_are_those_of_the_sum():
    random = torch.Generator().manual_seed(0)
    shapes = [(3, 4, 5), (6, 2), (1, 3, 3)]
    weights = [
        torch.nn.Parameter(torch.randn(shape, generator=random, dtype=torch.float64)) for shape in shapes
    ]
    adapters = Adapters(weights, AdapterOptions(rank=2, alpha=5.0), 1)
    factors = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]
    sums = []
    for k, kept, a, b in zip(range(3), adapters.kept, adapters.first, adapters.second, strict=True):
        b.data.normal_(generator=random)
        sums.append(kept + 2.5 * torch.einsum("...ri,...or->...io", a, b))
        (sums[k] * factors[k]).sum().backward()
    wanted = [p.grad.clone() for p in adapters.trained]
    for weight, factor in zip(weights, factors, strict=True):
        weight.grad = factor
    adapters.take_gradients()
    adapters.set_weights()
    for p, want in zip(adapters.trained, wanted, strict=True):
        torch.testing.assert_close(p.grad, want, rtol=1e-13, atol=1e-13)
    for weight, want in zip(weights, sums, strict=True):
        torch.testing.assert_close(weight, want, rtol=1e-13, atol=1e-13)


def tree(lora=(("rank", 2), ("alpha", 4.0)), steps=6, **training):
    data = {"systems": str(EMT), "batch_size": 2}
    descriptor = {"rcut": 3.5, "channels": 4, "n_radial": 4, "lmax": 1, "n_blocks": 1, "mixing_layers": 2}
    double = {"precision": "float64"}
    return {
        "model": {
            "type": "dpa4",
            "type_map": ["Cu", "Al"],
            "descriptor": {**descriptor, **double},
            "fitting_net": {"neuron": [6], **double},
            **({"lora": dict(lora)} if lora else {}),
        },
        "optimizer": {"type": "HybridMuon"},
        "learning_rate": {"start_lr": 1e-2},
        "loss": {"start_pref_v": 0.1, "limit_pref_v": 1.0},
        "validating": {"full_validation": True, "ema_full_validation": True, "validation_freq": 2, "full_val_start": 0},
        "training": {
            "training_data": data,
            "validation_data": data,
            "numb_steps": steps,
            "seed": 5,
            "disp_freq": 1,
            "save_freq": 2,
            "enable_ema": True,
            "gradient_max_norm": 5.0,
            "precision": "float64",
            **training,
        },
    }  # fmt: skip


def config(*given, **more):
    return parse_config(tree(*given, **more))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A model that was trained some steps, without adapters."""
    folder = tmp_path_factory.mktemp("pretrained")
    Trainer(config(None, steps=3), folder).run()
    return folder / "model.safetensors"


@pytest.fixture(scope="module")
def whole(pretrained, tmp_path_factory):
    """A training of adapters, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    trainer = Trainer(config(), folder, finetune=pretrained)
    trainer.run()
    return trainer, folder


def named(potential):
    return {name: p.detach() for name, p in potential.model.named_parameters()}


def test_frozen_weights_keep_their_bits_and_others_change(pretrained, whole):
    trainer, folder = whole
    before, after = (
        named(mdops.load(path, dtype="float64")) for path in (pretrained, folder / "model.safetensors")
    )
    names = {id(p): name for name, p in trainer.potential.model.named_parameters()}
    adapted = {names[id(p)] for p in trainer.adapters.weights}
    frozen = {name for name, p in trainer.potential.model.named_parameters() if not p.requires_grad}
    assert frozen and adapted and not frozen & adapted
    for name, kept in zip(
        (names[id(p)] for p in trainer.adapters.weights), trainer.adapters.kept, strict=True
    ):
        assert torch.equal(kept, before[name])
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert not moved & frozen
    assert adapted <= moved and {name for name in before if name.startswith("fitting")} <= moved


def test_the_command_tells_how_many_parameters_are_trained(whole):
    trainer, _ = whole
    trained = sum(p.numel() for group in trainer.optimizer.param_groups for p in group["params"])
    every = sum(p.numel() for p in trainer.potential.parameters())
    assert f"training {trained:,} parameters, with adapters, of a model of {every:,}," in _announcement(
        trainer
    )


def test_files_have_the_adapters_in_their_weights(whole):
    """The model that a run returns and those that it writes answer as the weights with the adapters added; also a
    program that reads only weights sees nothing of adapters."""
    trainer, folder = whole
    data = trainer.frames
    system = data.batch(data.share(0, trainer.processes), torch.device("cpu")).system
    written = mdops.load(folder / "model.safetensors", dtype="float64", spline=False)
    want = written.evaluate(system)
    trainer.potential.eval()
    added = copy.deepcopy(trainer.potential)
    names = {id(p): name for name, p in trainer.potential.named_parameters()}
    own = trainer.adapters
    with torch.no_grad():
        for w, kept, a, b in zip(own.weights, own.kept, own.first, own.second, strict=True):
            total = kept + 2.0 * torch.einsum("...ri,...or->...io", a, b)
            added.get_parameter(names[id(w)]).copy_(total)
    for potential in (trainer.potential, added):
        found = potential.evaluate(system)
        for name in ("energy", "forces"):
            scale = want[name].abs().max()
            assert float((found[name] - want[name]).abs().max()) < 1e-12 * float(scale)
    assert not any("lora" in name or "A_" in name for name in written.state_dict())
    assert list(folder.glob("best*.safetensors")) and list(folder.glob("best*ema*.safetensors"))
    for path in folder.glob("best*.safetensors"):
        mdops.load(path).evaluate(system)


def test_a_restart_ends_with_the_same_bits(pretrained, whole, tmp_path):
    _, folder = whole
    with pytest.raises(KeyboardInterrupt):
        Trainer(config(), tmp_path, finetune=pretrained).run(stop_after(3))
    again = Trainer(config(), tmp_path, restart=True)
    assert again.step == 2
    again.run()
    for name in ("model.safetensors", "lcurve.out", "val.log", "val_ema.log"):
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes(), name
    with pytest.raises(ConfigError, match=r"model\.lora\.rank is 3 and was 2"):
        Trainer(config({"rank": 3, "alpha": 4.0}.items()), tmp_path, restart=True)
    with pytest.raises(ConfigError, match=r"model\.lora"):
        Trainer(config(None), tmp_path, restart=True)


def weights_after(folder, path):
    trainer = Trainer(config(steps=2), folder, finetune=path)
    trainer.run()
    torch.save([p.detach() for p in trainer.potential.parameters()], folder / f"{trainer.processes.rank}.pt")


def test_processes_train_as_one(pretrained, tmp_path):
    weights_after(tmp_path, pretrained)
    wanted = torch.load(tmp_path / "0.pt")
    assert together(tmp_path, weights_after, tmp_path, pretrained) == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert all(map(torch.equal, first, second))
    for a, b in zip(first, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_the_rank_alone_has_a_scale_of_one(pretrained, tmp_path):
    trainer = Trainer(config({"rank": 3}.items()), tmp_path, finetune=pretrained)
    assert trainer.adapters.scale == 1.0
    assert {a.shape[-2] for a in trainer.adapters.first} == {3}
    assert not any(b.any() for b in trainer.adapters.second)
    numbers = torch.cat([a.detach().flatten() for a in trainer.adapters.first])
    assert float(numbers.var()) == pytest.approx(1 / 3, rel=0.2)
    other = Trainer(config({"rank": 3}.items(), seed=6), tmp_path / "other", finetune=pretrained)
    assert not any(map(torch.equal, trainer.adapters.first, other.adapters.first))


def test_a_training_from_random_weights_is_warned_of(tmp_path):
    """DeePMD-kit trains them without a word."""
    with pytest.warns(UserWarning, match=r"model\.lora: .*random weights"):
        Trainer(config(steps=2), tmp_path).run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(config(steps=2), tmp_path, restart=True)


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"rank": 0}, r"model\.lora\.rank: is 0, expected 1 or more"),
        ({"alpha": 1.0}, r"model\.lora\.rank: is missing"),
        ({"rank": 2, "alpha": 0}, r"model\.lora\.alpha: is 0.0, expected more than 0"),
        ({"rank": 2, "dropout": 0.1}, r"model\.lora\.dropout: there is no such key"),
    ],
)
def test_wrong_keys_are_refused(lora, message):
    with pytest.raises(ConfigError, match=message):
        config(lora.items())


def test_adapters_of_parts_of_several_models_and_of_other_kinds_are_refused(tmp_path):
    given = tree()
    part, other = given["model"], {**given["model"], "lora": None}
    blend = {**given, "model": {"type": "linear_ener", "type_map": ["Cu", "Al"], "models": [part, other]}}
    with pytest.raises(ConfigError, match=r"model\.models\[0\]\.lora: a part of a model has no adapters"):
        parse_config(blend)
    data = given["training"].pop("training_data")
    del given["training"]["validation_data"], given["validating"]
    data = {name: {"training_data": data} for name in ("one", "two")}
    several = {
        **given,
        "model": {"model_dict": {"one": other, "two": part}},
        "training": {**given["training"], "data_dict": data},
    }
    with pytest.raises(ConfigError, match=r"model\.model_dict\.two\.lora: adapters train a single model"):
        parse_input(several)
    with pytest.raises(ConfigError, match=r"model\.lora: there is no such key .* in a section of type dpa4"):
        parse_config({**given, "model": {"type_map": ["Cu", "Al"], "lora": {"rank": 2}}})
    path = DATA / "training" / "finetune" / "finetuned.dp"
    with pytest.raises(ConfigError, match=r"model\.lora: a model of type standard has no adapters"):
        Trainer(config(), tmp_path, finetune=path, use_pretrain_script=True)
