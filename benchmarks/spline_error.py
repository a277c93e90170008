"""Errors of forces for numbers of knots: splines in float64 and in float32 against the exact nets.

    python benchmarks/spline_error.py MODEL [MODEL ...] --data ../shared/data/water/data_3
        [--intervals 64 96 256 1024] [--frames 4]

Largest errors over all atoms of some frames, relative to the largest force. Also the error from which the number of
knots is chosen (`mdops.tables.spline.spline_error`), and the error of the exact nets in float32.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch

import mdops
from mdops.tables.spline import DEFAULT_R_MIN, SplineGrid, spline_error
from mdops.train import PairLists, load_dataset, make_batch


def forces(model: mdops.Potential, batch: object) -> torch.Tensor:
    return model.evaluate(batch.system, batch.neighbors)["forces"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--intervals", nargs="+", type=int, default=[64, 96, 128, 256, 512, 1024, 1536])
    parser.add_argument("--frames", type=int, default=4)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for path in arguments.models:
        single, double = (mdops.load(path, dtype=dtype, spline=False) for dtype in ("float32", "float64"))
        data = load_dataset(arguments.data, double.type_map)
        chosen = np.linspace(0, len(data) - 1, arguments.frames).astype(int)
        batch = make_batch(data, PairLists(data, double.cutoff), chosen)
        exact = forces(double, batch)
        largest = exact.abs().max()
        rounding = float((forces(single, batch) - exact).abs().max() / largest)
        print(f"{path}: exact nets in float32 {rounding:.1e}")
        for intervals in arguments.intervals:
            s_max = float(1 / (DEFAULT_R_MIN + double.model.descriptor.protection))
            with torch.no_grad():
                error = spline_error(
                    double.model.descriptor, SplineGrid(s_max, intervals, DEFAULT_R_MIN, 0.0)
                )
            row = [f"{intervals:5d} intervals: error of pairs {error:.1e}"]
            for name, model in (("float64", double), ("float32", single)):
                model.grid = SplineGrid(s_max, intervals, DEFAULT_R_MIN, error)
                off = float((forces(model, batch) - exact).abs().max() / largest)
                row.append(f"forces in {name} {off:.1e}")
            print("  ".join(row), flush=True)


if __name__ == "__main__":
    main()
