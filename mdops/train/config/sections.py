"""The training input: DeePMD-kit's input.json for energy models with se_e2_a."""

# ruff: noqa: RUF009  (`key` and `section` make fields)

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mdops.errors import ConfigError
from mdops.train.config.checks import check
from mdops.train.config.defaults import completed
from mdops.train.config.parsing import KeyHelp, describe_keys, key, parse, read_json, section

_PRECISIONS = ("default", "float32", "float64", "single", "double")


@dataclass
class DescriptorConfig:
    type: str = key("se_e2_a", "the descriptor", choices=("se_e2_a", "se_a"))
    sel: list[int] | str = key(
        "auto", 'places for neighbours of each type; "auto:f" is f times what the data needs', low=0
    )
    rcut: float = key(6.0, "the cutoff", unit="A", low=0)
    rcut_smth: float = key(0.5, "where the switch begins to fall", unit="A", low=0)
    neuron: list[int] = key([10, 20, 40], "widths of the embedding net's layers", low=1)
    axis_neuron: int = key(
        4, "columns of the embedding that the descriptor is built with", alias=["n_axis_neuron"], low=1
    )
    activation_function: str = key("tanh", "of the embedding nets")
    resnet_dt: bool = key(False, "a trained factor in front of each residual layer")
    type_one_side: bool = key(False, "embedding nets by the neighbour's type only, not by pairs of types")
    precision: str = key("default", "in which the weights are saved; float64 by default", choices=_PRECISIONS)
    trainable: bool = key(True, "whether the embedding nets are trained")
    seed: int | None = key(None, "of the random weights; the training's seed unless given", low=0)
    exclude_types: list[list[int]] = key([], "pairs of types that do not see each other")
    env_protection: float = key(0.0, "added to distances in denominators", unit="A", low=0)
    set_davg_zero: bool = key(False, "take the mean of the environment matrix as zero")


@dataclass
class FittingConfig:
    NEUTRAL: ClassVar[dict[str, Any]] = {"layer_name": None, "use_aparam_as_mask": False, "dim_case_embd": 0}

    type: str = key("ener", "what is fitted", choices=("ener",))
    numb_fparam: int = key(0, "how many frame parameters there are", low=0)
    numb_aparam: int = key(0, "how many atomic parameters there are", low=0)
    default_fparam: list[float] | None = key(None, "frame parameters where none are given")
    neuron: list[int] = key(
        [120, 120, 120], "widths of the fitting net's hidden layers", alias=["n_neuron"], low=1
    )
    activation_function: str = key("tanh", "of the fitting nets")
    precision: str = key("default", "in which the weights are saved; float64 by default", choices=_PRECISIONS)
    resnet_dt: bool = key(True, "a trained factor in front of each residual layer")
    trainable: bool | list[bool] = key(
        True, "whether the fitting nets are trained; a list must be all true for it"
    )
    rcond: float | None = key(None, "singular values below it are zero in the fit of the types' energies")
    seed: int | None = key(None, "of the random weights; the training's seed unless given", low=0)
    atom_ener: list[float | None] = key([], "energies of atoms in vacuum, by type", unit="eV")


@dataclass
class ModelConfig:
    IGNORED: ClassVar[tuple[str, ...]] = ("data_bias_nsample", "srtab_add_bias", "info", "model_branch_alias")
    NEUTRAL: ClassVar[dict[str, Any]] = {
        name: None
        for name in ("use_srtab", "type_embedding", "modifier", "compress", "spin", "finetune_head")
    }

    type_map: list[str] = key(doc="the element of each type")
    descriptor: DescriptorConfig = section(DescriptorConfig)
    fitting_net: FittingConfig = section(FittingConfig)
    type: str = key("standard", "the kind of model", choices=("standard",))
    data_stat_nbatch: int = key(10, "batches of each system that the statistics are of", low=1)
    data_stat_protect: float = key(0.01, "the smallest deviation of frame and atomic parameters", above=0)
    pair_exclude_types: list[list[int]] = key([], "pairs of types that are absent for each other")
    atom_exclude_types: list[int] = key([], "types whose atoms have no energy", low=0)
    preset_out_bias: dict | None = key(
        None, 'energies of the types that are not fitted, {"energy": [eV or null, ...]}'
    )


