"""Makes tests/data/deep_eval.npz: results of DeePMD-kit's `DeepEval` for models of tests/data.

Of each model in outputs/ there are those for its two frames ("frames"), without cells ("cluster"), and with the types
of each frame in another order and one atom missing ("mixed"); and what `DeepEval` tells about the model ("facts",
JSON). Of a model of energies there are the facts and results of the calculator `DP`, and of some others the inputs of
the last layers of fitting nets, for the first of their systems.

Needs deepmd-kit 3.2.0 with its PyTorch backend, and ASE:

    python tests/data/make_deep_eval.py
"""

import contextlib
import json
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from deepmd.calculator import DP
from deepmd.dpmodel.utils.serialization import load_dp_model
from deepmd.infer import DeepEval
from deepmd.pt.model.model.model import BaseModel

HERE = Path(__file__).resolve().parent
OUTPUTS = ("dipole", "dipole_dpa3", "polar", "polar_matrix", "dos", "property", "property_sum", "population")
POTENTIAL = HERE / "formats" / "model.ckpt.pt"
ENERGIES = ("reference/fparam_aparam", "reference_kinds/dpa4_base", "reference_kinds/dpa4_heads")
FACTS = (
    "get_type_map", "get_rcut", "get_ntypes", "get_sel_type", "get_dim_fparam", "get_dim_aparam", "has_default_fparam",
    "has_chg_spin_ebd", "has_default_chg_spin", "get_numb_dos", "get_task_dim", "get_intensive", "get_var_name",
    "get_observed_types", "get_model_size", "get_ntypes_spin", "numb_dos", "task_dim", "output_tensor_name",
)  # fmt: skip


def facts(model):
    found = {"class": type(model).__name__}
    for name in FACTS:
        if hasattr(model, name):
            value = getattr(model, name)
            found[name] = value() if callable(value) else value
    return found


def answers(model, own):
    frames = own["positions"].shape[0]
    cells, extra = own.get("cell"), {k: own[k] for k in ("fparam", "aparam") if k in own}
    mixed = np.stack([np.roll(own["types"], k) for k in range(frames)])
    mixed[-1, -1] = -1
    ways = {
        "frames": ((own["positions"], cells, own["types"]), {}),
        "cluster": ((own["positions"].reshape(frames, -1), None, own["types"]), {}),
        "mixed": ((own["positions"], cells, mixed), {"mixed_type": True}),
    }
    found = {}
    for way, (given, options) in ways.items():
        of = {
            "plain": model.eval(*given, atomic=False, **extra, **options),
            "atomic": model.eval(*given, atomic=True, **extra, **options),
        }
        if type(model).__name__ == "DeepDipole":
            of["full"] = model.eval_full(*given, atomic=True, **extra, **options)
        if way == "frames":
            for name in ("descriptor", "fitting_last_layer"):
                of[name] = getattr(model, f"eval_{name}")(*given, **extra)
        for name, arrays in of.items():
            arrays = arrays if isinstance(arrays, tuple) else (arrays,)
            found |= {f"{way}/{name}/{k}": array for k, array in enumerate(arrays)}
    with contextlib.suppress(KeyError):  # it has none
        found["typeebd"] = model.eval_typeebd()
    return found


def last_layer(folder):
    """The inputs of the nets' last layers, for the first system of a folder's model."""
    with np.load(folder / "systems.npz") as file:
        name = next(iter(file)).split("/")[0]
        own = {k.split("/")[1]: file[k] for k in file if k.startswith(f"{name}/")}
    given = {
        k: torch.from_numpy(own[k]) for k in ("positions", "types", "cell", "fparam", "aparam") if k in own
    }
    positions, types = given.pop("positions"), given.pop("types").long()
    model = BaseModel.deserialize(load_dp_model(str(folder / "model.dp"))["model"]).eval()
    found = model.forward_embedding(
        positions, types.expand(len(positions), -1), box=given.pop("cell"), **given
    )
    return found["atomic_feature"].detach().double().numpy()


def calculated():
    """Of the ASE calculator: a slab in a thin cell, where magnesium has the type of aluminium."""
    generator = np.random.default_rng(5)
    sites = np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(8, 3)
    positions = 2.0 * sites + generator.uniform(-0.3, 0.3, (8, 3))
    cell = np.array([[4.2, 0.0, 0.0], [0.5, 4.3, 0.0], [0.2, -0.3, 4.5]])
    slab = Atoms("CuMgAlCuCuMgAlAl", positions, cell=cell, pbc=[True, True, False])
    slab.calc = DP(POTENTIAL, type_dict={"Cu": 0, "Al": 1, "Mg": 1})
    found = {name: slab.calc.get_property(name, slab) for name in ("energy", "forces", "stress", "virial")}
    inputs = {"positions": positions, "numbers": slab.numbers, "cell": cell, "pbc": slab.pbc}
    return {f"calculator/{k}": v for k, v in (inputs | found).items()}


def main():
    torch._C._jit_set_profiling_executor(False)  # otherwise it compiles every model for every shape
    arrays = {}
    for case in OUTPUTS:
        with np.load(HERE / "outputs" / f"{case}.npz") as file:
            own = {k: file[k] for k in file if not k.startswith("answer_")}
        model = DeepEval(str(HERE / "outputs" / f"{case}.pt"))
        arrays[f"{case}/facts"] = np.array(json.dumps(facts(model)))
        arrays |= {f"{case}/{k}": v for k, v in answers(model, own).items()}
    arrays["potential/facts"] = np.array(json.dumps(facts(DeepEval(str(POTENTIAL)))))
    arrays |= calculated()
    for case in ENERGIES:
        arrays[f"{case}/fitting_last_layer"] = last_layer(HERE / case)
    np.savez_compressed(HERE / "deep_eval.npz", **arrays)


if __name__ == "__main__":
    main()
