"""Fine-tunes a model of many elements on 20 frames of water, and trains one from random weights: both learning curves.

    python benchmarks/fine_tuning.py EXAMPLES [--size published --device cuda] [--pretrained FILE --head NAME]
        [--json FILE] [--plot FILE]

EXAMPLES is the folder `examples` of DeePMD-kit's repository. Without `--pretrained`, a DPA-3 of 118 elements is trained
first, with the layout of DeePMD-kit's published checkpoints: several models share a descriptor and a fitting net, but
each has its own case embedding and averages. Its data are public except for the alloys:

- water: of DPLR's example, whose energies come from another method than those of the water used for fine-tuning;
- molecules: clusters of C, H and O as in a flame (`nopbc`), without forces above 5 eV/A;
- organic: two molecules of C, H, N and O (`hessian`);
- titania: Ti and O (`population`);
- telluride: Ge and Te (`nvnmd`);
- alloys: random crystals of seven metals, which ASE's EMT labels.

Then the same input is trained on the first 20 frames of `water/data/data_0`: from `--head` of that model, from random
weights, and from random weights with five times as many steps. Errors are RMSE of all frames of `water/data/data_3`;
step 0 is before the first step.
"""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase.data import chemical_symbols
from machine import machine

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from dpa1 import frames

from mdops.data.evaluation import evaluate
from mdops.train import Trainer, load_dataset, read_input

ELEMENTS = chemical_symbols[1:119]
METALS = ["Al", "Ni", "Cu", "Pd", "Ag", "Pt", "Au"]
# The heads, with their data in the folder of examples and their shares of the steps.
HEADS = {
    "water": (["water/dplr/train/data"], 5),
    "molecules": (["nopbc/data/C1H4O2", "nopbc/data/C3H3O4"], 1),
    "organic": (["hessian/data/H8C4N2O", "hessian/data/H10C5N2O"], 1),
    "titania": (["population/data"], 0.5),
    "telluride": (["nvnmd/data"], 0.5),
    "alloys": (["alloys.extxyz"], 2),
}
LARGEST = 5.0  # eV/A
FRAMES, POINTS = 20, 12
LONGER = 5  # factor of the number of steps, in one more training from random weights
Curves = dict[str, list[list[dict[str, float]]]]
# Nets, cutoffs and lengths; "published" has 6 layers, 128, 64 and 32 wide.
SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "repflow": {"n_dim": 32, "e_dim": 16, "a_dim": 8, "nlayers": 3, "e_rcut": 4.5, "e_rcut_smth": 3.5,
                    "e_sel": 60, "a_rcut": 3.0, "a_rcut_smth": 2.5, "a_sel": 16},
        "neuron": [64, 64], "batch": "auto:64", "rate": 5e-3, "pretraining": 2500, "steps": 400,
    },
    "published": {
        "repflow": {"n_dim": 128, "e_dim": 64, "a_dim": 32, "nlayers": 6, "e_rcut": 6.0, "e_rcut_smth": 5.3,
                    "e_sel": 120, "a_rcut": 4.0, "a_rcut_smth": 3.5, "a_sel": 30},
        "neuron": [240, 240, 240], "batch": "auto:192", "rate": 1e-3, "pretraining": 5000, "steps": 1200,
    },
}  # fmt: skip
LOSS = {"type": "ener", "start_pref_e": 0.2, "limit_pref_e": 20, "start_pref_f": 100, "limit_pref_f": 60}


def parts(size: dict[str, Any], heads: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The descriptor's and the fitting net's sections."""
    repflow = {
        "axis_neuron": 4, "fix_stat_std": 0.3, "a_compress_rate": 1, "a_compress_e_rate": 2,
        "a_compress_use_split": True, "update_angle": True, "smooth_edge_update": True, "edge_init_use_dist": True,
        "use_exp_switch": True, "use_dynamic_sel": True, "sel_reduce_factor": 10.0, "update_style": "res_residual",
        "update_residual": 0.1, "update_residual_init": "const",
    }  # fmt: skip
    repflow |= size["repflow"] | {
        key: 10 * size["repflow"][key] for key in ("e_sel", "a_sel")
    }  # will be divided by sel_reduce_factor
    descriptor = {"type": "dpa3", "repflow": repflow, "activation_function": "silut:10.0", "use_tebd_bias": False,
                  "precision": "float32", "concat_output_tebd": False}  # fmt: skip
    fitting = {"neuron": size["neuron"], "activation_function": "silut:10.0", "precision": "float32",
               "dim_case_embd": heads}  # fmt: skip
    return descriptor, fitting


def rates(size: dict[str, Any], steps: int) -> dict[str, Any]:
    return {
        "learning_rate": {"type": "cosine", "start_lr": size["rate"], "stop_lr_ratio": 0.01},
        "optimizer": {"type": "AdamW", "weight_decay": 1e-3},
        "training": {"numb_steps": steps, "save_freq": steps, "gradient_max_norm": 5.0},
    }


def trainer_of(arguments: argparse.Namespace, tree: dict[str, Any], folder: Path, **begun: Any) -> Trainer:
    """A training with an input, which is written to its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "input.json").write_text(json.dumps(tree, indent=1))
    return Trainer(read_input(folder / "input.json"), folder, device=arguments.device, **begun)


