"""Whatever dies around an episode: it ends once, in a typed way, with the tokens that were really sampled."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from tests.services.rollout_sampler.conftest import Testbed
from tests.services.rollout_sampler.doubles import MODEL, EngineDouble, never, tool_call
from tests.support.waiting import until

from blob_store import BlobRef, S3BlobStore
from event_bus.model_queues import provision_queues
from event_bus.topology import UPCYCLE
from grpc_edge import Peer
from rollout_sampler import wire
from rollout_sampler.adapters.leases import LeaseCache
from rollout_sampler.app import build_play
from rollout_sampler.domain import Recorded
from rollout_sampler.usecases.play_episode import PlayEpisode
from service_kit.ports import free_ports
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed, EpisodeRequested
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded
from upcycle.errors import Unavailable


def investigator(prompt: str, _: object) -> str:
    looked = prompt.count("<tool_response>")
    return "OOM" if looked == 2 else tool_call("search_logs", page=looked)


async def test_an_episode_that_is_stored_is_published_again_and_not_sampled_again(bed: Testbed) -> None:
    """The sampler died after it stored the body and before it published the event."""
    engine = await bed.engine(lambda _, __: "first answer")
    await bed.sampler()
    request = bed.request()
    await bed.ask(request)
    (first,) = await bed.outcomes(1)
    body_bytes = await bed.blobs.read(first.body.key)
    engine.script = lambda _, __: "second answer"
    bed.events.clear()
    forgotten = bed.request(1)
    stored = await _store_without_publishing(bed, forgotten)
    # A command that the planner sends again is a new message, requested at the time of the new one.
    again = EpisodeRequested()
    again.CopyFrom(forgotten)
    again.requested_at.FromDatetime(datetime.now(UTC))
    asked = len(engine.requests)
    await bed.ask(again, dispatch=2)
    (fact,) = await bed.outcomes(1)
    assert fact == wire.recorded_to_wire(stored.body, stored.ref)
    assert fact.episode == forgotten.episode
    assert len(engine.requests) == asked
    assert await bed.blobs.read(first.body.key) == body_bytes


async def _store_without_publishing(bed: Testbed, request: EpisodeRequested) -> Recorded:
    """Play an episode up to the stored body."""
    registry = Peer("registry", bed.settings.peers.registry)
    leases = LeaseCache(RegistryServiceStub(registry.channel))
    play, held = build_play(bed.settings, bed.blobs, leases)
    outcome = await play(wire.task_from_wire(request), may_be_stored=False)
    for component in (*held, registry):
        await component.stop()
    assert isinstance(outcome, Recorded)
    return outcome


async def test_two_samplers_of_one_episode_publish_one_body(bed: Testbed) -> None:
    """A re-dispatch while the first sampler still plays: one body wins, the other environment closes."""
    answers = iter(["one", "two"])
    gate = asyncio.Event()

    async def slow(_: str, __: dict[str, Any]) -> str:
        answer = next(answers)
        if answer == "two":
            gate.set()
        await asyncio.wait_for(gate.wait(), 60)
        return answer

    await bed.engine(slow)
    await bed.sampler()
    await bed.ask(bed.request())
    await bed.ask(bed.request(), dispatch=2)
    await bed.outcomes(1)
    await until(lambda: len(bed.environments.closed) == 1)
    (fact,) = await bed.all_outcomes(num_commands=2)  # both publish under the same event id
    body = await bed.body(fact)
    assert fact.lease_id == body.lease_id
    assert bed.environments.closed != [body.lease_id]


async def test_an_engine_that_dies_in_the_middle_costs_no_token(bed: Testbed) -> None:
    bed.environments.tools = {"search_logs": lambda arguments: f"page {arguments['page']}"}
    dying = await bed.engine(never, engine_id="engine-a", version=3)
    await bed.sampler()
    await bed.ask(bed.request())
    await until(lambda: len(dying.requests) == 1)
    survivor = await bed.engine(investigator, engine_id="engine-b", version=4)
    bed.registry.engines.remove(dying)
    await dying.stop()
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryRecorded)
    body = await bed.body(fact)
    assert survivor.requests[0]["token_ids"] == dying.requests[0]["token_ids"]
    assert survivor.requests[0]["sampling_params"]["seed"] == dying.requests[0]["sampling_params"]["seed"]
    assert {span.version for turn in body.turns for span in turn.versions} == {4}
    digests = {span.weights_digest for turn in body.turns for span in turn.versions}
    assert len(digests) == 1
    assert len(body.turns) == 3


async def test_an_episode_that_spans_a_reload_says_which_tokens_are_whose(bed: Testbed) -> None:
    bed.environments.tools = {"search_logs": lambda _: "x"}

    def reloading(prompt: str, _: object) -> str:
        if "<tool_response>" in prompt:
            engine.version = 4
        return investigator(prompt, _)

    engine: EngineDouble = await bed.engine(reloading)
    await bed.sampler()
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    body = await bed.body(fact)
    assert [turn.versions[0].version for turn in body.turns] == [3, 4, 4]
    assert len({turn.versions[0].weights_digest for turn in body.turns}) == 2
    assert (fact.sampled_by.oldest, fact.sampled_by.newest) == (3, 4)


def _drop_logprob(reply: dict[str, Any]) -> dict[str, Any]:
    reply["choices"][0]["logprobs"]["content"].pop()
    return reply


def _wrong_version(reply: dict[str, Any]) -> dict[str, Any]:
    reply["choices"][0]["weight_versions"][0]["end"] -= 1
    return reply


def _abort(reply: dict[str, Any]) -> dict[str, Any]:
    reply["choices"][0]["finish_reason"] = "abort"
    return reply


@pytest.mark.parametrize("lie", [_drop_logprob, _wrong_version, _abort])
async def test_an_engine_that_answers_nonsense_is_left_for_another(bed: Testbed, lie: Any) -> None:
    liar = await bed.engine(lambda _, __: "lies", engine_id="a-liar")
    liar.change_reply = lie
    await bed.engine(lambda _, __: "truth", engine_id="b-honest")
    await bed.sampler()
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert (await bed.body(fact)).answer == "truth"


async def test_without_an_engine_work_waits_and_goes_on_when_one_comes(bed: Testbed) -> None:
    await bed.sampler()
    await bed.ask(*(bed.request(number) for number in range(3)))
    await until(lambda: bed.registry.calls >= 2)
    assert bed.environments.opened == [], "an episode that no engine can sample holds no environment"
    assert bed.events == []
    await bed.engine(lambda _, __: "here")
    facts = await bed.outcomes(3)
    assert all(isinstance(fact, TrajectoryRecorded) for fact in facts)


@pytest.mark.parametrize(
    ("code", "kind_sent", "kind"),
    [
        (grpc.StatusCode.ABORTED, None, "scenario_error"),
        (grpc.StatusCode.INTERNAL, None, "environment_lost"),
        (grpc.StatusCode.UNKNOWN, None, "environment_lost"),
        (grpc.StatusCode.ABORTED, "environment_broken", "environment_broken"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, None, "timeout"),
    ],
)
async def test_a_scenario_is_blamed_only_for_what_its_own_code_did_at_its_start(
    bed: Testbed, code: grpc.StatusCode, kind_sent: str | None, kind: str
) -> None:
    bed.environments.refuse, bed.environments.kind = (code, "it raised"), kind_sent
    await bed.engine(lambda _, __: "never")
    await bed.sampler()
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert (fact.kind, fact.reported_by) == (kind, "rollout_sampler")
    assert "it raised" in fact.detail
    if kind_sent is not None:
        assert fact.detail == "it raised", "an author reads no words of the wire"


async def test_an_episode_that_the_planner_does_not_wait_for_is_forgotten(bed: Testbed) -> None:
    bed.environments.refuse = (grpc.StatusCode.FAILED_PRECONDITION, "the run is over")
    engine = await bed.engine(lambda _, __: "never")
    await bed.sampler()
    await bed.ask(bed.request(0))
    assert await bed.all_outcomes(num_commands=1) == []
    bed.environments.refuse = None
    await bed.ask(bed.request(1))
    (fact,) = await bed.all_outcomes(num_commands=2)
    assert fact.episode.group_id.endswith("g00001")
    assert len(engine.requests) == 1


async def test_an_episode_waits_for_a_free_environment_slot(bed: Testbed) -> None:
    await bed.engine(lambda _, __: "ok")
    bed.environments.refuse = (grpc.StatusCode.RESOURCE_EXHAUSTED, "64 of 64 slots are taken")
    await bed.sampler()
    await bed.ask(bed.request())
    await until(lambda: bed.environments.num_open_calls >= 2)
    assert bed.events == []
    bed.environments.refuse = None
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryRecorded)


async def test_an_environment_that_dies_in_the_middle_is_lost_not_wrong(bed: Testbed) -> None:
    def kill_all(_: object) -> str:
        bed.environments.open_leases.clear()
        return "the last words"

    bed.environments.tools = {"search_logs": kill_all}
    await bed.engine(investigator)
    await bed.sampler()
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "environment_lost"
    assert 0 < fact.usage.engine_s < fact.usage.environment_s, "the turn that it had played is paid for"


async def test_a_tool_call_is_repeated_while_its_replica_is_away_and_has_one_effect(bed: Testbed) -> None:
    bed.environments.tools = {"search_logs": lambda _: "once"}
    bed.environments.fail_calls = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE]
    await bed.engine(investigator)
    await bed.sampler()
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryRecorded)
    assert len(bed.environments.calls) == len({call_id for call_id, _, _ in bed.environments.calls}) == 2


async def test_an_episode_that_takes_too_long_times_out_and_lets_its_environment_go(bed: Testbed) -> None:
    await bed.engine(never)
    await bed.sampler(episode_timeout_s=4.0, late_start_s=0.5)  # enough for its environment to open
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "timeout"
    assert 0 < fact.usage.engine_s < fact.usage.environment_s, "a request without an answer is paid for"
    await until(lambda: bed.environments.closed == ["lease-0"])


async def test_an_object_store_that_is_away_costs_time_and_no_episode(
    bed: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three failed writes in a row, as the store reports them after its own retries."""
    real, failures = S3BlobStore.put_if_absent, [Unavailable("the object store")] * 3

    async def flaky(self: S3BlobStore, key: str, data: bytes) -> BlobRef | None:
        if failures:
            raise failures.pop()
        return await real(self, key, data)

    monkeypatch.setattr(S3BlobStore, "put_if_absent", flaky)
    engine = await bed.engine(lambda _, __: "ok")
    await bed.sampler()
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryRecorded)
    assert len(engine.requests) == 1


