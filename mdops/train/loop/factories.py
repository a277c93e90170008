"""Makes the parts of a training from its configuration."""

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from mdops.data.dataset import Dataset
from mdops.data.labels import labels_of
from mdops.data.lmdb_blocks import lmdb_blocks, lmdb_of
from mdops.data.sampler import Sampler, blocks_of, system_odds
from mdops.errors import ConfigError, DataError
from mdops.models.contract import AtomicModel
from mdops.models.registry import outputs_of
from mdops.models.spin import spin_of
from mdops.train.config.sections import Config, DataConfig, TrainingConfig
from mdops.train.loop.kalman import KalmanFilter
from mdops.train.loop.muon import AdaMuon, HybridMuon
from mdops.train.loop.schedule import LearningRate
from mdops.train.loss import LOSSES, Loss


def make_sampler(config: DataConfig, data: Dataset, seed: int) -> Sampler:
    """The batches of the section `training_data` or `validation_data`."""
    odds, blocks, path = config.sys_probs, None, lmdb_of(data)
    if odds is None and path is not None:  # blocks copy frames: no system is drawn by odds
        given = blocks_of(config.auto_prob)
        blocks = lmdb_blocks(data, path, config.auto_prob, given) if given else None
    elif odds is None:
        odds = system_odds(data, config.batch_size, config.auto_prob)
    return Sampler(data, config.batch_size, seed=seed, odds=odds, blocks=blocks)


def make_loss(config: Config, data: Dataset | None = None, model: AtomicModel | None = None) -> Loss:
    """The loss of the section `loss`; with `skip_absent`, of the labels in `data`, if given, which it makes
    `complete`. `model` is the trained one, if it is not the input's."""
    outputs = outputs_of(config.model) if model is None else model.outputs
    spin = spin_of(config.model, config.model.type_map) if model is None else model.spin
    loss = LOSSES[config.loss.KIND].make(config.loss, labels_of(outputs, spin is not None))
    if data is None:
        return loss
    loss.complete(data)
    return loss.only_of(data)


def only_learned(data: Dataset, loss: Loss) -> Dataset:
    """The data without atomic labels that the loss ignores."""
    of_atoms = {name for name, label in data.known.items() if label.of_atom and not label.is_input}
    unused = of_atoms - set(loss.terms)
    return replace(data, labels={name: value for name, value in data.labels.items() if name not in unused})


def require_labels(loss: Loss, data: Dataset, *, takes_more: bool = True) -> None:
    """Raises DataError if no frame has any label for the loss; warns of terms without effect, and counts the labels
    without a term, except energies of atoms. If it `takes_more` terms, the warning names their keys."""
    loss.check(data)
    if not any(data.has(name) for name in loss.terms):
        raise DataError(
            f"the loss is of {', '.join(loss.terms) or 'nothing'}, and the data has {', '.join(data.labels)}"
        )
    for name in loss.terms:
        if not data.has(name):
            warnings.warn(f"the loss is of {name}, too, and no frame has that label", stacklevel=2)
    for name, (start, limit) in loss.prefactors.items():
        if (start == 0) != (limit == 0) and name not in loss.terms:
            warnings.warn(
                f"the loss is not of {name}: its prefactors are {start:g} and {limit:g}, and, as in DeePMD-kit, a term "
                "counts where neither is zero",
                stacklevel=2,
            )
    labels = [name for name, label in loss.labels.items() if not label.is_input]
    used = {*loss.terms, *(loss.labels[name].answer for name in loss.terms)}
    unused = [name for name in labels if data.has(name) and name not in (*used, "atom_energy")]
    if unused:
        counts = ", ".join(f"{int(data.present[name].sum())} frames with {name}" for name in unused)
        ends = [place for name in unused for place in loss.keys(name)]
        without = "; pressures, and cells that relax, are wrong without virials" if "virial" in unused else ""
        every = ", or leave out the section loss: then they are trained on"
        every = "" if any(loss.labels[name].weighs for name in unused) else every
        advice = f": {', '.join(ends)} are to be above 0{every}" if takes_more else ""
        warnings.warn(
            f"the data has {counts}, which the training does not use{advice}{without}", stacklevel=2
        )