def chosen(system: Path, folder: Path, most: int | None = None) -> Path:
    """A copy of a system with its first frames among those whose forces are at most LARGEST."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in system.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    for place in system.glob("set.*"):
        forces = np.load(place / "force.npy").reshape(len(np.load(place / "coord.npy")), -1)
        kept = np.flatnonzero(np.abs(forces).max(1) <= LARGEST)[:most]
        (folder / place.name).mkdir(exist_ok=True)
        for name in ("box", "coord", "energy", "force"):
            if (place / f"{name}.npy").exists():
                np.save(folder / place.name / f"{name}.npy", np.load(place / f"{name}.npy")[kept])
    return folder


def pretrain(arguments: argparse.Namespace, size: dict[str, Any], folder: Path) -> Path:
    """Trains all heads; returns the file of the chosen head's model."""
    folder.mkdir(parents=True, exist_ok=True)
    ase.io.write(folder / "alloys.extxyz", frames([METALS[k : k + 4] for k in range(4)], 60, seed=1))
    descriptor, fitting = parts(size, len(HEADS))
    model = {"type_map": "types", "descriptor": "descriptor", "fitting_net": "fitting"}

    def data(systems: list[str]) -> dict[str, Any]:
        own = [
            folder / s if s.endswith("xyz") else chosen(arguments.examples / s, folder / s) for s in systems
        ]
        return {"training_data": {"systems": [str(path) for path in own], "batch_size": size["batch"]}}

    tree = rates(size, size["pretraining"]) | {
        "model": {
            "shared_dict": {"types": ELEMENTS, "descriptor": descriptor, "fitting": fitting},
            "model_dict": {name: dict(model) for name in HEADS},
        },
        "loss_dict": dict.fromkeys(HEADS, LOSS),
    }
    tree["training"] |= {
        "data_dict": {name: data(systems) for name, (systems, _) in HEADS.items()},
        "model_prob": {name: often for name, (_, often) in HEADS.items()},
        "seed": 1,
    }
    trainer = trainer_of(arguments, tree, folder)
    trainer.run(lambda r: print(r.step, r.branch, r.training["loss"], flush=True) if r.training else None)
    return folder / arguments.head / "model.safetensors"


def curve(
    arguments: argparse.Namespace, tree: dict[str, Any], folder: Path, tested: Any, **begun: Any
) -> list[dict[str, float]]:
    """Errors by step of a training."""
    trainer = trainer_of(arguments, tree, folder, **begun)
    found: list[dict[str, float]] = []
    steps = tree["training"]["numb_steps"]
    points = {0, *np.geomspace(max(1, steps // 100), steps, POINTS - 1).round().astype(int).tolist()}

    def point(step: int) -> None:
        if step in points:
            errors = evaluate(trainer.potential, tested).errors()
            found.append({"step": step, "forces": errors["forces"].rmse, "energy": errors["energy"].rmse})
            print(f"{folder.name} {found[-1]}", flush=True)

    point(0)
    trainer.run(on_step=point)
    return found


def plot(runs: Curves, path: Path) -> None:
    """Draws both errors against steps, with a line for each training."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
    for ax, name, unit in zip(axes, ("forces", "energy"), ("meV/A", "meV/atom"), strict=True):
        for (label, lines), color in zip(runs.items(), ("tab:blue", "tab:gray", "tab:orange"), strict=True):
            for k, line in enumerate(lines):
                points = [(row["step"], 1e3 * row[name]) for row in line if row["step"]]
                ax.loglog(*zip(*points, strict=True), color=color, label=None if k else label)
        ax.set(xlabel="steps", ylabel=f"{name}, RMSE, {unit}")
        ax.grid(which="both", alpha=0.25)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    figure.savefig(path, dpi=72)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("examples", type=Path, help="DeePMD-kit's folder examples")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument(
        "--pretrained", type=Path, help="a file of several models, in the place of one trained here"
    )
    parser.add_argument("--head", default="water", help="of its models the one to begin with")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each kind")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=Path, default=Path("fine_tuning"), help="a folder for all trainings")
    parser.add_argument("--commit", help="where the sources are no checkout")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    size, start = SIZES[arguments.size], time.perf_counter()
    pretrained = arguments.pretrained or pretrain(arguments, size, arguments.work / "pretraining")
    answer: dict[str, Any] = {
        "machine": machine(arguments.device, arguments.commit),
        "size": {arguments.size: size},
        "head": arguments.head,
        "pretraining, s": round(time.perf_counter() - start, 1),
    }
    head = arguments.head if arguments.pretrained else None  # mdops writes a file for each head
    water = arguments.examples / "water/data"
    few = chosen(water / "data_0", arguments.work / "few", FRAMES)
    tested = load_dataset([str(water / "data_3")], ["O", "H"])
    descriptor, fitting = parts(size, 0 if arguments.pretrained else len(HEADS))
    model = {"type_map": ["O", "H"], "descriptor": descriptor, "fitting_net": fitting}
    kinds: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
        (
            "fine-tuned",
            1,
            arguments.seeds,
            {"finetune": pretrained, "head": head, "use_pretrain_script": True},
        ),
        ("from random weights", 1, arguments.seeds, {}),
        (f"the same, {LONGER} times the steps", LONGER, 1, {}),
    )
    runs: Curves = {}
    for label, times, seeds, begun in kinds:
        runs[label] = []
        for seed in range(1, seeds + 1):
            tree = rates(size, times * size["steps"]) | {"model": model, "loss": LOSS}
            tree["training"] |= {"training_data": {"systems": [str(few)], "batch_size": 1}, "seed": seed}
            folder = arguments.work / f"{label.replace(' ', '_')}-{seed}"
            runs[label].append(curve(arguments, tree, folder, tested, **begun))
    if arguments.json:
        lines = ",\n".join(
            f'  "{label}": [\n   ' + ",\n   ".join(json.dumps(line) for line in found) + "\n  ]"
            for label, found in runs.items()
        )
        arguments.json.write_text(json.dumps(answer, indent=1)[:-2] + f',\n "curves": {{\n{lines}\n }}\n}}\n')
    if arguments.plot:
        plot(runs, arguments.plot)


if __name__ == "__main__":
    main()
