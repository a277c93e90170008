"""Makes tests/data/reference_kinds/<case>/{model.dp,systems.npz} of models that are made of models, and of pair tables.

As make_reference.py, which tells what it needs and what the files hold; table.txt is what a pair table was made of:

    python tests/data/make_blends.py [case ...]

linear_mean and zbl come from the same kind of script, with wider nets.
"""

import copy
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import load_dp_model, save_dp_model
from deepmd.pt.model.model import get_model
from deepmd.pt.model.model.dp_linear_model import LinearEnergyModel
from deepmd.pt.model.model.dp_zbl_model import DPZBLModel
from deepmd.pt.utils import env
from make_reference import EVERY_SYSTEM, SYSTEMS, add_answers, crowded, set_statistics, with_virtual

HERE = Path(__file__).parent / "reference_kinds"
ELEMENTS = ["Cu", "Al", "Mg"]
CROWD = {"crowded": crowded}
DPA1 = {
    "type": "dpa1", "sel": 40, "rcut_smth": 2.6, "rcut": 3.8, "neuron": [4, 8], "axis_neuron": 3,
    "tebd_dim": 4, "attn": 6, "attn_layer": 0, "precision": "float64",
}  # fmt: skip
FITTING = {"neuron": [6, 6], "resnet_dt": False, "precision": "float64"}


def isolated_pairs(rng):
    """Pairs of atoms at distances of all the switch of a zbl model, and an atom alone."""
    x = 20.0 * np.arange(9)
    first = np.stack([x, 0 * x, 0 * x], axis=1)
    second = first[:8] + np.linspace(1.3, 3.4, 8)[:, None] * [0.6, 0.0, 0.8]
    return {"types": np.arange(17) % 2, "positions": np.concatenate([first, second])[None]}


def table(rng, types, first=0.4, last=6.0, step=0.1, tail=False):
    """Rows of repelling energies of pairs; they end with zeros but for `tail`."""
    r = first + step * np.arange(round((last - first) / step) + 1)
    pairs = types * (types + 1) // 2
    height, length = rng.uniform(20, 60, pairs), rng.uniform(0.5, 0.9, pairs)
    u = height * np.exp(-r[:, None] / length) / r[:, None]
    u *= 1.0 if tail else np.clip(1 - r[:, None] / (r[-1] - 0.3), 0, None) ** 3
    return np.concatenate([r[:, None], u], axis=1)


def net(descriptor=(), fitting=(), **model):
    return {"descriptor": {**DPA1, **dict(descriptor)}, "fitting_net": {**FITTING, **dict(fitting)}, **model}


def pairs(rcut=3.8, sel=40, types=2, type_map=None, **shape):
    """A pair table; `shape` as of `table`."""
    part = {"type": "pairtab", "tab_file": {"types": types, **shape}, "rcut": rcut, "sel": sel}
    return part if type_map is None else {**part, "type_map": type_map}


def linear(*parts, systems=SYSTEMS, types=2, weights="sum", edit=None, **model):
    model = {"type": "linear_ener", "models": list(parts), "weights": weights, **model}
    return {"model": model, "systems": systems, "types": types, "edit": edit}


def zbl(part, systems=None, types=2, edit=None, sw_rmin=1.8, sw_rmax=2.9, **shape):
    """The switch is where the neighbours of the systems are."""
    switch = {
        "use_srtab": {"types": types, **shape},
        "smin_alpha": 0.1,
        "sw_rmin": sw_rmin,
        "sw_rmax": sw_rmax,
    }
    systems = systems or {**EVERY_SYSTEM, "isolated_pairs": isolated_pairs}
    return {"model": {**part, **switch}, "systems": systems, "types": types, "edit": edit}


def parts_excluded(tree, rng):
    """Exclusions of the parts' own, and a type of which one part has no energy."""
    tree["models"][0]["pair_exclude_types"] = [[0, 1]]
    tree["models"][1]["atom_exclude_types"] = [1]


