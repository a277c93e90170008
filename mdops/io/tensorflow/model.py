"""Makes the tree of a model, as DeePMD-kit's other backends serialise it, from a TensorFlow graph."""

import json
import re
from typing import Any

import numpy as np
import torch

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.tensorflow.descriptors import part_of
from mdops.io.tensorflow.fitting import Fitting
from mdops.io.tensorflow.graph import Graph, Node
from mdops.io.tensorflow.nets import Tree, embedding_net, layers_by_name
from mdops.io.tensorflow.pair_table import with_table
from mdops.io.tensorflow.places import ENVIRONMENT, Part, Place, Types
from mdops.io.tensorflow.spin import magnetic_elements, with_spin
from mdops.io.tree import model_head
from mdops.nn.net import Net

_PAIRWISE = "DprcPairwiseIdx"  # only models of pairwise_dprc have this operation
_CHARGES = "dipole_charge/"  # the scope of a modifier's model of dipoles

_THERE = "evaluate it with DeePMD-kit's TensorFlow backend, the only one that has it"
# Kinds of models that are not read: an operation that only their graphs have, what they are, and what to do instead.
_OTHERS = {
    "DescrptSeAEf": ("the descriptor se_a_ef (atoms in an electric field)", _THERE),
}
# Kinds of models that are read, and the outputs that their graphs must have.
_OUTPUTS = {
    "ener": ("energy", "force", "virial", "atom_energy", "atom_virial"),
    "dipole": ("dipole",),
    "polar": ("polar",),
    "dos": ("dos",),
}
_WIDTHS = {"ener": 1, "dipole": 3, "polar": 9}  # of an atom's result, if not the nets' number of outputs


def model_tree(graph: Graph) -> tuple[Tree, Tree]:
    """The tree, and what the graph says of its origin (`ModelFile.source`).

    Raises:
        ModelFileError: the graph is not a Deep Potential, or parts of it are missing or do not fit each other.
        UnsupportedModelError: a kind of model, or an option, that is not read.
    """
    kind = _kind(graph)
    script = _training_input(graph)
    stated = _section(script, "model")
    if stated.get("type", "standard") not in ("standard", "frozen", "pairwise_dprc", *_OUTPUTS):
        raise UnsupportedModelError(f"a {stated['type']} model is not read from TensorFlow graphs")
    if graph.of_op(_PAIRWISE):
        return _pairwise(graph, stated), _source(graph, script)
    tree = _standard(graph, kind, stated)
    return with_table(graph, with_spin(graph, tree, stated)), _source(graph, script)


def _standard(graph: Graph, kind: str, stated: Tree, of: str = "") -> Tree:
    """The node of a descriptor and a fitting. `stated` is the section of the training input; `of` is the end of the
    names of all scopes of a part."""
    own = (
        node
        for node in graph.of_op(*ENVIRONMENT)
        if not node.name.startswith(_CHARGES) and of in (_suffix(graph, node), "")
    )
    operations = sorted(own, key=lambda node: _suffix(graph, node))
    if not operations:
        raise ModelFileError(f"it has no descriptor with the suffix {of!r}")
    sections = _descriptor_sections(stated, len(operations))
    type_map = _type_map(graph, stated, operations[0])
    types = _type_embedding(graph, len(type_map))
    magnetic = magnetic_elements(graph)
    fitting = Fitting(graph, kind, _section(stated, "fitting_net"), len(type_map), magnetic, of)
    width = fitting.inputs - sum(fitting.extra) - (0 if types is None else types.values.shape[1])
    parts = [
        part_of(
            Place(
                graph,
                operation,
                _suffix(graph, operation),
                section,
                type_map,
                types,
                width if len(operations) == 1 else None,
            )
        )
        for operation, section in zip(operations, sections, strict=True)
    ]
    return {
        **model_head("standard", 2, type_map),
        "atom_exclude_types": fitting.absent,
        "@variables": _out_bias(graph, len(type_map), _WIDTHS.get(kind, fitting.outputs)),
        "descriptor": _descriptor(parts),
        "fitting": fitting.tree(parts, None if types is None else types.values, type_map),
    }


