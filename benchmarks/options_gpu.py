"""Steps on a GPU of every kind with other options than in DeePMD-kit's examples, to find options without the fast path.

    python benchmarks/options_gpu.py --inputs examples/water --system deepmd_folder
        [--only dpa3 ...] [--json FILE] [--commit HASH]

`--inputs` is the folder `examples/water` of DeePMD-kit's repository, `--system` a folder of its data, whose first frame
is repeated. A step is energy, forces and virial with a given list, the replay of a CUDA graph, the median of ten
runs; weights are random. Options are those of the descriptor, of the section `fitting_net`, or a dtype; "ratio" is
relative to the time with the example's own options in float32.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from cuda_inference import repeated, structure
from deepmd_examples import model_of
from machine import machine
from message_passing_gpu import step

Options = dict[str, Any]
DTYPE = "dtype"
DOUBLE: Options = {DTYPE: "float64"}


def of(section: str, *options: Options) -> list[Options]:
    return [{section: one} for one in options]


WIDTHS: list[Options] = [{"neuron": [32, 64, 128]}, {"neuron": [20, 40, 80]}, {"neuron": [10, 20, 40]}]
FITTINGS = of(
    "fitting_net",
    {"neuron": [120, 120, 120]},
    {"neuron": [240, 120, 60]},
    {"neuron": [512, 512, 512]},
    {"activation_function": "gelu"},
    {"resnet_dt": False},
    {"numb_fparam": 2, "default_fparam": [0.1, 0.2]},
)
# For DPA-4, the options of an empty section, and those of DeePMD-kit's examples of spins and of properties.
DPA4_DEFAULTS: Options = {
    "channels": 64,
    "lmax": 3,
    "n_blocks": 3,
    "mixing_layers": 4,
    "edge_norm": True,
    "message_node_so3": False,
    "ffn_so3_grid": False,
    "grid_branch": 0,
    "so3_readout": "none",
}
DPA4_SPIN: Options = {
    "lmax": 3,
    "n_focus": 2,
    "grid_branch": 1,
    "ffn_blocks": 2,
    "edge_norm": True,
    "so3_readout": "none",
}
# The number of atoms in a box, and the options to measure.
CASES: dict[str, tuple[int, list[Options]]] = {
    "se_e2_a": (
        12288,
        [
            DOUBLE,
            *WIDTHS,
            {"activation_function": "gelu"},
            {"axis_neuron": 4},
            {"axis_neuron": 24},
            {"resnet_dt": True},
            {"type_one_side": True},
            *FITTINGS,
        ],
    ),
    "se_e2_r": (12288, [DOUBLE, *WIDTHS, {"type_one_side": False}]),
    "se_e3": (3072, [DOUBLE, {"neuron": [4, 8, 16]}, {"neuron": [3, 5, 7]}, {"activation_function": "gelu"}]),
    "se_e3_tebd": (3072, [DOUBLE, {"neuron": [4, 8, 16]}, {"tebd_input_mode": "strip"}]),
    "hybrid": (12288, [DOUBLE]),
    "concat": (12288, [DOUBLE, *WIDTHS, {"axis_neuron": 10}, {"tebd_dim": 4}, {"type_one_side": False}]),
    "strip": (12288, [DOUBLE, *WIDTHS]),
    "attention": (
        3072,
        [
            DOUBLE,
            *WIDTHS,
            {"attn": 64},
            {"attn": 100},
            {"attn_layer": 1},
            {"attn_layer": 3},
            {"attn_dotr": False},
            {"normalize": False},
            {"smooth_type_embedding": False},
        ],
    ),
    "attention_strip": (3072, []),
    "dpa4c": (12288, [{"channels": 16}, {"channels": 64}, {"lmax": 3}]),
    "dpa2": (
        1536,
        [
            DOUBLE,
            *of(
                "repformer",
                {"g2_dim": 16},
                {"g1_dim": 64},
                {"g1_dim": 256},
                {"update_h2": True},
                {"direct_dist": True},
                {"update_g1_has_attn": True},
                {"update_g2_has_g1g1": True},
                {"update_g2_has_attn": True},
                {"g1_out_conv": False, "g1_out_mlp": False},
                {"update_style": "res_avg"},
            ),
            {"repinit": {"tebd_input_mode": "strip"}},
            {"repinit": {"use_three_body": False}},
            {"smooth": False},
        ],
    ),
    "dpa2_medium": (
        1536,
        of(
            "repformer",
            {"attn2_nhead": 2},
            {"attn2_nhead": 8},
            {"g2_dim": 24},
            {"g2_dim": 64},
            {"update_h2": True},
            {"update_g1_has_attn": True},
        ),
    ),
    "dpa3": (
        1536,
        [
            DOUBLE,
            {"activation_function": "tanh"},
            {"activation_function": "silu"},
            *of(
                "repflow",
                {"e_dim": 32, "a_dim": 16},
                {"e_dim": 48, "a_dim": 24},
                {"e_dim": 96},
                {"e_dim": 128, "a_dim": 64},
                {"e_dim": 256, "a_dim": 64},
                {"n_dim": 100},
                {"n_dim": 256, "e_dim": 128, "nlayers": 3},
                {"a_dim": 64},
                {"n_multi_edge_message": 2},
                {"update_angle": False},
                {"a_compress_rate": 0},
                {"a_compress_use_split": False},
                {"smooth_edge_update": False},
                {"use_dynamic_sel": True},
                {"update_style": "res_avg"},
                {"sequential_update": True},
            ),
        ],
    ),
    "dpa4": (
        1536,
        [
            DOUBLE,
            {"radial_so2_mode": "none"},
            {"radial_so2_mode": "degree"},
            {"radial_so2_rank": 0},
            {"mmax": 2},
            {"mlp_bias": True},
            {"layer_scale": True},
            {"so2_norm": True},
            {"s2_activation": [True, True]},
            {"activation_function": "tanh"},
            {"n_focus": 2},
            {"n_atten_head": 4},
            {"n_atten_head": 0},
            {"lmax": 1},
            {"lmax": 3},
            {"l_schedule": [3, 2]},
            {"lmax": 3, "n_focus": 2, "grid_branch": 1, "ffn_blocks": 2},
            DPA4_SPIN,
            DPA4_DEFAULTS,
            {"channels": 8, "n_blocks": 1},
            {"channels": 16},
            {"channels": 96},
            {"channels": 128},
            {"lmax": 3, "channels": 64},
            {"lmax": 3, "channels": 64, "n_focus": 2},
            {"lmax": 3, "channels": 128},
            {"lmax": 4},
            {"lmax": 4, "n_focus": 2},
            {"lmax": 4, "channels": 64},
            {"lmax": 5},
            {"lmax": 6},
            DPA4_SPIN | DOUBLE,
            {"message_node_so3": False, "message_node_s2": True},
            {"node_cartesian": "default:1"},
            {"extra_node_l": 1},
            {"glu_activation": False},
            {"ffn_so3_grid": False},
            {"use_env_seed": False},
        ],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--system", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--commit", help="of the measured source, recorded as it is")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    unit = structure(["O", "H"], folder=args.system)
    results: dict[str, Any] = {"machine": machine("cuda", args.commit)}
    for name in args.only:
        atoms, every = CASES[name]
        found: list[Options] = []
        for options in [{}, *every]:
            own = {key: value for key, value in options.items() if key != DTYPE}
            potential = model_of(name, args.inputs, **own).to("cuda")
            if DTYPE in options:
                potential = potential.to(getattr(torch, options[DTYPE]))
            ms = step(potential, repeated(unit, atoms), profiled=False)["ms"]
            found.append({"options": options, "ms": ms, "ratio": ms / found[0]["ms"] if found else 1.0})
            print(f"{name:16} {atoms:6} atoms {ms:8.3f} ms {found[-1]['ratio']:6.2f}  {options}", flush=True)
            torch.cuda.empty_cache()
        results[name] = {"atoms": atoms, "steps": found}
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
