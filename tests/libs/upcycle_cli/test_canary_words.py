"""What `upcycle models canary` and an unknown version say."""

import pytest

from upcycle.api.registry.v1.registry_pb2 import CanaryRelease
from upcycle.cli.canary_releases import state_words
from upcycle.cli.models import known_versions


@pytest.mark.parametrize(
    ("share", "shadow", "said"),
    [
        (0.5, 0.0, "shop: ckpt answers 50.0% of the conversations"),
        (0.0, 0.2, "shop: ckpt shadows 20.0% of what head answers: recorded and never served"),
        (
            0.5,
            0.2,
            "shop: ckpt answers 50.0% of the conversations, "
            "and shadows 20.0% of what head answers: recorded and never served",
        ),
        (0.0, 0.0, "shop has no canary release: head answers everything"),
    ],
)
def test_a_release_says_only_what_it_does(share: float, shadow: float, said: str) -> None:
    change = CanaryRelease(checkpoint_id="ckpt", share=share, shadow_share=shadow)
    assert state_words("shop", [change]).replace("[bold]", "").replace("[/bold]", "") == said


def test_of_many_versions_the_newest_are_named() -> None:
    assert known_versions(["v0", "v1"], "incident") == "it has v0, v1"
    assert known_versions([f"v{number}" for number in range(1000)], "incident") == (
        "it has 1,000, the newest are v992, v993, v994, v995, v996, v997, v998, v999; "
        "`upcycle models checkpoints incident` lists all"
    )
    assert known_versions([], "incident") == "it has none"
