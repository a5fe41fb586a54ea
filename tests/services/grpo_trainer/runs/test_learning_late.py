"""The default loss survives rollouts that are many optimizer steps late, at a learning rate that is large.

On `retry`, by the trainer's own learner. Same seed, same curve: one thread, no clock.
"""

from __future__ import annotations

import pytest
from tests.services.grpo_trainer.toy_learning import Lesson, learn

pytestmark = [pytest.mark.study, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("lag", "steps"), [(8, 80), (16, 100)])
async def test_the_default_loss_survives_rollouts_that_are_late(lag: int, steps: int) -> None:
    report = await learn(Lesson("retry", steps, lag=lag))
    assert report.success[steps] >= 0.90
    # The detector of a collapse: 8 updates in a row above 0.1; `benchmarks/staleness.py` shows both kinds.
    assert report.longest("mismatch_kl", above=0.1) < 8
