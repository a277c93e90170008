"""Frozen TensorFlow graphs for the tests, written from serialised trees: nodes with the names and operations of
DeePMD-kit's graphs, as far as a reader looks at them, in Protocol Buffers' wire format or as text."""

import dataclasses
import re
import struct
from typing import Any

import numpy as np

TYPES = {"float32": 1, "float64": 2, "int32": 3, "float16": 19}
_NAMES = {1: "DT_FLOAT", 2: "DT_DOUBLE", 3: "DT_INT32", 7: "DT_STRING", 19: "DT_HALF"}


@dataclasses.dataclass
class Node:
    """An operation; `attributes` are a float, an int, a list of ints, text (bytes) or an array each."""

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)


# -- Protocol Buffers


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def wire(nodes: list[Node]) -> bytes:
    """A GraphDef."""
    return b"".join(field(1, _node(node)) for node in nodes) + field(4, field(1, 1286))


def _node(node: Node) -> bytes:
    parts = [field(1, node.name.encode()), field(2, node.op.encode())]
    parts += [field(3, name.encode()) for name in node.inputs]
    for key, value in node.attributes.items():
        parts.append(field(5, field(1, key.encode()) + field(2, _attribute(value))))
    return b"".join(parts)


def _attribute(value: Any) -> bytes:
    if isinstance(value, float):
        return varint(4 << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return field(3, value)
    if isinstance(value, list):
        return field(1, field(3, b"".join(map(varint, value))))
    return field(8, _tensor(value))


def _tensor(value: np.ndarray | bytes) -> bytes:
    if isinstance(value, bytes):
        return field(1, 7) + field(2, b"") + field(8, value)
    value = np.asarray(value)
    shape = b"".join(field(2, field(1, size)) for size in value.shape)
    head = field(1, TYPES[value.dtype.name]) + field(2, shape)
    if value.size == 1 and value.dtype == np.float64:
        return head + field(6, value.tobytes())
    return head + field(4, value.tobytes())


def text(nodes: list[Node]) -> str:
    """The same as text."""
    return "".join(f"node {{\n{_node_text(node)}}}\n" for node in nodes) + "versions {\n  producer: 1286\n}\n"


def _node_text(node: Node) -> str:
    lines = [f'  name: "{node.name}"\n  op: "{node.op}"\n', *(f'  input: "{name}"\n' for name in node.inputs)]
    for key, value in node.attributes.items():
        lines.append(f'  attr {{\n    key: "{key}"\n    value {{ {_attribute_text(value)} }}\n  }}\n')
    return "".join(lines)


def _attribute_text(value: Any) -> str:
    if isinstance(value, float):
        return f"f: {np.float32(value)}"
    if isinstance(value, int):
        return f"i: {value}"
    if isinstance(value, list):
        return "list { " + " ".join(f"i: {i}" for i in value) + " }"
    if isinstance(value, bytes):
        return f"tensor {{ dtype: DT_STRING tensor_shape {{ }} string_val: {_quoted(value)} }}"
    shape = " ".join(f"dim {{ size: {size} }}" for size in value.shape)
    head = f"dtype: {_NAMES[TYPES[value.dtype.name]]} tensor_shape {{ {shape} }}"
    if value.size == 1 and value.dtype == np.float64:
        return f"tensor {{ {head} double_val: {value.item()!r} }}"
    return f"tensor {{ {head} tensor_content: {_quoted(value.tobytes())} }}"


def _quoted(data: bytes) -> str:
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in data) + '"'


def mutated(data: bytes, random: np.random.Generator) -> bytes:
    """The data with some bytes changed, removed, repeated or moved, or cut short."""
    damaged = bytearray(data)
    for _ in range(int(random.integers(1, 5))):
        at, size = int(random.integers(len(damaged))), int(2 ** random.uniform(0, 10))
        part = bytes(damaged[at : at + size])
        kind = random.integers(6)
        if kind == 0:
            damaged[at] = int(random.integers(256))
        elif kind == 1:
            damaged[at] ^= 1 << int(random.integers(8))
        elif kind == 2:
            del damaged[at : at + size]
        elif kind == 3:
            damaged[at:at] = part
        elif kind == 4:
            damaged[at : at + size] = random.bytes(len(part))
        else:
            del damaged[max(1, at) :]
    return bytes(damaged)