def trained_labels(loss: Loss, data: Dataset) -> dict[str, int]:
    """The number of frames with each trained label."""
    return {name: int(data.present[name].sum()) for name in loss.terms if data.has(name)}


_EPOCHS, _FEWEST, _MOST = 20, 4_000, 100_000
_LINES, _INTERVAL = 20, 1000  # of a learning curve: the least number, and the most steps between


def planned_steps(config: Config, batches: int) -> int:
    """The steps of the whole training, with so many batches an epoch."""
    training = config.training
    if training.numb_steps is not None:
        return training.numb_steps
    if training.numb_epoch is not None:
        return math.ceil(training.numb_epoch * batches)
    return min(max(_EPOCHS * batches, _FEWEST), _MOST)


def report_interval(training: TrainingConfig, steps: int) -> int:
    """Steps between two lines of the learning curve."""
    return training.disp_freq or min(_INTERVAL, max(steps // _LINES, 1))


def make_rate(config: Config, steps: int) -> LearningRate:
    """The rates of the section `learning_rate` over `steps` steps."""
    return LearningRate(config.learning_rate, steps)


def make_optimizer(
    config: Config,
    parameters: Iterable[torch.nn.Parameter],
    tables: Iterable[torch.nn.Parameter] = (),
    decayed: Iterable[torch.nn.Parameter] = (),
    *,
    steps: int = 1,
) -> torch.optim.Optimizer:
    """The optimizer of the section `optimizer`, for the trained parameters. `tables` are those that are no matrices of
    layers (`tables_of`), `decayed` those of `decayed_of`.

    On a GPU its learning rate is a tensor there, so that a CUDA graph can capture steps.

    Raises ConfigError where there are none, and `steps` to take.
    """
    c = config.optimizer
    trained = [p for p in parameters if p.requires_grad]
    if not trained and not steps:
        trained = [torch.nn.Parameter(torch.zeros(1))]
    if not trained:
        raise ConfigError("model: has no trainable weights, so there is nothing to do")
    on_gpu = bool(trained) and trained[0].is_cuda
    rate: Any = config.learning_rate.start_lr
    rate = torch.tensor(rate, dtype=torch.float32, device=trained[0].device) if on_gpu else rate
    assert c.adam_beta2 is not None and c.weight_decay is not None
    betas, decay = (c.adam_beta1, c.adam_beta2), c.weight_decay
    of_matrices: dict[str, Any] = {
        **{name: getattr(c, name) for name in ("momentum", "lr_adjust", "lr_adjust_coeff")},
        "betas": betas,
        "weight_decay": decay,
    }
    if c.type == "LKF":
        return KalmanFilter(trained, rate, block_size=c.kf_blocksize)
    if c.type == "AdaMuon":
        return AdaMuon(trained, rate, **of_matrices)
    if c.type == "HybridMuon":
        own: dict[str, Any] = {"mode": c.muon_mode, "gram": c.enable_gram, "magma": c.magma_muon}
        return HybridMuon(trained, rate, tables=tables, decayed=decayed, **of_matrices, **own)
    options: dict[str, Any] = {"betas": betas, "fused": True, "capturable": on_gpu}
    if c.type == "AdamW":
        return torch.optim.AdamW(trained, rate, weight_decay=decay, **options)
    return torch.optim.Adam(trained, rate, weight_decay=decay, **options)


def restore_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Loads a `state_dict` of this device or another; what belongs to the device stays."""
    names = ("lr", "fused", "capturable")
    own = [{name: group[name] for name in names if name in group} for group in optimizer.param_groups]
    saved = [{**group, **here} for group, here in zip(state["param_groups"], own, strict=True)]
    optimizer.load_state_dict({**state, "param_groups": saved})
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    for k, values in state["state"].items():  # PyTorch gives them the weights' dtype, and leaves steps
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                own_state = optimizer.state[weights[k]]
                own_state[name] = value.to(weights[k].device, copy=True)
    for group, here in zip(optimizer.param_groups, own, strict=True):
        group.update(here)
