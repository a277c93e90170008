"""An input of DeePMD-kit is taken as it is; a wrong key is refused with its path and the nearest one."""

import copy
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from small_systems import alloy, write_system

from mdops.errors import ConfigError
from mdops.models import registry
from mdops.models.absent import ABSENT
from mdops.train.config import sections
from mdops.train.config.read import keys, parse_config, read_config, read_input
from mdops.train.config.sections import Config
from mdops.train.loop.factories import planned_steps, report_interval
from mdops.train.loop.schedule import LearningRate

EMT = Path(__file__).parents[1] / "data" / "training" / "emt.json"
SMALL = {
    "model": {"type_map": ["O", "H"]},
    "training": {"training_data": {"systems": "data"}, "numb_steps": 10},
}


def edited(path, value):
    """SMALL with a value at a path of keys."""
    tree = copy.deepcopy(SMALL)
    *sections, last = path.split(".")
    node = tree
    for name in sections:
        node = node.setdefault(name, {})
    node[last] = value
    return tree


def test_input_of_a_model_that_deepmd_kit_trained():
    config = read_config(EMT)
    assert config.model.descriptor.sel == [80, 60] and config.model.fitting_net.neuron == [32, 32, 32]
    assert config.training.training_data.batch_size == 2 and config.training.numb_steps == 200
    assert config.loss.limit_pref_v == 1.0 and isinstance(config.loss.limit_pref_v, float)


def test_defaults_of_keys_are_deepmd_kits():
    sections = {"learning_rate": {}, "optimizer": {}, "loss": {}}
    model = {"type_map": ["Cu", "Al"], "descriptor": {}, "fitting_net": {}}
    config = parse_config({**SMALL, **sections, "model": model})
    assert config.model.descriptor.neuron == [10, 20, 40] and config.model.descriptor.sel == "auto"
    assert config.model.fitting_net.neuron == [120] * 3 and config.model.fitting_net.resnet_dt
    assert (config.loss.start_pref_e, config.loss.start_pref_f) == (0.02, 1000)
    assert (config.learning_rate.type, config.learning_rate.start_lr) == ("exp", 1e-3)
    assert config.optimizer.adam_beta2 == 0.999 and not config.training.enable_ema
    assert config.optimizer.weight_decay == 0
    assert config.training.smoothing == 0


def test_defaults_of_hybrid_muon_are_deepmd_kits():
    optimizer = parse_config({**SMALL, "optimizer": {"type": "HybridMuon"}}).optimizer
    assert (optimizer.adam_beta2, optimizer.weight_decay, optimizer.momentum) == (0.95, 0.001, 0.95)
    assert (optimizer.muon_mode, optimizer.enable_gram, optimizer.magma_muon) == ("slice", True, True)


def test_defaults_of_adamuon_are_deepmd_kits():
    optimizer = parse_config({**SMALL, "optimizer": {"type": "AdaMuon"}}).optimizer
    assert (optimizer.adam_beta2, optimizer.weight_decay, optimizer.momentum) == (0.95, 0.001, 0.95)
    assert (optimizer.lr_adjust, optimizer.lr_adjust_coeff) == (10, 0.2)


def test_adamw_decays_no_weights_by_default():
    """DeePMD-kit's help says 0.001. But it adds the defaults of Adam before it checks the keys."""
    optimizer = parse_config({**SMALL, "optimizer": {"type": "AdamW"}}).optimizer
    assert (optimizer.adam_beta2, optimizer.weight_decay) == (0.999, 0)


def test_sections_that_are_left_out_are_mdops_own():
    config = parse_config(SMALL)
    assert config.model.descriptor.neuron == [25, 50, 100] and config.model.descriptor.sel == "auto"
    assert config.model.fitting_net.neuron == [240] * 3
    assert (config.learning_rate.type, config.optimizer.adam_beta2) == ("cosine", 0.99)
    assert config.training.enable_ema and config.training.smoothing > 0
    assert not parse_config(edited("training.enable_ema", False)).training.enable_ema
    deepmd_kits = parse_config({**SMALL, "learning_rate": {}})  # its inputs seldom have a section `optimizer`
    assert deepmd_kits.optimizer.adam_beta2 == 0.999 and not deepmd_kits.training.enable_ema
    other = parse_config(SMALL)
    other.model.descriptor.neuron.append(1)
    assert config.model.descriptor.neuron == [25, 50, 100] == parse_config(SMALL).model.descriptor.neuron


