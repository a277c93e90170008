"""DeePMD-kit's results for model files: check_deepmd.py runs this in a Python that has DeePMD-kit.

    python deepmd_answers.py JOB.json...

A job: {"original": a file that DeePMD-kit wrote, or null; "written": files that mdops made from it; "systems": .npz;
"tables": a folder with files that the model's definition names; "min_nbor_dist": A, for an original without one;
"folder": for results}. Files in the folder: numpy_<file>.npz, the energies of each file from the NumPy backend;
written_<way>.npz and original_<way>.npz, the results of the PyTorch backend, loaded, frozen and compressed; and
problems.json, with what DeePMD-kit could not do and why.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import load_dp_model, save_dp_model
from deepmd.infer import DeepPot
from deepmd.main import main as dp
from deepmd.pt.model.model.dp_linear_model import LinearEnergyModel
from deepmd.pt.model.model.model import BaseModel

Systems = dict[str, dict[str, np.ndarray]]


def load_systems(path: str) -> Systems:
    systems: Systems = {}
    with np.load(path) as arrays:
        for key in arrays:
            name, _, what = key.partition("/")
            systems.setdefault(name, {})[what] = arrays[key]
    return systems


def numpy_answers(path: str, systems: Systems) -> dict[str, np.ndarray]:
    """Energies from the NumPy backend, which supports no virtual atoms."""
    potential, found = DeepPot(path), {}
    for name, system in systems.items():
        if (system["types"] < 0).any():
            continue
        frames = len(system["positions"])
        cells = system["cell"].reshape(frames, 9) if "cell" in system else None
        extra = {key: system[key] for key in ("fparam", "aparam") if key in system}
        energy, _, _, atom_energy, *_ = potential.eval(
            system["positions"], cells, system["types"], atomic=True, **extra
        )
        found |= {f"{name}/energy": energy, f"{name}/atom_energy": atom_energy}
    return found


def answered(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> dict[str, torch.Tensor]:
    """Results of a model of the PyTorch backend for the frames of a system."""
    frames = len(inputs["positions"])
    return model(
        inputs["positions"].requires_grad_(),
        inputs["types"].expand(frames, -1),
        box=inputs["cell"].reshape(frames, 9) if "cell" in inputs else None,
        fparam=inputs.get("fparam"),
        aparam=inputs.get("aparam"),
        **options,
    )


def torch_answers(model: Any, systems: Systems) -> dict[str, np.ndarray]:
    """Energies, forces and virials of a model of the PyTorch backend, frozen or not."""
    found = {}
    for name, system in systems.items():
        inputs = {key: torch.as_tensor(value) for key, value in system.items()}
        frames, atoms, _ = inputs["positions"].shape
        result = answered(model, inputs)
        shapes = {"energy": (frames, 1), "force": (frames, atoms, 3), "virial": (frames, 3, 3)}
        for key, shape in shapes.items():
            plural = "forces" if key == "force" else key
            found[f"{name}/{plural}"] = result[key].detach().numpy().reshape(shape)
    return found


def loaded(path: str) -> Any:
    """A model in PyTorch. DeePMD-kit's own look-up does not find linear models by the name in their files."""
    tree = load_dp_model(path)["model"]
    kind = LinearEnergyModel if tree["type"] == "linear" else BaseModel
    return kind.deserialize(tree).eval()


class Job:
    def __init__(self, path: Path) -> None:
        self.description = json.loads(path.read_text())
        self.folder = Path(self.description["folder"])
        self.systems = load_systems(self.description["systems"])
        self.problems: dict[str, str] = {}
        os.chdir(self.description["tables"])

    def attempt(self, name: str, work: Callable[[], dict[str, np.ndarray]]) -> None:
        """Stores the results, or the reason why there are none."""
        try:
            np.savez(self.folder / f"{name}.npz", **work())
        except (Exception, SystemExit) as error:
            first = next(iter(str(error).strip().splitlines()), "")
            self.problems[name] = f"{type(error).__name__}: {first}"[:300]

    def run(self) -> None:
        written = self.description["written"]
        for suffix, path in written.items():
            self.attempt(f"numpy_{suffix}", lambda path=path: numpy_answers(path, self.systems))
        self.every_way("written", written["dp"])
        if self.description["original"]:
            self.attempt("numpy_original", lambda: numpy_answers(self.description["original"], self.systems))
            self.every_way("original", self.completed_original())
        (self.folder / "problems.json").write_text(json.dumps(self.problems))

    def every_way(self, name: str, path: str) -> None:
        """Results of the PyTorch backend: loaded, frozen, and compressed."""
        frozen, compressed = (str(self.folder / f"{name}_{way}.pth") for way in ("frozen", "compressed"))
        self.attempt(f"{name}_loaded", lambda: torch_answers(loaded(path), self.systems))
        self.attempt(f"{name}_frozen", lambda: self.command(["convert-backend", path, frozen], frozen))
        if f"{name}_frozen" in self.problems:
            self.problems[f"{name}_compressed"] = "it is not frozen"
            return
        self.attempt(
            f"{name}_compressed",
            lambda: self.command(["--pt", "compress", "-i", frozen, "-o", compressed], compressed),
        )

    def command(self, arguments: list[str], target: str) -> dict[str, np.ndarray]:
        """The results for the file that a command of DeePMD-kit writes."""
        dp(arguments)
        with torch.jit.optimized_execution(False):  # compiling takes longer than a few small systems
            return torch_answers(torch.jit.load(target), self.systems)

    def completed_original(self) -> str:
        """The original, completed with what DeePMD-kit needs to freeze and compress a model."""
        data = load_dp_model(self.description["original"])
        data.setdefault("@variables", {}).setdefault("min_nbor_dist", self.description["min_nbor_dist"])
        if "model_def_script" not in data:
            data["model_def_script"] = load_dp_model(self.description["written"]["dp"])["model_def_script"]
        path = str(self.folder / "original.dp")
        save_dp_model(path, data)
        return path


if __name__ == "__main__":
    torch.set_num_threads(1)
    for job in sys.argv[1:]:
        print(Path(job).parent.name, flush=True)
        Job(Path(job).resolve()).run()
