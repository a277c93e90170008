"""Makes models with DeePMD-kit, of random kinds and options: check_random_models.py runs this in a Python with
DeePMD-kit.

    python random_deepmd_models.py FOLDER FIRST LAST [KIND]

With KIND, all models have only that descriptor; `dpa2`, `dpa3`, `dpa4` and `dpa4c` are made only in this way. `spin` is
a model with magnetic moments and one of several descriptors, `dpa4_virtual_spin` one of DPA-4, all with virtual atoms.
`dpa4_spin` and `dpa4c_spin` are DPA-4 and DPA-4C with moments as vectors. For each seed from FIRST to before LAST:
<seed>.dp, the model in float64, with random weights and statistics; <seed>.json, the `model` section from which it was
made; and <seed>.npz, three systems with the energies, forces and virials of the PyTorch backend. If DeePMD-kit itself
fails, there is only <seed>.txt with the reason.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import save_dp_model
from deepmd.pt.model.descriptor.sezm_nn.projection import S2GridProjector
from deepmd.pt.model.model import get_model
from deepmd.pt_expt.model.get_model import get_model as get_exportable_model

ELEMENTS = ("H", "C", "N", "O", "Mg", "Al", "Si", "Cu", "Zn", "U")
ACTIVATIONS = (
    "tanh", "gelu", "gelu_tf", "relu", "relu6", "softplus", "sigmoid", "linear", "none", "silu", "silut:3.0",
)  # fmt: skip
NEURONS = ([7], [5, 10], [8, 8], [12, 5], [4, 8, 16], [6, 6, 12], [3, 9, 18], [10, 20, 40])
FITTINGS = ([10, 10], [12, 12, 12], [8, 16, 16], [20], [6, 12, 24], [])
MIXED = ("dpa1", "se_atten", "se_atten_v2", "se_e3_tebd")
BY_TYPES = ("se_e2_a", "se_e2_r", "se_e3")
NEAREST = 1.2  # A, smallest distance of two atoms
EDGE = 1e-3  # A: no pair is so close to a cutoff, where models that are not smooth jump
CUTOFFS = ("rcut", "e_rcut", "a_rcut", "three_body_rcut")
MANY = 150  # places, if atoms see their own images: so that none of two equal distances is dropped


class Draw:
    """Random choices."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def one(self, values: Any) -> Any:
        return values[int(self.random.integers(len(values)))]

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.random.random() < share)

    def whole(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high))

    def number(self, low: float, high: float) -> float:
        return float(self.random.uniform(low, high))

    def normal(self, *shape: int) -> np.ndarray:
        return self.random.normal(size=shape)


def descriptor(draw: Draw, kind: str, ntypes: int, rcut: float, crowded: bool) -> dict[str, Any]:
    pairs = [[i, j] for i in range(ntypes) for j in range(i, ntypes)]
    places = [MANY if crowded else draw.whole(6, 30) for _ in range(ntypes)]
    neuron = draw.one(NEURONS)
    keys: dict[str, Any] = {
        "type": kind,
        "rcut": rcut,
        "rcut_smth": draw.number(0.3, 0.9) * rcut if draw.chance(0.9) else 0.0,
        "sel": places if kind in BY_TYPES or (kind != "se_e3_tebd" and draw.chance()) else sum(places),
        "neuron": neuron,
        "activation_function": draw.one(ACTIVATIONS),
        "resnet_dt": draw.chance(),
        "env_protection": draw.one((0.0, 0.0, 0.1, 1e-3)),
        "set_davg_zero": draw.chance(),
        "precision": "float64",
        "seed": draw.whole(0, 1 << 30),
    }
    if draw.chance(0.3):
        keys["exclude_types"] = [draw.one(pairs) for _ in range(draw.whole(1, 3))]
    if kind in ("se_e2_a", "dpa1", "se_atten", "se_atten_v2"):
        keys |= {"axis_neuron": draw.whole(1, neuron[-1] + 1), "type_one_side": draw.chance()}
    if kind in MIXED:
        keys |= {
            "tebd_dim": draw.one((2, 4, 8)),
            "concat_output_tebd": draw.chance(),
            "use_econf_tebd": draw.chance(0.2),
            "use_tebd_bias": draw.chance(),
        }
        if kind != "se_atten_v2":
            keys["tebd_input_mode"] = draw.one(("concat", "strip"))
    if kind == "se_e3_tebd":
        keys["smooth"] = draw.chance()
    elif kind in MIXED:
        keys |= {
            "attn_layer": draw.one((0, 0, 1, 2, 3)),
            "attn": draw.one((4, 8, 16, 20)),
            "attn_dotr": draw.chance(),
            "attn_mask": False,
            "normalize": draw.chance(),
            "scaling_factor": draw.one((0.5, 1.0, 2.0)),
            "temperature": draw.one((None, 0.7, 1.0)),
            "trainable_ln": draw.chance(),
            "ln_eps": draw.one((1e-5, 1e-3)),
        }
        if kind != "se_atten_v2":
            keys["smooth_type_embedding"] = draw.chance()
    return keys


