"""New models: random weights, and statistics of the data."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import mdops
from mdops.errors import ConfigError
from mdops.nn.build import build
from mdops.nn.potential import Potential
from mdops.train.config.sections import Config, DescriptorConfig, FittingConfig, ModelConfig, saved_precision
from mdops.train.model.statistics import ModelStatistics, overflow_rule

Tree = dict[str, Any]

_EMBEDDING, _FITTING = 0, 1  # streams of random numbers


def create_potential(
    config: Config, statistics: ModelStatistics, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Potential:
    """A model with random weights, in training mode and exact mode.

    The weights are DeePMD-kit's: normal, with deviation 1/sqrt(inputs + outputs); biases with 1; factors of
    residual layers 0.1 +- 0.001. They depend on `seed` where the configuration has no other for a part.
    """
    tree = create_tree(config.model, statistics, seed)
    potential = build(tree, dtype=dtype, overflow=overflow_rule(statistics.neighbors, statistics.sel))
    potential.source = origin(statistics.neighbors.nearest)
    set_trained(potential, config)
    return potential.train()


def origin(nearest: float, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a model that is trained here says of itself: mdops, and the smallest distance in its data (A).

    With `before`, the origin of the model that the training begins with, both have seen the smaller distance.
    """
    found = {"software": "mdops", "version": mdops.__version__, "min_nbor_dist": nearest}
    if before:
        known = [before["min_nbor_dist"]] if before.get("min_nbor_dist") else []
        found["min_nbor_dist"] = min([nearest, *known])
        found["began_with"] = {
            name: before[name] for name in ("software", "version", "format") if name in before
        }
    return found


def set_trained(potential: Potential, config: Config) -> None:
    """Fixes the weights of the parts that are not `trainable`, and tells how much the embedding nets may bend."""
    fitting = config.model.fitting_net.trainable
    potential.descriptor.requires_grad_(config.model.descriptor.trainable)
    potential.fitting.requires_grad_(all(fitting) if isinstance(fitting, list) else fitting)
    potential.descriptor.smoothing = config.training.smoothing


def create_tree(model: ModelConfig, statistics: ModelStatistics, seed: int) -> Tree:
    """The new model as DeePMD-kit serialises it (docs/formats.md)."""
    ntypes = len(model.type_map)
    energy = statistics.energy
    return {
        "@class": "Model",
        "@version": 2,
        "type": "standard",
        "type_map": list(model.type_map),
        "atom_exclude_types": model.atom_exclude_types,
        "pair_exclude_types": model.pair_exclude_types,
        "rcond": model.fitting_net.rcond,
        "preset_out_bias": model.preset_out_bias,
        "@variables": {
            "out_bias": energy.bias.reshape(1, ntypes, 1),
            "out_std": np.full((1, ntypes, 1), energy.std),
        },
        "descriptor": _descriptor(model.descriptor, model.type_map, statistics, seed),
        "fitting": _fitting(model, statistics, seed),
    }


def _descriptor(
    config: DescriptorConfig, type_map: list[str], statistics: ModelStatistics, seed: int
) -> Tree:
    ntypes, slots = len(type_map), sum(statistics.sel)
    mean, std = statistics.environment.mean, statistics.environment.std
    davg = np.zeros((ntypes, slots, 4))
    davg[:, :, 0] = mean[:, None]
    precision = saved_precision(config.precision)
    seed = seed if config.seed is None else config.seed
    ndim = 1 if config.type_one_side else 2
    options = {
        "neuron": config.neuron,
        "activation_function": config.activation_function,
        "resnet_dt": config.resnet_dt,
        "precision": precision,
    }
    nets = [
        {
            "@class": "EmbeddingNetwork",
            "@version": 2,
            "in_dim": 1,
            "bias": True,
            "trainable": True,
            **options,
            "layers": _layers([1, *config.neuron], options, _random(seed, _EMBEDDING, k)),
        }
        for k in range(ntypes**ndim)
    ]
    cutoffs = {"rcut": config.rcut, "rcut_smth": config.rcut_smth}
    return {
        "@class": "Descriptor",
        "@version": 2,
        "type": "se_e2_a",
        **cutoffs,
        **options,
        "sel": statistics.sel,
        "axis_neuron": config.axis_neuron,
        "set_davg_zero": config.set_davg_zero,
        "exclude_types": config.exclude_types,
        "env_protection": config.env_protection,
        "env_mat": {**cutoffs, "protection": config.env_protection, "use_exp_switch": False},
        "type_map": list(type_map),
        "trainable": config.trainable,
        "type_one_side": config.type_one_side,
        "spin": None,
        "@variables": {
            "davg": davg,
            "dstd": np.ascontiguousarray(np.broadcast_to(std[:, None, [0, 1, 1, 1]], davg.shape)),
        },
        "embeddings": _collection(nets, ndim, ntypes, "embedding_network"),
    }