# -- Graphs of models


class Writer:
    """Collects the nodes of a graph."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, name: str, op: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(Node(name, op, inputs, attributes))
        return name

    def constant(self, name: str, value: Any) -> str:
        return self.add(name, "Const", value=value if isinstance(value, bytes) else np.asarray(value))

    def variable(self, name: str, value: Any) -> str:
        """A constant that was a variable, and what reads it."""
        return self.add(f"{name}/read", "Identity", self.constant(name, value))

    def layer(self, x: str, layer: dict, name: str, names: tuple[str, str, str]) -> str:
        """x, multiplied with a layer's weights, and its activation; `names` are those of its arrays."""
        arrays = layer["@variables"]
        y = self.add(f"{name}/MatMul", "MatMul", x, self.variable(names[0], arrays["w"]))
        if arrays["b"] is not None:
            y = self.add(f"{name}/BiasAdd", "BiasAdd", y, self.variable(names[1], arrays["b"]))
        ops = {"tanh": ["Tanh"], "gelu": ["GeluCustom"], "softplus": ["Softplus"], "silu": ["Sigmoid", "Mul"]}
        for op in ops.get(layer["activation_function"], []):
            last = self.add(f"{name}/{op}", op, y)
        if layer["activation_function"] not in ops:
            last = self.add(f"{name}/Reshape", "Reshape", y)
        if arrays["idt"] is not None:
            last = self.add(f"{name}/mul", "Mul", last, self.variable(names[2], arrays["idt"]))
        return last


def model_graph(
    model: dict,
    *,
    op: str = "ProdEnvMatA",
    script: bytes = b"",
    bias: str = "added",
    spin: tuple[float, float] | None = None,
    vacuum: bool = False,
) -> list[Node]:
    """The graph of a standard model of energies, dipoles, polarizabilities or densities of states.

    Args:
        op: of the environment matrix, as versions name it.
        script: the training input that goes with it; none by default.
        bias: the energies of types are "added", or part of the "last" layers, as in old versions.
        vacuum: what the nets give for features of zero is taken off.
        spin: the last type is that of virtual atoms of the first one, at this distance for spins of this length.
    """
    w, descriptor, ntypes = Writer(), model["descriptor"], len(model["type_map"])
    if script:
        w.constant("train_attr/training_script", script)
    w.constant("train_attr/min_nbor_dist", np.float64(0.9))
    elements = model["type_map"][:-1] if spin else model["type_map"]
    w.constant("model_attr/tmap", " ".join(elements).encode())
    if spin:
        w.constant("spin_attr/ntypes_spin", np.int32(1))
        w.constant("spin_attr/virtual_len", np.array(spin[:1]))
        w.constant("spin_attr/spin_norm", np.array(spin[1:]))
    fitting = model["fitting"]
    w.constant("model_attr/model_type", fitting["type"].encode())
    if fitting["type"] in ("dipole", "polar"):
        selected = [t for t in range(ntypes) if t not in fitting["exclude_types"]]
        w.constant("model_attr/sel_type", np.array(selected, np.int32))
    w.add("t_coord", "Placeholder")
    parts = descriptor["list"] if descriptor["type"] == "hybrid" else [descriptor]
    features = []
    for k, part in enumerate(parts):
        suffix = f"_{k}" if len(parts) > 1 else ""
        w.constant(f"descrpt_attr{suffix}/ntypes", np.int32(ntypes))
        if part["type"] == "loc_frame":
            features.append(_frames(w, part, suffix))
        elif part["type"] == "dpa1":
            features.append(_mixed(w, part, ntypes, suffix, op))
        else:
            features.append(_descriptor(w, part, ntypes, suffix, op))
    x = w.add("features", "ConcatV2", *features)
    _fitting(w, fitting, x, ntypes, bias, model["@variables"]["out_bias"])
    if vacuum:
        for name in [n.name for n in w.nodes if re.fullmatch(r"layer_0\w*/matrix/read", n.name)]:
            w.add(f"vacuum/{name}", "MatMul", "features", name)
    return w.nodes


