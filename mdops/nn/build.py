"""From DeePMD-kit's serialised tree (docs/formats.md) to the modules, and back."""

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from mdops.errors import UnsupportedModelError
from mdops.io import describe
from mdops.nn.fitting import EnergyFitting, Parameters
from mdops.nn.net import Layer, Net
from mdops.nn.potential import Overflow, Potential
from mdops.nn.se_e2_a import SeE2A

Tree = dict[str, Any]

SUPPORTED = "a standard model with descriptor se_e2_a and fitting ener"
_ADVICE = "Train such a model on the same data (`mdops train`), or run this one with DeePMD-kit"


def build(tree: Tree, *, dtype: torch.dtype = torch.float64, overflow: Overflow = "error") -> Potential:
    """The model of a tree as `mdops.io.read_model` gives it, on the CPU, with weights of `dtype`.

    Raises:
        UnsupportedModelError: a kind of model, or an option, that is not implemented; the message names it.
    """
    _refuse_unsupported(tree)
    descriptor, fitting = tree["descriptor"], tree["fitting"]
    return Potential(
        _descriptor(descriptor, tree["pair_exclude_types"], dtype),
        _fitting(fitting, dtype),
        _tensor(tree["@variables"]["out_bias"], torch.float64)[0, :, 0],
        type_map=tree["type_map"],
        atom_exclude_types=tree["atom_exclude_types"],
        overflow=overflow,
        tree=tree,
    )


def serialize(potential: Potential) -> Tree:
    """The tree that `build` makes the same model of, and DeePMD-kit reads; arrays keep their dtypes."""
    tree = copy.deepcopy(potential.tree)
    descriptor, fitting = potential.descriptor, potential.fitting
    slots, ntypes = descriptor.slots, descriptor.ntypes
    davg = torch.nn.functional.pad(descriptor.mean[:, None, None].expand(-1, slots, -1), (0, 3))
    dstd = descriptor.std[:, None, [0, 1, 1, 1]].expand(ntypes, slots, 4)
    _put(tree, "out_bias", potential.out_bias)
    _put(tree["descriptor"], "davg", davg)
    _put(tree["descriptor"], "dstd", dstd)
    _put_nets(tree["descriptor"]["embeddings"], descriptor.nets)
    _put(tree["fitting"], "bias_atom_e", fitting.bias)
    _put(tree["fitting"], "case_embd", fitting.case_embedding)
    for part in (fitting.fparam, fitting.aparam):
        _put(tree["fitting"], f"{part.name}_avg", part.average)
        _put(tree["fitting"], f"{part.name}_inv_std", part.inverse_deviation)
    _put_nets(tree["fitting"]["nets"], fitting.nets)
    return tree


def _put(node: Tree, name: str, value: torch.Tensor | None) -> None:
    """Puts a value in the place of the array of that name."""
    array = node["@variables"].get(name)
    if value is not None and isinstance(array, np.ndarray) and array.size == value.numel():
        new = value.detach().cpu().double().numpy()
        node["@variables"][name] = new.astype(array.dtype).reshape(array.shape)


def _put_nets(collection: Tree, nets: Iterable[nn.Module]) -> None:
    for node, net in zip(collection["networks"], nets, strict=True):
        assert isinstance(net, Net)
        for layer_node, layer in zip(node["layers"], net.layers, strict=True):
            _put(layer_node, "w", layer.weight)
            _put(layer_node, "b", layer.bias)
            _put(layer_node, "idt", layer.timestep)


def _refuse_unsupported(tree: Tree) -> None:
    kind = describe(tree)
    if (kind.model, kind.descriptor, kind.fitting) not in {
        ("standard", name, "ener") for name in ("se_e2_a", "se_a")
    }:
        raise UnsupportedModelError(f"{kind} is not supported; supported is {SUPPORTED}. {_ADVICE}")
    descriptor, fitting = tree["descriptor"], tree["fitting"]
    if descriptor.get("spin") is not None or fitting.get("spin") is not None:
        raise UnsupportedModelError(
            f"a model with spin is not supported; supported is {SUPPORTED}. {_ADVICE}"
        )
    if (descriptor.get("env_mat") or {}).get("use_exp_switch"):
        raise UnsupportedModelError(
            f"se_e2_a with `use_exp_switch` is not supported; the polynomial switch is. {_ADVICE}"
        )


