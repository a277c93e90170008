"""Makes tests/data/checkpoints/<case>.{pt,pth,dp}: small models as DeePMD-kit writes them.

Those of other outputs than energies go to tests/data/outputs, with DeePMD-kit's answers, <case>.npz.

The weights are random. The cases cover the descriptors and models that mdops reads from PyTorch files, with options
away from their defaults. Six cases have a .pth, of which five lack the TorchScript code that most of it is. Needs
deepmd-kit 3.2.0 with its PyTorch backend:

    python tests/data/make_checkpoints.py [case ...]
"""

import copy
import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import save_dp_model
from deepmd.pt.model.model import get_model
from deepmd.pt.train.wrapper import ModelWrapper
from deepmd.pt_expt.model.get_model import get_model as get_exportable_model
from deepmd.pt_expt.train.wrapper import ModelWrapper as ExportableWrapper

HERE = Path(__file__).resolve().parent / "checkpoints"
RADIAL = {"sel": [6, 8], "rcut": 5.0, "rcut_smth": 0.5, "neuron": [4, 8]}
SE_E2_A = {"type": "se_e2_a", **RADIAL, "axis_neuron": 4, "type_one_side": False}
ATTENTION = {**RADIAL, "sel": 20, "axis_neuron": 4, "tebd_dim": 4, "attn": 8}
ANGLES = {
    **RADIAL,
    "type": "se_e3_tebd",
    "sel": 20,
    "tebd_dim": 4,
    "resnet_dt": True,
    "concat_output_tebd": False,
}
REPFLOW = {
    "n_dim": 6,
    "e_dim": 5,
    "a_dim": 4,
    "nlayers": 2,
    "axis_neuron": 2,
    "e_sel": 12,
    "a_sel": 6,
    "e_rcut": 5.0,
    "e_rcut_smth": 4.0,
    "a_rcut": 3.5,
    "a_rcut_smth": 3.0,
}
REPINIT = {
    "rcut": 5.0, "rcut_smth": 1.0, "nsel": 12, "neuron": [3, 6], "axis_neuron": 2, "tebd_dim": 4,
    "three_body_sel": 5, "three_body_rcut": 3.5,
}  # fmt: skip
REPFORMER = {
    "rcut": 4.0,
    "rcut_smth": 3.0,
    "nsel": 6,
    "nlayers": 2,
    "g1_dim": 6,
    "g2_dim": 5,
    "axis_neuron": 2,
    "attn1_hidden": 3,
    "attn1_nhead": 2,
    "attn2_hidden": 4,
    "attn2_nhead": 2,
}
FITTING = {"neuron": [6, 6], "resnet_dt": True}
MIXED = {"descriptor": {"type": "dpa1", **ATTENTION, "attn_layer": 0}, "fitting_net": FITTING}
OTHERS = ("dipole", "dipole_dpa3", "polar", "polar_matrix", "dos", "property", "property_sum", "population")
TABLE = "pair_table.txt"  # made by `write_table`; ends before the cutoff, so that DeePMD-kit extends it