def parameters_of_one(tree, rng):
    variables = tree["models"][0]["fitting"]["@variables"]
    for name in ("fparam", "aparam"):
        variables[f"{name}_avg"] = rng.normal(size=variables[f"{name}_avg"].shape)
        variables[f"{name}_inv_std"] = rng.uniform(0.5, 2.0, variables[f"{name}_inv_std"].shape)


def table_of_fewer_places(tree, rng):
    tree["models"][1]["sel"] = 6


def table_of_shorter_cutoff(tree, rng):
    """And of fewer places: a longer list decides on the switch."""
    tree["models"][1] |= {"sel": 12, "rcut": 3.1}
    tree["models"][1]["tab"]["rcut"] = 3.1


def other_alpha(tree, rng):
    tree["smin_alpha"] = 0.4


OTHER = ["Mg", "Al", "Cu"]
REPFLOW = {
    "n_dim": 6,
    "e_dim": 5,
    "a_dim": 4,
    "nlayers": 1,
    "axis_neuron": 2,
    "e_sel": 30,
    "a_sel": 14,
    "e_rcut": 3.8,
    "e_rcut_smth": 2.6,
    "a_rcut": 3.1,
    "a_rcut_smth": 2.4,
}
REPINIT = {"rcut": 4.0, "rcut_smth": 1.2, "nsel": 45, "neuron": [3, 6], "axis_neuron": 2, "tebd_dim": 4}
REPFORMER = {
    "rcut": 3.4,
    "rcut_smth": 2.6,
    "nsel": 24,
    "nlayers": 2,
    "g1_dim": 6,
    "g2_dim": 4,
    "axis_neuron": 2,
    "attn1_hidden": 3,
    "attn1_nhead": 2,
    "attn2_hidden": 3,
    "attn2_nhead": 2,
}


def messages(kind, **model):
    """A part whose layers pass messages."""
    options = {"dpa2": {"repinit": REPINIT, "repformer": REPFORMER}, "dpa3": {"repflow": REPFLOW}}
    descriptor = {"type": kind, "precision": "float64", **options[kind]}
    return {"descriptor": descriptor, "fitting_net": FITTING, **model}


