"""Makes the trees of descriptors from a PyTorch state dict."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mdops.errors import ConfigError, ModelFileError, UnsupportedModelError
from mdops.io.torch.adapters import with_adapters
from mdops.io.torch.attention import attention_tree
from mdops.io.torch.early import as_today, is_early
from mdops.io.torch.nets import embedding_collection, is_trainable, layer_tree, type_embedding
from mdops.io.torch.state import State, Tree
from mdops.io.tree import mapping
from mdops.models import registry
from mdops.models.contract import environment_node
from mdops.models.dpa1 import LN_EPS
from mdops.models.dpa2 import DPA2Options, RepinitOptions
from mdops.models.dpa2 import cutoff_node as dpa2_cutoffs
from mdops.models.dpa3 import CONDITIONS, cutoff_node
from mdops.models.dpa4c import DPA4C, DPA4COptions, Weights, spin_weights
from mdops.models.graph import RESIDUAL
from mdops.models.repflow import FIXED_DEVIATION, RepflowLayer, RepflowOptions
from mdops.models.repformer import LayerForm, RepformerLayer, RepformerOptions
from mdops.options import Options, from_definition

# Its arguments: the options of the kind, the definition of this part, its tensors, and the element of each type.
Reader = Callable[[type[Options], Tree, State, list[str]], Tree]
_READERS: dict[str, Reader] = {}


def reads(*kinds: str) -> Callable[[Reader], Reader]:
    """A decorator: the function reads descriptors of these kinds."""

    def known(reader: Reader) -> Reader:
        _READERS.update(dict.fromkeys(kinds, reader))
        return reader

    return known


def descriptor_tree(params: Tree, state: State, type_map: list[str]) -> Tree:
    """The node of a descriptor, by its kind.

    Raises UnsupportedModelError for a kind that is not read, ModelFileError where definition and weights do not fit.
    """
    name, kinds = params.get("type", "se_e2_a"), registry.kinds("descriptor")
    read = _READERS.get(kinds[name].Options.KIND) if name in kinds else None
    if read is None:
        known = ", ".join(kinds[kind].Options.NAMES[0] for kind in _READERS)
        raise UnsupportedModelError(
            f"the descriptor {name} cannot be read from a PyTorch file (these can: {known})"
        )
    try:
        return read(kinds[name].Options, params, state, type_map)
    except ConfigError as error:
        raise ModelFileError(str(error)) from error


def is_mixed(descriptor: Tree) -> bool:
    """Whether one fitting net serves all types on top of this descriptor's node."""
    if descriptor["type"] == "hybrid":
        return any(map(is_mixed, descriptor["list"]))
    return bool(registry.find("descriptor", descriptor["type"]).mixed)


def cutoff_and_places(descriptor: Tree) -> tuple[float, int]:
    """The longest cutoff of a descriptor's node, and its places for neighbours of all types within it. A hybrid has as
    many as the part with most, as in DeePMD-kit."""
    if descriptor["type"] == "hybrid":
        cutoffs, places = zip(*map(cutoff_and_places, descriptor["list"]), strict=True)
        return max(cutoffs), max(places)
    options = descriptor.get("repinit_args") or descriptor.get("repflow_args") or descriptor
    cutoff, sel = next((options[a], options[b]) for a, b in _CUTOFFS if a in options and b in options)
    return cutoff, sum(sel) if isinstance(sel, list) else sel


_CUTOFFS = ("rcut", "sel"), ("rcut", "nsel"), ("e_rcut", "e_sel")


@reads("se_e2_a")
def _se_e2_a(options: type[Options], params: Tree, state: State, type_map: list[str]) -> Tree:
    found, block = from_definition(options, params), state.below("sea")
    ndim, trains = 1 if found["type_one_side"] else 2, is_trainable(params)
    nets = embedding_collection(block.below("filter_layers"), found, ndim, len(type_map), trains)
    # In DeePMD-kit only the nets say whether they are trained.
    own = {"trainable": True, "spin": None, "embeddings": nets}
    return {**_head(options, 2, found, block, type_map), **own}


