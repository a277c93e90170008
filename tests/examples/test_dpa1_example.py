"""examples/dpa1.py, shortened: a model of four metals becomes one of two, which knows these better, and moves."""

import importlib
import re
import warnings

import ase.io

import mdops


def test_dpa1(examples, tmp_path, capsys):
    example = importlib.import_module("dpa1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example.study(tmp_path, steps=40, fine_steps=10, time=0.02, count=1)
        many, few = (mdops.load(tmp_path / name / "model.safetensors") for name in ("many", "few"))
    assert (many.type_map, few.type_map) == (["Al", "Ni", "Cu", "Ag"], ["Cu", "Al"])
    assert [model.model.descriptor.options.attn_layer for model in (many, few)] == [2, 2]
    before, after = map(
        float, re.findall(r"^ +energy +[\d.]+ +([\d.]+)", capsys.readouterr().out, re.MULTILINE)
    )
    assert after < 0.8 * before  # meV/atom, of frames that neither was trained on
    frames = ase.io.read(tmp_path / "run.extxyz", ":")
    assert len(frames) == 2 and len(frames[1]) == 256
    assert abs(frames[1].positions - frames[0].positions).max() > 0.01