def charge_and_spin(draw: Draw) -> dict[str, Any]:
    """Keys of an embedding of charge and spin, or none."""
    if not draw.chance(0.3):
        return {}
    return {
        "add_chg_spin_ebd": True,
        "default_chg_spin": [float(draw.whole(-3, 4)), float(draw.whole(1, 4))],
    }


def dpa3(draw: Draw, ntypes: int, rcut: float, crowded: bool) -> dict[str, Any]:
    pairs = [[i, j] for i in range(ntypes) for j in range(i, ntypes)]
    rate, inner = draw.one((0, 1, 2)), rcut * draw.number(0.5, 1.0)
    dynamic, updates_angles = draw.chance(0.4), draw.chance(0.85)
    style = draw.one(("res_residual", "res_residual", "res_avg", "res_incr"))
    places = MANY if crowded else draw.whole(5, 40)
    repflow = {
        "n_dim": draw.one((8, 10, 16)),
        "e_dim": draw.one((6, 8, 9)) if rate == 0 else 16,
        "a_dim": draw.one((4, 8)),
        "nlayers": draw.whole(1, 4),
        "e_rcut": rcut,
        "e_rcut_smth": rcut * draw.number(0.6, 0.95),
        "e_sel": places,
        "a_rcut": inner,
        "a_rcut_smth": inner * draw.number(0.6, 0.95),
        "a_sel": places if crowded else draw.whole(3, places + 1),
        "axis_neuron": draw.whole(1, 6),
        "a_compress_rate": rate,
        "a_compress_e_rate": draw.one((1, 2, 4)),
        "a_compress_use_split": draw.chance(),
        "n_multi_edge_message": draw.one((1, 1, 2, 3)),
        "update_angle": updates_angles,
        "update_style": style,
        "update_residual": 0.3,
        "update_residual_init": draw.one(("norm", "const")),
        "fix_stat_std": draw.one((0.3, 0.0, 0.5)),
        "optim_update": draw.chance(),
        "smooth_edge_update": dynamic or draw.chance(),
        "edge_init_use_dist": draw.chance(),
        "use_exp_switch": draw.chance(),
        "use_dynamic_sel": dynamic,
        "sel_reduce_factor": draw.number(1, 12),
        "sequential_update": style == "res_residual" and updates_angles and draw.chance(0.4),
    }
    keys: dict[str, Any] = {
        "type": "dpa3",
        "repflow": repflow,
        "concat_output_tebd": draw.chance(),
        "activation_function": draw.one((*ACTIVATIONS, "silut:10.0")),
        "env_protection": draw.one((0.0, 0.0, 0.1, 1e-3)),
        "use_econf_tebd": draw.chance(0.2),
        "use_tebd_bias": draw.chance(),
        "use_loc_mapping": draw.chance(),
        "precision": "float64",
        "seed": draw.whole(0, 1 << 30),
    }
    if draw.chance(0.3):
        keys["exclude_types"] = [draw.one(pairs) for _ in range(draw.whole(1, 3))]
    return keys | charge_and_spin(draw)


