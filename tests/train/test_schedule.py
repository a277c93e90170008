"""Learning rates are DeePMD-kit's; averages follow the weights."""

import math

import pytest
import torch

from mdops.errors import ConfigError
from mdops.train.config.sections import LearningRateConfig
from mdops.train.loop.schedule import LearningRate, WeightAverage


def rate_of(start, stop, steps, **keys):
    return LearningRate(LearningRateConfig(start_lr=start, stop_lr=stop, **keys), steps)


def test_exponential_falls_in_stairs_to_the_stop():
    rate = rate_of(1e-3, 1e-6, 200, decay_steps=20)
    assert rate(0) == rate(19) == 1e-3
    assert rate(20) == pytest.approx(1e-3 * 10**-0.3) and rate(200) == pytest.approx(1e-6)
    assert rate(400) == 1e-6
    assert rate_of(1e-3, 1e-6, 200, decay_steps=20, smooth=True)(10) == pytest.approx(1e-3 * 10**-0.15)


def test_rates_of_a_training_by_deepmd_kit():
    """1e-3 to 3.51e-8 in 15000 steps falls every 5000 by default; and with a decay rate given."""
    rate = rate_of(1e-3, 3.51e-8, 15000)
    assert rate(4999) == 1e-3 and rate(5000) == pytest.approx(1e-3 * 3.51e-5 ** (1 / 3))
    assert rate_of(1e-3, 1e-8, 100, decay_steps=10, decay_rate=0.5)(25) == pytest.approx(2.5e-4)


def test_the_last_rate_is_deepmd_kits_by_default():
    rate = LearningRate(LearningRateConfig(start_lr=1e-3, decay_steps=100), 40000)
    assert rate.stop == 5e-8 and rate(20000) == pytest.approx((1e-3 * 5e-8) ** 0.5)


def test_too_long_decay_steps_are_replaced():
    assert rate_of(1e-3, 1e-5, 400)(5) == pytest.approx(1e-3 * 1e-2 ** (5 / 400))
    assert rate_of(1e-3, 1e-5, 4000)(150) == pytest.approx(1e-3 * 1e-2 ** (100 / 4000))


def test_cosine_and_warm_up():
    rate = rate_of(1e-3, 1e-5, 110, type="cosine", warmup_steps=10, warmup_start_factor=0.1)
    assert rate(0) == pytest.approx(1e-4) and rate(5) == pytest.approx(5.5e-4) and rate(10) == 1e-3
    assert rate(60) == pytest.approx(5.05e-4) and rate(110) == rate(200) == pytest.approx(1e-5)
    assert rate(35) == pytest.approx(1e-5 + 9.9e-4 * (1 + math.sqrt(0.5)) / 2)


# Of DeePMD-kit, at the steps 0, 7, 20, 500, 700, 701, 1000, 1500, 1999, 2000 and 2500.
LATE = {
    "cosine": (4.4999934446002e-4, 3.9354066296441e-4, 1.4589120285895e-4, 1.00065553997328e-6),
    "inverse_linear": (3.3447684391081e-4, 4.3014705882353e-6, 1.6227461858530e-6, 1.00076811090907e-6),
    "linear": (4.4965461538461e-4, 3.4638461538461e-4, 1.7369230769231e-4, 1.34538461538461e-6),
}


@pytest.mark.parametrize("decay", LATE)
def test_a_late_fall_is_deepmd_kits(decay):
    options = {
        "type": "wsd",
        "decay_phase_ratio": 0.65,
        "decay_type": decay,
        "warmup_steps": 20,
        "warmup_start_factor": 0.2,
    }
    rate = rate_of(4.5e-4, 1e-6, 2000, **options)
    steps = (0, 7, 20, 500, 700, 701, 1000, 1500, 1999, 2000, 2500)
    wanted = (9e-5, 2.16e-4, *3 * [4.5e-4], *LATE[decay], 1e-6, 1e-6)
    assert [rate(step) for step in steps] == pytest.approx(wanted, rel=1e-12)
    short = rate_of(1e-3, 1e-5, 7, type="wsd")
    assert [short(step) for step in (0, 6, 7)] == pytest.approx([1e-3, 1e-3, 1e-5])


@pytest.mark.parametrize(
    "options",
    [
        {"start": 0.0},
        {"warmup_steps": 10},
        {"type": "wsd", "stop": 0.0},
        {"type": "wsd", "decay_phase_ratio": 1.5},
    ],
)
def test_senseless_schedules_are_refused(options):
    with pytest.raises(ConfigError):
        rate_of(**{"start": 1e-3, "stop": 1e-6, "steps": 10, **options})


def test_average_of_weights():
    weight = torch.nn.Parameter(torch.zeros(2))
    average = WeightAverage([weight], decay=0.5)
    with torch.no_grad():
        weight.fill_(1.0)
    average.update()  # the decay is 2/11 in the first step
    torch.testing.assert_close(average.values[0], torch.full((2,), 9 / 11))
    average.swap()
    assert torch.allclose(weight, torch.tensor(9 / 11)) and (average.values[0] == 1).all()
    average.swap()
    assert (weight == 1).all()
    with pytest.raises(ConfigError):
        WeightAverage([weight], decay=1.0)
