"""The whole service on a real bus, object store and gRPC: what is published can be read."""

import asyncio
import json

import grpc
import grpc.aio
import pytest
from tests.services.trajectory_store import events
from tests.services.trajectory_store.events import EVAL
from tests.services.trajectory_store.running_store import Store, body_of
from tests.support.waiting import until

from blob_store import BlobRef
from identities.entities import trajectory_id
from upcycle.api.common.v1 import common_pb2
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryQuarantined


async def test_facts_become_a_ledger_and_bodies_can_be_read(store: Store) -> None:
    ref = await store.keep_body(0)
    graded = events.graded(0, body=ref)
    graded.failure.CopyFrom(
        trajectory_pb2.PolicyFailure(kind="answer_error", rule="by which", detail="KeyError: x")
    )
    graded.turn_rewards.extend([1.0, 0.25])
    await store.publish(events.requested(0), events.requested(1), events.recorded(0, body=ref), graded)

    async def is_graded() -> bool:
        return (await store.ledger()).by_state.get("graded") == 1

    await until(is_graded)
    ledger = await store.ledger()
    assert (ledger.requested, ledger.settled, ledger.in_flight) == (2, 0, 2)
    assert [entry.episode_id for entry in ledger.unsettled] == [events.episode_id(0), events.episode_id(1)]
    assert ledger.oldest_unsettled_s > 0

    await store.publish(events.settled([0], "trained", step=9), events.failed(1))

    async def is_settled() -> bool:
        return (await store.ledger()).in_flight == 0

    await until(is_settled)
    assert dict((await store.ledger()).by_state) == {"trained": 1, "failed(timeout)": 1}
    for name in (trajectory_id(events.episode_id(0)), events.episode_id(0)):
        found = await store.api.GetTrajectory(pb.GetTrajectoryRequest(trajectory_id=name))
        assert found.body == body_of(0)
        assert found.summary.ledger.step == 9
        assert found.summary.subscores[0].name == "service"
        assert found.summary.failure == graded.failure
        assert list(found.summary.turn_rewards) == [1.0, 0.25]
        assert found.summary.reward == 0.5


async def test_an_evaluated_group_that_trains_shows_who_trained_it(store: Store) -> None:
    """run-e evaluates two groups of four; run-t trains one of them in step 3 and releases the other."""
    await store.publish(
        events.stepped(range(4), 3, run="run-e", by="run-t"),
        *(events.requested(number, run="run-e", purpose=EVAL) for number in range(8)),
        *(events.graded(number, run="run-e", purpose=EVAL) for number in range(8)),
        events.settled(range(4), "trained", step=3, run="run-e", by="run-t"),
        events.settled(range(4, 8), "released", reason="zero_spread", run="run-e", by="run-t"),
    )

    async def all_are_folded() -> bool:
        states = (await store.ledger("run-e")).by_state
        return states.get("trained") == 4 and states.get("evaluated") == 4

    await until(all_are_folded)
    ledger = await store.ledger("run-e")
    assert dict(ledger.by_state) == {"trained": 4, "evaluated": 4}
    assert (ledger.requested, ledger.settled, ledger.in_flight) == (8, 8, 0)
    assert (ledger.conflicts, ledger.trained_twice) == (0, 0)
    assert (await store.ledger("run-t")).requested == 0
    request = pb.ListTrajectoriesRequest(
        filter=pb.TrajectoryFilter(run_id="run-e", purpose=common_pb2.PURPOSE_EVAL)
    )
    listed = (await store.api.ListTrajectories(request)).trajectories
    entries = {(one.ledger.state, one.ledger.trained_by_run, one.ledger.step, one.graded) for one in listed}
    assert len(listed) == 8
    assert entries == {
        (trajectory_pb2.LEDGER_STATE_TRAINED, "run-t", 3, True),
        (trajectory_pb2.LEDGER_STATE_EVALUATED, "", 0, True),
    }


