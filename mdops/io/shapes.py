"""Whether the arrays of a model fit each other and the options beside them."""

from typing import Any

import numpy as np

from mdops.errors import ModelFileError
from mdops.io import schema

Tree = dict[str, Any]
_MOST_SHIFT = 100  # of exponents of two that balance low-bit layers


def check_shapes(model: Tree, place: str) -> None:
    """Check an upgraded model; models and parts of unknown kind are passed over. Raises ModelFileError."""
    kind = model.get("type")
    if kind not in schema.MODELS:
        return
    type_map = model["type_map"]
    ntypes = len(type_map)
    if not ntypes or len(set(type_map)) != ntypes:
        raise ModelFileError(f"{place}.type_map should name each type once, and is {type_map}")
    _check_types(model["atom_exclude_types"], ntypes, f"{place}.atom_exclude_types")
    _check_pairs(model["pair_exclude_types"], ntypes, f"{place}.pair_exclude_types")
    for name in ("out_bias", "out_std"):
        array = model["@variables"][name]
        if array.ndim != 3 or array.shape[1] != ntypes:
            raise ModelFileError(
                f"{place}.@variables.{name} has shape {array.shape}, not (outputs, {ntypes}, width)"
            )
    if kind == "standard":
        _check_standard(model, place)
    elif kind == "pairtab":
        _check_table(model, place)
    else:
        _check_parts(model, place)


def _check_standard(model: Tree, place: str) -> None:
    _check_descriptor(model["descriptor"], model["type_map"], f"{place}.descriptor")
    if model["fitting"].get("type") == "ener":
        _check_fitting(model["fitting"], model["type_map"], f"{place}.fitting")
        width = _width(model["descriptor"])
        if width is not None:
            _same(model["fitting"]["dim_descrpt"], width, f"{place}.fitting.dim_descrpt")


def _check_parts(model: Tree, place: str) -> None:
    """A model made of models: each part knows all types, and a zbl model is a net with a table."""
    parts = model["models"]
    if not parts:
        raise ModelFileError(f"{place}.models is empty")
    for i, part in enumerate(parts):
        check_shapes(part, f"{place}.models[{i}]")
        missing = [name for name in model["type_map"] if name not in part.get("type_map", ())]
        if missing:
            raise ModelFileError(f"{place}.models[{i}] does not know the type {missing[0]}")
    if isinstance(model["weights"], list):
        _same(len(model["weights"]), len(parts), f"the number of weights of {place}")
    if model["type"] == "zbl":
        _same([part.get("type") for part in parts[1:]], ["pairtab"], f"the kinds of {place}.models[1:]")
        if model["sw_rmax"] <= model["sw_rmin"]:
            raise ModelFileError(f"{place} has sw_rmax = {model['sw_rmax']}, not above its sw_rmin")