@dataclass
class LearningRateConfig:
    # Processes share a batch here, so that there is nothing to scale with their number.
    IGNORED: ClassVar[tuple[str, ...]] = ("scale_by_worker",)

    type: str = key("exp", "how the rate falls", choices=("exp", "cosine"))
    start_lr: float = key(1e-3, "the rate after the warm-up", above=0)
    stop_lr: float | None = key(
        None, "the rate at the end; 1e-8 unless this or stop_lr_ratio is given", low=0
    )
    stop_lr_ratio: float | None = key(None, "the rate at the end over that at the start", low=0)
    decay_steps: int = key(5000, "steps between two falls of an exponential rate", unit="steps", low=1)
    decay_rate: float | None = key(
        None, "the factor of one fall; what leads to stop_lr unless given", above=0
    )
    smooth: bool = key(False, "fall at every step")
    warmup_steps: int = key(0, "the rate grows linearly over so many", unit="steps", low=0)
    warmup_ratio: float | None = key(None, "the same as a part of all steps", low=0, below=1)
    warmup_start_factor: float = key(0.0, "the first rate of the warm-up over start_lr", low=0)


@dataclass
class LossConfig:
    NEUTRAL: ClassVar[dict[str, Any]] = {
        **{f"{end}_pref_{name}": 0 for end in ("start", "limit") for name in ("h", "pf", "gf")},
        "relative_f": None,
        "enable_atom_ener_coeff": False,
        "numb_generalized_coord": 0,
        "use_default_pf": False,
    }

    type: str = key("ener", "the loss", choices=("ener",))
    start_pref_e: float = key(0.02, "weight of energies at the start", unit="1/eV^2", low=0)
    limit_pref_e: float = key(1.0, "weight of energies as the rate goes to zero", unit="1/eV^2", low=0)
    start_pref_f: float = key(1000.0, "weight of forces at the start", unit="A^2/eV^2", low=0)
    limit_pref_f: float = key(1.0, "weight of forces as the rate goes to zero", unit="A^2/eV^2", low=0)
    start_pref_v: float = key(0.0, "weight of virials at the start", unit="1/eV^2", low=0)
    limit_pref_v: float = key(0.0, "weight of virials as the rate goes to zero", unit="1/eV^2", low=0)
    start_pref_ae: float = key(0.0, "weight of atomic energies at the start", unit="1/eV^2", low=0)
    limit_pref_ae: float = key(
        0.0, "weight of atomic energies as the rate goes to zero", unit="1/eV^2", low=0
    )
    loss_func: str = key("mse", "squares or absolute values of errors", choices=("mse", "mae"))
    use_huber: bool = key(False, "Huber functions in the place of squares")
    huber_delta: float | list[float] = key(
        0.01, "where they become linear; or for energy, force and virial", unit="eV, A", above=0
    )
    f_use_norm: bool = key(False, "the length of a force's error as one error; with squares, the mean length")
    intensive_ener_virial: bool = key(False, "squares of energies and virials over N^2, not N")


@dataclass
class OptimizerConfig:
    type: str = key("Adam", "the optimizer", choices=("Adam", "AdamW"))
    adam_beta1: float = key(0.9, "decay of the mean of gradients", low=0, below=1)
    adam_beta2: float = key(0.999, "decay of the mean of their squares", low=0, below=1)
    weight_decay: float | None = key(None, "0 for Adam and 0.001 for AdamW unless given", low=0)


@dataclass
class DataConfig:
    UNUSED: ClassVar[dict[str, tuple[Any, ...]]] = {"set_prefix": ("set",)}
    NEUTRAL: ClassVar[dict[str, Any]] = {"rglob_patterns": None, "min_pair_dist": 0.0}

    systems: list[str] | str = key(doc="systems of DeePMD-kit, folders of them, and files that ASE reads")
    batch_size: int | list[int] | str = key(
        "auto",
        'frames in a batch, or for each system; "auto:n": at least n atoms (32), "max:n", "mixed:n"',
        low=1,
    )
    auto_prob: str = key(
        "prob_sys_size",
        "how often a system is drawn: by its size, or all alike",
        alias=["auto_prob_style"],
        choices=("prob_sys_size", "prob_uniform"),
    )
    sys_probs: list[float] | None = key(None, "how often each system is drawn", alias=["sys_weights"], low=0)
    names: dict | None = key(
        None,
        'what files that ASE reads call the labels, as in {"energy": "REF_energy"}; only mdops has this key',
    )


@dataclass
class ValidationConfig(DataConfig):
    numb_btch: int = key(1, "batches in one validation", alias=["numb_batch"], low=1)


