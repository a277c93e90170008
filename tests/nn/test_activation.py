"""The activation functions against their formulas."""

import pytest
import torch
from torch_reference import activation as formula

from mdops.errors import UnsupportedModelError
from mdops.nn.activation import activation

NAMES = [
    "tanh", "gelu", "gelu_tf", "relu", "relu6", "softplus", "sigmoid", "linear", "none", "silu", "silut",
    "silut:1.5", "custom_silu:10.0", "Tanh", "ReLU6",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_values_and_slopes(name):
    x = torch.linspace(-8, 12, 401, dtype=torch.float64).requires_grad_()
    y, wanted = activation(name)(x), formula(name, x)
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