async def test_unknown_ids_and_bad_requests_are_typed(store: Store) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await store.api.GetTrajectory(pb.GetTrajectoryRequest(trajectory_id="traj-unknown"))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    bad = (
        pb.ListTrajectoriesRequest(page_token="AAAA"),
        pb.ListTrajectoriesRequest(page_size=-1),
        pb.ListTrajectoriesRequest(
            filter=pb.TrajectoryFilter(state=77)  # type: ignore[arg-type]  # what a newer client may send
        ),
    )
    for request in bad:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await store.api.ListTrajectories(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def exported(store: Store, form: pb.ExportFormat.ValueType) -> list[dict[str, object]]:
    request = pb.ExportTrajectoriesRequest(filter=pb.TrajectoryFilter(run_id="run-1"), format=form)
    lines: list[dict[str, object]] = []
    async for message in store.api.ExportTrajectories(request):
        assert message.jsonl == "" or message.jsonl.endswith("\n")
        assert message.quarantined == 0
        lines += map(json.loads, message.jsonl.splitlines())
    return lines


async def test_export_streams_triples_and_whole_records(store: Store) -> None:
    for number in range(5):
        ref = await store.keep_body(number)
        await store.publish(events.recorded(number, body=ref))
        if number < 4:
            await store.publish(events.graded(number, body=ref, reward=number / 4))

    async def is_graded() -> bool:
        states = (await store.ledger()).by_state
        return (states.get("graded"), states.get("recorded")) == (4, 1)

    await until(is_graded)

    triples = await exported(store, pb.EXPORT_FORMAT_TRIPLES)
    assert [line["reward"] for line in triples] == [0.75, 0.5, 0.25, 0.0]
    assert {line["task"] for line in triples} == {events.identity(0).task_digest}
    assert triples[0]["prompt"] == [{"role": "user", "content": "Why is checkout down?"}]
    assert triples[0]["completion"] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "c0",
                    "type": "function",
                    "function": {"name": "search_logs", "arguments": '{"q": "oom"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "oom killed ☠"},
        {"role": "assistant", "content": "OOM"},
    ]
    records = await exported(store, pb.EXPORT_FORMAT_RECORDS)
    assert len(records) == 5
    assert json.dumps(records[0]).count("sampled_logprobs") == 2


async def test_a_watcher_sees_changes_and_resumes_where_it_stopped(store: Store) -> None:
    watch = store.api.WatchTrajectories(pb.WatchTrajectoriesRequest(after_position=0))
    await store.publish(events.recorded(0), events.recorded(1))
    async with asyncio.timeout(60):
        seen = [await watch.read(), await watch.read()]
    names = [
        one.trajectory.episode.episode_id for one in seen if isinstance(one, pb.WatchTrajectoriesResponse)
    ]
    assert names == [events.episode_id(0), events.episode_id(1)]
    watch.cancel()
    await store.publish(events.graded(0))
    last = seen[-1]
    assert isinstance(last, pb.WatchTrajectoriesResponse)
    resumed = store.api.WatchTrajectories(pb.WatchTrajectoriesRequest(after_position=last.position))
    async with asyncio.timeout(60):
        change = await resumed.read()
    assert isinstance(change, pb.WatchTrajectoriesResponse)
    assert change.trajectory.graded
    assert change.trajectory.episode.episode_id == events.episode_id(0)
    resumed.cancel()


async def test_a_corrupt_body_is_quarantined_and_never_handed_out(store: Store) -> None:
    good, bad = await store.keep_body(0), await store.keep_body(1)
    missing = BlobRef("default/trajectories/run-1/nowhere.pb.zst", "00" * 32, 5)
    await store.blobs.put(bad.key, b"flipped bits")
    garbage = await store.blobs.put("default/trajectories/run-1/garbage.pb.zst", b"not a body at all")
    await store.publish(
        events.recorded(0, body=good),
        events.recorded(1, body=bad),
        events.recorded(2, body=missing),
        events.recorded(3, body=garbage),
    )
    quarantined: set[str] = set()

    async def watch() -> None:
        async for delivery in store.bus.replay([TrajectoryQuarantined], after_sequence=0):
            assert isinstance(delivery.message, TrajectoryQuarantined)
            quarantined.add(delivery.message.episode.episode_id)
            if len(quarantined) == 3:
                return

    await asyncio.wait_for(watch(), 30)
    assert quarantined == {events.episode_id(number) for number in (1, 2, 3)}
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await store.api.GetTrajectory(pb.GetTrajectoryRequest(trajectory_id=events.episode_id(1)))
    assert refused.value.code() is grpc.StatusCode.DATA_LOSS
    request = pb.ExportTrajectoriesRequest(format=pb.EXPORT_FORMAT_RECORDS)
    messages = [message async for message in store.api.ExportTrajectories(request)]
    assert sum(message.quarantined for message in messages) == 3
    assert sum(message.jsonl.count("\n") for message in messages) == 1


async def test_a_poison_fact_goes_to_the_dead_letters_and_the_ledger_goes_on(store: Store) -> None:
    nameless = events.recorded(3)
    nameless.episode.episode_id = ""
    await store.publish(events.requested(0), nameless, events.requested(1, purpose=EVAL))

    async def both_requested() -> bool:
        return (await store.ledger()).requested == 2

    await until(both_requested)
