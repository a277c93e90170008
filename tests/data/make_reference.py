"""Makes tests/data/reference/<case>/{model.dp,systems.npz}, one case an option of se_e2_a.

Each model has random weights and is tiny; DeePMD-kit's PyTorch backend gives the answers in float64
(forces and virials by autograd, thus exact). Needs deepmd-kit 3.2.0 with that backend, and ASE:

    python tests/data/make_reference.py [case ...]

systems.npz holds, for each system, `<name>/types` (n,) and, with a leading axis of frames: positions,
cell (absent for a cluster), fparam and aparam (where the model takes them), energy, forces, virial,
atom_energy, atom_virial. se_a_alloy and se_a_oneside come from the same kind of script, with wider nets.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from ase.build import bulk
from ase.cluster import Octahedron
from deepmd.dpmodel.utils.serialization import load_dp_model, save_dp_model
from deepmd.pt.model.model import get_model
from deepmd.pt.model.model.model import BaseModel
from deepmd.pt.utils import env
from deepmd.pt_expt.model.get_model import get_model as get_other_model
from deepmd.pt_expt.model.model import BaseModel as OtherModel

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
from deepmd_answers import answered

HERE = Path(__file__).parent / "reference"
DESCRIPTOR = {
    "type": "se_e2_a", "sel": [18, 16], "rcut_smth": 2.6, "rcut": 3.8, "neuron": [4, 8], "axis_neuron": 3,
    "type_one_side": True, "precision": "float64",
}  # fmt: skip
FITTING = {"neuron": [6, 6], "resnet_dt": False, "precision": "float64"}


def triclinic(rng):
    """Two frames of eight atoms in a sheared cell, in two directions narrower than the cutoff."""
    atoms = bulk("Cu", cubic=True, a=3.7) * (2, 1, 1)
    atoms.set_cell(
        atoms.cell.array @ [[1.0, 0.11, 0.0], [0.0, 1.0, -0.06], [0.04, 0.0, 1.03]], scale_atoms=True
    )
    return rattled(atoms, np.array([0, 1, 1, 0, 0, 1, 0, 0]), 2, rng)


def tiny_cell(rng):
    """Two atoms in a primitive cell far smaller than the cutoff."""
    return rattled(bulk("Cu", a=3.7) * (1, 1, 2), np.array([0, 1]), 1, rng)


def cluster(rng):
    """Thirteen atoms without a cell."""
    atoms = Octahedron("Cu", 3, cutoff=1, latticeconstant=3.7)
    return rattled(atoms, np.arange(len(atoms)) % 2, 1, rng, periodic=False)


def dimer(rng):
    """Two atoms well below the radius where the switch sets in, an isolated one, and one near the cutoff."""
    positions = np.array([[[0.0, 0.0, 0.0], [1.1, 0.3, -0.2], [40.0, 0.0, 0.0], [0.3, 0.1, 3.7]]])
    return {"types": np.array([0, 1, 1, 0]), "positions": positions}


def with_virtual(rng):
    """The triclinic cell with two of its atoms virtual (type -1)."""
    system = triclinic(rng)
    system["types"][[2, 6]] = -1
    return system


def crowded(rng):
    """More neighbours than `sel` allows, of one type far more than of the other."""
    atoms = bulk("Cu", cubic=True, a=3.3) * (2, 2, 2)
    types = np.where(rng.random(len(atoms)) < 0.25, 1, 0)
    return rattled(atoms, types, 1, rng)


def rattled(atoms, types, frames, rng, periodic=True):
    positions = atoms.positions + rng.normal(scale=0.12, size=(frames, len(atoms), 3))
    system = {"types": types, "positions": positions}
    if periodic:
        system["cell"] = np.repeat(atoms.cell.array[None], frames, 0)
    return system


SYSTEMS = {"triclinic": triclinic, "cluster": cluster}
EVERY_SYSTEM = {**SYSTEMS, "tiny_cell": tiny_cell, "dimer": dimer}


def case(descriptor=(), fitting=(), systems=SYSTEMS, types=2, edit=None, statistics=True, **model):
    """One case: options of the parts, systems, and `edit(tree, rng)` for what only the saved tree holds."""
    return {
        "descriptor": {**DESCRIPTOR, **dict(descriptor)},
        "fitting": {**FITTING, **dict(fitting)},
        "systems": systems,
        "types": types,
        "edit": edit,
        "statistics": statistics,
        "model": model,
    }


def output_bias(tree, rng):
    """Bias and deviation of the model's output, and the bias of the fitting net."""
    variables = tree["@variables"]
    variables["out_bias"] = rng.normal(size=variables["out_bias"].shape)
    variables["out_std"] = rng.uniform(0.5, 2.0, variables["out_std"].shape)
    bias = tree["fitting"]["@variables"]
    bias["bias_atom_e"] = rng.normal(size=bias["bias_atom_e"].shape)