def _pairwise(graph: Graph, stated: Tree) -> Tree:
    """The node of a quantum region and of each residue around it."""
    shared = {name: value for name, value in stated.items() if name == "type_map"}
    parts = [
        _standard(graph, "ener", {**shared, **_section(stated, f"{name}_model")}, f"_{name}")
        for name in ("qm", "qmmm")
    ]
    type_map = parts[1]["type_map"]
    zero = np.zeros((1, len(type_map), 1))
    arrays = {"out_bias": zero, "out_std": np.ones_like(zero)}
    return {**model_head("pairwise_dprc", 1, type_map), "@variables": arrays, "models": parts}


def _kind(graph: Graph) -> str:
    """The kind of the model, a key of `_OUTPUTS`. Raises an error that names the kind if it is not read."""
    for op, (what, instead) in _OTHERS.items():
        if graph.of_op(op):
            raise UnsupportedModelError(f"{what} is not read from TensorFlow graphs: {instead}")
    if any("Nvnmd" in node.op for node in graph.nodes.values()):
        raise UnsupportedModelError("a model of NVNMD is not read from TensorFlow graphs")
    if not graph.of_op(*ENVIRONMENT):
        raise ModelFileError(
            "it is a TensorFlow graph, but not a Deep Potential: no operation of it makes an environment matrix"
        )
    kind = graph.text("model_attr/model_type") or "ener"
    if kind not in _OUTPUTS:
        raise UnsupportedModelError(
            f"a model of {kind} is not read from TensorFlow graphs; models of {', '.join(_OUTPUTS)} are"
        )
    modifier = graph.text("modifier_attr/type") if "modifier_attr/type" in graph else "dipole_charge"
    if modifier != "dipole_charge":
        raise UnsupportedModelError(
            f"a model with a modifier {modifier} of its data is not read from TensorFlow graphs; dipole_charge is"
        )
    missing = [name for name in _OUTPUTS[kind] if f"o_{name}" not in graph and f"{name}_test" not in graph]
    if missing:
        raise ModelFileError(f"it is cut short, or not a model: the graph has no output o_{missing[0]}")
    return kind


def _training_input(graph: Graph) -> Tree:
    """The training input in the graph; empty where there is none."""
    text = graph.text("train_attr/training_script")
    if not text:
        return {}
    try:
        script = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"it is damaged: the training input in it is not JSON ({error})") from error
    if not isinstance(script, dict):
        raise ModelFileError("it is damaged: the training input in it has no sections")
    return script


def _section(tree: Tree, key: str) -> Tree:
    section = tree.get(key)
    return section if isinstance(section, dict) else {}


def _descriptor_sections(stated: Tree, count: int) -> list[Tree]:
    """The section of the training input for each of `count` descriptors."""
    section = _section(stated, "descriptor")
    parts = section.get("list")
    sections = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else [section]
    return sections if len(sections) == count else [{}] * count


def _suffix(graph: Graph, operation: Node) -> str:
    """The suffix of a descriptor's scopes."""
    names = [name.removesuffix("/read") for name in operation.inputs]
    for name in names:
        found = re.fullmatch(r"descrpt_attr(.*)/t_avg", name)
        if found:
            return found[1]
    return ""


def _type_map(graph: Graph, stated: Tree, operation: Node) -> list[str]:
    """The element of each type; "type_0" and so on where none is given. Types of virtual atoms follow."""
    count = graph.optional("descrpt_attr/ntypes")
    count = graph.optional("t_ntypes") if count is None else count
    if count is not None and count.size:
        ntypes = int(count.flat[0])
    else:
        ntypes = len(graph.value(operation.inputs[5])) if len(operation.inputs) > 5 else 0
    virtual = magnetic_elements(graph)
    elements = ntypes - virtual
    names = (graph.text("model_attr/tmap") or "").split() or stated.get("type_map") or []
    if not names and 0 < elements < 1000:
        names = [f"type_{k}" for k in range(elements)]
    if not isinstance(names, list) or not len(names) == elements >= virtual:
        raise ModelFileError(f"it has {elements} types, which do not fit the type map {names!r:.80}")
    return [*names, *(f"{name}_spin" for name in names[:virtual])]


