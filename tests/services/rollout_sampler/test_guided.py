"""Guided episodes: the stored trajectory has the guidance, and one without it is not played."""

from tests.services.rollout_sampler.conftest import Testbed

from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed, EpisodeRequested
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded
from upcycle.api.trajectory.v1.trajectory_pb2 import GuidancePart

AFTER = "run-1-g00000-e000-a0"


def request(bed: Testbed) -> EpisodeRequested:
    asked = bed.request()
    asked.episode.guided_after = AFTER
    return asked


async def test_a_guided_trajectory_says_after_which_attempt_and_with_which_words(bed: Testbed) -> None:
    bed.environments.guidance = "Look in the cellar."
    bed.environments.guidance_parts = [GuidancePart(kind="hint", text="Look in the cellar.")]
    bed.environments.question = "Where is it?\n\nLook in the cellar."
    await bed.engine(lambda prompt, _: "cellar" if "Look in the cellar." in prompt else "attic")
    await bed.sampler()
    await bed.ask(request(bed))
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryRecorded)
    body = await bed.body(fact)
    assert (body.guidance, body.answer) == ("Look in the cellar.", "cellar")
    assert list(body.guidance_parts) == bed.environments.guidance_parts
    assert list(fact.guidance_kinds) == ["hint"]
    assert fact.episode.guided_after == body.episode.guided_after == AFTER


async def test_an_episode_that_was_to_be_guided_is_not_played_without(bed: Testbed) -> None:
    """The fleet is of an older version: its member would be compared with guided ones."""
    await bed.engine(lambda prompt, _: "attic")
    await bed.sampler()
    await bed.ask(request(bed))
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "environment_broken"
    assert "its environment opened without guidance: the fleet is of an older version" in fact.detail
    assert bed.environments.closed
    assert not bed.environments.open_leases or len(bed.environments.closed) == len(bed.environments.opened)