def dpa2(draw: Draw, ntypes: int, rcut: float, crowded: bool) -> dict[str, Any]:
    pairs = [[i, j] for i in range(ntypes) for j in range(i, ntypes)]
    inner, third = rcut * draw.number(0.5, 0.9), rcut * draw.number(0.5, 0.9)
    few, many = sorted((draw.whole(4, 20), draw.whole(4, 20)))
    third_places, inner_places = (few, many) if third < inner else (many, few)
    neuron = draw.one(NEURONS)
    repinit = {
        "rcut": rcut,
        "rcut_smth": draw.number(0.1, 0.9) * rcut,
        "nsel": MANY + 2 if crowded else draw.whole(21, 60),
        "neuron": neuron,
        "axis_neuron": draw.whole(1, min(neuron[-1], 6) + 1),
        "tebd_dim": draw.one((2, 4, 8)),
        "tebd_input_mode": draw.one(("concat", "strip")),
        "set_davg_zero": draw.chance(),
        "activation_function": draw.one(ACTIVATIONS),
        "resnet_dt": draw.chance(),
        "type_one_side": draw.chance(),
        "use_three_body": draw.chance(),
        "three_body_neuron": draw.one(NEURONS[:5]),
        "three_body_sel": MANY + 1 if crowded else third_places,
        "three_body_rcut": third,
        "three_body_rcut_smth": third * draw.number(0.3, 0.95),
    }
    repformer = {
        "rcut": inner,
        "rcut_smth": inner * draw.number(0.3, 0.9),
        "nsel": MANY + 1 if crowded else inner_places,
        "nlayers": draw.whole(1, 5),
        "g1_dim": draw.one((8, 10, 16)),
        "g2_dim": draw.one((5, 6, 8)),
        "axis_neuron": draw.whole(1, 6),
        "direct_dist": draw.chance(0.3),
        **{
            name: draw.chance(0.7)
            for name in (
                *("update_g1_has_conv", "update_g1_has_drrd", "update_g1_has_attn", "update_g2_has_g1g1"),
                *("update_g2_has_attn", "use_sqrt_nnei", "g1_out_conv", "trainable_ln"),
            )
        },
        "g1_out_mlp": draw.chance(),
        "update_h2": draw.chance(),
        "attn1_hidden": draw.one((3, 4, 8)),
        "attn1_nhead": draw.one((1, 2, 3)),
        "attn2_hidden": draw.one((3, 4, 8)),
        "attn2_nhead": draw.one((1, 2, 3)),
        "attn2_has_gate": draw.chance(),
        "activation_function": draw.one((*ACTIVATIONS, "silut:10.0")),
        "update_style": draw.one(("res_residual", "res_avg", "res_incr")),
        "update_residual": 0.3,
        "update_residual_init": draw.one(("norm", "const")),
        "set_davg_zero": draw.chance(),
        "ln_eps": draw.one((None, 1e-5, 1e-3)),
    }
    # Something must be an input of the last product.
    repformer["update_g1_has_grrg"] = draw.chance(0.7) or repformer["g1_out_mlp"]
    keys: dict[str, Any] = {
        "type": "dpa2",
        "repinit": repinit,
        "repformer": repformer,
        "concat_output_tebd": draw.chance(),
        "smooth": draw.chance(0.7),
        "add_tebd_to_repinit_out": draw.chance(),
        "env_protection": draw.one((0.0, 0.0, 0.1, 1e-3)),
        "use_econf_tebd": draw.chance(0.2),
        "use_tebd_bias": draw.chance(),
        "precision": "float64",
        "seed": draw.whole(0, 1 << 30),
    }
    if draw.chance(0.3):
        keys["exclude_types"] = [draw.one(pairs) for _ in range(draw.whole(1, 3))]
    return keys