def _check_table(model: Tree, place: str) -> None:
    """A table of pair energies: (rows, 1 + pairs of types), and the same as cubic splines of each pair."""
    table, arrays = model["tab"], model["tab"]["@variables"]
    ntypes, rows = len(model["type_map"]), table["nspline"] + 1
    if model["sel"] == 0 or table["nspline"] == 0:
        raise ModelFileError(f"{place} has no neighbours or no table")
    _same((table["ntypes"], table["rcut"]), (ntypes, model["rcut"]), f"(ntypes, rcut) of {place}.tab")
    _same(arrays["vdata"].shape, (rows, 1 + ntypes * (ntypes + 1) // 2), f"the shape of {place}.tab vdata")
    _same(arrays["tab_data"].size, 4 * ntypes**2 * table["nspline"], f"the size of {place}.tab tab_data")
    info = [table["rmin"], table["hh"], table["nspline"], ntypes]
    _same(arrays["tab_info"].tolist(), info, f"{place}.tab tab_info")


def _check_types(types: list[int], ntypes: int, place: str) -> None:
    if any(t >= ntypes for t in types):
        raise ModelFileError(f"{place} names a type beyond the {ntypes} of the type map: {types}")


def _check_pairs(pairs: list[list[int]], ntypes: int, place: str) -> None:
    for pair in pairs:
        _check_types(pair, ntypes, place)


def _same(found: Any, wanted: Any, place: str) -> None:
    if found != wanted:
        raise ModelFileError(f"{place} is {found}, and by the rest of the model it should be {wanted}")


def _check_descriptor(node: Tree, type_map: list[str], place: str) -> None:
    kind = node.get("type")
    if kind == "hybrid":
        for i, part in enumerate(node["list"]):
            _check_descriptor(part, type_map, f"{place}.list[{i}]")
    if f"Descriptor {kind}" not in schema.nodes() or kind == "hybrid":
        return
    ntypes = len(type_map)
    sel = node["sel"] if isinstance(node["sel"], list) else [node["sel"]]
    mixed = kind in ("dpa1", "se_atten_v2", "se_e3_tebd")
    if not mixed:
        _same(len(sel), ntypes, f"the length of {place}.sel")
    if not sum(sel) or not node["neuron"] or node["rcut_smth"] > node["rcut"]:
        raise ModelFileError(f"{place} has no neighbours, no layers, or rcut_smth > rcut")
    for part in (node, node.get("type_embedding", node)):
        if part["type_map"] is not None:
            _same(part["type_map"], type_map, f"the type_map of {place}")
    _same(node.get("ntypes", ntypes), ntypes, f"{place}.ntypes")
    if "env_mat" in node:
        _same(
            (node["env_mat"]["rcut"], node["env_mat"]["rcut_smth"]),
            (node["rcut"], node["rcut_smth"]),
            f"{place}.env_mat",
        )
    _check_pairs(node["exclude_types"], ntypes, f"{place}.exclude_types")
    shape = (ntypes, sum(sel), 1 if kind == "se_r" else 4)
    for name in ("davg", "dstd"):
        _same(node["@variables"][name].shape, shape, f"the shape of {place}.@variables.{name}")
    if (node["@variables"]["dstd"] <= 0).any():
        raise ModelFileError(f"{place}.@variables.dstd holds deviations that are not positive")
    ndim = 0 if mixed else 2 if kind == "se_e3" or not node.get("type_one_side", True) else 1
    for name in ("embeddings", "embeddings_strip"):
        if name in node:
            _check_collection(node[name], node, ndim, ntypes, f"{place}.{name}")
    if mixed:
        _check_type_embedding(node, ntypes, place)
    if "attention_layers" in node:
        _check_attention(node, place)


def _width(node: Tree) -> int | None:
    """How many numbers a descriptor has for an atom; None for kinds that are not known."""
    kind = node.get("type")
    if kind == "hybrid":
        widths = [_width(part) for part in node["list"]]
        return None if None in widths else sum(w for w in widths if w is not None)
    if f"Descriptor {kind}" not in schema.nodes():
        return None
    width: int = node["neuron"][-1] * node.get("axis_neuron", 1)
    return width + (node["tebd_dim"] if node.get("concat_output_tebd") else 0)


def _check_attention(node: Tree, place: str) -> None:
    attention, layers = node["attention_layers"], node["attention_layers"]["attention_layers"]
    _same(len(layers), node["attn_layer"], f"the number of attention layers of {place}")
    width, hidden = node["neuron"][-1], node["attn"]
    wanted = {
        "layer_num": node["attn_layer"],
        "nnei": sum(node["sel"]) if isinstance(node["sel"], list) else node["sel"],
        "embed_dim": width,
        "hidden_dim": hidden,
        "dotr": node["attn_dotr"],
        **{key: node[key] for key in ("scaling_factor", "normalize", "temperature", "trainable_ln")},
    }
    for key, value in wanted.items():
        _same(attention[key], value, f"{place}.attention_layers.{key}")
    for i, layer in enumerate(layers):
        at = f"{place}.attention_layers[{i}]"
        inner = layer["attention_layer"]
        _check_layer(inner["in_proj"], width, 3 * hidden, f"{at}.in_proj")
        _check_layer(inner["out_proj"], hidden, width, f"{at}.out_proj")
        norm = layer["attn_layer_norm"]["@variables"]
        _same((norm["w"].shape, norm["b"].shape), ((width,), (width,)), f"the shapes of {at}.attn_layer_norm")


def _check_type_embedding(node: Tree, ntypes: int, place: str) -> None:
    embedding = node["type_embedding"]
    _same(embedding["ntypes"], ntypes, f"{place}.type_embedding.ntypes")
    _same(embedding["neuron"][-1:], [node["tebd_dim"]], f"{place}.type_embedding.neuron")
    net = embedding["embedding"]
    for key in ("activation_function", "resnet_dt"):
        _same(net[key], embedding[key], f"{place}.type_embedding.embedding.{key}")
    _check_net(net, embedding["neuron"], f"{place}.type_embedding.embedding")


def _check_collection(nets: Tree, options: Tree, ndim: int, ntypes: int, place: str) -> None:
    """`options` is the node whose neuron, resnet_dt and activation the nets repeat."""
    _same((nets["ndim"], nets["ntypes"]), (ndim, ntypes), f"(ndim, ntypes) of {place}")
    _same(len(nets["networks"]), ntypes**ndim, f"the number of nets of {place}")
    for i, net in enumerate(nets["networks"]):
        if net is not None:
            at = f"{place}.networks[{i}]"
            for key in ("resnet_dt", "activation_function"):
                if key in net:
                    _same(net[key], options[key], f"{at}.{key}")
            if "neuron" in net:
                _check_net(net, options["neuron"], at)


def _check_net(net: Tree, neuron: list[int], place: str) -> None:
    _same(net["neuron"], neuron, f"{place}.neuron")
    widths = [net["in_dim"], *neuron]
    if "out_dim" in net:
        widths.append(net["out_dim"])
    _same(len(net["layers"]), len(widths) - 1, f"the number of layers of {place}")
    for i, layer in enumerate(net["layers"]):
        _check_layer(layer, widths[i], widths[i + 1], f"{place}.layers[{i}]")
        if i < len(neuron):
            activation = f"{place}.layers[{i}].activation_function"
            _same(layer["activation_function"], net["activation_function"], activation)
        elif str(layer["activation_function"]).lower() not in ("none", "linear"):
            raise ModelFileError(f"the last layer of {place} has an activation function")


def _check_layer(layer: Tree, width_in: int, width_out: int, place: str) -> None:
    arrays: dict[str, np.ndarray | None] = layer["@variables"]
    shapes = {"w": (width_in, width_out), "b": (width_out,), "idt": (width_out,)}
    for name, shape in shapes.items():
        array = arrays[name]
        if array is not None:
            _same(array.shape, shape, f"the shape of {place}.@variables.{name}")
    _same(arrays["b"] is not None, layer["bias"], f"whether {place} has a bias")
    _same(arrays["idt"] is not None, layer["use_timestep"], f"whether {place} has a timestep")


def _check_fitting(node: Tree, type_map: list[str], place: str) -> None:
    ntypes = len(type_map)
    _same(node["ntypes"], ntypes, f"{place}.ntypes")
    if node["type_map"] is not None:
        _same(node["type_map"], type_map, f"{place}.type_map")
    _check_types(node["exclude_types"], ntypes, f"{place}.exclude_types")
    _same(
        node["@variables"]["bias_atom_e"].size,
        ntypes * node["dim_out"],
        f"the size of {place}.@variables.bias_atom_e",
    )
    _check_collection(node["nets"], node, 0 if node["mixed_types"] else 1, ntypes, f"{place}.nets")
    in_dim = node["dim_descrpt"] + node["numb_fparam"] + node["dim_case_embd"]
    in_dim += 0 if node["use_aparam_as_mask"] else node["numb_aparam"]
    for i, net in enumerate(node["nets"]["networks"]):
        if net is not None:
            _same(
                (net["in_dim"], net.get("out_dim")),
                (in_dim, node["dim_out"]),
                f"(in_dim, out_dim) of {place}.nets[{i}]",
            )
    sizes = {"fparam": node["numb_fparam"], "aparam": node["numb_aparam"]}
    for name, size in sizes.items():
        for key in (f"{name}_avg", f"{name}_inv_std"):
            array = node["@variables"][key]
            if (array is not None and size) or (array is None and size):
                _same(0 if array is None else array.size, size, f"the size of {place}.@variables.{key}")
    if "quantized" in node:
        inputs = sum(in_dim + sum(node["neuron"][:-1]) for _ in node["nets"]["networks"])
        shifts = node["quantized"]["@variables"]["shifts"]
        _same(shifts.shape, (inputs if node["neuron"] else 0,), f"the shape of {place}.quantized shifts")
        if shifts.dtype.kind != "i" or (abs(shifts.astype(int)) > _MOST_SHIFT).any():
            raise ModelFileError(f"{place}.quantized holds shifts that are none")
    default = node["default_fparam"]
    if default is not None:
        _same(len(default), node["numb_fparam"], f"the length of {place}.default_fparam")