def test_aliases_comments_and_keys_without_effect():
    tree = edited("training.stop_batch", 7)
    del tree["training"]["numb_steps"]
    tree["training"] |= {"_comment": "text", "time_training": True, "profiling": False}
    tree["model"]["fitting_net"] = {"n_neuron": [8], "use_aparam_as_mask": False, "layer_name": None}
    tree["loss"] = {"start_pref_pf": 0, "limit_pref_pf": 0.0}
    config = parse_config(tree)
    assert config.training.numb_steps == 7 and config.model.fitting_net.neuron == [8]


@pytest.mark.parametrize(
    ("path", "value", "neutral"),
    [
        ("model.compress", {"model_file": "frozen.pb"}, None),
        ("model.data_bias_nsample", 20, 10),
        ("model.info", {"owner": "me"}, {}),
        ("model.model_branch_alias", ["water"], []),
        ("model.srtab_add_bias", False, True),
        ("training.acc_freq", 4, 1),
        ("training.ckpt_keep_ratio", 0.5, None),
        ("training.disp_avg", True, False),
        ("training.ema_ckpt_keep", 3, None),
        ("training.enable_profiler", True, False),
        ("training.enable_tf32", True, False),
        ("training.load_ckpt", "model.ckpt", None),
        ("training.mixed_precision", {"compute_prec": "float16"}, {}),
        ("training.numb_test", 10, None),
        ("training.profiling", True, False),
        ("training.save_dir", "checkpoints", None),
        ("training.set_prefix", "frames", "set"),
        ("training.stat_file", "stat.hdf5", ""),
        ("training.warmup", 100, None),
        ("training.training_data.set_prefix", "frames", "set"),
        ("validating.tf32_infer", True, False),
    ],
)
def test_keys_that_mdops_does_not_do_are_warned_of(path, value, neutral, recwarn):
    """Once, by name, unless they ask for nothing."""
    parse_config(edited(path, neutral))
    parse_config(edited(path, None))
    assert not recwarn.list
    parse_config(edited(path, value))
    (warning,) = recwarn.list
    assert str(warning.message).startswith(f"{path}: is {json.dumps(value)}, which has no effect")


def test_every_unused_key_is_tried_above():
    kinds = {sections.TrainingConfig, sections.DataConfig, sections.ValidatingConfig}
    defined = {k for k in vars(sections).values() if isinstance(k, type) and hasattr(k, "UNUSED")}
    assert defined - {sections.TrainingDataConfig, sections.ValidationConfig} == kinds
    parts = {kind for sort in ("model", "descriptor", "fitting") for kind in registry.options(sort).values()}
    kinds |= {kind for kind in parts if hasattr(kind, "UNUSED")}
    (mark,) = test_keys_that_mdops_does_not_do_are_warned_of.pytestmark
    tried = {path.split(".")[-1] for path, _, _ in mark.args[1]}
    elsewhere = {"use_amp"}  # of dpa4c, in its own tests
    assert {name for kind in kinds for name in kind.UNUSED} == tried | elsewhere


@pytest.mark.parametrize(
    "path", ["training.time_training", "training.zero_stage", "learning_rate.scale_by_worker"]
)
def test_keys_that_change_neither_results_nor_files_are_taken_in_silence(path, recwarn):
    parse_config(edited(path, 1))
    assert not recwarn.list


