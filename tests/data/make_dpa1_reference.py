"""Makes tests/data/reference_kinds/<case>/{model.dp,systems.npz} of dpa1 and se_atten_v2, a few options a case.

As make_reference.py, which it uses: random weights, tiny nets, and DeePMD-kit's own answers:

    python tests/data/make_dpa1_reference.py [case ...]

The cases dpa1_attn2, dpa1_attn0_strip, dpa1_concat_attn0 and se_atten_v2 come from the same kind of script, with wider
nets.
"""

from pathlib import Path

from make_reference import EVERY_SYSTEM, case, crowded, make_wanted, output_bias, triclinic, with_virtual

HERE = Path(__file__).parent / "reference_kinds"
ATTENTION = {
    "type": "dpa1", "sel": 36, "neuron": [4, 8], "axis_neuron": 3, "tebd_dim": 3, "attn": 5, "attn_layer": 1,
    "type_one_side": False, "set_davg_zero": False, "smooth_type_embedding": True,
}  # fmt: skip
ROUGH = {"smooth_type_embedding": False}
STRIP = {"tebd_input_mode": "strip"}


def virtual_first(rng):
    """Padding has type 0 where the first atom is virtual, and else that of the first atom."""
    system = triclinic(rng)
    system["types"][[0, 5]] = -1
    return system


def aluminium_first(rng):
    system = triclinic(rng)
    system["types"] = 1 - system["types"]
    return system


SYSTEMS = {"triclinic": triclinic, "aluminium_first": aluminium_first}


def norms(tree, rng):
    """Weights of the norms, which are new ones otherwise, and the output's bias."""
    output_bias(tree, rng)
    descriptor = tree["descriptor"]
    for part in descriptor["list"] if descriptor["type"] == "hybrid" else [descriptor]:
        for layer in part["attention_layers"]["attention_layers"]:
            arrays = layer["attn_layer_norm"]["@variables"]
            arrays["w"] = rng.uniform(0.5, 1.5, arrays["w"].shape).astype(arrays["w"].dtype)
            arrays["b"] = rng.normal(scale=0.3, size=arrays["b"].shape).astype(arrays["b"].dtype)


def attention(*options, systems=SYSTEMS, edit=norms, fitting=(), **others):
    descriptor = dict(ATTENTION)
    for part in options:
        descriptor |= part
    if descriptor["type"] == "se_atten_v2":
        del descriptor["smooth_type_embedding"]
    return case(descriptor, fitting, systems=systems, edit=edit, **others)


def hybrid(*parts):
    """Parts of different cutoffs: a part has the whole list of the hybrid."""
    parts = [{**ATTENTION, "precision": "float64", "rcut": 3.8, "rcut_smth": 2.0, **part} for part in parts]
    made = case(systems=SYSTEMS, edit=norms)
    return {**made, "descriptor": {"type": "hybrid", "list": parts}}


CASES = {
    "dpa1_smooth": attention(
        {"attn_layer": 2},
        systems={**EVERY_SYSTEM, "with_virtual": with_virtual, "virtual_first": virtual_first},
    ),
    "dpa1_rough": attention(
        ROUGH,
        {"attn_layer": 2},
        systems={**SYSTEMS, "with_virtual": with_virtual, "virtual_first": virtual_first},
    ),
    "dpa1_no_angles": attention(ROUGH, {"attn_dotr": False, "temperature": 0.7}),
    "dpa1_strip_rough": attention(ROUGH, STRIP, {"activation_function": "silut:1.5"}),
    "dpa1_strip_one_side": attention(
        STRIP, {"type_one_side": True, "use_tebd_bias": True, "normalize": False, "scaling_factor": 2.5}
    ),
    "dpa1_one_side_resnet": attention(
        {"type_one_side": True, "resnet_dt": True, "neuron": [4, 8, 8], "concat_output_tebd": False}
    ),
    "dpa1_configurations": attention(
        {"use_econf_tebd": True, "use_tebd_bias": True, "sel": [14, 12, 10]}, types=3
    ),
    "dpa1_residual_types": attention(
        ROUGH, {"tebd_dim": 2, "neuron": [5, 10], "activation_function": "gelu"}
    ),
    "dpa1_residual_types_twice": attention({"tebd_dim": 4, "neuron": [9, 9], "attn_layer": 0}),
    "dpa1_exclude_types": attention({"exclude_types": [[0, 1]]}),
    "dpa1_exclude_types_rough": attention(ROUGH, STRIP, {"exclude_types": [[0, 0], [0, 1]]}),
    "dpa1_protection_ln_eps": attention({"env_protection": 0.07, "ln_eps": 0.01, "trainable_ln": False}),
    "dpa1_overflow": attention({"sel": 20}, systems={"crowded": crowded}),
    "dpa1_overflow_rough": attention(ROUGH, {"sel": [9, 7]}, systems={"crowded": crowded}),
    "dpa1_pair_exclude_types": attention(pair_exclude_types=[[0, 1]], atom_exclude_types=[1]),
    "dpa1_pair_exclude_types_rough": attention(ROUGH, STRIP, pair_exclude_types=[[1, 1]]),
    "dpa1_parameters": attention(
        fitting={"numb_fparam": 1, "numb_aparam": 2, "atom_ener": [1.3, -0.2]}, edit=norms
    ),
    "dpa1_float32": attention({"precision": "float32"}, fitting={"precision": "float32"}),
    "se_atten_v2_attention": attention(
        {"type": "se_atten_v2", "attn_layer": 2, "use_tebd_bias": True}, systems=EVERY_SYSTEM
    ),
    "se_atten_v2_davg_zero": attention({"type": "se_atten_v2", "set_davg_zero": True, "type_one_side": True}),
    "dpa1_hybrid": hybrid(
        {"rcut": 3.0},
        {**ROUGH, "rcut": 2.9, "attn_dotr": False, "sel": 20},
        {**ROUGH, "rcut": 3.1},
        {**STRIP},
    ),
}


if __name__ == "__main__":
    make_wanted(CASES, 500, HERE)