def _fitting(model: ModelConfig, statistics: ModelStatistics, seed: int) -> Tree:
    config, ntypes = model.fitting_net, len(model.type_map)
    width = model.descriptor.neuron[-1] * model.descriptor.axis_neuron
    inputs = width + config.numb_fparam + config.numb_aparam
    seed = seed if config.seed is None else config.seed
    options = {
        "neuron": config.neuron,
        "activation_function": config.activation_function,
        "resnet_dt": config.resnet_dt,
        "precision": saved_precision(config.precision),
    }
    nets = []
    for kind in range(ntypes):
        random = _random(seed, _FITTING, kind)
        last = {**options, "activation_function": "none", "resnet_dt": False}
        hidden = _layers([inputs, *config.neuron], options, random)
        output = _layer([inputs, *config.neuron][-1], 1, last, False, random)
        nets.append(
            {
                "@class": "FittingNetwork",
                "@version": 1,
                "in_dim": inputs,
                "out_dim": 1,
                "bias_out": True,
                "trainable": True,
                **options,
                "layers": [*hidden, output],
            }
        )
    return {
        "@class": "Fitting",
        "@version": 4,
        "type": "ener",
        "var_name": "energy",
        "ntypes": ntypes,
        "dim_descrpt": width,
        "dim_out": 1,
        **options,
        "numb_fparam": config.numb_fparam,
        "numb_aparam": config.numb_aparam,
        "dim_case_embd": 0,
        "default_fparam": config.default_fparam,
        "mixed_types": False,
        "nets": _collection(nets, 1, ntypes, "fitting_network"),
        "rcond": config.rcond,
        "exclude_types": model.atom_exclude_types,
        "type_map": list(model.type_map),
        "tot_ener_zero": False,
        "trainable": config.trainable,
        "layer_name": None,
        "use_aparam_as_mask": False,
        "spin": None,
        "atom_ener": config.atom_ener,
        "@variables": {
            "bias_atom_e": np.zeros((ntypes, 1)),
            "case_embd": None,
            **_parameters(config, statistics),
        },
    }


def _parameters(config: FittingConfig, statistics: ModelStatistics) -> Tree:
    """Averages and inverse deviations of fparam and aparam, None where the model has none."""
    result: Tree = {}
    for name, size in (("fparam", config.numb_fparam), ("aparam", config.numb_aparam)):
        found = statistics.parameters[name] if size else None
        average, inverse = found or ((np.zeros(size), np.ones(size)) if size else (None, None))
        if average is not None and len(average) != size:
            raise ConfigError(
                f"model.fitting_net.numb_{name}: is {size}, and the data has {len(average)} values of {name}"
            )
        result |= {f"{name}_avg": average, f"{name}_inv_std": inverse}
    return result


def _collection(nets: list[Tree], ndim: int, ntypes: int, kind: str) -> Tree:
    head = {"@class": "NetworkCollection", "@version": 1}
    return {**head, "ndim": ndim, "ntypes": ntypes, "network_type": kind, "networks": nets}


def _layers(widths: list[int], options: Tree, random: np.random.Generator) -> list[Tree]:
    pairs = itertools.pairwise(widths)
    return [_layer(inputs, outputs, options, True, random) for inputs, outputs in pairs]


def _layer(inputs: int, outputs: int, options: Tree, residual: bool, random: np.random.Generator) -> Tree:
    # A factor is there only where something is added to the layer's result.
    timestep = options["resnet_dt"] and outputs in (inputs, 2 * inputs)
    dtype = options["precision"]
    weight = random.normal(0, 1 / np.sqrt(inputs + outputs), (inputs, outputs)).astype(dtype)
    bias = random.normal(0, 1, outputs).astype(dtype)
    factor = random.normal(0.1, 0.001, outputs).astype(dtype) if timestep else None
    return {
        "@class": "Layer",
        "@version": 2,
        "bias": True,
        "use_timestep": timestep,
        "activation_function": options["activation_function"],
        "resnet": residual,
        "precision": dtype,
        "trainable": True,
        "@variables": {"w": weight, "b": bias, "idt": factor},
    }


def _random(seed: int, stream: int, net: int) -> np.random.Generator:
    """Random numbers of one net, independent of those of the others."""
    return np.random.default_rng([seed, stream, net])
