"""Makes tests/data/reference_degrees/<case>/{model.dp,systems.npz}: DPA-1 with moments of higher degrees (`lmax`).

Random weights and the energies of DeePMD-kit's NumPy backend, which has no forces: these are differences of energies.

    python tests/data/make_degrees.py       with a Python that has DeePMD-kit 3.2
"""

from pathlib import Path

import numpy as np
from deepmd.dpmodel.model.model import get_model
from deepmd.dpmodel.utils.serialization import save_dp_model

HERE = Path(__file__).parent / "reference_degrees"
SHARED = {
    "type": "dpa1", "rcut": 4.0, "rcut_smth": 1.0, "sel": 36, "neuron": [4, 8], "axis_neuron": 3, "tebd_dim": 3,
    "type_one_side": False, "precision": "float64", "seed": 1, "attn": 5,
}  # fmt: skip
CASES = {
    "dpa1_lmax2": {"lmax": 2, "attn_layer": 1, "smooth_type_embedding": True},
    "dpa1_lmax3_attn0": {
        "lmax": 3,
        "attn_layer": 0,
        "smooth_type_embedding": False,
        "exclude_types": [[0, 0]],
        "set_davg_zero": False,
    },
    "dpa1_lmax4_strip": {
        "lmax": 4,
        "attn_layer": 2,
        "smooth_type_embedding": True,
        "tebd_input_mode": "strip",
        "env_protection": 0.01,
    },
    "se_atten_v2_lmax4": {"type": "se_atten_v2", "lmax": 4, "attn_layer": 0},
}
STEP = 1e-4  # A


def model_of(options, rng):
    fitting = {"neuron": [6, 6], "precision": "float64", "seed": 2}
    model = get_model({"type_map": ["Al", "Cu"], "descriptor": SHARED | options, "fitting_net": fitting})
    tree = model.serialize()
    arrays = tree["descriptor"]["@variables"]
    std = rng.uniform(0.1, 0.3, arrays["dstd"].shape[0])
    arrays["dstd"] = std[:, None, None] * np.array([1, 0.6, 0.6, 0.6]) + 0 * arrays["dstd"]
    if "set_davg_zero" in options or options.get("type") == "se_atten_v2":
        arrays["davg"] = np.zeros_like(arrays["davg"])
        arrays["davg"][..., 0] = rng.uniform(0.05, 0.1, len(std))[:, None]
    arrays["degree_gain_raw"] = rng.normal(size=arrays["degree_gain_raw"].shape)
    return type(model).deserialize(tree)


def main():
    for name, options in CASES.items():
        rng = np.random.default_rng(3)
        model = model_of(options, rng)
        cell = np.array([[6.1, 0.3, 0.1], [0.2, 6.4, -0.2], [0.4, 0.1, 5.9]])
        places = np.stack(np.meshgrid(*[np.arange(3) / 3] * 3), -1).reshape(-1, 3)[:14]
        positions = (places + rng.normal(scale=0.03, size=places.shape)) @ cell
        types = np.arange(len(positions)) % 2

        def energies(x, model=model, types=types, cell=cell):
            return np.asarray(model(x[None], types[None], cell.reshape(1, 9))["atom_energy"]).ravel()

        forces = np.zeros_like(positions)
        for place in np.ndindex(positions.shape):
            ends = []
            for sign in (1, -1):
                moved = positions.copy()
                moved[place] += sign * STEP
                ends.append(energies(moved).sum())
            forces[place] = (ends[1] - ends[0]) / (2 * STEP)
        folder = HERE / name
        folder.mkdir(parents=True, exist_ok=True)
        save_dp_model(str(folder / "model.dp"), {"model": model.serialize(), "model_def_script": {}})
        own = energies(positions)
        np.savez(
            folder / "systems.npz",
            types=types,
            positions=positions,
            cell=cell,
            atom_energy=own,
            forces=forces,
        )


if __name__ == "__main__":
    main()