@pytest.mark.parametrize(
    ("path", "kind", "key", "value"),
    [
        ("learning_rate", "cosine", "decay_steps", 10),
        ("learning_rate", "exp", "decay_type", "cosine"),
        ("optimizer", "Adam", "momentum", 0.5),
        ("optimizer", "AdamW", "enable_gram", False),
        ("optimizer", "AdaMuon", "muon_mode", "flat"),
    ],
)
def test_keys_of_another_type_are_warned_of(path, kind, key, value, recwarn):
    parse_config({**SMALL, path: {"type": kind}})
    assert not recwarn.list
    with pytest.warns(UserWarning, match=rf"^{path}\.{key}: has no effect with the type '{kind}', only with"):
        parse_config({**SMALL, path: {"type": kind, key: value}})


OLD_PLACES = [
    (
        {"systems": "a", "batch_size": 4, "set_prefix": "set", "auto_prob_style": "prob_uniform"},
        {"training_data": {"systems": "a", "batch_size": 4, "auto_prob": "prob_uniform"}},
        {},
    ),
    (
        {"warmup_steps": 3, "warmup_start_factor": 0.1},
        {},
        {"learning_rate": {"warmup_steps": 3, "warmup_start_factor": 0.1}},
    ),
    ({"opt_type": "AdamW", "weight_decay": 0.1}, {}, {"optimizer": {"type": "AdamW", "weight_decay": 0.1}}),
]


@pytest.mark.parametrize(("old", "new", "sections"), OLD_PLACES)
def test_keys_are_found_where_earlier_versions_of_deepmd_kit_had_them(old, new, sections):
    own = {"model": SMALL["model"], "learning_rate": {"start_lr": 1e-3}, "optimizer": {"adam_beta1": 0.8}}
    data = {} if "systems" in old else SMALL["training"]["training_data"]
    training = {"numb_steps": 10, **({"training_data": data} if data else {})}
    with pytest.warns(UserWarning, match=f"training: .*{[*old][-1]}.* belong in"):
        found = parse_config({**own, "training": {**training, **old}})
    today = {name: {**own[name], **section} for name, section in sections.items()}
    assert found == parse_config({**own, **today, "training": {**training, **new}})


def test_a_decay_rate_of_version_1_has_no_lower_bound(recwarn):
    """DeePMD-kit replaces it by the last rate, which it leads to."""
    steps, interval = 1000, 10
    given = {
        "model": SMALL["model"],
        "learning_rate": {"start_lr": 1e-2, "decay_rate": 0.8, "decay_steps": interval, "stop_lr": 1e-3},
        "training": {"systems": "a", "stop_batch": steps},
    }
    rate = parse_config(given).learning_rate
    assert rate.decay_rate is None and rate.stop_lr == pytest.approx(1e-2 * 0.8**100, rel=1e-12)
    # Not below 1e-10 in all.
    assert LearningRate(rate, steps)(30) == pytest.approx(1e-2 * 1e-8 ** (30 / steps))
    given["training"]["stop_batch"] = 300
    assert LearningRate(parse_config(given).learning_rate, 300)(290) == pytest.approx(1e-2 * 0.8**29)
    today = {**given, "training": {"training_data": {"systems": "a"}, "numb_steps": 300}}
    assert parse_config(today).learning_rate.decay_rate == 0.8
    del given["learning_rate"]["decay_steps"]
    assert parse_config(given).learning_rate.decay_rate == 0.8


@pytest.mark.parametrize("data", [{"systems": "a"}, {"training_data": {"systems": "a"}}])
@pytest.mark.filterwarnings("ignore:training. systems belong")
def test_a_rate_that_grows_is_refused(data):
    rate = {"start_lr": 1e-2, "decay_rate": 10, "decay_steps": 1}
    tree = {"model": SMALL["model"], "learning_rate": rate, "training": {**data, "stop_batch": 1000}}
    with pytest.raises(
        ConfigError, match=r"learning_rate\.decay_rate: is 10, expected a factor of at most 1"
    ):
        parse_config(tree)
    rate["decay_rate"] = 1
    assert LearningRate(parse_config(tree).learning_rate, 1000)(999) == 1e-2


def test_keys_of_earlier_versions_without_effect(recwarn):
    tree = edited("model.fitting_net.coord_norm", True)
    tree["model"]["fitting_net"]["type_fitting_net"] = False
    assert parse_config(tree) == parse_config(edited("model.fitting_net", {})) and not recwarn.list


