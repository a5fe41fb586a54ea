"""The table of events is complete, and the streams and durables fit it."""

import itertools

import pytest

from event_bus import EVENT_SUBJECTS, UPCYCLE, UnknownEvent
from event_bus.topology import COMMAND_SUBJECTS, DECISIONS, DLQ, EVENTS, MAX_EVENT_BYTES, TASKS, Keep
from identities import durables
from upcycle.api.common.v1.common_pb2 import BlobRef
from upcycle.api.registry.v1 import events_pb2 as registry
from upcycle.api.taskset.v1 import events_pb2 as taskset
from upcycle.api.training.v1 import events_pb2 as training
from upcycle.api.trajectory.v1 import events_pb2 as trajectory

MODULES = (taskset, trajectory, training, registry)


def test_every_event_of_the_contracts_has_a_subject() -> None:
    in_contracts = {name for module in MODULES for name in module.DESCRIPTOR.message_types_by_name}
    assert {event.DESCRIPTOR.name for event in EVENT_SUBJECTS} == in_contracts


def test_no_two_events_share_a_subject() -> None:
    assert len(set(EVENT_SUBJECTS.values())) == len(EVENT_SUBJECTS)


def test_a_subject_is_entity_and_verb() -> None:
    for verb in [*EVENT_SUBJECTS.values()]:
        assert verb.count(".") == 1, verb
    assert set(COMMAND_SUBJECTS.values()) == {"episode"}


def test_a_type_outside_the_table_is_named_with_the_way_out() -> None:
    with pytest.raises(
        UnknownEvent, match=r"BlobRef is not a fact .*EpisodeFailed.* add it to event_bus\.topology"
    ):
        UPCYCLE.verb_of(BlobRef)
    with pytest.raises(UnknownEvent, match="not a command"):
        UPCYCLE.kind_of(taskset.RunFinished)


def test_work_is_kept_until_acked_and_refused_when_full_and_facts_are_kept_for_replays() -> None:
    streams = {spec.name: spec for spec in UPCYCLE.streams}
    assert streams[TASKS].keep is Keep.UNTIL_ACKED
    assert streams[TASKS].refuse_when_full
    assert streams[EVENTS].keep is Keep.UNTIL_LIMITS
    assert not streams[EVENTS].refuse_when_full
    assert streams[DECISIONS].max_msg_bytes == MAX_EVENT_BYTES < streams[EVENTS].max_msg_bytes
    assert streams[EVENTS].max_msg_bytes < streams[DLQ].max_msg_bytes


def test_what_was_decided_ages_out_no_sooner_as_a_fact_than_as_a_decision() -> None:
    """Else the server would find no copy, and copy all decisions once more."""
    streams = {spec.name: spec for spec in UPCYCLE.streams}
    assert streams[DECISIONS].max_age_s <= streams[EVENTS].max_age_s


def test_every_decision_is_copied_to_the_subject_of_its_fact() -> None:
    (events,) = (spec for spec in UPCYCLE.streams if spec.name == EVENTS)
    assert events.copied == {
        "up.*.decision.outcome.*.*.graded": "up.$1.evt.trajectory.graded.$2",
        "up.*.decision.outcome.*.*.failed": "up.$1.evt.episode.failed.$2",
        "up.*.decision.outcome.*.*.expired": "up.$1.evt.recorded_session.expired.$2",
        "up.*.decision.settled.*.*.*": "up.$1.evt.group.settled.$2",
        "up.*.decision.step.*.*.trainer": "up.$1.evt.step.completed.$2",
    }


def test_durables_of_the_work_queue_do_not_overlap() -> None:
    specs = [spec.of_model(model) for spec in UPCYCLE.queues for model in ("a", "b.c")]
    bound = [subject for spec in specs for subject, _ in UPCYCLE.bound_by(spec)]
    assert all(left != right for left, right in itertools.combinations(bound, 2))
    assert sorted(bound) == [
        "up.default.task.episode.eval.a",
        "up.default.task.episode.eval.b%2Ec",
        "up.default.task.episode.train.a",
        "up.default.task.episode.train.b%2Ec",
    ]
    assert all(spec.stream != TASKS for spec in UPCYCLE.consumers)


def test_the_queues_of_models_have_names_from_which_the_model_is_read_back() -> None:
    base = UPCYCLE.queues[0].durable
    for model in ("incident", "a.b/c d", "_", "train_x"):
        assert durables.model_of(base, UPCYCLE.queues[0].of_model(model).durable) == model
    for other in (base, f"{base}_", f"x{base}_m", UPCYCLE.queues[1].of_model("m").durable):
        assert durables.model_of(base, other) is None


def test_durables_are_the_ones_that_services_bind_to() -> None:
    assert [spec.of_model("m").durable for spec in UPCYCLE.queues] == [
        "default_rollout-sampler_train_m",
        "default_rollout-sampler_eval_m",
    ]
    assert {spec.durable for spec in UPCYCLE.consumers} >= {
        "default_scenario-runner_plan",
        "default_reward-grader",
        "default_trajectory-store_ledger",
        "default_checkpoint-registry",
    }
