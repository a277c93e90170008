"""Makes TensorFlow graphs of random kinds and options, for scripts/check_tensorflow_graphs.py, in a Python that has
deepmd-kit and TensorFlow.

    python scripts/random_tensorflow_graphs.py FOLDER FIRST LAST

For each seed: the training input SEED.json, the graph SEED.pb after a few steps, SEED.compressed.pb if DeePMD-kit
compresses it, and the TensorFlow backend's results for both, SEED.npz and SEED.compressed.npz; or, if it fails,
its message, SEED.txt. Seeds from 1000 on are for loc_frame.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ELEMENTS = ["O", "H", "C"]
SMOOTH = ["tanh", "gelu", "gelu_tf", "softplus", "sigmoid", "silu", "silut:3.0"]
KINDS = [
    "se_e2_a", "se_e2_a", "se_e2_a", "se_e2_r", "se_e3", "hybrid", "se_a_tebd", "se_a_ebd_v2",
    "se_atten", "se_atten", "se_atten_v2", "zbl", "dipole", "polar", "dos",
]  # fmt: skip
WIDTHS = {"dipole": 3, "polar": 9, "dos": 5}  # numbers per atom of results other than energies
LABELS = {"dipole": "dipole", "polar": "polarizability", "dos": "dos"}
STEPS = 4
LOCAL = 1000  # the first seed of loc_frame


def section(random: np.random.Generator, kind: str) -> dict:
    """The `model` section of a training input."""
    types = int(random.integers(1, 4))
    model: dict = {"type_map": ELEMENTS[:types]}
    with_types = kind in ("se_a_tebd", "se_a_ebd_v2", "se_atten", "se_atten_v2")
    if with_types:
        model["type_embedding"] = {
            "neuron": [int(n) for n in random.choice([2, 4, 8], random.integers(1, 3))],
            "activation_function": str(random.choice(["tanh", "Linear"])),
            "resnet_dt": bool(random.integers(2)),
            "seed": 1,
        }
    if kind == "hybrid":
        parts = [descriptor(random, str(k), types) for k in random.choice(["se_e2_a", "se_e2_r", "se_e3"], 2)]
        model["descriptor"] = {"type": "hybrid", "list": parts}
    else:
        plain = kind == "zbl" or kind in WIDTHS
        model["descriptor"] = descriptor(random, "se_e2_a" if plain else kind, types)
    model["fitting_net"] = {
        "neuron": [[12, 12], [10, 20, 20], [8]][random.integers(3)],
        "resnet_dt": bool(random.integers(2)),
        "activation_function": str(random.choice(SMOOTH)),
        "precision": str(random.choice(["default", "float64", "float64", "float32"])),
        "numb_fparam": int(random.choice([0, 0, 2])),
        "numb_aparam": int(random.choice([0, 0, 1])),
        "seed": 1,
    }
    if kind in WIDTHS:
        fitting = model["fitting_net"]
        fitting |= {"type": kind, "numb_fparam": 0, "numb_aparam": 0}
        if kind == "dos":
            fitting["numb_dos"] = WIDTHS[kind]
        elif types > 1 and random.random() < 0.5:
            fitting["sel_type"] = [int(t) for t in random.permutation(types)[: types - 1]]
        if kind == "polar":
            fitting |= {"fit_diag": bool(random.integers(2)), "scale": list(random.uniform(0.5, 2, types))}
    elif random.random() < 0.2:
        model["fitting_net"]["atom_ener"] = [-1.5, *[None] * (types - 1)]
    if kind == "zbl":
        model |= {"use_srtab": "table.txt", "smin_alpha": 0.1, "sw_rmin": 0.9, "sw_rmax": 1.6}
    return model


def local_frame(random: np.random.Generator, types: int) -> dict:
    """Keys for neighbours with coordinates, distances only, or both, where DeePMD-kit's forces are no derivatives."""
    way = int(random.integers(3))
    many, rule = [int(n) for n in random.integers(25, 45, types)], []
    for _ in range(types):
        of, first = way == 1, int(random.integers(2))
        kind = (
            -types if of else -types - 1
        )  # any type: without neighbours for an atom's axes, DeePMD-kit ends
        kind = 0 if types == 1 and random.random() < 0.5 else kind
        rule += [int(of), kind, first, int(of), kind, 1 - first]
    sel_a, sel_r = ((many, [0] * types), ([0] * types, many), ([3] * types, many))[way]
    return {"type": "loc_frame", "rcut": 5.5, "sel_a": sel_a, "sel_r": sel_r, "axis_rule": rule}