def table_nodes(model: dict, adds_bias: bool = True) -> list[Node]:
    """What a graph of the net of a zbl model has beside the net's."""
    w, tab = Writer(), model["models"][1]["tab"]["@variables"]
    attributes = {"alpha": model["smin_alpha"], "rmin": model["sw_rmin"], "rmax": model["sw_rmax"]}
    w.add("SoftMinSwitch", "SoftMinSwitch", "t_coord", **attributes)
    tables = [w.variable(f"model_attr/t_{name}", tab[name]) for name in ("tab_info", "tab_data")]
    y = w.add("PairTab", "PairTab", *tables, "t_coord", "SoftMinSwitch")
    if adds_bias:
        y = w.add("add_6", "AddV2", y, "lookup")
    w.add("sub_1", "Sub", y, "o_atom_energy")
    return w.nodes


def _rows(w: Writer, node: dict, ntypes: int, suffix: str, op: str, names: tuple[str, str, str]) -> str:
    """The operation that makes the environment matrix; `names` are those of its attributes."""
    davg, dstd = (
        w.variable(f"descrpt_attr{suffix}/{name}", node["@variables"][key].reshape(ntypes, -1))
        for name, key in (("t_avg", "davg"), ("t_std", "dstd"))
    )
    cutoffs = (float(node["rcut"]), float(node["rcut_smth"]))
    attributes = dict(zip(names, (*cutoffs, [int(n) for n in node["sel"]]), strict=True))
    return w.add(f"{op}{suffix}", op, *["t_coord"] * 5, davg, dstd, **attributes)


def _frames(w: Writer, node: dict, suffix: str) -> str:
    """The operation of loc_frame."""
    davg, dstd = (
        w.variable(f"descrpt_attr{suffix}/{name}", node["@variables"][key])
        for name, key in (("t_avg", "davg"), ("t_std", "dstd"))
    )
    lists = {name: [int(n) for n in node[name]] for name in ("sel_a", "sel_r", "axis_rule")}
    inputs = *["t_coord"] * 5, davg, dstd
    return w.add(f"Descrpt{suffix}", "Descrpt", *inputs, rcut_a=-1.0, rcut_r=float(node["rcut"]), **lists)


def _mixed(w: Writer, node: dict, ntypes: int, suffix: str, op: str) -> str:
    """A descriptor without attention whose nets take embeddings of types."""
    x = w.add("one_hot", "OneHot", "t_coord")
    for k, layer in enumerate(node["type_embedding"]["embedding"]["layers"], 1):
        arrays = tuple(f"type_embed_net/{kind}_{k}" for kind in ("matrix", "bias", "idt"))
        x = w.layer(x, layer, f"type_embed_net/layer_{k}", arrays)
    rows = _rows(w, node, ntypes, suffix, op, ("rcut_r", "rcut_r_smth", "sel_a"))
    scope = f"filter_type_all{suffix}"
    w.constant(f"{scope}/Slice/size", np.array([-1, -1, node["axis_neuron"]], np.int32))
    strip, side = node.get("embeddings_strip"), "one" if node["type_one_side"] else "two"
    if strip and strip["@class"] == "TypePairs":
        values = strip["@variables"]["values"]
        factors = w.constant(f"{scope}/params", values.reshape(-1, values.shape[-1]))
        factors = w.add(f"{scope}/lookup", "GatherV2", factors, rows)
        if node["smooth_type_embedding"]:
            factors = w.add(f"{scope}/mul", "Mul", factors, rows)
        (net,) = node["embeddings"]["networks"]
        _fusion(w, net, f"{scope}/TabulateFusionSeAtten", rows, rows, factors)
        return rows
    for extra, nets in (("", node["embeddings"]), (f"_{side}_side_ebd", strip)):
        x = rows
        for k, layer in enumerate(nets["networks"][0]["layers"] if nets else [], 1):
            arrays = tuple(f"{scope}/{kind}_{k}{extra}" for kind in ("matrix", "bias", "idt"))
            x = w.layer(x, layer, f"{scope}/layer_{k}{extra}", arrays)
    return rows