@reads("se_r")
def _se_e2_r(options: type[Options], params: Tree, state: State, type_map: list[str]) -> Tree:
    found, trains = from_definition(options, params), is_trainable(params)
    nets = embedding_collection(state.below("filter_layers"), found, 1, len(type_map), trains)
    # In DeePMD-kit only the nets say whether they are trained.
    own = {"trainable": True, "type_one_side": True, "spin": None, "embeddings": nets}
    return {**_head(options, 2, found, state, type_map), **own}


@reads("se_e3")
def _se_e3(options: type[Options], params: Tree, state: State, type_map: list[str]) -> Tree:
    found, block = from_definition(options, params), state.below("seat")
    trains = found["trainable"] = is_trainable(params)
    nets = embedding_collection(block.below("filter_layers"), found, 2, len(type_map), trains)
    return {**_head(options, 2, found, block, type_map), "embeddings": nets}


@reads("se_e3_tebd")
def _se_e3_tebd(options: type[Options], params: Tree, state: State, type_map: list[str]) -> Tree:
    found, block = from_definition(options, params), state.below("se_ttebd")
    found["sel"] = _one_sel(found["sel"])
    trains = found["trainable"] = is_trainable(params)
    types = type_embedding(state.below("type_embedding.embedding"), found, type_map, trains)
    del found["use_tebd_bias"]
    return {
        **_head(options, 1, found, block, type_map),
        "ntypes": len(type_map),
        **_shared_nets(block, found, found["tebd_input_mode"] == "strip", len(type_map), trains),
        "type_embedding": types,
    }


@reads("dpa1", "se_atten_v2")
def _dpa1(options: type[Options], params: Tree, state: State, type_map: list[str]) -> Tree:
    if not is_early(state):
        return _dpa1_tree(options, params, state, type_map)
    tree = _dpa1_tree(options, *as_today(params, state, len(type_map)), type_map)
    # The layer gives a row of a table. It does not add its input, even if it is as wide as the number of types.
    tree["type_embedding"]["embedding"]["layers"][0]["resnet"] = False
    return tree


def _dpa1_tree(options: type[Options], params: Tree, state: State, type_map: list[str]) -> Tree:
    found, block = from_definition(options, params), state.below("se_atten")
    found["sel"] = _one_sel(found["sel"])
    found["ln_eps"] = LN_EPS if found["ln_eps"] is None else found["ln_eps"]
    if params.get("stripped_type_embedding") is not None and "tebd_input_mode" in found:
        found["tebd_input_mode"] = "strip" if params["stripped_type_embedding"] else "concat"
    trains, strips = is_trainable(params), found.get("tebd_input_mode", "strip") == "strip"
    tree = {
        **_head(options, 2, found, block, type_map),
        "ntypes": len(type_map),
        "attn_mask": False,
        **_shared_nets(block, found, strips, len(type_map), trains),
        "attention_layers": attention_tree(block.below("dpa1_attention.attention_layers"), found, trains),
        "type_embedding": type_embedding(state.below("type_embedding.embedding"), found, type_map, trains),
        "spin": None,
    }
    if found["lmax"] == 1:
        del tree["lmax"]
    else:
        tree["@variables"]["degree_gain_raw"] = block.required("adam_degree_gain_raw")
    return tree