def test_an_optimizer_of_earlier_versions_is_named():
    tree = edited("training.opt_type", "LKF2")
    tree["training"]["kf_blocksize"] = 1024
    with (
        pytest.warns(UserWarning, match="kf_blocksize, opt_type belong in optimizer"),
        pytest.raises(ConfigError, match=r"^optimizer\.type: is 'LKF2', expected 'Adam' or"),
    ):
        parse_config(tree)
    tree["training"]["opt_type"] = "LKF"
    with pytest.warns(UserWarning, match="kf_blocksize, opt_type belong in optimizer"):
        assert parse_config(tree).optimizer.kf_blocksize == 1024


def test_an_input_in_yaml(tmp_path):
    (tmp_path / "input.yaml").write_text(yaml.safe_dump(SMALL))
    assert read_input(tmp_path / "input.yaml") == parse_config(SMALL)
    (tmp_path / "input.yml").write_text("model: {\n")
    with pytest.raises(ConfigError, match=r"input\.yml: is not YAML: "):
        read_input(tmp_path / "input.yml")


YAML = """
model: {type_map: [O, H]}
learning_rate: &rate {start_lr: 1e-3, stop_lr: -1E-5}
training:
  training_data: &data {systems: data, _comment: a, _comment: b}
  validation_data: {<<: *data, systems: other}
  numb_steps: 10
"""


def test_yaml_has_the_numbers_and_keys_of_json(tmp_path):
    """1e-3 is text in YAML 1.1."""
    path = tmp_path / "input.yaml"
    path.write_text(YAML.replace("-1E-5", "1E-5"))
    config = read_input(path)
    assert (config.learning_rate.start_lr, config.learning_rate.stop_lr) == (1e-3, 1e-5)
    assert config.training.validation_data.systems == "other"
    texts = {
        YAML + "training: {numb_steps: 3}": r"'training' is given twice .*\n.* line 8",
        YAML + "  numb_steps: 3": r"'numb_steps' is given twice",
        YAML + "1: 2": r"a key is not text: write it in quotes\n.* line 8",
        YAML + "on: 2": r"a key is not text",
        "sel_a: [1]\nrcut: 3\nsystems: [a]\n1: 2": r"a key is not text",
        "? [a]\n: 1": r"a key is not text",
        YAML: r"learning_rate\.stop_lr: is -1e-05, expected",
    }
    for text, says in texts.items():
        path.write_text(text)
        with pytest.raises(ConfigError, match=says):
            read_input(path)


def test_keys_in_their_old_and_in_their_new_place():
    tree = edited("training.systems", "a")
    with pytest.raises(ConfigError, match=r"training\.systems: cannot be combined with training_data"):
        parse_config(tree)
    tree = edited("training.warmup_steps", 3)
    with pytest.warns(
        UserWarning, match=r"training\.warmup_steps: has no effect without a section learning_rate"
    ):
        assert parse_config(tree).learning_rate.warmup_steps == 0
    tree["learning_rate"] = {"warmup_steps": 4}
    with pytest.raises(ConfigError, match=r"training\.warmup_steps: is given twice"):
        parse_config(tree)


@pytest.mark.parametrize("name", ["stop_batch", "numb_step", "num_step", "num_steps"])
def test_names_of_the_number_of_steps(name):
    tree = edited(f"training.{name}", 7)
    del tree["training"]["numb_steps"]
    assert parse_config(tree).training.numb_steps == 7


def test_keys_of_a_pair_table_mean_nothing_without_one(recwarn):
    tree = edited("model.smin_alpha", 0.1)
    tree["model"] |= {"sw_rmin": 0.8, "sw_rmax": 1.0, "use_srtab": None}
    assert parse_config(tree) == parse_config(SMALL) and not recwarn.list