def _descriptor(node: Tree, absent_types: list[list[int]], dtype: torch.dtype) -> SeE2A:
    mean, std = _statistics(node["@variables"])
    return SeE2A(
        _nets(node["embeddings"], dtype),
        _tensor(mean, dtype),
        _tensor(std, dtype),
        cutoff=float(node["rcut"]),
        cutoff_smooth=float(node["rcut_smth"]),
        sel=node["sel"],
        axis_neuron=node["axis_neuron"],
        type_one_side=node["type_one_side"],
        protection=float(node.get("env_protection") or 0.0),
        exclude_types=node["exclude_types"],
        absent_types=absent_types,
    )


def _statistics(variables: Tree) -> tuple[np.ndarray, np.ndarray]:
    """mean (ntypes,) and std (ntypes, 2) from davg and dstd (ntypes, N_sel, 4).

    DeePMD-kit stores them for every slot, but computes one value a type, one deviation for x, y and z, and a
    mean of zero for these. Only such models are rotation invariant and can take a padding in closed form.
    """
    davg, dstd = variables["davg"], variables["dstd"]
    mean, std = davg[:, 0, 0], dstd[:, 0, :2]
    same_mean = (davg[:, :, 0] == mean[:, None]).all() and (davg[:, :, 1:] == 0).all()
    same_std = (dstd == std[:, [0, 1, 1, 1]][:, None]).all()
    if not (same_mean and same_std):
        raise UnsupportedModelError(
            "davg or dstd differs between the slots of a type or between x, y and z; supported are "
            f"the statistics that DeePMD-kit computes, one value for all of them. {_ADVICE}"
        )
    return mean, std


def _fitting(node: Tree, dtype: torch.dtype) -> EnergyFitting:
    variables = node["@variables"]
    ntypes, shared = node["ntypes"], bool(node["mixed_types"])
    given = [energy is not None for energy in node.get("atom_ener") or []]
    # With any vacuum energy given, DeePMD-kit's shared net subtracts its vacuum for all types.
    vacuum = [any(given) and (shared or t >= len(given) or given[t]) for t in range(ntypes)]
    default = node.get("default_fparam")
    aparam = 0 if node.get("use_aparam_as_mask") else node["numb_aparam"]
    return EnergyFitting(
        _nets(node["nets"], dtype),
        _tensor(variables["bias_atom_e"], torch.float64).reshape(ntypes),
        _parameters("fparam", node["numb_fparam"], variables, dtype),
        _parameters("aparam", aparam, variables, dtype),
        None if default is None else torch.tensor(default, dtype=torch.float64),
        _optional(variables.get("case_embd"), node["dim_case_embd"], dtype),
        vacuum,
        shared,
    )


def _parameters(name: str, size: int, variables: Tree, dtype: torch.dtype) -> Parameters:
    average, inverse = variables.get(f"{name}_avg"), variables.get(f"{name}_inv_std")
    return Parameters(name, _optional(average, size, dtype), _optional(inverse, size, dtype))


def _nets(collection: Tree, dtype: torch.dtype) -> list[Net]:
    if any(net is None for net in collection["networks"]):
        raise UnsupportedModelError(f"a model without the nets of some types is not supported. {_ADVICE}")
    return [Net(_layer(layer, dtype) for layer in net["layers"]) for net in collection["networks"]]


def _layer(node: Tree, dtype: torch.dtype) -> Layer:
    variables = node["@variables"]
    bias, timestep = (
        None if variables.get(name) is None else _tensor(variables[name], dtype).reshape(-1)
        for name in ("b", "idt")
    )
    return Layer(
        _tensor(variables["w"], dtype),
        bias,
        timestep,
        node["activation_function"] or "none",
        bool(node["resnet"]),
    )


def _tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    # bfloat16 arrays of ml_dtypes are no business of torch.from_numpy; every precision fits into float64.
    return torch.from_numpy(np.array(array, dtype=np.float64)).to(dtype)


def _optional(array: np.ndarray | None, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The array as (size,), empty where the model has none."""
    return torch.empty(0, dtype=dtype) if array is None or size == 0 else _tensor(array, dtype).reshape(size)
