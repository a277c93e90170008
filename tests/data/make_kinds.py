"""Makes tests/data/reference_kinds/<case>/{model.dp,systems.npz} of other descriptors than se_e2_a.

As make_reference.py, which tells what it needs and what the files hold:

    python tests/data/make_kinds.py [case ...]

se_r, se_r_dt, se_t, se_t_tebd, hybrid and hybrid_three come from the same kind of script, with wider nets.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import load_dp_model
from deepmd.pt.model.descriptor import BaseDescriptor
from deepmd.pt_expt.descriptor.base_descriptor import BaseDescriptor as OtherDescriptor
from make_reference import (
    EVERY_SYSTEM,
    FITTING,
    SYSTEMS,
    case_embedding,
    crowded,
    make_wanted,
    output_bias,
    parameter_statistics,
    triclinic,
    with_virtual,
)

HERE = Path(__file__).parent / "reference_kinds"
SHORT = {"sel": [18, 16], "rcut_smth": 2.6, "rcut": 3.8, "neuron": [4, 8], "precision": "float64"}
LONG = {**SHORT, "sel": [34, 36], "rcut_smth": 2.0, "rcut": 5.0}
A = {**SHORT, "type": "se_e2_a", "axis_neuron": 3, "type_one_side": True}
R = {**SHORT, "type": "se_e2_r"}
TEBD = {**SHORT, "type": "se_e3_tebd", "sel": 30, "neuron": [3, 6], "tebd_dim": 4, "set_davg_zero": False}
T = {**SHORT, "type": "se_e3", "neuron": [3, 6]}
ODD = {"resnet_dt": True, "neuron": [5, 5, 10], "activation_function": "gelu", "env_protection": 0.07}


def case(descriptor, *parts, fitting=(), systems=SYSTEMS, types=2, edit=None, **model):
    """One case; of several descriptors a hybrid."""
    descriptor = {"type": "hybrid", "list": [descriptor, *parts]} if parts else descriptor
    return {
        "descriptor": descriptor,
        "fitting": {**FITTING, **dict(fitting)},
        "systems": systems,
        "types": types,
        "edit": edit,
        "statistics": True,
        "model": model,
    }


def of_kind(name, kind, three):
    """What every descriptor has cases of; `three`: its `sel` for three types."""
    crowds = {"crowded": crowded}
    return {
        f"{name}_base": case(kind, systems=EVERY_SYSTEM, edit=output_bias),
        f"{name}_options": case({**kind, **ODD, "exclude_types": [[0, 1]]}, edit=output_bias),
        f"{name}_davg_zero": case({**kind, "set_davg_zero": True}, atom_exclude_types=[1], edit=output_bias),
        f"{name}_pairs": case(
            {**kind, "exclude_types": [[1, 1]], "sel": three}, types=3, pair_exclude_types=[[0, 1]]
        ),
        f"{name}_few_places": case(
            {**kind, "sel": [9, 7], "exclude_types": [[0, 0]]}, systems=crowds, pair_exclude_types=[[0, 1]]
        ),
        f"{name}_float32": case({**kind, "precision": "float32"}),
        f"{name}_virtual": case(kind, systems={"with_virtual": with_virtual}),
    }


def of_tebd():
    """Each way of the types into the net."""
    crowds = {"crowded": crowded}
    odd = {**TEBD, **ODD}
    strip = {"tebd_input_mode": "strip"}
    found = {
        "base": case(TEBD, systems=EVERY_SYSTEM, edit=output_bias),
        "options": case({**odd, "exclude_types": [[0, 1]], "use_tebd_bias": True}, edit=output_bias),
        "strip": case({**TEBD, **strip}, systems=EVERY_SYSTEM, edit=output_bias),
        "strip_rough": case({**odd, **strip, "smooth": False, "exclude_types": [[0, 0]]}, edit=output_bias),
        "strip_pairs": case(
            {**TEBD, **strip, "exclude_types": [[1, 1]], "concat_output_tebd": False, "use_econf_tebd": True},
            types=3,
            pair_exclude_types=[[0, 1]],
        ),
        # As wide as the input of the first layer, which then adds it.
        "econf": case({**TEBD, "use_econf_tebd": True, "use_tebd_bias": True, "neuron": [9, 18]}, types=3),
        "davg_zero": case({**TEBD, "set_davg_zero": True}, atom_exclude_types=[1], edit=output_bias),
        "few_places": case(
            {**TEBD, "sel": [9, 7], "exclude_types": [[0, 0]]}, systems=crowds, pair_exclude_types=[[0, 1]]
        ),
        "strip_float32": case({**TEBD, **strip, "precision": "float32"}),
        "virtual": case({**TEBD, **strip}, systems={"with_virtual": with_virtual}),
    }
    return {f"se_e3_tebd_{name}": made for name, made in found.items()}


def dpa3(layers=2, **options):
    repflow = {
        "n_dim": 8,
        "e_dim": 6,
        "a_dim": 4,
        "nlayers": layers,
        "axis_neuron": 3,
        "optim_update": True,
        "e_rcut": 3.8,
        "e_rcut_smth": 2.6,
        "e_sel": 30,
        "a_rcut": 3.1,
        "a_rcut_smth": 2.4,
        "a_sel": 14,
    }
    own = {"type": "dpa3", "precision": "float64", "activation_function": "silut:3.0"}
    return {
        **own,
        **{key: value for key, value in options.items() if key in DPA3_KEYS},
        "repflow": {**repflow, **{key: value for key, value in options.items() if key not in DPA3_KEYS}},
    }


DPA3_KEYS = (
    *("precision", "activation_function", "exclude_types", "env_protection", "concat_output_tebd"),
    *("use_econf_tebd", "use_tebd_bias", "add_chg_spin_ebd", "default_chg_spin"),
)


def of_dpa3():
    charged = {"add_chg_spin_ebd": True, "default_chg_spin": [-2.0, 3.0]}
    dynamic = {"use_dynamic_sel": True, "smooth_edge_update": True, "sel_reduce_factor": 3.0}
    smooth = {"smooth_edge_update": True, "edge_init_use_dist": True, "use_exp_switch": True}
    split = {"a_compress_rate": 1, "a_compress_use_split": True, "a_compress_e_rate": 2}
    found = {
        "base": case(dpa3(**smooth, **split, update_residual_init="norm"), systems=EVERY_SYSTEM),
        "rough": case(dpa3(n_multi_edge_message=2, exclude_types=[[0, 1]], env_protection=0.07)),
        "sequential": case(
            dpa3(**smooth, sequential_update=True, concat_output_tebd=True, use_econf_tebd=True), types=3
        ),
        "average": case(
            dpa3(update_style="res_avg", a_compress_rate=1, use_tebd_bias=True), atom_exclude_types=[1]
        ),
        "no_angles": case(
            dpa3(update_style="res_incr", update_angle=False, exclude_types=[[1, 1]]),
            types=3,
            pair_exclude_types=[[0, 1]],
        ),
        "few_places": case(
            dpa3(**dynamic, e_sel=13, a_sel=7, exclude_types=[[0, 0]]), systems={"crowded": crowded}
        ),
        "charged": case(dpa3(layers=1, **dynamic, **charged)),
        "float32": case(dpa3(**smooth, precision="float32")),
        "virtual": case(dpa3(**smooth), systems={"with_virtual": with_virtual}),
    }
    return {f"dpa3_{name}": {**options, "edit": output_bias} for name, options in found.items()}


DPA2_REPINIT = {
    "rcut": 4.6,
    "rcut_smth": 1.2,
    "nsel": 60,
    "neuron": [3, 6],
    "axis_neuron": 2,
    "tebd_dim": 4,
    "three_body_neuron": [2, 4],
    "three_body_sel": 26,
    "three_body_rcut": 3.6,
    "three_body_rcut_smth": 2.2,
}
DPA2_REPFORMER = {
    "rcut": 3.4,
    "rcut_smth": 2.6,
    "nsel": 24,
    "nlayers": 2,
    "g1_dim": 8,
    "g2_dim": 5,
    "axis_neuron": 3,
    "attn1_hidden": 4,
    "attn1_nhead": 2,
    "attn2_hidden": 4,
    "attn2_nhead": 2,
}


def dpa2(repinit=(), repformer=(), **options):
    return {
        "type": "dpa2",
        "precision": "float64",
        "repinit": {**DPA2_REPINIT, **dict(repinit)},
        "repformer": {**DPA2_REPFORMER, **dict(repformer)},
        **options,
    }


def of_dpa2():
    mean, three = {"set_davg_zero": False}, {"use_three_body": True}
    strip = {"tebd_input_mode": "strip"}
    weighed = {"update_style": "res_residual", "update_residual": 0.4}
    gated = {"attn2_has_gate": True, "update_h2": True}
    odd = {"activation_function": "gelu", "resnet_dt": True, "neuron": [5, 5, 10]}
    found = {
        "base": case(dpa2(three, {**weighed, **gated, "nlayers": 3}), systems=EVERY_SYSTEM),
        "rough": case(
            dpa2(
                {**mean, **three, **strip, **odd},
                {"g1_out_conv": False, "g1_out_mlp": False, "direct_dist": True, "update_h2": True},
                smooth=False,
                exclude_types=[[0, 1]],
                env_protection=0.07,
            )
        ),
        "strip": case(
            dpa2(
                {**mean, **three, **strip, "type_one_side": True},
                {"update_style": "res_incr", "ln_eps": 1e-3, "use_sqrt_nnei": False, "set_davg_zero": False},
                add_tebd_to_repinit_out=True,
                use_tebd_bias=True,
            ),
            atom_exclude_types=[1],
        ),
        "rough_mean": case(
            dpa2(
                mean,
                {**weighed, **gated, "update_residual_init": "const", "use_sqrt_nnei": False},
                smooth=False,
                concat_output_tebd=False,
            )
        ),
        # As wide as the sums, which then go into the layers themselves.
        "plain": case(
            dpa2(
                {"neuron": [2, 4]},
                {
                    **dict.fromkeys(
                        ("update_g1_has_attn", "update_g2_has_g1g1", "update_g2_has_attn"), False
                    ),
                    "update_g1_has_conv": False,
                    "activation_function": "silut:3.0",
                },
                use_econf_tebd=True,
                exclude_types=[[1, 1]],
            ),
            types=3,
            pair_exclude_types=[[0, 1]],
        ),
        "few_places": case(
            dpa2({**mean, **three, "nsel": 21, "three_body_sel": 9}, {"nsel": 7}, exclude_types=[[0, 0]]),
            systems={"crowded": crowded},
            pair_exclude_types=[[0, 1]],
        ),
        "float32": case(dpa2(three, weighed, precision="float32")),
        "virtual": case(dpa2(three, gated), systems={"with_virtual": with_virtual}),
    }
    return {f"dpa2_{name}": {**options, "edit": output_bias} for name, options in found.items()}


def dpa4c(**options):
    own = {"type": "dpa4c", "rcut": 3.8, "channels": 8, "n_radial": 6, "precision": "float64"}
    return {**own, **options}


def invariant_statistics(tree, rng):
    """mean and stddev as statistics of other data would be, and biases of atoms."""
    variables = tree["descriptor"]["@variables"]
    shape, dtype = variables["mean"].shape, variables["mean"].dtype
    variables["mean"] = 0.1 * rng.normal(size=shape).astype(dtype)
    variables["stddev"] = rng.uniform(0.3, 0.6, shape).astype(dtype)
    output_bias(tree, rng)


def of_dpa4c():
    found = {
        "base": case(dpa4c(), systems=EVERY_SYSTEM),
        "gaussian": case(
            dpa4c(basis_type="gaussian", lmax=4, radial_modes=1, exclude_types=[[0, 1]]), types=3
        ),
        "pairs": case(
            dpa4c(lmax=3, exclude_types=[[1, 1]]),
            types=3,
            pair_exclude_types=[[0, 1]],
            atom_exclude_types=[1],
        ),
        "parameters": case(dpa4c(n_radial=1), fitting={"numb_fparam": 1, "numb_aparam": 2}),
        "wide_float32": case(
            dpa4c(channels=32, lmax=3, radial_modes=2, precision="float32"), systems={"triclinic": triclinic}
        ),
        "virtual": case(dpa4c(), systems={"with_virtual": with_virtual}),
    }
    made = {"statistics": False, "edit": invariant_statistics}
    return {f"dpa4c_{name}": {**options, **made} for name, options in found.items()}


DPA4 = {
    "type": "dpa4",
    "sel": 60,
    "rcut": 3.8,
    "channels": 4,
    "n_radial": 5,
    "lmax": 2,
    "n_blocks": 2,
    "mixing_layers": 2,
    "ffn_neurons": 5,
    "edge_norm": False,
    "precision": "float64",
}


def dpa4_weights(tree, rng):
    """Numbers in the place of weights that are zeros, or small, in a new model, and the biases of energies."""
    small = ("residual_scale", "layer_scales", "case_film_scale", "case_film_shift")
    nets = [net["@variables"] for net in tree["fitting"]["nets"]["networks"]]
    for variables in (tree["descriptor"]["@variables"], *nets):
        for name, value in variables.items():
            numbers = value.dtype.kind == "f" and value.ndim and "balance_weight" not in name
            if numbers and (not value.any() or any(word in name for word in small)):
                variables[name] = (0.5 * rng.normal(size=value.shape)).astype(value.dtype)
    output_bias(tree, rng)
    if tree["fitting"]["dim_case_embd"]:
        case_embedding(tree, rng)


def of_dpa4():
    grids = {"message_node_so3": True, "ffn_so3_grid": True, "grid_branch": [0, 0, 2], "so3_readout": "mlp"}
    charged = {"add_chg_spin_ebd": True, "default_chg_spin": [-1.0, 2.0]}
    wide = {"n_focus": 2, "focus_dim": 4, "mlp_bias": True, "layer_scale": True, "edge_norm": True}
    turned = {"n_atten_head": 2, "atten_v_proj": True, "atten_o_proj": True, "node_wise_so3": True}
    found = {
        "base": case({**DPA4, **grids}, systems=EVERY_SYSTEM),
        "wide": case(
            {**DPA4, **wide, **turned, "l_schedule": [3, 2], "m_schedule": [1, 2], "exclude_types": [[0, 1]]},
            types=3,
        ),
        "matrices": case(
            {
                **DPA4,
                "edge_cartesian": True,
                "node_cartesian": "parity:1",
                "n_atten_head": 0,
                "basis_type": "gaussian",
                "ffn_blocks": 2,
                "glu_activation": False,
                "s2_activation": [False, False],
            },
            atom_exclude_types=[1],
        ),
        "deep": case(
            {
                **DPA4,
                "full_attn_res": "dependent",
                "so2_attn_res": "independent",
                "s2_activation": [True, True],
                "extra_node_l": 1,
                "radial_so2_rank": 2,
                "so3_readout": "glu",
                "readout_layers": 2,
            }
        ),
        "blocks": case(
            {
                **DPA4,
                "block_attn_res": "independent",
                "message_node_s2": True,
                "node_wise_s2": True,
                "so2_norm": True,
                "atten_f_mix": True,
                "n_focus": 2,
                "radial_so2_rank": 0,
                "grid_mlp": True,
                "mmax": None,
            },
            fitting={"numb_fparam": 1, "numb_aparam": 2},
        ),
        "bridged": case(
            {**DPA4, **charged, "radial_so2_mode": "none", "use_env_seed": True},
            bridging_method="zbl",
            bridging_r_inner=1.9,
            bridging_r_outer=2.9,
        ),
        "scalars": case({**DPA4, "lmax": 0, "kmax": 0, "use_env_seed": False, "mixing_layers": 0}),
        "float32": case({**DPA4, **grids, "precision": "float32"}),
        "virtual": case({**DPA4, **grids}, systems={"with_virtual": with_virtual}),
        "heads": case(DPA4, fitting={"dim_case_embd": 2, "case_film_embd": True}, types=3),
    }
    net = {"type": "dpa4_ener", "neuron": [0, 6], "activation_function": "silu", "resnet_dt": False}
    for made in found.values():
        made["fitting"] |= net
        made |= {"edit": dpa4_weights, "statistics": False, "model": {**made["model"], "type": "dpa4"}}
    return {f"dpa4_{name}": made for name, made in found.items()}


CASES = {
    **of_kind("se_e2_r", R, [14, 12, 10]),
    **of_kind("se_e3", T, [14, 12, 10]),
    **of_tebd(),
    "hybrid_a_r": case(
        {**A, "exclude_types": [[0, 1]]}, {**R, **LONG, "exclude_types": [[1, 1]]}, systems=EVERY_SYSTEM
    ),
    # The first part's places are fewer than the neighbours within the other's cutoff.
    "hybrid_a_a": case(
        {**A, "exclude_types": [[0, 0]], "type_one_side": False},
        {**A, **LONG, "env_protection": 0.05},
        edit=output_bias,
    ),
    "hybrid_r_t": case({**R, **LONG, **ODD}, {**T, "exclude_types": [[0, 1]]}, pair_exclude_types=[[1, 1]]),
    "hybrid_few_places": case(
        {**A, "sel": [4, 7]},
        {**R, **LONG, "sel": [15, 5], "exclude_types": [[0, 1]]},
        T,
        systems={"crowded": crowded},
        pair_exclude_types=[[0, 0]],
    ),
    # Mixed and not: neighbours of excluded pairs take places in the list of all types, and not in that by types.
    "hybrid_r_tebd": case(
        {**R, "sel": [12, 9], "exclude_types": [[1, 1]]},
        {**TEBD, **LONG, "sel": 70},
        pair_exclude_types=[[0, 1]],
    ),
    "hybrid_mixed_few_places": case(
        {**A, "exclude_types": [[0, 0]], "sel": [6, 8]},
        {**R, **LONG, "sel": [12, 9], "exclude_types": [[1, 1]]},
        {**TEBD, "sel": 17},
        systems={"crowded": crowded},
        pair_exclude_types=[[0, 1]],
    ),
    "hybrid_parameters": case(
        A,
        {**R, **LONG},
        fitting={"numb_fparam": 1, "numb_aparam": 2},
        systems={"triclinic": triclinic},
        edit=parameter_statistics,
    ),
    **of_dpa3(),
    **of_dpa2(),
    **of_dpa4c(),
    **of_dpa4(),
    # Parts that pass messages, and parts that do not.
    "hybrid_dpa2_a": case(dpa2({"use_three_body": True, "set_davg_zero": False}), A, edit=output_bias),
    "hybrid_dpa3_dpa2_tebd": case(
        {**dpa3(update_style="res_avg"), "exclude_types": [[0, 1]]},
        dpa2({"tebd_input_mode": "strip"}),
        {**TEBD, **LONG, "sel": 70},
        pair_exclude_types=[[1, 1]],
    ),
    "hybrid_messages_few_places": case(
        dpa2({"nsel": 17, "three_body_sel": 9, "use_three_body": True}, {"nsel": 8}),
        {**TEBD, **LONG, "sel": 30},
        dpa3(e_sel=11, a_sel=6),
        systems={"crowded": crowded},
        pair_exclude_types=[[0, 1]],
    ),
}


EMT = Path(__file__).parent / "training" / "emt"
STATISTICS = {
    "se_e2_r": {**R, "sel": [80, 60], "rcut": 5.0, "exclude_types": [[0, 1]]},
    "se_e3": {**T, "sel": [40, 30], "rcut": 4.0, "env_protection": 0.05},
    "se_e3_tebd": {**TEBD, "sel": 40, "rcut": 4.0, "exclude_types": [[1, 1]]},
}


def make_statistics():
    """davg and dstd (types, columns) of EMT's frames: statistics.npz, `<kind>/davg` and `<kind>/dstd`; and mean and
    stddev of dpa4c_base."""
    (folder,) = EMT.glob("set.*")
    names = (EMT / "type_map.raw").read_text().split()
    types = [["Cu", "Al"].index(names[int(t)]) for t in (EMT / "type.raw").read_text().split()]
    coord, box = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("coord", "box"))
    sample = {
        "coord": coord.double(),
        "box": box.double(),
        "atype": torch.tensor(types).expand(len(coord), -1),
    }
    arrays = {}
    for name, options in STATISTICS.items():
        descriptor = BaseDescriptor(**options, ntypes=2, type_map=["Cu", "Al"])
        descriptor.compute_input_stats([{**sample, "natoms": None}])
        variables = descriptor.serialize()["@variables"]
        arrays |= {f"{name}/{key}": variables[key][:, 0] for key in ("davg", "dstd")}
    descriptor = OtherDescriptor.deserialize(
        load_dp_model(str(HERE / "dpa4c_base/model.dp"))["model"]["descriptor"]
    )
    descriptor.compute_input_stats([sample])
    arrays |= {f"dpa4c/{key}": value for key, value in descriptor.serialize()["@variables"].items()}
    np.savez_compressed(HERE / "statistics.npz", **arrays)


if __name__ == "__main__":
    if not sys.argv[1:]:
        make_statistics()
    make_wanted(CASES, 1000, HERE)
