"""Facts in, state out."""

from local_demo.feed import LoopState, apply
from upcycle.api.common.v1.common_pb2 import (
    CHANNEL_HEAD,
    CHANNEL_LATEST,
    PURPOSE_EVAL,
    PURPOSE_TRAIN,
    EpisodeIdentity,
)
from upcycle.api.registry.v1 import events_pb2 as registry
from upcycle.api.taskset.v1 import events_pb2 as taskset
from upcycle.api.training.v1 import events_pb2 as training
from upcycle.api.trajectory.v1 import events_pb2 as trajectory

TRAIN = EpisodeIdentity(purpose=PURPOSE_TRAIN)
EVAL = EpisodeIdentity(purpose=PURPOSE_EVAL)


def test_episodes_are_counted_by_where_they_are() -> None:
    state = LoopState()
    for _ in range(3):
        apply(state, taskset.EpisodeRequested())
    apply(state, trajectory.TrajectoryRecorded())
    apply(state, trajectory.TrajectoryGraded(episode=TRAIN, reward=0.5, success=True))
    apply(state, trajectory.TrajectoryGraded(episode=EVAL, reward=1.0))
    apply(state, training.GroupSettled(outcome="excluded", reason="stale", episode_ids=["a", "b"]))
    apply(state, training.GroupSettled(outcome="trained", episode_ids=["c"]))
    expected = {"requested": 3, "sampled": 1, "graded": 2, "evaluated": 1, "excluded(stale)": 2, "trained": 1}
    assert dict(state.episodes) == expected
    assert list(state.recent_rewards) == [0.5]


def test_groups_of_evaluations_are_counted_once_they_trained() -> None:
    state = LoopState()
    for _ in range(2):
        apply(state, trajectory.TrajectoryRecorded(episode=TRAIN))
    apply(state, trajectory.TrajectoryRecorded(episode=EVAL))
    for outcome, members in (("trained", ["a", "b"]), ("trained", ["c", "d"]), ("released", ["e"])):
        apply(state, training.GroupSettled(outcome=outcome, source_run_id="run-e", episode_ids=members))
    apply(state, training.GroupSettled(outcome="trained", episode_ids=["f"]))
    apply(state, training.StepCompleted(step=1))
    apply(state, trajectory.TrajectoryRecorded(episode=TRAIN))
    assert state.groups_from == {"run-e": 2}
    assert (
        state.sampled_before_first_step == 2
    )  # the third came after the step, the evaluation's never counts
    assert state.episodes["trained"] == 5
    assert not any(name.startswith("excluded") for name in state.episodes)  # what is released stays evaluated


def test_only_the_head_engine_is_worth_a_line_but_all_reloads_count() -> None:
    state = LoopState()
    assert apply(state, registry.EngineReloaded(channel=CHANNEL_LATEST, version=4)) is None
    line = apply(state, registry.EngineReloaded(channel=CHANNEL_HEAD, version=4))
    assert line is not None
    assert "v4" in line
    assert len(state.reloads) == 2
    assert [one.version for one in state.reloads if one.channel == CHANNEL_HEAD] == [4]


def test_promotions_and_holds_are_remembered() -> None:
    state = LoopState()
    apply(state, training.PolicyPublished(version=7, target_steps=20))
    apply(state, registry.CheckpointPromoted(version=5, reason="passed"))
    apply(state, registry.CheckpointHeld(version=7, reason="short of evidence"))
    assert (state.latest_version, state.head_version) == (7, 5)
    assert state.checkpoints == {"promoted": 1, "held": 1}


def test_a_fact_of_another_run_changes_nothing() -> None:
    state = LoopState()
    assert apply(state, registry.EngineReady()) is None
    assert state == LoopState()
