"""Kinds of models: what each is made of, in a file of its own (docs/reference/models.md)."""

import torch

from mdops.errors import UnsupportedModelError
from mdops.models import (  # noqa: F401  (each registers its kind)
    dipole,
    dos,
    dpa1,
    dpa2,
    dpa3,
    dpa4,
    dpa4c,
    ener,
    hybrid,
    linear,
    loc_frame,
    pairtab,
    pairwise,
    polar,
    population,
    property,
    se_a_mask,
    se_a_tebd,
    se_e2_a,
    se_e2_r,
    se_e3,
    se_e3_tebd,
    zbl,
)
from mdops.models.contract import AtomicModel, Descriptor, EnvironmentDescriptor, Features, Output, Tree
from mdops.models.graph import GraphDescriptor, neighbor_graph_of
from mdops.models.neighborhood import Neighborhood, NeighborReport, NeighborSpec
from mdops.models.registry import find, register
from mdops.models.standard import DescriptorFitting

__all__ = [
    "AtomicModel",
    "Descriptor",
    "DescriptorFitting",
    "EnvironmentDescriptor",
    "Features",
    "GraphDescriptor",
    "NeighborReport",
    "NeighborSpec",
    "Neighborhood",
    "Output",
    "model_of_tree",
    "neighbor_graph_of",
    "register",
]


_ADVICE = (
    "Train a model of a supported kind on the same data (`mdops train`), or run this one with DeePMD-kit"
)


def model_of_tree(tree: Tree, dtype: torch.dtype = torch.float64) -> AtomicModel:
    """The model of a tree as `mdops.io.read_model` gives it, on the CPU, with weights of `dtype`.

    Raises:
        UnsupportedModelError: a kind of model, or an option, that is not implemented; the message names it.
    """
    try:
        model: AtomicModel = find("model", tree.get("type")).from_tree(tree, dtype)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{error}. {_ADVICE}") from error
    return model
