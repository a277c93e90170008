"""Makes the tree of a model of type zbl from a graph with a pair table (`use_srtab`)."""

from typing import Any

import numpy as np

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.tensorflow.graph import Graph, Node
from mdops.io.tensorflow.nets import Tree

_MODEL = {"@class": "Model", "@version": 2, "atom_exclude_types": [], "pair_exclude_types": []}
_UNFITTED = {"rcond": None, "preset_out_bias": None}


def with_table(graph: Graph, tree: Tree) -> Tree:
    """The tree of a standard model, or of its blend with the pair table of the graph if there is one.

    Raises ModelFileError for a table that does not fit the model, UnsupportedModelError for a hybrid with one."""
    tables, switches = graph.of_op("PairTab"), graph.of_op("SoftMinSwitch")
    if not tables and not switches:
        return tree
    if len(tables) != 1 or len(switches) != 1:
        raise ModelFileError(
            f"it has {len(tables)} pair tables and {len(switches)} switches, expected one of each"
        )
    if "list" in tree["descriptor"]:
        raise UnsupportedModelError("a hybrid descriptor with a pair table (use_srtab) is not supported")
    (table,), (switch,) = tables, switches
    names, shape = tree["type_map"], (1, len(tree["type_map"]), 1)
    nothing = {"out_bias": np.zeros(shape), "out_std": np.ones(shape)}
    # The table's energies get the bias of the fitting, unless the model was made with srtab_add_bias false.
    adds = any(node.op in ("Add", "AddV2") for node in graph.forward(table.name))
    bias = tree["fitting"]["@variables"]["bias_atom_e"].reshape(shape) if adds else nothing["out_bias"]
    pairs = {
        **_MODEL,
        **_UNFITTED,
        "type": "pairtab",
        "type_map": names,
        "rcut": tree["descriptor"]["rcut"],
        "sel": int(sum(tree["descriptor"]["sel"])),
        "tab": _table(graph, table, len(names), tree["descriptor"]["rcut"]),
        "@variables": {"out_bias": bias, "out_std": nothing["out_std"]},
    }
    return {
        **_MODEL,
        **_UNFITTED,
        "type": "zbl",
        "type_map": names,
        "models": [tree, pairs],
        "weights": "mean",
        # TensorFlow's operation takes these in float32.
        "sw_rmin": switch.attribute("rmin", "f"),
        "sw_rmax": switch.attribute("rmax", "f"),
        "smin_alpha": switch.attribute("alpha", "f"),
        "@variables": nothing,
    }


def _table(graph: Graph, node: Node, ntypes: int, cutoff: float) -> Tree:
    if len(node.inputs) < 2:
        raise ModelFileError(f"the operation {node.name} lacks its table")
    info, data = (graph.value(name).reshape(-1).astype(np.float64) for name in node.inputs[:2])
    if info.size != 4 or not np.isfinite(info).all() or info[1] <= 0 or info[0] < 0:
        raise ModelFileError(f"a pair table has an impossible start, step or size: {info.tolist()!r:.80}")
    first, step, intervals = float(info[0]), float(info[1]), int(info[2] + 0.1)
    if int(info[3] + 0.1) != ntypes or intervals < 1 or data.size != 4 * ntypes**2 * intervals:
        raise ModelFileError(
            f"a pair table has {data.size} numbers, which do not fit {ntypes} types and {intervals} intervals"
        )
    cubics = data.reshape(ntypes, ntypes, intervals, 4)
    columns: list[Any] = [first + step * np.arange(intervals + 1)]
    for a in range(ntypes):
        columns += [np.append(cubics[a, b, :, 3], cubics[a, b, -1].sum()) for b in range(a, ntypes)]
    return {
        "@class": "PairTab",
        "@version": 1,
        "rmin": first,
        "rmax": first + step * intervals,
        "hh": step,
        "ntypes": ntypes,
        "rcut": cutoff,
        "nspline": intervals,
        "@variables": {
            "vdata": np.column_stack(columns),
            "tab_info": np.array([first, step, intervals, ntypes]),
            "tab_data": data,
        },
    }