async def test_a_command_without_an_episode_goes_to_the_dead_letters(bed: Testbed) -> None:
    await bed.engine(lambda _, __: "ok")
    await bed.sampler()
    poison = bed.request(0, policy=None)
    poison.ClearField("policy")
    await bed.ask(poison)
    await bed.ask(bed.request(1))
    (fact,) = await bed.all_outcomes(num_commands=2)
    assert fact.episode.group_id.endswith("g00001")


async def test_a_bug_ends_the_episode_after_three_failures_and_a_wait_is_no_failure(
    bed: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [Unavailable("the engines", retry_after_s=0.0)] * 2
    raised: list[Exception] = []

    async def surprise(*_: object, **__: object) -> Any:
        raised.append(waits.pop() if waits else ZeroDivisionError("a bug"))
        raise raised[-1]

    monkeypatch.setattr(PlayEpisode, "__call__", surprise)
    await bed.engine(never)
    await bed.sampler()
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "sampler_error"
    assert "ZeroDivisionError" in fact.detail
    assert [type(one) for one in raised] == [Unavailable] * 2 + [ZeroDivisionError] * 3


async def test_a_drained_sampler_leaves_its_episode_to_another_one_at_once(bed: Testbed) -> None:
    engine = await bed.engine(never)
    first = await bed.sampler(drain_s=1.0)
    await bed.ask(bed.request())
    await until(lambda: len(engine.requests) == 1)
    engine.script = lambda _, __: "done by the second"
    await first.stop()
    assert bed.environments.closed == ["lease-0"], "a drained episode does not keep its environment"
    await bed.sampler()
    (fact,) = await bed.outcomes(1)
    assert (await bed.body(fact)).answer == "done by the second"


@contextmanager
def _process(bed: Testbed, http_port: int) -> Iterator[int]:
    """The sampler as its own process, by its entry point."""
    settings = bed.settings
    environ = {
        **os.environ,
        "ROLLOUT_SAMPLER_HTTP_PORT": str(http_port),
        "ROLLOUT_SAMPLER_CACHE_DIR": str(settings.cache_dir),
        "UPCYCLE_BUS_URL": settings.bus.url,
        "UPCYCLE_S3_ENDPOINT": settings.s3.endpoint,
        "UPCYCLE_S3_BUCKET": settings.s3.bucket,
        "UPCYCLE_S3_ACCESS_KEY": settings.s3.access_key.get_secret_value(),
        "UPCYCLE_S3_SECRET_KEY": settings.s3.secret_key.get_secret_value(),
        "UPCYCLE_PEERS_ENVIRONMENTS": settings.peers.environments,
        "UPCYCLE_PEERS_REGISTRY": settings.peers.registry,
    }
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-m", "rollout_sampler.app"], environ, setsigmask=[]
    )
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


async def test_a_killed_sampler_loses_no_episode(bed: Testbed) -> None:
    """kill -9 in the middle of a turn; the bus gives the command to the next sampler."""
    hasty = tuple(replace(spec, ack_wait_s=1.0) for spec in UPCYCLE.queues)
    await provision_queues(bed.settings.bus.url, [MODEL], replace(UPCYCLE, queues=hasty))
    engine = await bed.engine(never)
    ports = free_ports(2)
    with _process(bed, ports[0]):
        await bed.ask(bed.request())
        await until(lambda: len(engine.requests) == 1)
        engine.script = lambda _, __: "after the crash"
    with _process(bed, ports[1]):
        (fact,) = await bed.outcomes(1, timeout_s=40)
    assert isinstance(fact, TrajectoryRecorded)
    assert (await bed.body(fact)).answer == "after the crash"
