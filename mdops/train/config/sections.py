"""The training input: DeePMD-kit's input.json. The section `model` has the options of a kind of model and of its parts
(mdops.models), the section `loss` those of a loss (mdops.train.loss)."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from mdops.models import registry
from mdops.models.absent import nearest
from mdops.options import key, section, variant
from mdops.train import loss
from mdops.train.config import frozen  # noqa: F401  (registers its kind)


@dataclass
class LearningRateConfig:
    # The processes share one batch, so the learning rate does not scale with their number.
    IGNORED: ClassVar[tuple[str, ...]] = ("scale_by_worker",)

    type: str = key("exp", "schedule of the learning rate", choices=("exp", "cosine", "wsd"))
    start_lr: float = key(1e-3, "learning rate after the warm-up", above=0)
    stop_lr: float | None = key(None, "learning rate at the end; default 5e-8 without stop_lr_ratio", low=0)
    stop_lr_ratio: float | None = key(None, "ratio of the final to the initial learning rate", low=0)
    decay_steps: int = key(
        5000, "steps between two reductions of an exponential schedule", unit="steps", low=1
    )
    decay_rate: float | None = key(
        None, "factor of one reduction, at most 1; by default, the factor that leads to stop_lr", above=0
    )
    smooth: bool = key(False, "reduce the rate at every step")
    decay_phase_ratio: float = key(
        0.1, 'fraction of all steps, at the end, in which "wsd" reduces the rate', above=0
    )
    decay_type: str = key(
        "inverse_linear",
        'how "wsd" reduces the rate: the rate or its inverse linearly, or by half a cosine',
        choices=("inverse_linear", "cosine", "linear"),
    )
    warmup_steps: int = key(0, "number of steps over which the rate rises linearly", unit="steps", low=0)
    warmup_ratio: float | None = key(None, "the same as a fraction of all steps", low=0, below=1)
    warmup_start_factor: float = key(0.0, "ratio of the first rate of the warm-up to start_lr", low=0)


@dataclass
class OptimizerConfig:
    IGNORED: ClassVar[tuple[str, ...]] = ("flash_muon",)  # affects the speed, not the result

    type: str = key("Adam", "the optimizer", choices=("Adam", "AdamW", "AdaMuon", "HybridMuon", "LKF"))
    adam_beta1: float = key(0.9, "decay of the mean of gradients", low=0, below=1)
    adam_beta2: float | None = key(
        None,
        "decay of the mean of squared gradients; default 0.999, with AdaMuon and HybridMuon 0.95",
        low=0,
        below=1,
    )
    weight_decay: float | None = key(
        None,
        "weight of the squared weights in the loss, or with AdamW, AdaMuon and HybridMuon decoupled weight"
        " decay; default 0, with AdaMuon and HybridMuon 0.001",
        low=0,
    )
    momentum: float = key(
        0.95,
        "AdaMuon, HybridMuon: decay of the mean of matrices' gradients, and AdaMuon's of squared directions",
        alias=["muon_momentum"],
        low=0,
        below=1,
    )
    lr_adjust: float | None = key(
        None,
        "AdaMuon, HybridMuon: if above 0, a divisor of the rate for weights that are not matrices; it also "
        "changes the length of matrices' steps; default 10, with HybridMuon 0",
    )
    lr_adjust_coeff: float | None = key(
        None,
        "AdaMuon, HybridMuon: without lr_adjust, the length of a matrix' step is proportional to this and the "
        "square root of its longer side; default 0.2, with HybridMuon 0.18",
        above=0,
    )
    muon_mode: str = key(
        "slice",
        "HybridMuon: weights with more than two axes are matrices of the last two axes, one "
        "matrix with all axes but the last as rows, or no matrices",
        choices=("slice", "flat", "2d"),
    )
    enable_gram: bool = key(
        True, "HybridMuon: compute steps of matrices that are not square from their Gram matrix, in float16"
    )
    magma_muon: bool = key(
        True, "HybridMuon: damp the step if a gradient disagrees with the mean of gradients"
    )
    kf_blocksize: int = key(
        5120, "LKF: the most weights with a common covariance, which takes 8 bytes times their square", low=1
    )
    kf_start_pref_e: float = key(1.0, "LKF: initial prefactor of errors of energies", above=0)
    kf_limit_pref_e: float = key(1.0, "LKF: final prefactor of errors of energies", above=0)
    kf_start_pref_f: float = key(1.0, "LKF: initial prefactor of errors of forces", above=0)
    kf_limit_pref_f: float = key(1.0, "LKF: final prefactor of errors of forces", above=0)

    def __post_init__(self) -> None:
        ada = self.type == "AdaMuon"
        of_muon = ada or self.type == "HybridMuon"
        if self.adam_beta2 is None:
            self.adam_beta2 = 0.95 if of_muon else 0.999
        if self.lr_adjust is None:
            self.lr_adjust = 10.0 if ada else 0.0
        if self.lr_adjust_coeff is None:
            self.lr_adjust_coeff = 0.2 if ada else 0.18
        if self.weight_decay is None:
            # DeePMD-kit's help says 0.001 for AdamW, but it takes 0.
            self.weight_decay = 0.001 if of_muon else 0.0


@dataclass
class DataConfig:
    UNUSED: ClassVar[dict[str, tuple[Any, ...]]] = {"set_prefix": ("set",)}
    NEUTRAL: ClassVar[dict[str, Any]] = {"rglob_patterns": None}

    systems: list[str] | str = key(doc="DeePMD-kit systems, folders of them, and files that ASE reads")
    batch_size: int | list[int] | str = key(
        "auto",
        'frames in a batch, or for each system; "auto:n": at least n atoms (32); "max:n": at most n atoms, '
        'but a frame; "filter:n": the same, without frames of more than n atoms; "mix:n": frames of similar '
        'sizes whose number times the largest size is at most n; "mixed:n": n frames of any systems',
        low=1,
    )
    auto_prob: str = key(
        "prob_sys_size",
        'probability of drawing a system: "prob_sys_size": proportional to its number of batches; "prob_uniform"; '
        '"prob_sys_size;0:10:0.3;10:20:0.7": blocks of systems (begin:end:weight), in a block by numbers of batches',
        alias=["auto_prob_style"],
    )
    sys_probs: list[float] | None = key(
        None, "probability of drawing each system", alias=["sys_weights"], low=0
    )
    names: dict | None = key(
        None,
        'names of the labels in files that ASE reads, as in {"energy": "REF_energy"}; only mdops '
        "has this key",
    )
    leave_out: int = key(
        0,
        "leave out every n-th frame of a system; these frames are the validation data if no "
        "others are named; 0: none; only mdops has this key",
        low=0,
    )


@dataclass
class TrainingDataConfig(DataConfig):
    min_pair_dist: float = key(
        0.0,
        "leave out frames in which two atoms are nearer to each other than this; 0: none",
        unit="A",
        low=0,
    )


@dataclass
class ValidationConfig(DataConfig):
    numb_btch: int = key(
        1,
        "number of batches in one validation; a larger number than the data has: all",
        alias=["numb_batch"],
        low=1,
    )
    left_out: bool = key(False, "use the frames that leave_out leaves out; only mdops has this key")


@dataclass
class TrainingConfig:
    IGNORED: ClassVar[tuple[str, ...]] = (
        *("disp_training", "time_training", "profiling_file"),  # printed output; the file of `profiling`
        "stat_file_mode",  # an option of `stat_file`
        *("zero_stage", "neighbor_graph_method", "enable_compile"),  # affect the speed, not the result
    )
    UNUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "acc_freq": (1,),
        "ckpt_keep_ratio": (),
        "disp_avg": (False,),
        "ema_ckpt_keep": (),
        "enable_profiler": (False,),
        "enable_tf32": (False,),
        "load_ckpt": (),
        "mixed_precision": ({},),
        "numb_test": (),
        "profiling": (False,),
        "save_dir": (),
        "set_prefix": ("set",),
        "stat_file": ("",),
        "warmup": (),
    }

    training_data: TrainingDataConfig = section(TrainingDataConfig)
    validation_data: ValidationConfig | None = section(ValidationConfig, optional=True)
    numb_steps: int | None = key(
        None,
        "number of training steps; 0: only write the initial model; without this and numb_epoch: "
        "20 epochs, but 4,000 to 100,000 steps",
        unit="steps",
        alias=["stop_batch", "numb_step", "num_step", "num_steps"],
        low=0,
    )
    numb_epoch: float | None = key(
        None,
        "number of passes through the data; with odds of systems (sys_probs, auto_prob) until each was drawn as "
        "often as it has batches, on average",
        alias=["num_epochs", "num_epoch", "numb_epochs"],
        above=0,
    )
    seed: int | None = key(None, "seed of all random numbers; random by default", low=0)
    disp_file: str = key("lcurve.out", "the learning curve")
    disp_freq: int | None = key(
        None,
        "steps between lines of the learning curve; default 1000, or a twentieth of all steps if "
        "that is less",
        unit="steps",
        low=1,
    )
    save_freq: int = key(1000, "steps between checkpoints", unit="steps", low=1)
    save_ckpt: str = key("model.ckpt", "name of the checkpoints")
    max_ckpt_keep: int = key(5, "number of checkpoints that are kept", low=1)
    enable_ema: bool = key(False, "validate and save the moving average of the weights")
    ema_decay: float = key(
        0.999,
        "decay of the average per step; at first (1 + n) / (10 + n) at step n, if that is less (not in DeePMD-kit)",
        low=0,
        below=1,
    )
    change_bias_after_training: bool = key(
        False, "after the last step, shift the energies of the types to fit the labels of the training data"
    )
    gradient_max_norm: float | None = key(
        None, "longer gradients are scaled to this length; 0: no limit", low=0
    )
    tensorboard: bool = key(False, "write TensorBoard's files; needs the package tensorboard")
    tensorboard_freq: int = key(1, "steps between points in TensorBoard's files", unit="steps", low=1)
    tensorboard_log_dir: str = key("log", "folder of TensorBoard's files, inside the output folder")
    precision: str = key(
        "float32", "precision of the computation; only mdops has this key", choices=("float32", "float64")
    )
    spline: bool = key(True, "train with the embedding nets as splines; only mdops has this key")
    smoothing: float = key(
        0.0,
        "weight of the embedding nets' bending in the gradients, in addition to the loss; only "
        "mdops has this key",
        low=0,
    )


@dataclass(kw_only=True)
class ValidatingConfig:
    IGNORED: ClassVar[tuple[str, ...]] = ("compiled_infer", "amp_infer")  # affect only the speed of DPA4
    UNUSED: ClassVar[dict[str, tuple[Any, ...]]] = {"tf32_infer": (False,)}

    full_validation: bool = key(False, "validate the weights on all validation data, and keep the best")
    ema_full_validation: bool = key(
        False, "the same for the moving average of the weights; needs training.enable_ema"
    )
    validation_freq: int = key(5000, "steps between two full validations", unit="steps", low=1)
    full_val_start: float = key(
        0.5, "first step of full validations; below 1: a fraction of all steps; 1: none", low=0
    )
    validation_metric: str = key(
        "E:MAE", "metric by which the best is chosen: E, F, S (stress) or V (virial), and MAE or RMSE"
    )
    save_best: bool = key(True, "write the best as checkpoint and model file")
    max_best_ckpt: int = key(1, "number of best models that are kept", low=1)
    save_best_dir: str | None = key(None, "folder of the best models; default: that of save_ckpt")
    full_val_file: str = key("val.log", "table of full validations; with _ema for averages")


@dataclass(kw_only=True)
class Config:
    """A whole training input."""

    NEUTRAL: ClassVar[dict[str, Any]] = {"nvnmd": {}}
    ADVICE: ClassVar[dict[str, str]] = {"nvnmd": "without the section the model trains in floating point"}

    model: Any = variant(
        lambda: registry.options("model"), "standard", registry.model_name, partial(nearest, "model")
    )
    training: TrainingConfig = section(TrainingConfig)
    learning_rate: LearningRateConfig = section(LearningRateConfig)
    loss: Any = variant(loss.options, "ener", absent=loss.absent)
    optimizer: OptimizerConfig = section(OptimizerConfig)
    validating: ValidatingConfig = section(ValidatingConfig)