def descriptor(random: np.random.Generator, kind: str, types: int) -> dict:
    if kind == "loc_frame":
        return local_frame(random, types)
    rcut = float(random.choice([4.0, 4.3, 5.1]))
    node: dict = {
        "type": "se_e2_a" if kind == "se_a_tebd" else kind,
        "rcut": rcut,
        "rcut_smth": float(random.choice([0.5, 0.6, 2.0, rcut - 0.2])),
        "sel": [int(n) for n in random.integers(25, 45, types)],
        "neuron": [[4, 8, 16], [5, 5, 10], [6, 12], [3, 7]][random.integers(4)],
        "seed": 1,
    }
    plain = kind in ("se_e2_a", "se_e2_r", "se_e3", "se_a_tebd", "se_a_ebd_v2")
    node["resnet_dt"] = bool(random.random() < 0.2)
    node["activation_function"] = str(random.choice(["tanh", "tanh", *SMOOTH]))
    node["precision"] = str(random.choice(["default", "float64", "float64", "float32"]))
    if kind != "se_e2_r" and kind != "se_e3":
        node["axis_neuron"] = int(random.integers(2, 5))
    if kind in ("se_e2_a", "se_e2_r", "se_a_tebd", "se_a_ebd_v2", "se_atten"):
        node["type_one_side"] = bool(random.integers(2))
    if plain:
        node["set_davg_zero"] = bool(random.random() < 0.3)
    if types > 1 and random.random() < 0.3 and kind != "se_e3":
        node["exclude_types"] = [[0, 1]] if random.random() < 0.7 else [[1, 1]]
    if kind in ("se_atten", "se_atten_v2"):
        node |= {
            "sel": int(random.integers(60, 90)),
            "attn_layer": int(random.choice([0, 0, 1, 2])),
            "attn": 6,
        }
        node["attn_dotr"] = bool(random.integers(2))
        if kind == "se_atten":
            node["tebd_input_mode"] = str(random.choice(["concat", "strip"]))
            node["smooth_type_embedding"] = bool(random.random() < 0.3)
            node["set_davg_zero"] = True
    if kind in ("se_a_ebd_v2", "se_atten", "se_atten_v2") and random.random() < 0.5:  # can be compressed
        node |= {"neuron": [[4, 8, 16], [6, 12]][random.integers(2)], "resnet_dt": False}
        if kind != "se_a_ebd_v2":
            node["attn_layer"] = 0
        if kind == "se_atten":
            node |= {"tebd_input_mode": "strip", "set_davg_zero": bool(random.integers(2))}
    return node


def structures(random: np.random.Generator, types: int, frames: int) -> list[tuple[np.ndarray, ...]]:
    """Types, positions and cell; structures of one kind, with all atoms at least 0.9 A apart."""
    kinds = np.sort(np.concatenate([np.arange(types), random.integers(0, types, 18 - types)]))
    made = []
    for _ in range(frames):
        cell = np.eye(3) * 7.0 + random.normal(size=(3, 3)) * 0.3
        grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3) / 3
        chosen = random.permutation(27)[: len(kinds)]
        positions = (grid[chosen] + random.uniform(-0.08, 0.08, (len(kinds), 3))) @ cell
        made.append((kinds, positions, cell))
    return made


def write_data(random: np.random.Generator, folder: Path, model: dict) -> None:
    """A system with random labels."""
    frames = structures(random, len(model["type_map"]), 3)
    kinds = frames[0][0]
    data = folder / "set.000"
    data.mkdir(parents=True)
    np.savetxt(folder / "type.raw", kinds, fmt="%d")
    (folder / "type_map.raw").write_text("\n".join(model["type_map"]) + "\n")
    n, count = len(kinds), len(frames)
    arrays = {
        "coord": np.array([p.reshape(-1) for _, p, _ in frames]),
        "box": np.array([c.reshape(-1) for _, _, c in frames]),
        "energy": random.normal(size=(count, 1)) - 2.0 * n,
        "force": random.normal(size=(count, 3 * n)) * 0.1,
        "fparam": random.normal(size=(count, model["fitting_net"]["numb_fparam"])),
        "aparam": random.normal(size=(count, n * model["fitting_net"]["numb_aparam"])),
    }
    for kind, label in LABELS.items():
        arrays[label] = random.normal(size=(count, WIDTHS[kind]))
    for name, array in arrays.items():
        if array.size:
            np.save(data / f"{name}.npy", array)


