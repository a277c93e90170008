"""Prints the probabilities of systems, the sizes of batches and the steps of an epoch that DeePMD-kit's PyTorch code
has, for tests/train/test_sampler.py.

DEEPMD_PYTHON tests/data/make_sampling.py    (DeePMD-kit 3.2.0)
"""

import tempfile
from pathlib import Path

import numpy as np
from deepmd.dpmodel.utils.training_utils import compute_total_numb_batch
from deepmd.pt.utils.dataloader import DpLoaderSet, get_sampler_from_params

SYSTEMS = [(7, 4), (3, 8), (5, 12), (4, 2), (9, 6)]  # frames and atoms of each
CASES = [
    (1, "prob_sys_size"),
    (2, "prob_sys_size;0:2:0.3;2:5:0.7"),
    ("auto:16", "prob_sys_size;0:2:3;2:5:1"),
    (2, "prob_sys_size;0:3:0.5;1:5:0.5"),
    (2, "prob_sys_size;0:1:0.25;3:4:0.75"),
    (2, "prob_sys_size;-2:5:0.5;0:-2:0.5"),
    (2, "prob_sys_size;0:2:0.5;2:99:0.5"),
    (2, "prob_sys_size;0:2:0.5;7:9:0.5"),
    ("max:9", "prob_sys_size;0:2:0;2:5:1"),
    ("filter:8", "prob_sys_size"),
    ("filter:8", "prob_sys_size;0:2:0.5;2:4:0.5"),
    ("filter:4", "prob_uniform"),
]


def write(folder: Path, frames: int, atoms: int) -> str:
    (folder / "set.000").mkdir(parents=True)
    (folder / "type.raw").write_text("0\n" * atoms)
    (folder / "type_map.raw").write_text("Cu\n")
    random = np.random.default_rng(frames)
    np.save(folder / "set.000" / "coord.npy", random.uniform(0, 9, (frames, 3 * atoms)))
    np.save(folder / "set.000" / "box.npy", np.tile(9 * np.eye(3).ravel(), (frames, 1)))
    np.save(folder / "set.000" / "energy.npy", np.zeros(frames))
    return str(folder)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        systems = [write(Path(folder, str(k)), *of) for k, of in enumerate(SYSTEMS)]
        for rule, style in CASES:
            loaders = DpLoaderSet(systems, rule, ["Cu"])
            weights = get_sampler_from_params(loaders, {"auto_prob": style}).weights.numpy()
            sizes = [int(size) for size in loaders.batch_sizes]
            shares = [round(float(share), 15) for share in weights / weights.sum()]
            print(
                f"    ({rule!r}, {style!r}, {sizes}, {shares}, {compute_total_numb_batch(loaders.index, weights)}),"
            )


if __name__ == "__main__":
    main()