def dpa4(draw: Draw, ntypes: int, rcut: float, crowded: bool) -> dict[str, Any]:
    pairs = [[i, j] for i in range(ntypes) for j in range(i, ntypes)]
    count, schedules = draw.whole(0, 4), draw.chance(0.4)
    degrees = sorted((draw.whole(0, 5) for _ in range(count)), reverse=True)
    if not schedules:
        degrees = [draw.whole(1, 4)] * count
    first = degrees[0] if degrees else 2
    groups, width = draw.one((1, 1, 2, 3)), draw.one((0, 4, 6))
    by_matrices = draw.chance(0.2) and any(degree in (1, 2) for degree in degrees)
    grids = (
        {}
        if by_matrices
        else {
            name: draw.chance(0.3)
            for name in ("node_wise_s2", "node_wise_so3", "message_node_s2", "message_node_so3")
        }
    )
    modes, mixes = ("none", "none", "independent", "dependent"), draw.one(("full", "block", "neither"))
    keys: dict[str, Any] = {
        "type": "dpa4",
        "rcut": rcut,
        "sel": MANY,
        "env_exp": [draw.whole(3, 9), draw.whole(3, 8)],
        "channels": draw.one((6, 8, 12)),
        "basis_type": draw.one(("bessel", "gaussian")),
        "n_radial": draw.whole(3, 8),
        "radial_mlp": draw.one(([0], [10], [8, 0], [])),
        "lmax": first,
        "n_blocks": count,
        "mmax": draw.one((1, 1, 2, None)),
        "kmax": draw.whole(0, min(first, 2) + 1),
        "extra_node_l": draw.one((0, 0, 1)),
        "mixing_layers": draw.whole(0, 4),
        "so2_attn_res": draw.one(modes),
        "radial_so2_mode": draw.one(("none", "degree", "degree_channel", "degree_channel")),
        "radial_so2_rank": draw.whole(0, 3),
        "n_focus": groups,
        "focus_dim": width,
        "edge_cartesian": by_matrices,
        "node_cartesian": draw.one(("none", "none", "default:1", "parity:2")),
        "n_atten_head": draw.one((0, 1, 2)),
        "ffn_neurons": draw.one((0, 10)),
        "grid_mlp": draw.one((False, True, [True, False, True])),
        "grid_branch": draw.one((0, 2, [1, 2, 0])),
        "ffn_blocks": draw.whole(1, 3),
        "sandwich_norm": [draw.chance() for _ in range(4)],
        "full_attn_res": draw.one(modes) if mixes == "full" else "none",
        "block_attn_res": draw.one(modes) if mixes == "block" else "none",
        "s2_activation": [draw.chance(), draw.chance()],
        "so3_readout": draw.one(("none", "glu", "mlp")),
        "readout_layers": draw.whole(1, 3),
        "activation_function": draw.one(("silu", "tanh", "gelu")),
        "precision": "float64",
        "seed": draw.whole(0, 1 << 30),
        **grids,
    }
    keys["lebedev_quadrature"] = keys["seed"] % 2 == 0
    for name in ("edge_norm", "use_env_seed", "so2_norm", "atten_f_mix", "atten_v_proj", "atten_o_proj"):
        keys[name] = draw.chance()
    for name in ("mlp_bias", "layer_scale", "ffn_so3_grid", "glu_activation"):
        keys[name] = draw.chance()
    if schedules:
        keys |= {"l_schedule": degrees, "m_schedule": [draw.whole(0, degree + 1) for degree in degrees]}
    if draw.chance(0.3):
        keys["exclude_types"] = [draw.one(pairs)]
    return keys | charge_and_spin(draw)


def dpa4c(draw: Draw, ntypes: int, rcut: float, crowded: bool) -> dict[str, Any]:
    pairs = [[i, j] for i in range(ntypes) for j in range(i, ntypes)]
    keys: dict[str, Any] = {
        "type": "dpa4c",
        "rcut": rcut,
        "channels": draw.one((8, 16, 32, 64)),
        "lmax": draw.whole(2, 5),
        "basis_type": draw.one(("bessel", "gaussian")),
        "n_radial": draw.whole(1, 17),
        "radial_modes": draw.one((0, 0, 1, 2, 4)),
        "precision": "float64",
        "seed": draw.whole(0, 1 << 30),
    }
    if draw.chance(0.3):
        keys["exclude_types"] = [draw.one(pairs) for _ in range(draw.whole(1, 3))]
    return keys


OTHERS = {"dpa2": dpa2, "dpa3": dpa3, "dpa4": dpa4, "dpa4c": dpa4c}  # only by name
EXPORTABLE = ("dpa4c", "dpa4c_spin")  # only in the exportable backend
VIRTUAL_SPIN = {"spin": ("se_e2_a", "dpa1", "dpa2", "dpa3"), "dpa4_virtual_spin": ("dpa4",)}
NATIVE_SPIN = {"dpa4_spin": "dpa4", "dpa4c_spin": "dpa4c"}


def bridging(draw: Draw) -> dict[str, Any]:
    """Keys of a model dpa4; atoms are at least NEAREST apart."""
    inner = draw.number(1.0, 1.6)
    return {
        "bridging_method": "zbl",
        "bridging_r_inner": inner,
        "bridging_r_outer": inner + draw.number(0.3, 1),
    }


