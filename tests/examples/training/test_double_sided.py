"""The cookbook's loss, worked by hand."""

import math

import pytest
import torch
from examples.training.double_sided import DoubleSided, advantages

from upcycle.train import DatumTensors
from upcycle.train.custom import weights_of


def datum(traj: int, group: int, reward: float, policy: list[float], sampler: list[float]) -> DatumTensors:
    mask = [0.0] + [1.0] * (len(policy) - 1)
    return DatumTensors(reward, 0.0, traj, group, policy, sampler, mask, [0] * len(policy))


def test_a_trajectory_of_two_rows_counts_once_in_its_baseline() -> None:
    data = [
        datum(0, 0, 1.0, [0, 0], [0, 0]),
        datum(0, 0, 1.0, [0, 0], [0, 0]),
        datum(1, 0, 0.0, [0, 0], [0, 0]),
        datum(2, 1, 3.0, [0, 0], [0, 0]),
    ]
    assert advantages(data) == [0.5, 0.5, -0.5, 0.0]


def test_tokens_within_the_bounds_weigh_ratio_times_advantage_and_others_nothing() -> None:
    inside, above, below = math.log(1.1), math.log(1.5), math.log(0.5)
    policy = [0.0, -1.0, -1.0, -1.0]
    sampler = [0.0, -1.0 - inside, -1.0 - above, -1.0 - below]
    data = [datum(0, 0, 1.0, policy, sampler), datum(1, 0, 0.0, [0.0, -2.0], [0.0, -2.0])]
    weights, metrics = weights_of(data, DoubleSided(low=0.2, high=0.28))
    # 4 sampled tokens; A = +-0.5; kept: ratio 1.1 of the first, ratio 1 of the second.
    assert weights[0] == pytest.approx([0.0, 0.5 * 1.1 / 4, 0.0, 0.0])
    assert weights[1] == pytest.approx([0.0, -0.5 / 4])
    assert metrics["kept_fraction"] == 0.5
    assert metrics["loss"] == pytest.approx((0.5 * 1.1 - 0.5 * 2.0) / 4)


def test_the_loss_is_a_scalar_of_torch() -> None:
    loss, _ = DoubleSided()([datum(0, 0, 1.0, [0.0, -1.0], [0.0, -1.0])], [torch.tensor([0.0, -1.0])])
    assert loss.shape == ()