@reads("dpa2")
def _dpa2(options: type[Options], params: Tree, state: State, type_map: list[str]) -> Tree:
    found, trains, ntypes = from_definition(options, params), is_trainable(params), len(type_map)
    args = {
        name: from_definition(kind, mapping(params.get(name), name))
        for name, kind in (("repinit", RepinitOptions), ("repformer", RepformerOptions))
    }
    repformer = RepformerOptions.from_tree(args["repformer"])
    args["repformer"]["ln_eps"] = repformer.ln_eps
    own = DPA2Options.from_tree(found, repinit=RepinitOptions.from_tree(args["repinit"]), repformer=repformer)
    precision, block = found["precision"], state.below("repformers")

    def product(part: State) -> Tree:
        return layer_tree(part, "none", False, precision, trains)

    def statistics(part: State) -> Tree:
        return {"davg": part.required("mean"), "dstd": part.required("stddev")}

    def sums(name: str, options: Any) -> Tree:
        part, given = state.below(name), {**vars(options), "precision": precision}
        return {
            **_shared_nets(part, given, options.strips_types, ntypes, trains),
            "env_mat": dpa2_cutoffs(options),
            "@variables": statistics(part),
        }

    def layer(part: State, form: LayerForm) -> Tree:
        residuals = {
            name: [part.required(f"{name}.{k}") for k in range(count)]
            for name, (count, _) in form.residuals.items()
        }
        products = {name: product(part.below(name)) for name in form.products}
        norm = [part.required(f"attn2_lm.{name}") for name in ("matrix", "bias")] if form.attends else None
        return RepformerLayer.tree_of(form, ntypes, precision, products, residuals, norm)

    given = {**found, "tebd_dim": own.tebd_dim}
    pairs = own.pair_sums
    layers = [layer(block.below(f"layers.{k}"), form) for k, form in enumerate(own.forms)]
    return {
        "@class": "Descriptor",
        "@version": 3,
        "type": options.KIND,
        "ntypes": ntypes,
        **{f"{name}_args": section for name, section in args.items()},
        **found,
        "type_map": type_map,
        "type_embedding": type_embedding(state.below("type_embedding.embedding"), given, type_map, trains),
        "g1_shape_tranform": {"@class": "Identity", "@version": 1},
        **{name: product(state.below(name)) for name in own.products},
        "repinit_variable": sums("repinit", own.sums),
        **({} if pairs is None else {"repinit_three_body_variable": sums("repinit_three_body", pairs)}),
        "repformers_variable": {
            "g2_embd": product(block.below("g2_embd")),
            "repformer_layers": layers,
            "env_mat": dpa2_cutoffs(repformer),
            "@variables": statistics(block),
        },
    }


@reads("dpa3")
def _dpa3(options: type[Options], params: Tree, state: State, type_map: list[str]) -> Tree:
    found, trains, block = from_definition(options, params), is_trainable(params), state.below("repflows")
    definition = mapping(params.get("repflow"), "repflow")
    repflow = from_definition(RepflowOptions, definition)
    if definition.get("skip_stat"):
        repflow["fix_stat_std"] = FIXED_DEVIATION
    own = RepflowOptions.from_tree(repflow)
    activation, precision = found["activation_function"], found["precision"]

    def product(part: State, learns: bool = trains) -> Tree:
        return layer_tree(part, "none", False, precision, learns)

    def types(name: str, elements: list[str], learns: bool, **options: Any) -> Tree:
        given = {**found, "tebd_dim": own.n_dim, **options}
        return type_embedding(state.below(f"{name}.embedding"), given, elements, learns)

    def layer(part: State) -> Tree:
        weights = {
            name: [part.required(f"{name}.{k}") for k in range(count)]
            for name, (count, _) in own.residuals.items()
        }
        return {
            **RepflowLayer.head(own, activation, len(type_map), precision),
            **{name: product(part.below(name)) for name in own.shapes},
            **({"@variables": weights} if own.update_style == RESIDUAL else {}),
        }

    tree = {
        "@class": "Descriptor",
        "@version": 2,
        "type": options.KIND,
        "ntypes": len(type_map),
        "repflow_args": repflow,
        **found,
        "type_map": type_map,
        "type_embedding": types("type_embedding", type_map, trains),
        "repflow_variable": {
            "edge_embd": product(block.below("edge_embd")),
            "angle_embd": product(block.below("angle_embd")),
            "repflow_layers": [layer(block.below(f"layers.{i}")) for i in range(own.nlayers)],
            "env_mat": cutoff_node(own),
            "@variables": {"davg": block.required("mean"), "dstd": block.required("stddev")},
        },
    }
    if found["add_chg_spin_ebd"]:
        # DeePMD-kit always marks these as trainable.
        plain = {"use_econf_tebd": False, "use_tebd_bias": False}
        for name, known in CONDITIONS.items():
            tree[name] = {**types(name, [str(n) for n in known], True, **plain), "type_map": None}
        tree["mix_cs_mlp"] = product(state.below("mix_cs_mlp"), True)
    return tree