def parameter_statistics(tree, rng):
    variables = tree["fitting"]["@variables"]
    for name in ("fparam", "aparam"):
        if variables[f"{name}_avg"] is not None:
            variables[f"{name}_avg"] = rng.normal(size=variables[f"{name}_avg"].shape)
            variables[f"{name}_inv_std"] = rng.uniform(0.5, 2.0, variables[f"{name}_inv_std"].shape)


def excluded_by_fitting(tree, rng):
    """DeePMD-kit puts the model's atom_exclude_types in the place of the fitting net's: no effect."""
    output_bias(tree, rng)
    tree["fitting"]["exclude_types"] = [1]


def case_embedding(tree, rng):
    variables = tree["fitting"]["@variables"]
    variables["case_embd"] = rng.normal(size=variables["case_embd"].shape)


ACTIVATIONS = [
    "tanh", "gelu", "gelu_tf", "relu", "relu6", "softplus", "sigmoid", "linear", "none", "silu",
    "silut", "silut:1.5", "custom_silu:0.7",
]  # fmt: skip
CASES = {
    "base": case(systems=EVERY_SYSTEM, edit=output_bias),
    "two_side": case({"type_one_side": False}, systems=EVERY_SYSTEM, edit=output_bias),
    "three_types": case({"type_one_side": False, "sel": [14, 12, 10], "neuron": [3, 6]}, types=3),
    "embedding_resnet_dt": case({"resnet_dt": True, "neuron": [4, 8, 8]}),
    "widths": case({"neuron": [5, 7, 7, 14], "axis_neuron": 5}, {"neuron": [7, 7, 14, 5]}),
    "axis_all": case({"neuron": [6], "axis_neuron": 6}, {"neuron": [36]}),
    "exclude_types": case({"exclude_types": [[0, 1]]}),
    "exclude_types_two_side": case({"exclude_types": [[0, 1], [1, 1]], "type_one_side": False}),
    "davg_zero": case({"set_davg_zero": True}),
    "no_statistics": case(statistics=False),
    "env_protection": case({"env_protection": 0.07}),
    "fitting_resnet_dt": case(fitting={"resnet_dt": True}),
    "fitting_shared": case(fitting={"mixed_types": True}, edit=output_bias),
    "fitting_exclude_types": case(edit=excluded_by_fitting),
    "atom_exclude_types": case(edit=output_bias, atom_exclude_types=[1]),
    "pair_exclude_types": case(pair_exclude_types=[[0, 1]]),
    "pair_exclude_types_same": case({"type_one_side": False}, pair_exclude_types=[[0, 0]]),
    "atom_ener": case({"set_davg_zero": True}, {"atom_ener": [1.3, None]}, edit=output_bias),
    "atom_ener_shared": case(fitting={"atom_ener": [1.3, -0.2], "mixed_types": True, "numb_fparam": 1}),
    "float32": case({"precision": "float32"}, {"precision": "float32"}),
    "float32_descriptor": case({"precision": "float32"}),
    "fparam": case(fitting={"numb_fparam": 2}, edit=parameter_statistics),
    "aparam": case(fitting={"numb_aparam": 1}, edit=parameter_statistics),
    "fparam_aparam": case(
        fitting={"numb_fparam": 1, "numb_aparam": 2, "mixed_types": True}, edit=parameter_statistics
    ),
    "default_fparam": case(
        fitting={"numb_fparam": 2, "default_fparam": [0.4, -0.9]}, edit=parameter_statistics
    ),
    "case_embedding": case(fitting={"dim_case_embd": 3}, edit=case_embedding),
    "virtual_atoms": case(systems={"with_virtual": with_virtual}, edit=output_bias),
    "overflow": case({"sel": [9, 7]}, systems={"crowded": crowded}),
    "overflow_two_side": case({"sel": [7, 12], "type_one_side": False}, systems={"crowded": crowded}),
    **{
        "activation_" + name.replace(":", "_"): case(
            {"activation_function": name}, {"activation_function": name}, systems={"triclinic": triclinic}
        )
        for name in ACTIVATIONS
    },
}