def fitting(draw: Draw) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "neuron": draw.one(FITTINGS),
        "activation_function": draw.one(ACTIVATIONS),
        "resnet_dt": draw.chance(),
        "numb_fparam": draw.one((0, 0, 0, 2)),
        "numb_aparam": draw.one((0, 0, 0, 1)),
        "precision": "float64",
        "seed": draw.whole(0, 1 << 30),
    }
    if keys["numb_fparam"] and draw.chance(0.4):
        keys["default_fparam"] = draw.normal(keys["numb_fparam"]).tolist()
    return keys


def table(draw: Draw, path: Path, pairs: int, rcut: float) -> dict[str, Any]:
    """Keys of a ZBL model's table."""
    rows = draw.whole(20, 200)
    r = (1 + np.arange(rows)) * 1.05 * rcut / rows
    np.savetxt(path, np.stack([r, *(20 * np.exp(-r * draw.number(1, 2)) for _ in range(pairs))], 1))
    low = draw.number(0.8, 1.5)
    alpha = draw.one((0.1, 0.2, 0.4))
    return {"use_srtab": str(path), "sw_rmin": low, "sw_rmax": low + draw.number(0.3, 1), "smin_alpha": alpha}


def model(draw: Draw, path: Path, crowded: bool, kind: str | None) -> dict[str, Any]:
    """The section `model` of an input. `path` is for the table, if there is one; `kind` is the descriptor's."""
    if kind in VIRTUAL_SPIN:
        return with_spin(draw, model(draw, path, False, draw.one(VIRTUAL_SPIN[kind])))
    if kind in NATIVE_SPIN:
        return with_native_spin(draw, model(draw, path, crowded, NATIVE_SPIN[kind]))
    ntypes, rcut = draw.whole(1, 5), draw.number(2.5, 5.0)
    type_map = [str(name) for name in draw.random.choice(ELEMENTS, ntypes, replace=False)]
    pairs = [[i, j] for i in range(ntypes) for j in range(i, ntypes)]

    def part(kinds: tuple[str, ...], share: float = 1.0) -> dict[str, Any]:
        return descriptor(draw, draw.one(kinds), ntypes, rcut * share, crowded)

    def parts(kinds: tuple[str, ...], count: int) -> list[dict[str, Any]]:
        return [part(kinds, draw.one((1.0, 0.8))) for _ in range(count)]

    form = "alone" if kind else draw.one(("alone", "alone", "alone", "hybrid", "zbl", "linear"))
    if form == "linear":
        models = [
            {"type_map": type_map, "descriptor": d, "fitting_net": fitting(draw)} for d in parts(MIXED, 2)
        ]
        for other in models[1:]:  # all have the same parameters
            other["fitting_net"] |= {
                key: models[0]["fitting_net"].get(key)
                for key in ("numb_fparam", "numb_aparam", "default_fparam")
            }
        weights = draw.one(("mean", "sum", [0.3, 1.7]))
        return {"type": "linear_ener", "type_map": type_map, "models": models, "weights": weights}
    if form == "hybrid":
        own = {"type": "hybrid", "list": parts(draw.one((BY_TYPES, MIXED)), draw.whole(2, 4))}
    elif kind in OTHERS:
        own = OTHERS[kind](draw, ntypes, rcut, crowded)
    elif kind:
        own = part((kind,))
    else:
        own = part(MIXED if form == "zbl" or draw.chance() else BY_TYPES)
    found = {"type_map": type_map, "descriptor": own, "fitting_net": fitting(draw)}
    if kind == "dpa4":
        found["type"] = kind
        found["fitting_net"] |= {"type": "dpa4_ener", "neuron": draw.one(([0], [10, 0], [12], []))}
        found |= bridging(draw) if draw.chance(0.25) else {}
    if form == "zbl":
        found |= table(draw, path, len(pairs), rcut)
    if draw.chance(0.2) and kind != "dpa4":  # whose descriptor has them, too
        found["pair_exclude_types"] = [draw.one(pairs)]
    if ntypes > 1 and draw.chance(0.15):
        found["atom_exclude_types"] = [draw.whole(0, ntypes)]
    return found


