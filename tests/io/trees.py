"""Comparing trees, and the files that the tests of this folder read."""

import zipfile
from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[1] / "data"
REFERENCE = Path(__file__).parents[3] / "shared" / "reference"

FORMATS = DATA / "formats"
ONE_SIDE = DATA / "se_a_oneside"
CHECKPOINTS = DATA / "checkpoints"
OUTPUTS = DATA / "outputs"  # checkpoints of other outputs than energies


def compiled(path, text):
    """A compiled model as DeePMD-kit writes it, of a JSON file, but for the code; a .pt2 has two folders."""
    added = "model" if path.suffix == ".pt2" else path.stem
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/byteorder", "little")
        archive.writestr(f"{path.stem}/data/weights/model_weights_config.json", "{}")
        archive.writestr(f"{added}/extra/model_def_script.json", '{"descriptor": {"type": "se_e2_r"}}')
        archive.writestr(f"{added}/extra/model.json", text.read_bytes())
    return path


def differences(a, b, place=""):
    """The places where two trees differ; arrays must agree in dtype, shape and every bit."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        same = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
        same = same and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return [] if same else [place]
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted(a.keys() | b.keys())
        missing = [f"{place}.{key}" for key in keys if key not in a or key not in b]
        shared = (key for key in keys if key in a and key in b)
        return missing + [d for key in shared for d in differences(a[key], b[key], f"{place}.{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = zip(a, b, strict=True)
        return [d for i, (x, y) in enumerate(pairs) for d in differences(x, y, f"{place}[{i}]")]
    return [] if type(a) is type(b) and a == b else [place]