def make_tree(options, seed, rng):
    """The serialised model with random weights, statistics and whatever `edit` adds."""
    model = (get_other_model if is_of_other_backend(options) else get_model)(
        {
            "type_map": ["Cu", "Al", "Mg"][: options["types"]],
            "descriptor": {**options["descriptor"], "seed": seed},
            "fitting_net": {**options["fitting"], "seed": seed + 1},
            **options["model"],
        }
    )
    tree = model.serialize()
    if "atomic_model" in tree:  # of dpa4
        options["edit"](tree["atomic_model"], rng)
        return tree
    if options["statistics"]:
        for part in tree["descriptor"].get("list", [tree["descriptor"]]):
            set_statistics(part, rng)
    if options["edit"] is not None:
        options["edit"](tree, rng)
    return tree


def is_of_other_backend(options):
    """Whether the exportable PyTorch backend alone has such models."""
    return options["descriptor"]["type"] == "dpa4c"


# Of descriptors with several blocks, each with statistics: their nodes, and where their options are.
BLOCKS = {
    "repflow_variable": "repflow_args",
    "repinit_variable": "repinit_args",
    "repinit_three_body_variable": "repinit_args",
    "repformers_variable": "repformer_args",
}


def set_statistics(descriptor, rng):
    """davg and dstd as DeePMD-kit's statistics give them: for each type one for s, one for x, y and z."""
    for block in [name for name in BLOCKS if name in descriptor]:
        options = descriptor[BLOCKS[block]]
        set_statistics({"set_davg_zero": options.get("set_davg_zero", False), **descriptor[block]}, rng)
    if "@variables" not in descriptor:
        return
    variables = descriptor["@variables"]
    types, _, _ = variables["davg"].shape
    if not descriptor["set_davg_zero"]:
        variables["davg"][:, :, 0] = rng.uniform(0.05, 0.12, (types, 1))
    variables["dstd"][:, :, 0] = rng.uniform(0.08, 0.15, (types, 1))
    variables["dstd"][:, :, 1:] = rng.uniform(0.06, 0.1, (types, 1, 1))


def add_parameters(system, fitting, rng):
    frames, atoms, _ = system["positions"].shape
    if fitting["numb_fparam"] and fitting["default_fparam"] is None:
        system["fparam"] = rng.normal(size=(frames, fitting["numb_fparam"]))
    if fitting["numb_aparam"]:
        system["aparam"] = rng.normal(size=(frames, atoms, fitting["numb_aparam"]))


def add_answers(model, system):
    """DeePMD-kit's energy, forces, virial and their atomic parts."""
    inputs = {name: torch.as_tensor(system[name], device=env.DEVICE) for name in system}
    frames, atoms, _ = inputs["positions"].shape
    result = answered(model, inputs, do_atomic_virial=True)
    result = {name: value.detach().cpu().numpy() for name, value in result.items()}
    system["energy"] = result["energy"].reshape(frames, 1)
    system["forces"] = result["force"].reshape(frames, atoms, 3)
    system["virial"] = result["virial"].reshape(frames, 3, 3)
    system["atom_energy"] = result["atom_energy"].reshape(frames, atoms, 1)
    system["atom_virial"] = result["atom_virial"].reshape(frames, atoms, 3, 3)


def make(name, options, seed, here=HERE):
    rng = np.random.default_rng(seed)
    folder = here / name
    folder.mkdir(parents=True, exist_ok=True)
    save_dp_model(str(folder / "model.dp"), {"model": make_tree(options, seed, rng)})
    tree = load_dp_model(str(folder / "model.dp"))["model"]
    model = (OtherModel if is_of_other_backend(options) else BaseModel).deserialize(tree).to(env.DEVICE)
    arrays = {}
    for system_name, build in options["systems"].items():
        system = build(rng)
        if options["types"] == 3:
            system["types"] = rng.integers(0, 3, len(system["types"]))
        add_parameters(system, tree.get("atomic_model", tree)["fitting"], rng)
        add_answers(model, system)
        arrays |= {f"{system_name}/{key}": value for key, value in system.items()}
    np.savez_compressed(folder / "systems.npz", **arrays)
    size = sum(file.stat().st_size for file in folder.iterdir())
    spread = {
        system_name: float(np.abs(arrays[f"{system_name}/forces"]).max())
        for system_name in options["systems"]
    }
    print(f"{name}: {size / 1024:.0f} kB, largest force {spread}")


def make_wanted(cases, seed, here=HERE):
    """The cases that the command line names, or all: each has a seed of its own."""
    wanted = sys.argv[1:] or list(cases)
    for index, (name, options) in enumerate(cases.items()):
        if name in wanted:
            make(name, options, seed=seed + 2 * index, here=here)


if __name__ == "__main__":
    make_wanted(CASES, 100)