def write_table(path: Path, types: int) -> None:
    r = np.arange(1, 521) * 0.01
    columns = [30.0 * (k + 1) * np.exp(-r) / r for k in range(types * (types + 1) // 2)]
    np.savetxt(path, np.column_stack([r, *columns]))


def answers(path: Path, model: dict, random: np.random.Generator) -> dict[str, np.ndarray]:
    """DeePMD-kit's results for a periodic structure, a cluster, and a pair that is closer than any in training."""
    from deepmd.tf.infer import DeepPotential

    potential = DeepPotential(str(path))
    output = model["fitting_net"].get("type", "ener")
    types, positions, cell = structures(random, len(model["type_map"]), 1)[0]
    close = np.array([[0.0, 0, 0], [0.75, 0, 0], [0, 2.0, 0]])
    cases = {
        "box": (types, positions, cell),
        "cluster": (types, positions * 1.1, None),
        "close": (np.zeros(3, dtype=int), close, None),
    }
    found = {}
    for name, (kinds, places, box) in cases.items():
        extra = {
            key: random.normal(size=shape)
            for key, shape in (
                ("fparam", (1, model["fitting_net"]["numb_fparam"])),
                ("aparam", (1, len(kinds) * model["fitting_net"]["numb_aparam"])),
            )
            if shape[1]
        }
        values = potential.eval(
            places.reshape(1, -1),
            None if box is None else box.reshape(1, 9),
            kinds.tolist(),
            atomic=True,
            **extra,
        )
        found |= {f"{name}/{key}": value[0] for key, value in extra.items()}
        found |= {f"{name}/types": kinds, f"{name}/positions": places}
        if output == "ener":
            named = zip(("energy", "forces", "virial", "atom_energy"), values[:4], strict=True)
        elif output == "dos":
            named = zip(("dos", "atom_dos"), values, strict=True)
        else:
            named = [(f"atom_{LABELS[output]}", values)]
            if output == "dipole":
                whole = potential.eval_full(
                    places.reshape(1, -1), None if box is None else box.reshape(1, 9), kinds.tolist()
                )
                named += [
                    ("dipole", whole[0]),
                    ("forces", whole[1].transpose(0, 2, 1, 3)),
                    ("virial", whole[2]),
                ]
        found |= {f"{name}/{key}": value[0] for key, value in named}
        if box is not None:
            found[f"{name}/cell"] = box
    return found


def loss(kind: str) -> dict:
    if kind == "dos":
        return {"type": "dos", "start_pref_dos": 1, "limit_pref_dos": 1}
    if kind in WIDTHS:
        return {"type": "tensor", "pref": 1, "pref_atomic": 0}
    weights = {f"{end}_pref_{of}": 1 for end in ("start", "limit") for of in "ef"}
    return {"type": "ener", **weights}


def make(folder: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    kind = "loc_frame" if seed >= LOCAL else KINDS[seed % len(KINDS)]
    model = section(random, kind)
    with tempfile.TemporaryDirectory() as work:
        place = Path(work)
        write_data(random, place / "data", model)
        write_table(place / "table.txt", len(model["type_map"]))
        training = {
            "numb_steps": STEPS,
            "training_data": {"systems": ["data"], "batch_size": 1},
            "disp_freq": 100,
        }
        script = {
            "model": model,
            "learning_rate": {"type": "exp", "start_lr": 1e-3, "stop_lr": 1e-5, "decay_steps": 2},
            "loss": loss(kind),
            "training": training,
        }
        (folder / f"{seed}.json").write_text(json.dumps({"kind": kind, **script}, indent=1))
        (place / "input.json").write_text(json.dumps(script))
        graph, compressed = folder / f"{seed}.pb", folder / f"{seed}.compressed.pb"
        run(place, "train", "input.json")
        run(place, "freeze", "-o", str(graph))
        np.savez(folder / f"{seed}.npz", **answers(graph, model, np.random.default_rng([seed, 1])))
        try:
            run(place, "compress", "-i", str(graph), "-o", str(compressed))
        except RuntimeError:
            return  # many kinds cannot be compressed
        found = answers(compressed, model, np.random.default_rng([seed, 1]))
        np.savez(folder / f"{seed}.compressed.npz", **found)


def run(place: Path, *arguments: str) -> None:
    program = Path(sys.executable).parent / "dp"
    done = subprocess.run(
        [str(program), "--tf", *arguments], cwd=place, capture_output=True, text=True, env=dict(os.environ)
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    for seed in range(int(sys.argv[2]), int(sys.argv[3])):
        if (folder / f"{seed}.npz").exists():
            continue
        try:
            make(folder, seed)
        except Exception as error:
            (folder / f"{seed}.txt").write_text(f"{type(error).__name__}: {error}"[:500])


if __name__ == "__main__":
    main()