CASES = {
    "pairtab": linear(pairs(), systems=EVERY_SYSTEM),
    "pairtab_cut": linear(pairs(last=6.0, tail=True)),
    "pairtab_zeros": linear(pairs(rcut=4.93, sel=90, last=3.7)),
    "pairtab_cubic": linear(pairs(rcut=4.93, sel=90, last=3.7, tail=True)),
    "pairtab_cubic_short": linear(pairs(rcut=3.76, last=3.7, tail=True)),
    "pairtab_excluded": linear(
        pairs(types=3), types=3, pair_exclude_types=[[0, 1], [2, 2]], atom_exclude_types=[1]
    ),
    "pairtab_few_places": linear(pairs(rcut=4.6, sel=9, tail=True), systems=CROWD, pair_exclude_types=[[0, 1]]),
    "pairtab_virtual": linear(pairs(tail=True), systems={"with_virtual": with_virtual}),
    "linear_tables_mean": linear(pairs(rcut=3.0, sel=20), pairs(last=5.0), weights="mean", systems=EVERY_SYSTEM),
    "linear_tables_list": linear(
        pairs(), pairs(rcut=4.5, sel=60), pairs(rcut=4.7, sel=60), weights=[0.3, -1.7, 2.0],
        pair_exclude_types=[[0, 0]], edit=parts_excluded,
    ),
    "linear_tables_types": linear(
        pairs(types=3, type_map=OTHER), pairs(rcut=4.5, sel=60), weights=[1.5, 0.5],
        systems={**SYSTEMS, "with_virtual": with_virtual}, pair_exclude_types=[[0, 1]], atom_exclude_types=[1],
    ),
    "linear_tables_few_places": linear(
        pairs(rcut=3.0, sel=7, tail=True), pairs(rcut=4.6, sel=21, tail=True), systems=CROWD
    ),
    "linear_nets_sum": linear(net({"rcut": 3.4, "sel": 30}), net(), systems=EVERY_SYSTEM),
    "linear_net_table": linear(
        net({"set_davg_zero": False, "attn_layer": 1}), pairs(rcut=4.5, sel=60), weights=[0.7, 1.3],
        pair_exclude_types=[[0, 1]], edit=parts_excluded,
    ),
    "linear_net_types": linear(
        net({"set_davg_zero": False}, type_map=OTHER), net(), weights="mean", pair_exclude_types=[[1, 1]],
    ),
    "linear_parameters": linear(
        net(fitting={"numb_fparam": 2, "numb_aparam": 1}), pairs(rcut=4.5, sel=60), edit=parameters_of_one
    ),
    "linear_net_few_places": linear(
        net({"rcut": 3.2, "sel": 11, "set_davg_zero": False}), pairs(rcut=4.6, sel=30), systems=CROWD
    ),
    "zbl_switch": zbl(net({"set_davg_zero": False})),
    "zbl_alpha": zbl(net({"set_davg_zero": False}), edit=other_alpha),
    "zbl_excluded": zbl(
        net({"exclude_types": [[0, 0]]}, pair_exclude_types=[[0, 1]], atom_exclude_types=[1]), systems=SYSTEMS
    ),
    "zbl_few_places": zbl(net({"sel": 13}, pair_exclude_types=[[1, 1]]), systems=CROWD, sw_rmax=3.3),
    "zbl_table_few_places": zbl(net(), systems=SYSTEMS, edit=table_of_fewer_places, sw_rmin=1.2, sw_rmax=3.6),
    "zbl_shorter_table": zbl(net(), systems=SYSTEMS, edit=table_of_shorter_cutoff, sw_rmax=3.6),
    "zbl_float32": zbl(
        net({"precision": "float32"}, {"precision": "float32"}), systems=SYSTEMS
    ),
    "zbl_virtual": zbl(net({"attn_layer": 1}), systems={"with_virtual": with_virtual}),
    "linear_messages": linear(
        messages("dpa2"), messages("dpa3", type_map=OTHER), net(), pairs(rcut=4.5, sel=60),
        weights=[0.7, 1.3, 0.5, 1.0], pair_exclude_types=[[0, 1]], systems={**SYSTEMS, "with_virtual": with_virtual},
    ),
    "zbl_dpa2": zbl(messages("dpa2")),
    "zbl_dpa3": zbl(messages("dpa3"), systems=SYSTEMS),
}  # fmt: skip


def with_tables(node, rng):
    """The input with tables as files, in the folder of now."""
    if isinstance(node, list):
        return [with_tables(part, rng) for part in node]
    if not isinstance(node, dict):
        return node
    node = {name: with_tables(value, rng) for name, value in node.items()}
    for name in ("tab_file", "use_srtab"):
        if name in node:
            path = f"table{rng.integers(2**32)}.txt"
            np.savetxt(path, table(rng, **node[name]), "%.12g")
            node[name] = path
    return node


def make_tree(options, seed, rng):
    model = {"type_map": ELEMENTS[: options["types"]], **with_tables(options["model"], rng)}
    for i, part in enumerate(model.get("models", [model])):
        if "descriptor" in part:
            part["descriptor"]["seed"], part["fitting_net"]["seed"] = seed + 2 * i, seed + 2 * i + 1
    tree = get_model(model).serialize()
    for part in tree["models"]:
        if "descriptor" in part:
            set_statistics(part["descriptor"], rng)
        part["@variables"]["out_bias"] = rng.normal(size=part["@variables"]["out_bias"].shape)
    tree["@variables"]["out_bias"] = rng.normal(size=tree["@variables"]["out_bias"].shape)
    if options["edit"] is not None:
        options["edit"](tree, rng)
    return tree


def parameters(tree, system, rng):
    for part in tree["models"]:
        frames, atoms, _ = system["positions"].shape
        fitting = part.get("fitting", {})
        if fitting.get("numb_fparam"):
            system["fparam"] = rng.normal(size=(frames, fitting["numb_fparam"]))
        if fitting.get("numb_aparam"):
            system["aparam"] = rng.normal(size=(frames, atoms, fitting["numb_aparam"]))