@pytest.mark.parametrize(
    ("path", "name", "told"),
    [
        ("model.descriptor.type", "se_a_ebd", "the nearest is se_e2_a in a model with type_embedding"),
        ("model.descriptor.type", "se_e2a", "(the nearest is 'se_e2_a')"),
        (
            "model.descriptor",
            {"type": "hybrid", "list": [{"type": "se_a_tpe"}]},
            "the nearest is se_e2_a in a model",
        ),
        (
            "model",
            {"type": "frozen", "type_map": ["O"], "model_file": "model.pb"},
            "to train the model of a file further, use --init-model",
        ),
        ("model.shared_dict", {}, "model.shared_dict: is not supported: it is for several models"),
        ("model.spin", {"use_spin": [True], "virtual_length": [0.4]}, "use_spin and virtual_scale"),
        (
            "model",
            {"type": "dpa4", "type_map": ["O"], "modifier": {"type": "dipole_charge"}},
            "a model of type standard",
        ),
        ("nvnmd", {"version": 1}, "the model trains in floating point"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is_nearest(path, name, told):
    with pytest.raises(ConfigError) as error:
        parse_config(edited(path, name))
    assert told in str(error.value)
    if "type" in path:
        assert f"is {name!r}, expected one of " in str(error.value) and "--kinds FILE" in str(error.value)


def test_no_kind_is_told_to_be_absent_that_is_there():
    assert not [name for sort, names in ABSENT.items() for name in names if name in registry.kinds(sort)]


def test_nvnmd_is_refused_unless_it_is_off():
    parse_config(edited("nvnmd", {"enable": False, "version": 1}))
    with pytest.raises(ConfigError, match=r"nvnmd: is .*; this is not supported"):
        parse_config(edited("nvnmd", {"enable": True}))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "model.descriptor.rcut_smoth",
            1.0,
            "model.descriptor.rcut_smoth: there is no such key; the nearest is 'rcut_smth'",
        ),
        (
            "model.descriptor",
            {"type": "dpa3", "nlayers": 2},
            "model.descriptor.nlayers: there is no such key here; it belongs in 'repflow'",
        ),
        ("trainning", {}, "trainning: there is no such key; the nearest is 'training'"),
        ("training.training_data.batchsize", 1, "nearest is 'batch_size'"),
        ("model.descriptor.rcut", "6", "model.descriptor.rcut: is '6', expected a number"),
        ("model.descriptor.rcut", True, "expected a number"),
        ("model.descriptor.neuron", [25, 5.5], "model.descriptor.neuron[1]: is 5.5, expected a whole number"),
        ("model.descriptor.neuron", [0], "expected 1 or more"),
        ("model.descriptor.sel", [1], "has 1 numbers for 2 types"),
        ("model.descriptor.sel", "auto:much", 'expected numbers, "auto"'),
        ("model.descriptor.sel", 5, "expected text, or a list of whole numbers"),
        ("model.descriptor.axis_neuron", 41, "more than the last of neuron"),
        ("model.descriptor.rcut_smth", 7.0, "expected less than rcut"),
        ("model.descriptor", {"attn": 3, "type": "dpa5"}, "model.descriptor.type: is 'dpa5', expected"),
        ("model.descriptor", [], "model.descriptor: is a list, expected a section"),
        ("model.fitting_net.type", "wave", "model.fitting_net.type: is 'wave'"),
        (
            "model.spin",
            {"use_spin": [True, False], "virtual_scale": -1.0},
            "model.spin.virtual_scale: is -1.0",
        ),
        ("loss.relative_f", 0, "loss.relative_f: is 0.0, expected more than 0"),
        ("learning_rate", {"stop_lr": 1e-8, "stop_lr_ratio": 0.1}, "cannot be combined"),
        ("training.numb_epoch", 3, "cannot be combined with numb_epoch"),
        ("training.stop_batch", 3, "is given twice"),
        ("loss.huber_delta", [1.0], "expected one number, or three"),
        ("loss.huber_delta", -0.01, "loss.huber_delta: is -0.01, expected more than 0"),
        ("optimizer.adam_beta1", 1.0, "optimizer.adam_beta1: is 1.0, expected less than 1"),
        ("training.seed", -1, "training.seed: is -1, expected 0 or more"),
        ("training.training_data.batch_size", 0, "batch_size: is 0, expected 1 or more"),
        ("model.type_map", [], "model.type_map: is empty"),
        ("model.type_map", ["O", "H", "O"], "model.type_map: has O more than once"),
        ("model.descriptor.sel", [-2, 2], "model.descriptor.sel: is [-2, 2], expected 0 or more"),
        ("model.descriptor.exclude_types", [[0, 2]], "has [0, 2], expected pairs of types, 0 .. 1"),
        ("model.pair_exclude_types", [[1]], "has [1], expected pairs of types"),
        ("model.atom_exclude_types", [2], "model.atom_exclude_types: is [2], expected types, 0 .. 1"),
        ("model.fitting_net", {"atom_ener": [1.0, 2.0, 3.0]}, "has 3 energies for 2 types"),
        ("model.preset_out_bias", {"energie": [0, 0]}, "model.preset_out_bias.energie: there is no such key"),
        (
            "model.preset_out_bias",
            {"energy": {"O": 1.0}},
            "a number (eV) or null for each of 2",
        ),
        ("model.preset_out_bias", {"energy": [1.0, "x"]}, "model.preset_out_bias.energy: is [1.0, 'x']"),
        ("model.preset_out_bias", {"energy": [1.0]}, "for each of 2 types"),
        ("model.descriptor.sel", "auto:0", 'expected numbers, "auto" or "auto:f" with a number f above 0'),
        ("model.descriptor.sel", "auto:nan", "with a number f above 0"),
        ("model.fitting_net.default_fparam", [1.0], "has 1 numbers, and numb_fparam is 0"),
        (
            "model.fitting_net.atom_ener",
            [1e400, 0.0],
            "model.fitting_net.atom_ener[0]: is not a finite number",
        ),
        ("learning_rate.start_lr", 10**400, "learning_rate.start_lr: is not a finite number"),
    ],
)
def test_wrong_key_is_refused_by_its_path(path, value, message):
    with pytest.raises(ConfigError) as error:
        parse_config(edited(path, value))
    assert message in str(error.value)