CASES = {
    "se_e2_a_options": {
        "descriptor": {
            **SE_E2_A,
            "type_one_side": True,
            "resnet_dt": True,
            "activation_function": "gelu",
            "exclude_types": [[0, 1]],
            "set_davg_zero": True,
            "env_protection": 0.01,
            "precision": "float32",
            "trainable": False,
        },
        "fitting_net": {
            **FITTING,
            "resnet_dt": False,
            "numb_fparam": 2,
            "numb_aparam": 3,
            "default_fparam": [0.1, 0.2],
            "precision": "float32",
            "activation_function": "relu",
            "trainable": [True, False, True],
        },
        "atom_exclude_types": [1],
        "pair_exclude_types": [[0, 0]],
    },
    "se_e2_a_two_sided": {
        "descriptor": {**SE_E2_A, "exclude_types": [[0, 1]]},
        "fitting_net": {**FITTING, "atom_ener": [1.0, None], "precision": "default", "dim_case_embd": 2},
    },
    "se_e2_r": {"descriptor": {"type": "se_e2_r", **RADIAL, "env_protection": 0.01}, "fitting_net": FITTING},
    "se_e3": {"descriptor": {"type": "se_e3", **RADIAL}, "fitting_net": FITTING},
    "dpa1": {"descriptor": {"type": "dpa1", **ATTENTION, "attn_layer": 2}, "fitting_net": FITTING},
    "dpa1_strip": {
        "descriptor": {
            "type": "se_atten",
            **ATTENTION,
            "attn_layer": 0,
            "tebd_input_mode": "strip",
            "type_one_side": True,
            "use_tebd_bias": True,
        },
        "fitting_net": FITTING,
    },
    "se_atten_v2": {
        "descriptor": {"type": "se_atten_v2", **ATTENTION, "attn_layer": 1},
        "fitting_net": FITTING,
    },
    "hybrid": {
        "descriptor": {"type": "hybrid", "list": [{"type": "dpa1", **ATTENTION, "attn_layer": 0}, SE_E2_A]},
        "fitting_net": FITTING,
    },
    "se_e3_tebd": {"descriptor": ANGLES, "fitting_net": FITTING},
    "se_e3_tebd_strip": {
        "descriptor": {
            **ANGLES,
            "tebd_input_mode": "strip",
            "concat_output_tebd": True,
            "use_tebd_bias": True,
            "smooth": False,
            "exclude_types": [[0, 1]],
            "precision": "float32",
        },
        "fitting_net": FITTING,
    },
    "linear": {
        "type": "linear_ener",
        "weights": [0.7, 1.3, 0.5],
        "models": [
            copy.deepcopy(MIXED),
            {"type": "pairtab", "tab_file": TABLE, "rcut": 5.0, "sel": [8, 12]},
            {"type_map": ["H", "C", "O"], **copy.deepcopy(MIXED)},
        ],
        "atom_exclude_types": [1],
        "pair_exclude_types": [[0, 0]],
    },
    "dpa3": {
        "descriptor": {
            "type": "dpa3",
            "repflow": {
                **REPFLOW,
                "a_compress_rate": 1,
                "n_multi_edge_message": 2,
                "edge_init_use_dist": True,
                "skip_stat": True,
            },
            "exclude_types": [[0, 1]],
            "use_tebd_bias": True,
            "add_chg_spin_ebd": True,
            "default_chg_spin": [1.0, 2.0],
            "trainable": False,
        },
        "fitting_net": FITTING,
    },
    "dpa3_average": {
        "descriptor": {
            "type": "dpa3",
            "repflow": {**REPFLOW, "update_style": "res_avg", "update_angle": False},
            "precision": "float32",
            "use_econf_tebd": True,
            "concat_output_tebd": True,
        },
        "fitting_net": FITTING,
    },
    "dpa2": {
        "descriptor": {
            "type": "dpa2",
            "repinit": {**REPINIT, "use_three_body": True, "tebd_input_mode": "strip", "resnet_dt": True},
            "repformer": {**REPFORMER, "update_style": "res_residual", "update_h2": True},
            "add_tebd_to_repinit_out": True,
            "exclude_types": [[0, 1]],
            "use_tebd_bias": True,
            "trainable": False,
        },
        "fitting_net": FITTING,
    },
    "dpa2_average": {
        "descriptor": {
            "type": "dpa2",
            "repinit": {**REPINIT, "axis_neuron": 1, "type_one_side": True},
            "repformer": {
                **REPFORMER,
                "g1_out_mlp": False,
                "g1_out_conv": False,
                "trainable_ln": False,
                "ln_eps": 1e-3,
            },
            "smooth": False,
            "precision": "float32",
            "use_econf_tebd": True,
        },
        "fitting_net": FITTING,
    },
    # Of the exportable backend.
    "dpa4c": {
        "descriptor": {
            "type": "dpa4c",
            "rcut": 5.0,
            "channels": 8,
            "lmax": 3,
            "n_radial": 3,
            "radial_modes": 1,
            "exclude_types": [[0, 1]],
            "precision": "float32",
            "trainable": False,
        },
        "fitting_net": {**FITTING, "numb_fparam": 1},
    },
    # Fittings of other outputs than energies.
    "dipole": {
        "descriptor": {"type": "hybrid", "list": [{"type": "dpa1", **ATTENTION, "attn_layer": 0}, SE_E2_A]},
        "fitting_net": {**FITTING, "type": "dipole"},
        "atom_exclude_types": [1],
    },
    "dipole_dpa3": {
        "descriptor": {
            "type": "dpa3",
            "repflow": {
                "n_dim": 8,
                "e_dim": 5,
                "a_dim": 4,
                "nlayers": 2,
                "axis_neuron": 2,
                "e_rcut": 5.0,
                "e_rcut_smth": 4.0,
                "e_sel": 40,
                "a_rcut": 3.5,
                "a_rcut_smth": 3.0,
                "a_sel": 20,
            },
        },
        "fitting_net": {**FITTING, "type": "dipole"},
    },
    "polar": {
        "descriptor": {"type": "dpa1", **ATTENTION, "attn_layer": 1},
        "fitting_net": {**FITTING, "type": "polar", "scale": [0.5, 2.0], "numb_fparam": 1},
    },
    "polar_matrix": {
        "descriptor": {**SE_E2_A, "type_one_side": True},
        "fitting_net": {**FITTING, "type": "polar", "fit_diag": False, "shift_diag": False},
    },
    "dos": {
        "descriptor": {"type": "se_e3", **RADIAL},
        "fitting_net": {**FITTING, "type": "dos", "numb_dos": 5, "numb_aparam": 1},
    },
    "property": {
        "descriptor": {"type": "se_atten_v2", **ATTENTION, "attn_layer": 0},
        "fitting_net": {
            **FITTING,
            "type": "property",
            "property_name": "gap",
            "task_dim": 2,
            "intensive": True,
        },
    },
    "property_sum": {
        "descriptor": {"type": "se_e2_r", **RADIAL},
        "fitting_net": {**FITTING, "type": "property", "property_name": "volume", "distinguish_types": False},
        "atom_exclude_types": [0],
    },
    "population": {
        "descriptor": {**SE_E2_A, "type_one_side": True},
        "fitting_net": {**FITTING, "type": "population"},
    },
    "zbl": {**MIXED, "use_srtab": TABLE, "sw_rmin": 0.5, "sw_rmax": 1.5, "smin_alpha": 0.3},
}