def _type_embedding(graph: Graph, ntypes: int) -> Types | None:
    """The embedding of the types; None where the model has none."""
    pattern = r"type_embed_net(?P<net>)/(?P<kind>matrix|bias|idt)_(?P<layer>\d+)"
    found = layers_by_name(graph, pattern, lambda match: int(match["layer"]) - 1)
    if not found:
        return None
    (layers,) = found.values()
    net = Net.from_tree(embedding_net(layers), torch.float64)
    if net.inputs != ntypes:
        raise UnsupportedModelError(
            "type embeddings of electron configurations are not read from TensorFlow graphs"
        )
    with torch.no_grad():
        return Types(layers, net(torch.eye(ntypes, dtype=torch.float64)).numpy())


def _out_bias(graph: Graph, ntypes: int, width: int) -> Tree:
    """out_bias and out_std (1, ntypes, width), where the graph uses them."""
    arrays = {}
    for name, default in (("out_bias", 0.0), ("out_std", 1.0)):
        places = (f"{scope}t_{name}" for scope in ("model_attr/", "model_attr/model_attr/"))
        place = next(filter(graph.is_taken, places), "")
        values = graph.value(place) if place else np.full(ntypes * width, default)
        if values.size != ntypes * width:
            raise ModelFileError(f"{place} has {values.size} numbers for {ntypes} types")
        arrays[name] = values.reshape(1, ntypes, width)
    if (arrays["out_std"] != 1.0).any():
        raise UnsupportedModelError(
            "results that are multiplied by a standard deviation (out_std) are not supported"
        )
    return arrays


def _descriptor(parts: list[Part]) -> Tree:
    if len(parts) == 1:
        return parts[0].node
    return {"@class": "Descriptor", "@version": 1, "type": "hybrid", "list": [part.node for part in parts]}


def _modifier(graph: Graph) -> Tree:
    """The section `modifier` of an equivalent training input."""
    names = ("mdl_name", "mdl_charge_map", "sys_charge_map")
    name, centroids, atoms = (graph.text(f"modifier_attr/{key}") or "" for key in names)
    grid = {key: graph.value(f"modifier_attr/{key}").reshape(-1) for key in ("ewald_h", "ewald_beta")}
    try:
        charges = {
            "model_charge_map": [float(charge) for charge in centroids.split()],
            "sys_charge_map": [float(charge) for charge in atoms.split()],
        }
        # TensorFlow's operation takes both in float32.
        lengths = {key: float(np.float32(value[0])) for key, value in grid.items()}
    except (ValueError, IndexError) as error:
        raise ModelFileError(
            "it is damaged: its modifier dipole_charge has charges that are not numbers"
        ) from error
    return {"type": "dipole_charge", "model_name": name, **charges, **lengths}


def _source(graph: Graph, script: Tree) -> Tree:
    """The graph's origin."""
    source: dict[str, Any] = {"software": "deepmd-kit", "backend": "TensorFlow"}
    version = graph.text("model_attr/model_version")
    if version:
        source["graph_version"] = version
    distance = graph.optional("train_attr/min_nbor_dist")
    if distance is not None and distance.size == 1 and np.isfinite(distance).all() and distance.item() > 0:
        source["min_nbor_dist"] = float(distance.item())
    if script:
        source["training_input"] = script
    if "modifier_attr/type" in graph:
        source["modifier"] = _modifier(graph)
    if any(node.op.startswith("TabulateFusion") for node in graph.nodes.values()):
        source["tabulated"] = True
    return source