def _descriptor(w: Writer, node: dict, ntypes: int, suffix: str, op: str) -> str:
    radial = node["type"] == "se_r"
    op = op.replace("SeA", "SeR").replace("MatA", "MatR") if radial else op
    names = ("rcut", "rcut_smth", "sel") if radial else ("rcut_r", "rcut_r_smth", "sel_a")
    rows = _rows(w, node, ntypes, suffix, op, names)
    ndim = node["embeddings"]["ndim"]
    for i, net in enumerate(node["embeddings"]["networks"]):
        first, second = i % ntypes, i // ntypes
        if node["type"] == "se_e3":
            scope, types = f"filter_type_all{suffix}", f"_{first}_{second}"
            if first > second:
                continue
        elif ndim == 2:
            scope, types = f"filter_type_{first}{suffix}", f"_{second}"
            if [first, second] in node["exclude_types"] or [second, first] in node["exclude_types"]:
                continue
        else:
            scope, types = f"filter_type_all{suffix}", f"_{i}"
        x = rows
        if net["@class"] == "TabulatedNetwork":
            _table(w, node, net, rows, scope, second if ndim == 2 else i)
        for k, layer in enumerate(net.get("layers", []), 1):
            arrays = tuple(f"{scope}/{kind}_{k}{types}" for kind in ("matrix", "bias", "idt"))
            x = w.layer(x, layer, f"{scope}/layer_{k}{types}", arrays)
        if "axis_neuron" in node and f"{scope}/Slice/size" not in {n.name for n in w.nodes}:
            w.constant(f"{scope}/Slice/size", np.array([-1, -1, node["axis_neuron"]], np.int32))
    return rows


def _table(w: Writer, node: dict, net: dict, rows: str, scope: str, neighbor: int) -> None:
    """The operation of a table, with what it takes of the rows of its neighbours."""
    sel = node["sel"]
    name = f"{scope}/TabulateFusionSeA" + (f"_{neighbor}" if neighbor else "")

    def cut(x: str, begin: int, size: int, label: str) -> str:
        edges = [
            w.constant(f"{name}/{label}/{key}", np.array(value, np.int32))
            for key, value in (("begin", [0, begin]), ("size", [-1, size]))
        ]
        return w.add(f"{name}/{label}/Reshape", "Reshape", w.add(f"{name}/{label}", "Slice", x, *edges))

    first = cut(cut(rows, 4 * sum(sel[:neighbor]), 4 * sel[neighbor], "rows"), 0, 1, "s")
    _fusion(w, net, name, first, rows)


def _fusion(w: Writer, net: dict, name: str, *inputs: str) -> None:
    coefficients, info = net["@variables"]["coefficients"], np.array([*net["info"], -1.0])
    table = w.constant(f"{name}/table", coefficients.reshape(len(coefficients), -1))
    op = re.sub("_[0-9]+$", "", name.partition("/")[2])
    inputs = table, w.constant(f"{name}/table_info", info), *inputs
    w.add(name, op, *inputs, last_layer_size=int(coefficients.shape[1]))