def with_spin(draw: Draw, section: dict[str, Any]) -> dict[str, Any]:
    """The section with magnetic moments of some elements, and places for all virtual atoms."""
    count = len(section["type_map"])
    use = [draw.chance() for _ in range(count)]
    use[draw.whole(0, count)] = True
    scales = [draw.number(0.2, 0.5) for _ in range(count)]
    section["spin"] = {
        "use_spin": use,
        "virtual_scale": draw.one(
            (scales, scales[0], [s for s, has in zip(scales, use, strict=True) if has])
        ),
    }
    own = section["descriptor"]
    for part in (own, *(own[name] for name in ("repinit", "repformer", "repflow") if name in own)):
        for name in part:
            if name.endswith("sel") and type(part[name]) in (int, list):
                part[name] = [MANY] * count if isinstance(part[name], list) else MANY
    return section


def with_native_spin(draw: Draw, section: dict[str, Any]) -> dict[str, Any]:
    """The section with magnetic moments of some elements, which need coefficients of degree 1."""
    own, names = section["descriptor"], section["type_map"]
    use = [draw.chance() for _ in names]
    use[draw.whole(0, len(names))] = True
    told = draw.one((use, [name for name, has in zip(names, use, strict=True) if has]))
    section["spin"] = {"scheme": "native", "use_spin": told}
    if own["type"] == "dpa4c":
        return section
    if not (own["l_schedule"] or [0] if "l_schedule" in own else [own["lmax"]])[-1]:
        own["extra_node_l"] = 1
    if "exclude_types" in own:
        section["pair_exclude_types"] = own.pop("exclude_types")
    return section


def randomize(network: torch.nn.Module, draw: Draw) -> None:
    """Randomizes statistics, biases and time steps, which are zeros, ones or small in a new model."""
    with torch.no_grad():
        for name, value in (*network.named_buffers(), *network.named_parameters()):
            last, shape = name.rsplit(".", 1)[-1], tuple(value.shape)
            if not value.numel() or not value.is_floating_point():
                continue
            if last in ("mean", "stddev") and value.dim() == 1:  # for invariants, not for rows of types
                spread = 0.1 * draw.normal(*shape) if last == "mean" else draw.random.uniform(0.2, 0.8, shape)
                value.copy_(torch.from_numpy(spread))
            elif last == "mean":
                value.zero_()
                value[..., 0] = torch.from_numpy(0.1 * draw.normal(shape[0], 1))
            elif last == "stddev":
                value[:] = torch.from_numpy(draw.random.uniform(0.2, 0.8, (shape[0], 1, 1)))
                value[..., 0] = torch.from_numpy(draw.random.uniform(0.2, 0.8, (shape[0], 1)))
            elif last in ("out_bias", "fparam_avg", "aparam_avg"):
                value.copy_(torch.from_numpy(draw.normal(*shape)))
            elif last in ("fparam_inv_std", "aparam_inv_std", "spin_reference"):
                value.copy_(torch.from_numpy(draw.random.uniform(0.5, 2, shape)))
            elif last in ("bias", "b", "idt") or last.startswith(
                ("residual_scale", "adam_so2_layer", "adam_ffn_layer")
            ):
                value.copy_(torch.from_numpy(0.3 * draw.normal(*shape)))
            elif isinstance(value, torch.nn.Parameter) and not value.any():
                value.copy_(torch.from_numpy(draw.normal(*shape) / (1 + value.shape[0]) ** 0.5))


def make_grids_in_float64() -> None:
    """DeePMD-kit has grids of the sphere other than Lebedev's in float32, whatever the model's precision."""
    make = S2GridProjector._build_e3nn_projection_mats

    def made(*given: Any) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return make(*given)
        finally:
            torch.set_default_dtype(before)

    S2GridProjector._build_e3nn_projection_mats = made


def cutoffs(tree: Any) -> list[float]:
    """All cutoffs in a `model` section, A."""
    if isinstance(tree, dict):
        return [v for k, v in tree.items() if k in CUTOFFS] + [c for v in tree.values() for c in cutoffs(v)]
    return [c for v in tree for c in cutoffs(v)] if isinstance(tree, list) else []


