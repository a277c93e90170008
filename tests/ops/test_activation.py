"""The activation functions against their formulas."""

import pickle

import pytest
import torch
from torch_reference import activation as formula

from mdops.errors import UnsupportedModelError
from mdops.ops import mlp_value_and_gradient
from mdops.ops.activation import activation

NAMES = [
    "tanh", "gelu", "gelu_tf", "relu", "relu6", "softplus", "sigmoid", "linear", "none", "silu", "silut",
    "silut:1.5", "custom_silu:10.0", "Tanh", "ReLU6",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_values_and_slopes(name):
    x = torch.linspace(-8, 12, 401, dtype=torch.float64).requires_grad_()
    function = activation(name)
    y, wanted = function(x), formula(name, x)
    assert torch.equal(pickle.loads(pickle.dumps(function))(x), y)  # as models go to other processes
    torch.testing.assert_close(y, wanted, rtol=1e-9, atol=1e-11)
    (slope,), (wanted_slope,) = (torch.autograd.grad(f.sum(), x) for f in (y, wanted))
    smooth = (x.detach().abs() > 1e-9) & ((x.detach() - 6).abs() > 1e-9)
    torch.testing.assert_close(slope[smooth], wanted_slope[smooth], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["silut", "silut:1.5", "custom_silu:0.7"])
def test_silut_goes_over_smoothly(name):
    threshold = float(name.partition(":")[2] or 3.0)
    x = torch.tensor([threshold - 1e-9, threshold + 1e-9], dtype=torch.float64, requires_grad=True)
    y = activation(name)(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert abs(y.detach().diff().item()) < 1e-8
    assert abs(slope.diff().item()) < 1e-8


@pytest.mark.parametrize("name", ["swish", "", "tanh:2", "silut:fast"])
def test_unknown_names_are_refused(name):
    with pytest.raises(UnsupportedModelError, match="activation function"):
        activation(name)


@pytest.mark.parametrize("name", [name for name in NAMES if "custom" not in name and "_tf" not in name])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_the_kernels_of_nets_have_them(name, dtype, most, device):
    """To a few units in the last place of one or of x, and what is not a number stays so."""
    x = torch.cat([torch.linspace(-90, 90, 901), torch.linspace(-3, 3, 1201)]).double()
    one = torch.ones(1, 1, dtype=dtype, device=device)
    y, slope = mlp_value_and_gradient(
        x[:, None].to(device, dtype), [one, one], [0 * one[0], 0 * one[0]], activation=name, residual=False
    )
    exact = x.to(dtype).double().requires_grad_()
    wanted = formula(name, exact)
    (wanted_slope,) = torch.autograd.grad(wanted.sum(), exact)
    limit = most * (1 + x.abs())
    assert ((y[:, 0].cpu() - wanted.detach()).abs() < limit).all()
    smooth = (x.abs() > 1e-5) & ((x - 6).abs() > 1e-5)
    assert ((slope[:, 0].cpu() - wanted_slope).abs() < limit)[smooth].all()
    nan = torch.full((1, 1), torch.nan, dtype=dtype, device=device)
    y, slope = mlp_value_and_gradient(nan, [one, one], [one[0], one[0]], activation=name)
    assert y.isnan().all() and (slope.isnan().all() or name in ("linear", "none"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_silut_of_minus_infinity_is_its_limit_on_a_cpu(dtype):
    """For any number of rows and columns: kernels have loops for whole vectors, and for what is left. On a GPU it is no
    number, as silu is everywhere."""
    for rows, columns in ((1, 1), (3, 5), (40, 33)):
        x, one = torch.full((rows, 1), -torch.inf, dtype=dtype), torch.ones(1, columns, dtype=dtype)
        y, slope = mlp_value_and_gradient(
            x, [one, one.mT.contiguous()], [0 * one[0], 0 * one[0, :1]], activation="silut", residual=False
        )
        assert y.abs().max() < 1e-30 and slope.abs().max() < 1e-30, (rows, columns)