def _fitting(w: Writer, node: dict, x: str, ntypes: int, bias: str, out_bias: np.ndarray) -> None:
    w.constant("fitting_attr/dfparam", np.int32(node["numb_fparam"]))
    w.constant("fitting_attr/daparam", np.int32(node["numb_aparam"]))
    arrays = node["@variables"]
    for name in ("fparam", "aparam"):
        if node[f"numb_{name}"]:
            w.variable(f"fitting_attr/t_{name}_avg", arrays[f"{name}_avg"])
            w.variable(f"fitting_attr/t_{name}_istd", arrays[f"{name}_inv_std"])
    kind, answers = node["type"], []
    for t, net in enumerate(node["nets"]["networks"]):
        if t in node["exclude_types"]:
            continue
        y = x
        for k, layer in enumerate(net["layers"]):
            last = k == len(net["layers"]) - 1
            if last and bias == "last":
                variables = dict(layer["@variables"])
                variables["b"] = variables["b"] + arrays["bias_atom_e"].reshape(-1)[t]
                layer = {**layer, "@variables": variables}
            if last and node.get("fit_diag") is False:  # the transpose is added, and not half of it
                halves = {name: None if a is None else a / 2 for name, a in layer["@variables"].items()}
                layer = {**layer, "@variables": halves}
            scope = "final_layer" if last else f"layer_{k}"
            scope += f"_type_{t}" if node["nets"]["ndim"] else ""
            y = w.layer(y, layer, scope, tuple(f"{scope}/{kind}" for kind in ("matrix", "bias", "idt")))
        answers.append(_matrix(w, node, y, t) if kind == "polar" else y)
    if kind in ("dipole", "polar"):
        w.add(f"o_{kind}", "ConcatV2", *answers)
        return
    if bias == "added":
        name = "t_bias_dos" if kind == "dos" else "t_bias_atom_e"
        values = arrays["bias_atom_e"] if kind == "dos" else arrays["bias_atom_e"].reshape(-1)
        values = np.delete(values, node["exclude_types"], 0)
        answers.append(w.add("lookup", "GatherV2", w.variable(f"fitting_attr/{name}", values)))
    if out_bias.any():
        answers.append(w.add("gather", "GatherV2", w.variable("model_attr/model_attr/t_out_bias", out_bias)))
    name = "dos" if kind == "dos" else "energy"
    w.add(f"o_{name}", "Sum", w.add(f"o_atom_{name}", "AddN", *answers))
    for output in ("force", "virial", "atom_virial") if kind == "ener" else ():
        w.add(f"o_{output}", "Reshape", "o_energy")


def _matrix(w: Writer, node: dict, y: str, kind: int) -> str:
    """The polarizability of an atom of a type, of what its net gives."""
    scope = f"polar_{kind}"
    if "o_rot_mat" not in {n.name for n in w.nodes}:
        w.add("o_rot_mat", "Placeholder")
    y = w.add(f"{scope}/Reshape", "Reshape", y)
    if node["fit_diag"]:
        y = w.add(f"{scope}/MatrixDiag", "MatrixDiag", y)
    else:
        y = w.add(f"{scope}/add", "AddV2", y, w.add(f"{scope}/transpose", "Transpose", y))
    y = w.add(f"{scope}/MatMul", "BatchMatMulV2", y, "o_rot_mat")
    y = w.add(f"{scope}/MatMul_1", "BatchMatMulV2", "o_rot_mat", y)
    y = w.add(f"{scope}/Reshape_1", "Reshape", y)
    scale = float(node["@variables"]["scale"].reshape(-1)[kind])
    shift = scale * float(node["@variables"]["constant_matrix"][kind])
    y = w.add(f"{scope}/mul", "Mul", y, w.constant(f"{scope}/mul/y", np.float64(scale)))
    eye = w.add(f"{scope}/eye", "MatrixDiag", w.constant(f"{scope}/ones", np.ones(3)))
    # As newer versions: the values of all types, of which a slice is taken.
    begin, size = (
        w.constant(f"{scope}/Slice/{name}", np.array([value], np.int32))
        for name, value in (("begin", 1), ("size", 1))
    )
    values = w.variable(f"{scope}/t_constant_matrix", np.array([7.0, shift]))
    chosen = w.add(f"{scope}/Slice", "Slice", values, begin, size)
    return w.add(f"{scope}/add_1", "AddV2", y, w.add(f"{scope}/mul_1", "Mul", chosen, eye))