def distances(positions: np.ndarray, cell: np.ndarray | None) -> np.ndarray:
    """Distances of all pairs, with images if there is a cell, A; infinite between an atom and itself."""
    vectors = (positions[:, None] - positions)[None]
    if cell is not None:
        shifts = np.stack(np.meshgrid(*[np.arange(-2, 3)] * 3, indexing="ij"), -1).reshape(-1, 3)
        vectors = vectors + (shifts @ cell)[:, None, None]
    found = np.linalg.norm(vectors, axis=-1)
    return np.where(found < 1e-9, np.inf, found)


def system(draw: Draw, ntypes: int, limits: list[float], periodic: bool, crowded: bool) -> dict[str, Any]:
    """Atoms that are not too close to each other, without pairs at a cutoff."""
    while True:
        low = 4.0 if crowded else max(limits) + 1.0
        cell = np.diag(draw.random.uniform(low, low + 4, 3)) + 0.3 * draw.normal(3, 3)
        positions: list[np.ndarray] = []
        for _ in range(400):
            tried = np.array([*positions, draw.random.random(3) @ cell])
            if distances(tried, cell if periodic else None).min() > NEAREST:
                positions = list(tried)
            if len(positions) == 22:
                break
        count = draw.whole(2, len(positions) + 1)
        found = {"positions": np.array(positions[:count]), "types": draw.random.integers(0, ntypes, count)}
        apart = distances(found["positions"], cell if periodic else None)
        if all((abs(apart - limit) > EDGE).all() for limit in limits):
            return found | ({"cell": cell} if periodic else {})


def answers(network: Any, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tensors = {name: torch.from_numpy(value)[None] for name, value in given.items()}
    out = network(
        tensors["positions"].flatten(1).requires_grad_(),
        tensors["types"],
        *([tensors["spins"].requires_grad_()] if "spins" in tensors else []),
        box=tensors["cell"].flatten(1) if "cell" in tensors else None,
        fparam=tensors.get("fparam"),
        aparam=tensors.get("aparam"),
    )
    names = {"energy": "energy", "forces": "force", "virial": "virial", "atom_energy": "atom_energy"}
    names |= {"force_mag": "force_mag"} if "spins" in given else {}
    return {name: out[theirs][0].detach().numpy() for name, theirs in names.items()}


def make(folder: Path, seed: int, kind: str | None) -> None:
    draw, path = Draw(seed), folder / str(seed)
    crowded = draw.chance(0.3)
    section = model(draw, path.with_suffix(".tab"), crowded, kind)
    path.with_suffix(".json").write_text(json.dumps(section, indent=1) + "\n")
    make_network = get_exportable_model if kind in EXPORTABLE else get_model
    network = make_network(copy.deepcopy(section)).double().eval()
    randomize(network, draw)
    arrays = {}
    fittings = section.get("models", [section])
    parameters = fittings[0]["fitting_net"]
    for name, periodic in (("cell", True), ("again", True), ("free", False)):
        given = system(draw, len(section["type_map"]), cutoffs(section), periodic, crowded)
        if parameters["numb_fparam"] and not (parameters.get("default_fparam") and name == "again"):
            given["fparam"] = draw.normal(parameters["numb_fparam"])
        if parameters["numb_aparam"]:
            given["aparam"] = draw.normal(len(given["types"]), parameters["numb_aparam"])
        if "spin" in section:
            moments = draw.normal(len(given["types"]), 3)
            lengths = draw.random.uniform(0.8, 1.5, (len(moments), 1))
            given["spins"] = lengths * moments / np.linalg.norm(moments, axis=1, keepdims=True)
            if section["spin"].get("scheme") == "native":
                given["spins"][draw.random.random(len(moments)) < 0.1] = 0
        given |= answers(network, given)
        arrays |= {f"{name}/{key}": value for key, value in given.items()}
    save_dp_model(str(path.with_suffix(".dp")), {"model": network.serialize(), "model_def_script": section})
    np.savez(path.with_suffix(".npz"), **arrays)


def main() -> None:
    torch.set_num_threads(1)
    make_grids_in_float64()
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    kind = sys.argv[4] if sys.argv[4:] else None
    for seed in range(first, last):
        try:
            make(folder, seed, kind)
        except Exception as error:  # any error of DeePMD-kit
            (folder / f"{seed}.txt").write_text(f"{type(error).__name__}: {str(error).strip()[:300]}\n")


if __name__ == "__main__":
    main()