@dataclass
class TrainingConfig:
    IGNORED: ClassVar[tuple[str, ...]] = (
        *("disp_training", "time_training", "profiling_file"),  # what is shown; the file of `profiling`
        "stat_file_mode",  # of `stat_file`
        *("zero_stage", "neighbor_graph_method", "enable_compile"),  # how it is computed, not what
    )
    UNUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "acc_freq": (1,),
        "ckpt_keep_ratio": (),
        "disp_avg": (False,),
        "ema_ckpt_keep": (),
        "enable_profiler": (False,),
        "enable_tf32": (False,),
        "mixed_precision": ({},),
        "profiling": (False,),
        "save_dir": (),
        "stat_file": ("",),
    }
    NEUTRAL: ClassVar[dict[str, Any]] = {"opt_type": "Adam", "change_bias_after_training": False}

    training_data: DataConfig = section(DataConfig)
    validation_data: ValidationConfig | None = section(ValidationConfig, optional=True)
    numb_steps: int | None = key(
        None, "how many steps to train; this or numb_epoch", unit="steps", alias=["stop_batch"], low=1
    )
    numb_epoch: float | None = key(
        None,
        "how often to go through the data",
        alias=["num_epochs", "num_epoch", "numb_epochs"],
        above=0,
    )
    seed: int | None = key(None, "of everything random; drawn unless given", low=0)
    disp_file: str = key("lcurve.out", "the learning curve")
    disp_freq: int = key(1000, "steps between its lines", unit="steps", low=1)
    save_freq: int = key(1000, "steps between checkpoints", unit="steps", low=1)
    save_ckpt: str = key("model.ckpt", "the checkpoints' name")
    max_ckpt_keep: int = key(5, "how many checkpoints are kept", low=1)
    enable_ema: bool = key(False, "validate and save the moving average of the weights")
    ema_decay: float = key(0.999, "its decay in a step", low=0, below=1)
    gradient_max_norm: float | None = key(None, "longer gradients are cut to this length; 0 cuts none", low=0)
    tensorboard: bool = key(False, "write TensorBoard's files; needs the package tensorboard")
    tensorboard_freq: int = key(1, "steps between their points", unit="steps", low=1)
    tensorboard_log_dir: str = key("log", "their folder, in that of all files")
    precision: str = key(
        "float32", "of the computation; only mdops has this key", choices=("float32", "float64")
    )
    spline: bool = key(True, "train with the embedding nets as splines; only mdops has this key")
    smoothing: float = key(
        0.0, "weight of the bending of embedding nets, beside the loss; only mdops has this key", low=0
    )


@dataclass
class ValidatingConfig:
    IGNORED: ClassVar[tuple[str, ...]] = ("compiled_infer", "amp_infer")  # speed; of DPA4 alone
    UNUSED: ClassVar[dict[str, tuple[Any, ...]]] = {"tf32_infer": (False,)}

    full_validation: bool = key(False, "validate the weights on all validation data, and keep the best")
    ema_full_validation: bool = key(
        False, "the same for the moving average of the weights; needs training.enable_ema"
    )
    validation_freq: int = key(5000, "steps between two full validations", unit="steps", low=1)
    full_val_start: float = key(0.5, "the first step of them; below 1 a part of all steps, 1 for none", low=0)
    validation_metric: str = key(
        "E:MAE", "what the best is best in: E, F, S (stress) or V (virial), and MAE or RMSE"
    )
    save_best: bool = key(True, "write the best as checkpoint and model file")
    max_best_ckpt: int = key(1, "how many of the best are kept", low=1)
    save_best_dir: str | None = key(None, "their folder; that of save_ckpt unless given")
    full_val_file: str = key("val.log", "the table of full validations; with _ema for averages")


@dataclass
class Config:
    """A whole training input."""

    NEUTRAL: ClassVar[dict[str, Any]] = {"nvnmd": {}}

    model: ModelConfig = section(ModelConfig)
    training: TrainingConfig = section(TrainingConfig)
    learning_rate: LearningRateConfig = section(LearningRateConfig)
    loss: LossConfig = section(LossConfig)
    optimizer: OptimizerConfig = section(OptimizerConfig)
    validating: ValidatingConfig = section(ValidatingConfig)


def read_config(path: str | os.PathLike[str]) -> Config:
    """The training input of a JSON file. Raises ConfigError, which names the file and the place in it."""
    tree = read_json(path)
    try:
        return parse_config(tree)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_config(tree: Mapping[str, Any]) -> Config:
    """The training input of a tree of JSON, with mdops' own sections (`mdops.train.config.defaults`) where it has none.

    Raises ConfigError, which names the path of the wrong key.
    """
    if not isinstance(tree, Mapping):
        raise ConfigError(f"the input: is a {type(tree).__name__}, expected sections in braces")
    config = parse(Config, completed(tree))
    check(config)
    if config.training.gradient_max_norm == 0:
        config.training.gradient_max_norm = None  # 0 is DeePMD-kit's way to switch it off
    return config


def keys() -> list[KeyHelp]:
    """Every key of the input with its type, unit, default and meaning."""
    return describe_keys(Config)


def saved_precision(precision: str) -> str:
    """The dtype that a key `precision` means."""
    return {"default": "float64", "double": "float64", "single": "float32"}.get(precision, precision)