def make(name, options, seed):
    rng = np.random.default_rng(seed)
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    save_dp_model(str(folder / "model.dp"), {"model": make_tree(options, seed, rng)})
    for path in Path().glob("table*.txt"):
        if name.startswith("pairtab"):
            shutil.copy(path, folder / "table.txt")
        path.unlink()
    tree = load_dp_model(str(folder / "model.dp"))["model"]
    kind = LinearEnergyModel if tree["type"] == "linear" else DPZBLModel  # BaseModel knows no "linear"
    model = kind.deserialize(tree).to(env.DEVICE)
    arrays = {}
    for system_name, build in options["systems"].items():
        system = build(rng)
        if options["types"] == 3:
            system["types"] = rng.integers(0, 3, len(system["types"]))
        parameters(tree, system, rng)
        add_answers(model, system)
        arrays |= {f"{system_name}/{key}": value for key, value in system.items()}
    np.savez_compressed(folder / "systems.npz", **arrays)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(
        f"{name}: {size / 1024:.0f} kB, largest force",
        {s: float(np.abs(arrays[f"{s}/forces"]).max()) for s in options["systems"]},
    )


def statistics():
    """What DeePMD-kit takes from the data of training/emt for new models of these inputs, of all frames of it."""
    data, inputs, found = HERE.parent / "training" / "emt", {}, {}
    names = {name: np.load(data / "set.000" / f"{name}.npy") for name in ("coord", "box", "energy")}
    order = [ELEMENTS.index(e) for e in (data / "type_map.raw").read_text().split()]
    types = np.array(order)[np.loadtxt(data / "type.raw", dtype=int)]
    frames, counts = len(names["coord"]), np.bincount(types, minlength=2)
    sample = {
        "coord": names["coord"].reshape(frames, -1, 3),
        "atype": np.tile(types, (frames, 1)),
        "box": names["box"],
        "energy": names["energy"].reshape(frames, 1),
        "natoms": np.tile([len(types), len(types), *counts], (frames, 1)),
    }
    rng = np.random.default_rng(5)
    first, second = (
        net({"set_davg_zero": False}),
        net({"set_davg_zero": False, "rcut": 4.4, "exclude_types": [[0, 0]]}),
    )
    inputs["linear"] = {"type": "linear_ener", "models": [first, second, pairs()], "weights": "mean"}
    inputs["zbl"] = {**first, "use_srtab": {"types": 2}, "smin_alpha": 0.1, "sw_rmin": 1.8, "sw_rmax": 2.9}
    for name, model in inputs.items():
        model = {"type_map": ELEMENTS[:2], "pair_exclude_types": [[0, 1]], **with_tables(model, rng)}
        model = get_model(copy.deepcopy(model))
        tensors = {key: torch.as_tensor(value, device=env.DEVICE) for key, value in sample.items()}
        model.atomic_model.compute_or_load_stat(lambda t=tensors: [{**t, "find_energy": 1.0}])
        tree = model.serialize()
        found[f"{name}/out_bias"] = tree["@variables"]["out_bias"].ravel()
        found[f"{name}/out_std"] = tree["@variables"]["out_std"].ravel()
        for i, part in enumerate(tree["models"]):
            found[f"{name}/{i}/out_bias"] = part["@variables"]["out_bias"].ravel()
            if "descriptor" in part:
                variables = part["descriptor"]["@variables"]
                found[f"{name}/{i}/davg"] = variables["davg"][:, 0, 0]
                found[f"{name}/{i}/dstd"] = variables["dstd"][:, 0, :2]
    np.savez_compressed(HERE.parent / "training" / "blend_statistics.npz", **found)


def main():
    wanted = sys.argv[1:] or [*CASES, "statistics"]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for index, (name, options) in enumerate(CASES.items()):
            if name in wanted:
                make(name, options, seed=700 + 10 * index)
        if "statistics" in wanted:
            statistics()


if __name__ == "__main__":
    main()