def write_table(path):
    """Distances and the energies of the pairs O-O, O-H and H-H."""
    distance = 0.3 * np.arange(1, 16)
    energy = np.array([[9.0], [5.0], [2.0]]) * np.exp(-distance) / distance
    np.savetxt(path, np.vstack([distance, energy]).T)


def make(case_name, case):
    here = HERE.parent / "outputs" if case_name in OTHERS else HERE
    params = {"type_map": ["O", "H"], **copy.deepcopy(case)}
    exportable = case_name == "dpa4c"
    model = (get_exportable_model if exportable else get_model)(copy.deepcopy(params))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and tensor.numel() and "tab_" not in name:
                random = torch.rand(tensor.shape, generator=generator).to(tensor.dtype)
                if case_name not in OTHERS:
                    tensor.copy_(random + 0.1)
                elif not name.endswith(
                    (".mean", ".stddev")
                ):  # these answer, and statistics are one for all slots
                    tensor.copy_(random - 0.4 if "std" not in name else random + 0.5)
                if name.endswith("adam_type_embedding"):
                    tensor[-1] = 0.0  # of no type
        (model._min_nbor_dist if exportable else model.min_nbor_dist).fill_(0.88)
    wrapper = ExportableWrapper if exportable else ModelWrapper
    state = wrapper(model, model_params=params).state_dict()
    torch.save({"model": state, "optimizer": {}}, here / f"{case_name}.pt")
    model.eval()
    variables = {"min_nbor_dist": model.get_min_nbor_dist()}
    data = {"backend": "PyTorch", "model": model.serialize(), "@variables": variables}
    save_dp_model(str(here / f"{case_name}.dp"), data)
    if case_name in OTHERS:
        np.savez_compressed(here / f"{case_name}.npz", **answers(model))
    if case_name in ("hybrid", "linear", "dpa2", "dpa3", "zbl", "polar"):
        model.model_def_script = json.dumps(params)
        torch.jit.save(torch.jit.script(model), here / f"{case_name}.pth", {})
    if case_name in ("linear", "dpa2", "dpa3", "zbl", "polar"):
        without_code(here / f"{case_name}.pth")


def answers(model):
    """DeePMD-kit's answers for two frames of seven atoms."""
    generator = np.random.default_rng(7)
    sites = 2.0 * np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(8, 3)[:7]
    coord = sites + generator.uniform(-0.3, 0.3, (2, 7, 3))
    types = np.array([0, 1, 1, 0, 1, 1, 1])
    box = np.diag([6.0, 7.0, 8.0]) + np.tril(generator.uniform(-1.0, 1.0, (3, 3)), -1)
    arrays = {"positions": coord, "types": types, "cell": np.stack([box, box])}
    arguments = {}
    if model.get_dim_fparam():
        arrays["fparam"] = generator.uniform(size=(2, model.get_dim_fparam()))
        arguments["fparam"] = torch.from_numpy(arrays["fparam"])
    if model.get_dim_aparam():
        arrays["aparam"] = generator.uniform(size=(2, 7, model.get_dim_aparam()))
        arguments["aparam"] = torch.from_numpy(arrays["aparam"])
    coord = torch.from_numpy(coord).requires_grad_()
    atypes = torch.from_numpy(types).expand(2, -1)
    found = model(
        coord, atypes, box=torch.from_numpy(arrays["cell"]).reshape(2, 9), do_atomic_virial=True, **arguments
    )
    return {**arrays, **{f"answer_{name}": value.detach().numpy() for name, value in found.items()}}


def without_code(path):
    """Leave out the members of the archive that mdops never opens."""
    with zipfile.ZipFile(path) as archive:
        kept = [(m, archive.read(m)) for m in archive.namelist() if "/code/" not in m]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in kept:
            archive.writestr(zipfile.ZipInfo(name), data)


if __name__ == "__main__":
    for folder in (HERE, HERE.parent / "outputs"):
        folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_table(TABLE)
        for name in sys.argv[1:] or CASES:
            make(name, CASES[name])