def test_missing_keys_and_files(tmp_path):
    with pytest.raises(ConfigError, match=r"^absent: there is no such file .*no model\.type_map"):
        parse_config({**edited("training.training_data.systems", "absent"), "model": {}})
    with pytest.raises(ConfigError, match="training: is missing"):
        parse_config({"model": {"type_map": ["O"]}})
    with pytest.raises(ConfigError, match="No such file"):
        read_config(tmp_path / "input.json")
    (tmp_path / "input.json").write_text('{"model": ')
    with pytest.raises(ConfigError, match=r"input\.json: is not JSON: Expecting value"):
        read_config(tmp_path / "input.json")
    (tmp_path / "input.json").write_text(json.dumps(edited("trainning", {})))
    with pytest.raises(ConfigError, match=r"input\.json: trainning: there is no such key"):
        read_config(tmp_path / "input.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[1, 2]", "the input: is a list, expected sections in braces"),
        (b'{"model": 1, "model": 2}', "the key 'model' is given twice"),
        (b'{"model": NaN}', "NaN is not a number"),
        (b"[" * 100_000, "is not JSON"),
        (b"\x80\xff", "is not text"),
    ],
)
def test_what_is_no_input_at_all_is_refused(tmp_path, text, message):
    (tmp_path / "input.json").write_bytes(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_config(tmp_path / "input.json")


def test_a_section_may_have_many_comments(tmp_path):
    text = json.dumps(SMALL).replace(
        '"numb_steps"', '"_comment": "steps", "_comment": "are few", "numb_steps"'
    )
    (tmp_path / "input.json").write_text(text)
    assert read_config(tmp_path / "input.json").training.numb_steps == 10


def test_a_gradient_norm_of_zero_switches_clipping_off_as_in_deepmd_kit():
    assert parse_config(edited("training.gradient_max_norm", 0.0)).training.gradient_max_norm is None
    assert parse_config(edited("training.gradient_max_norm", 2)).training.gradient_max_norm == 2.0


def test_every_key_is_documented():
    table = {entry.path: entry for entry in keys()}
    assert all(entry.doc and entry.type for entry in table.values())
    assert table["descriptor[se_e2_a].rcut"].unit == "A" and table["descriptor[se_e2_a].rcut"].default == "6"
    assert table["model[standard].type_map"].default == "required"
    assert table["training.validation_data.numb_btch"].default == "1"
    sections = {path.split(".")[0].split("[")[0] for path in table}
    assert sections == {f.name for f in fields(Config)} | {"descriptor", "fitting_net"}


def test_documentation_has_every_key(monkeypatch):
    own = {
        sort: {name: kind for name, kind in kinds.items() if kind.__module__.startswith("mdops.")}
        for sort, kinds in registry._KINDS.items()
    }
    monkeypatch.setattr(registry, "_KINDS", own)  # an example may have registered its own
    text = (Path(__file__).parents[2] / "docs" / "reference" / "training-input.md").read_text()
    for entry in keys():
        row = f"| `{entry.path}` | {entry.type} | {entry.unit} | {entry.default} | {entry.doc} |"
        assert row in text, f"docs/reference/training-input.md lacks the row {row}"


def test_keys_that_deepmd_kit_3_2_writes_into_every_input_are_taken(recwarn):
    """Its input_v2_compat.json and out.json spell out all defaults."""
    bridging = {"bridging_method": "None", "bridging_r_inner": 0.5, "bridging_r_outer": 0.8}
    model = {**SMALL["model"], **bridging}
    assert parse_config({**SMALL, "model": model}).model.type_map == ["O", "H"]
    assert not recwarn.list
    with pytest.raises(ConfigError, match=r"model\.bridging_method: is 'ZBL'; this is not supported"):
        parse_config({**SMALL, "model": {**model, "bridging_method": "ZBL"}})


def test_types_that_the_input_does_not_name_are_those_of_the_data(tmp_path):
    write_system(tmp_path / "named", alloy(2))
    unnamed = write_system(tmp_path / "unnamed", alloy(2))
    (unnamed / "type_map.raw").unlink()
    model = {"descriptor": {"type": "se_e2_a", "sel": [4, 4, 4]}}

    def types(system, **more):
        tree = edited("training.training_data.systems", str(tmp_path / system))
        return parse_config({**tree, "model": more}).model.type_map

    assert types("named") == ["Al", "Cu"]
    with pytest.warns(UserWarning, match=r"no type_map\.raw, so the types are called 0, 1, .*--elements"):
        assert types("unnamed") == ["0", "1"]
        assert types("unnamed", **model) == ["0", "1", "2"]  # as many as sel has places for
    parts = [{"type_map": ["Cu", "Al"], "descriptor": {"type": "se_atten", "attn_layer": 0}}, {}]
    with pytest.raises(ConfigError, match=r"model\.models\[1\]"):
        types("named", type="linear_ener", models=[parts[0], {"type": "spin"}])
    assert types("named", type="linear_ener", models=parts[:1]) == ["Cu", "Al"]


def test_an_input_that_names_the_data_alone_is_enough(tmp_path):
    write_system(tmp_path / "data", alloy(2))
    config = parse_config({"training": {"training_data": {"systems": str(tmp_path / "data")}}})
    assert config.model.type_map == ["Al", "Cu"] and config.model.fitting_net.neuron == [240, 240, 240]


def test_steps_and_lines_that_the_input_does_not_give_follow_from_the_data():
    tree = edited("training.training_data.leave_out", 10)
    del tree["training"]["numb_steps"]
    config = parse_config(tree)
    assert [planned_steps(config, batches) for batches in (1, 1000, 10**6)] == [4000, 20_000, 100_000]
    assert [report_interval(config.training, steps) for steps in (4, 4000, 10**6)] == [1, 200, 1000]
    validation = config.training.validation_data
    assert validation.left_out and (validation.systems, validation.leave_out) == ("data", 10)
    told = parse_config(edited("training.disp_freq", 7))
    assert planned_steps(told, 5) == 10 and report_interval(told.training, 10) == 7
    assert planned_steps(parse_config({**tree, "training": {**tree["training"], "numb_epoch": 1.5}}), 5) == 8
