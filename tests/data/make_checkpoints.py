"""Makes tests/data/checkpoints/<case>.{pt,pth,dp}: small models as DeePMD-kit writes them.

The weights are random. The cases cover the descriptors and models that mdops reads from PyTorch files, with options
away from their defaults. Three cases have a .pth, of which two lack the TorchScript code that most of it is. Needs
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
FITTING = {"neuron": [6, 6], "resnet_dt": True}
MIXED = {"descriptor": {"type": "dpa1", **ATTENTION, "attn_layer": 0}, "fitting_net": FITTING}
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
    "zbl": {**MIXED, "use_srtab": TABLE, "sw_rmin": 0.5, "sw_rmax": 1.5, "smin_alpha": 0.3},
}


def write_table(path):
    """Distances and the energies of the pairs O-O, O-H and H-H."""
    distance = 0.3 * np.arange(1, 16)
    energy = np.array([[9.0], [5.0], [2.0]]) * np.exp(-distance) / distance
    np.savetxt(path, np.vstack([distance, energy]).T)


def make(case_name, case):
    params = {"type_map": ["O", "H"], **copy.deepcopy(case)}
    model = get_model(copy.deepcopy(params))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and tensor.numel() and "tab_" not in name:
                tensor.copy_(torch.rand(tensor.shape, generator=generator).to(tensor.dtype) + 0.1)
        model.min_nbor_dist.fill_(0.88)
    state = ModelWrapper(model, model_params=params).state_dict()
    torch.save({"model": state, "optimizer": {}}, HERE / f"{case_name}.pt")
    model.eval()
    variables = {"min_nbor_dist": model.get_min_nbor_dist()}
    data = {"backend": "PyTorch", "model": model.serialize(), "@variables": variables}
    save_dp_model(str(HERE / f"{case_name}.dp"), data)
    if case_name in ("hybrid", "linear", "zbl"):
        model.model_def_script = json.dumps(params)
        torch.jit.save(torch.jit.script(model), HERE / f"{case_name}.pth", {})
    if case_name in ("linear", "zbl"):
        without_code(HERE / f"{case_name}.pth")


def without_code(path):
    """Leave out the members of the archive that mdops never opens."""
    with zipfile.ZipFile(path) as archive:
        kept = [(m, archive.read(m)) for m in archive.namelist() if "/code/" not in m]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in kept:
            archive.writestr(zipfile.ZipInfo(name), data)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_table(TABLE)
        for name in sys.argv[1:] or CASES:
            make(name, CASES[name])
