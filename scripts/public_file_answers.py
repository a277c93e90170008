"""DeePMD-kit's results for model files, for scripts/check_public_files.py, in a Python with DeePMD-kit.

    python scripts/public_file_answers.py BACKEND FILE...

BACKEND is tf or pt. Writes results for three structures to FILE.npz beside each file, or DeePMD-kit's message to
FILE.txt if it refuses the file. A graph that is refused because of its age is converted with `dp convert-from`,
if possible.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

DISTANCE = 2.4  # A, between the sites of a grid with the atoms
CASES = {"box": (27, 3), "triclinic": (60, 4), "cluster": (11, 3)}  # atoms, and sites along an edge


def structure(case: str, ntypes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Types, positions and cell, always the same for a case."""
    atoms, edge = CASES[case]
    random = np.random.default_rng([atoms, edge])
    cell = np.eye(3) * edge * DISTANCE
    if case == "triclinic":
        cell += random.normal(size=(3, 3)) * 0.5
    grid = np.stack(np.meshgrid(*[np.arange(edge)] * 3), -1).reshape(-1, 3)
    places = grid[random.permutation(edge**3)[:atoms]] / edge + random.uniform(-0.03, 0.03, (atoms, 3))
    types = np.sort(random.permutation(ntypes)[np.arange(atoms) % min(ntypes, 5) % ntypes])
    return types, places @ cell, None if case == "cluster" else cell


def potential(path: Path, backend: str, folder: Path) -> Any:
    program = Path(sys.executable).parent / "dp"
    if backend == "pt":
        from deepmd.infer import DeepPot

        if path.suffix in (".dp", ".yaml"):  # the backend for these gives no forces
            frozen = folder / "model.pth"
            subprocess.run([program, "convert-backend", path, frozen], check=True, capture_output=True)
            path = frozen
        model = DeepPot(str(path))
        if path.suffix != ".pth":
            return model
        return Program(path, model)
    from deepmd.tf.infer import DeepPotential

    if path.suffix == ".pbtxt":
        from deepmd.tf.utils.convert import convert_pbtxt_to_pb

        binary = folder / "graph.pb"
        convert_pbtxt_to_pb(str(path), str(binary))
        path = binary
    try:
        return DeepPotential(str(path))
    except Exception as error:
        newer = folder / "newer.pb"
        command = [program, "--tf", "convert-from", "auto", "-i", path, "-o", newer]
        if subprocess.run(command, capture_output=True).returncode or not newer.exists():
            raise error
        return DeepPotential(str(newer))


class Program:
    """The TorchScript in a file. In files of older versions, it takes fewer arguments than DeePMD-kit passes."""

    def __init__(self, path: Path, model: Any) -> None:
        import torch

        self.torch, self.model = torch, torch.jit.load(path, map_location="cpu")
        self.get_ntypes, self.sizes = model.get_ntypes, (model.get_dim_fparam(), model.get_dim_aparam())

    def get_dim_fparam(self) -> int:
        return self.sizes[0]

    def get_dim_aparam(self) -> int:
        return self.sizes[1]

    def eval(
        self,
        positions: np.ndarray,
        cell: np.ndarray | None,
        types: list[int],
        atomic: bool,
        **extra: np.ndarray,
    ) -> list[np.ndarray]:
        inputs = {name: self.torch.tensor(value) for name, value in extra.items()}
        if "aparam" in inputs:
            inputs["aparam"] = inputs["aparam"].view(1, len(types), -1)
        found = self.model(
            self.torch.tensor(positions).view(1, -1, 3),
            self.torch.tensor(types)[None],
            None if cell is None else self.torch.tensor(cell),
            **inputs,
        )
        return [found[name].detach().numpy() for name in ("energy", "force", "virial", "atom_energy")]


def operations(model: Any) -> set[str]:
    """The operations of a graph; empty for other models."""
    graph = getattr(getattr(model, "deep_eval", None), "graph", None)
    return set() if graph is None else {one.type for one in graph.get_operations()}


def places(model: Any) -> list[int]:
    """The key `sel` in the training input in a graph."""
    graph, session = model.deep_eval.graph, model.deep_eval.sess
    text = session.run(graph.get_tensor_by_name("load/train_attr/training_script:0"))
    found: list[int] = json.loads(text)["model"]["descriptor"]["sel"]
    return found


def answers(model: Any) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    fparam, aparam = model.get_dim_fparam(), model.get_dim_aparam()
    pairwise, masks = (name in operations(model) for name in ("DprcPairwiseIdx", "DescrptSeAMask"))
    for case in ["cluster"] if pairwise or masks else CASES:  # the cluster has no cell
        types, positions, cell = structure(case, model.get_ntypes())
        if masks:  # the model is made for this number of atoms of each type
            types = np.repeat(np.arange(model.get_ntypes()), places(model))
            positions = np.random.default_rng(len(types)).uniform(size=(len(types), 3)) * 10
        extra = {}
        if fparam:
            extra["fparam"] = np.full((1, fparam), 0.3)
        if aparam:
            extra["aparam"] = np.full((1, len(types) * aparam), 0.3)
        if masks:  # the last atom of each type is absent
            extra["aparam"] = np.ones((1, len(types)))
            extra["aparam"][0, np.cumsum(places(model)) - 1] = 0
        if pairwise:
            extra["aparam"] = (
                np.arange(len(types))[None] // 3.0
            )  # a quantum region of three atoms, and residues
        box = None if cell is None else cell.reshape(1, 9)
        values = model.eval(positions.reshape(1, -1), box, types.tolist(), atomic=True, **extra)
        kind = type(model).__name__
        if kind in ("DeepPot", "Program"):
            named = dict(zip(("energy", "forces", "virial", "atom_energy"), values[:4], strict=True))
        elif kind == "DeepDOS":
            named = dict(zip(("dos", "atom_dos"), values[:2], strict=True))
        elif kind == "DeepDipole":
            named = {"atom_dipole": values}
        elif kind == "DeepPolar":
            named = {"atom_polarizability": values}
        else:
            raise RuntimeError(f"answers of {kind} are not compared")
        if masks:
            del named["virial"]  # zeros
        found |= {f"{case}/{name}": np.asarray(value)[0] for name, value in named.items()}
        found |= {f"{case}/{name}": value[0] for name, value in extra.items()}
        found |= {f"{case}/types": types, f"{case}/positions": positions}
        if cell is not None:
            found[f"{case}/cell"] = cell
    return found


def main() -> None:
    backend, files = sys.argv[1], [Path(name).resolve() for name in sys.argv[2:]]
    for path in files:
        with tempfile.TemporaryDirectory() as made:
            os.chdir(made)
            try:
                np.savez(path.with_name(path.name + ".npz"), **answers(potential(path, backend, Path(made))))
            except Exception as error:
                words = f"{type(error).__name__}: {error}".strip().splitlines()
                path.with_name(path.name + ".txt").write_text(words[0][:300])


if __name__ == "__main__":
    main()
