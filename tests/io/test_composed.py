"""Models made of models, and pair tables: their trees are checked as those of others are."""

import copy

import numpy as np
import pytest
import torch
from trees import CHECKPOINTS, differences

from mdops.errors import ModelFileError
from mdops.io import describe, read_model
from mdops.io.upgrade import upgrade

LINEAR = read_model(CHECKPOINTS / "linear.dp").model
ZBL = read_model(CHECKPOINTS / "zbl.dp").model


def table(tree):
    return tree["models"][1]["tab"]


@pytest.mark.parametrize(
    ("tree", "edit", "message"),
    [
        (LINEAR, lambda t: t["weights"].pop(), "number of weights of model is 2"),
        (LINEAR, lambda t: t.update(weights="half"), "weights cannot be 'half'"),
        (LINEAR, lambda t: t.update(models=[]), "models is empty"),
        (LINEAR, lambda t: t.update(models={}), "models cannot be"),
        (LINEAR, lambda t: t["models"][2].update(type_map=["H", "C", "N"]), "type_map"),
        (LINEAR, lambda t: t.update(type_map=["O", "C"]), r"models\[0\] does not know the type C"),
        (LINEAR, lambda t: t["models"][0]["descriptor"].update(rcut=-1.0), r"models\[0\]\.descriptor\.rcut"),
        (LINEAR, lambda t: t["models"][0].update({"@class": "Thing"}), "unknown class 'Thing'"),
        (LINEAR, lambda t: t.update({"@class": "Thing"}), "'@class' of a linear model"),
        (LINEAR, lambda t: t["@variables"].update(out_bias=np.zeros((1, 3, 1))), "out_bias has shape"),
        (ZBL, lambda t: t["models"].reverse(), r"kinds of model\.models\[1:\]"),
        (ZBL, lambda t: t["models"].pop(), r"kinds of model\.models\[1:\]"),
        (ZBL, lambda t: t.update(sw_rmax=t["sw_rmin"]), "sw_rmax"),
        (ZBL, lambda t: t.update(smin_alpha=0.0), "smin_alpha cannot be 0.0"),
        (ZBL, lambda t: t.pop("sw_rmin"), "lacks 'sw_rmin'"),
        (ZBL, lambda t: t["models"][1].update(sel=0), "no neighbours"),
        (ZBL, lambda t: t["models"][1].update(rcut=4.0), r"\(ntypes, rcut\)"),
        (ZBL, lambda t: table(t).update(hh=0.0), "hh cannot be 0.0"),
        (ZBL, lambda t: table(t).update(hh=0.2), "tab_info"),
        (ZBL, lambda t: table(t).update(nspline=3), "vdata"),
        (ZBL, lambda t: table(t)["@variables"].update(tab_data=np.zeros(7)), "tab_data"),
        (ZBL, lambda t: table(t)["@variables"].pop("vdata"), "lacks 'vdata'"),
    ],
)
def test_what_does_not_fit_is_refused(tree, edit, message):
    tree = copy.deepcopy(tree)
    assert differences(upgrade(tree), tree) == []
    edit(tree)
    with pytest.raises(ModelFileError, match=message):
        upgrade(tree)


def test_a_part_of_another_kind_passes_and_is_named():
    tree = copy.deepcopy(LINEAR)
    tree["models"][1] = {"@class": "Model", "type": "inner_potential", "type_map": ["O", "H"], "mode": "zbl"}
    assert describe(upgrade(tree)).descriptor == "dpa1 + unknown + dpa1"


def edited(path, edit):
    checkpoint = torch.load(CHECKPOINTS / "zbl.pt", weights_only=True)
    edit(checkpoint["model"], checkpoint["model"]["_extra_state"]["model_params"])
    torch.save(checkpoint, path)
    return path


TAB = "model.Default.atomic_model.models.1.tab_"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda s, p: s.pop(TAB + "data"), "tab_data are missing"),
        (lambda s, p: s.update({TAB + "data": s[TAB + "data"][:, :, 1:]}), "does not fit its tab_info"),
        (lambda s, p: s.update({TAB + "info": s[TAB + "info"][:3]}), "does not fit its tab_info"),
        (lambda s, p: s[TAB + "info"].mul_(torch.tensor([1.0, 0.0, 1.0, 1.0])), "hh cannot be 0.0"),
        (lambda s, p: s[TAB + "info"].fill_(float("nan")), "does not fit its tab_info"),
        (lambda s, p: s[TAB + "data"][0, 0, 0].fill_(float("nan")), "NaN"),
        (lambda s, p: p.pop("sw_rmax"), "lacks sw_rmax"),
        (lambda s, p: s.pop("model.Default.atomic_model.models.0.out_bias"), "models.0.out_bias are missing"),
    ],
)
def test_checkpoints_whose_table_does_not_fit(tmp_path, edit, message):
    with pytest.raises(ModelFileError, match=message):
        read_model(edited(tmp_path / "m.pt", edit))


@pytest.mark.parametrize(
    ("kind", "cutoff", "sel"), [("dpa2", 5.0, 12), ("dpa3", 5.0, 12), ("hybrid", 5.0, 20)]
)
def test_checkpoints_with_a_table_and_any_descriptor(tmp_path, kind, cutoff, sel):
    """The table has the cutoff and the places of the descriptor, whatever its keys for these are called."""
    net = torch.load(CHECKPOINTS / f"{kind}.pt", weights_only=True)["model"]
    own, place = net.pop("_extra_state")["model_params"], "model.Default.atomic_model."

    def with_net(state, params):
        params.update(descriptor=own["descriptor"], fitting_net=own["fitting_net"])
        for name in [name for name in state if name.startswith(f"{place}models.0.")]:
            del state[name]
        state.update({n.replace(place, f"{place}models.0."): v for n, v in net.items() if place in n})

    found = read_model(edited(tmp_path / "m.pt", with_net)).model["models"]
    wanted = read_model(CHECKPOINTS / f"{kind}.dp").model
    assert differences(found[0]["descriptor"], wanted["descriptor"]) == []
    assert (found[1]["rcut"], found[1]["sel"]) == (cutoff, sel)


def test_the_parameter_that_deepmd_kit_does_not_take():
    """`smin_alpha` of the input has no effect in DeePMD-kit's PyTorch code, whose own file says so."""
    file = read_model(CHECKPOINTS / "zbl.pt")
    assert file.source["model_def_script"]["smin_alpha"] == 0.3
    assert file.model["smin_alpha"] == ZBL["smin_alpha"] == 0.1


@pytest.mark.parametrize("trainable", [True, False, None])
def test_one_word_on_trainable_is_said_of_each_layer(trainable):
    tree = read_model(CHECKPOINTS / "se_e2_r.dp").model
    tree["fitting"]["trainable"] = trainable
    assert upgrade(tree)["fitting"]["trainable"] == [trainable is not False] * 3