@reads("dpa4c")
def _dpa4c(options: type[Options], params: Tree, state: State, type_map: list[str]) -> Tree:
    found = DPA4COptions.from_tree(from_definition(options, params) | {"trainable": is_trainable(params)})
    readout = state.below("readout")

    def of_spin(name: str) -> np.ndarray:
        return state.required(f"{'pair_film' if name.endswith('anchor') else 'spin'}.{name}")

    weights = Weights(
        state.required("mean"),
        state.required("stddev"),
        state.required("type_embedding.adam_type_embedding"),
        state.required("radial_basis.adam_freqs"),
        [state.required(f"radial_embedding.layers.{i}.w") for i in range(2)],
        [state.required(f"pair_film.network.layers.{i}.w") for i in range(2)],
        state.array("radial_mode_head.w"),
        [readout.required(f"channel_alignment.{i}.w") for i in range(2)],
        [readout.array(f"probe_projections.{i}.w") for i in range(found.lmax)],
        None if found.use_spin is None else spin_weights(of_spin),
    )
    if params.get("add_chg_spin_ebd"):
        raise UnsupportedModelError("dpa4c with add_chg_spin_ebd is not supported")
    return DPA4C.of_weights(found, type_map, weights, torch.float64).to_tree()


@reads("SeZM")
def _dpa4(options: type[Options], params: Tree, state: State, type_map: list[str]) -> Tree:
    found = from_definition(options, params)
    if found["mmax"] is None:  # possible in a definition, but not in a node
        found["mmax"] = max(found["l_schedule"] or [found["lmax"]])
    sel = found["sel"]
    variables = with_adapters({name: state.required(name) for name in state.tensors})
    version = variables.get("version_tensor")
    return {
        "@class": "Descriptor",
        "@version": 1.0 if version is None else float(version),
        "type": options.KIND,
        **found,
        "sel": _one_sel(256 if isinstance(sel, str) else sel),
        "type_map": type_map,
        "ntypes": len(type_map),
        "@variables": variables,
    }


@reads("hybrid")
def _hybrid(options: type[Options], params: Tree, state: State, type_map: list[str]) -> Tree:
    parts = [
        descriptor_tree(mapping(part, "a descriptor"), state.below(f"descrpt_list.{i}"), type_map)
        for i, part in enumerate(params.get("list", []))
    ]
    return {"@class": "Descriptor", "type": options.KIND, "@version": 1, "list": parts}


def _head(options: type[Options], version: int, found: Tree, state: State, type_map: list[str]) -> Tree:
    """The keys of the node without those of nets, from the keys that were found and the tensors."""
    return {
        "@class": "Descriptor",
        "@version": version,
        "type": options.KIND,
        **found,
        "env_mat": environment_node(found),
        "type_map": type_map,
        "@variables": {"davg": state.required("mean"), "dstd": state.required("stddev")},
    }


def _one_sel(sel: int | list[int]) -> list[int]:
    return [sel] if isinstance(sel, int) else sel


def _shared_nets(state: State, found: Tree, strips: bool, ntypes: int, trains: bool) -> Tree:
    """The net for all types, and the net for type embeddings if these are stripped."""
    names = {"embeddings": "filter_layers", **({"embeddings_strip": "filter_layers_strip"} if strips else {})}
    return {
        key: embedding_collection(state.below(name), found, 0, ntypes, trains) for key, name in names.items()
    }
