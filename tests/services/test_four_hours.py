"""An episode of 200 turns and 4 hours with a tool that sleeps, on a virtual clock.

Sampler, fleet and the client between them are as they are, with their defaults; the network, the process of
the environment and the engine are stand-ins.
"""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import pytest
from tests.libs.chat_format.conftest import write_model_dir
from tests.simulation.virtual_time import START, VirtualLoop, run_virtually

from blob_store import MemoryBlobStore
from blob_store.ref import to_wire
from chat_format import ChatFormat
from engine_client import Completion, FinishReason, TokenSpan
from environment_client import EnvironmentClient, EnvironmentTimeouts
from episodes import Channel, EpisodeIdentity, Purpose, Split
from rollout_sampler.adapters.policies import PolicyFormat
from rollout_sampler.adapters.trajectories import StoredTrajectories
from rollout_sampler.app import _limits
from rollout_sampler.domain import EpisodeTask, PolicyWanted, Recorded
from rollout_sampler.settings import RolloutSamplerSettings
from rollout_sampler.usecases.play_episode import PlayEpisode, SamplerDeps
from scenario_runner.adapters.channel_environment import ChannelEnvironment
from scenario_runner.adapters.stored_transcripts import ScenarioTranscripts
from scenario_runner.domain.environments import EpisodeTimeouts, EpisodeToPlay, PythonEnvironment
from scenario_runner.loops import FleetLoop
from scenario_runner.servicer.environments import EnvironmentServicer
from scenario_runner.settings import ScenarioRunnerSettings
from scenario_runner.usecases.leases import LeaseRules, Leases
from upcycle.api.environment.v1.service_pb2 import GradeRequest
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.environment.tools import ToolResult, ToolSpec
from upcycle.run_config import RunSpec, Sampling

TURNS = 200
NAP_S = 73.0
HOURS_S = 4 * 3600.0
CALL = '<tool_call>\n{"name": "nap", "arguments": {}}\n</tool_call>'


IDENTITY = EpisodeIdentity(
    episode_id="run-1-g0-e0-a0",
    run_id="run-1",
    group_id="g0",
    member=0,
    group_size=1,
    model="m",
    purpose=Purpose.EVAL,
    split=Split.TRAIN,
    task_slug="nap",
    task_digest="d" * 64,
    family="f",
)


class SleepingChannel:
    """A control channel to an environment whose tool sleeps; keeps the limit that it is given."""

    is_closed = False
    first_state = None
    guidance = ""
    guidance_parts: Mapping[str, str] = MappingProxyType({})

    async def start(self, *_: Any, failed: Any, timeout_s: float) -> str:
        return "Sleep well."

    async def call_tool(self, name: str, arguments: Any, *, timeout_s: float, max_bytes: int) -> ToolResult:
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(NAP_S)
        except TimeoutError:
            return ToolResult(f"{name}: no result within {timeout_s:g} s", is_error=True)
        return ToolResult("slept")

    async def grade(self, answer: str, *_: Any, **__: Any) -> dict[str, Any]:
        return {"score": float(answer == "rested"), "done": True}

    async def shut_down(self) -> None: ...

    async def close(self) -> None: ...


class Host:
    """Starts one environment, whose tool asks for an hour."""

    def __init__(self, timeouts: EpisodeTimeouts) -> None:
        self._timeouts = timeouts

    async def start(self, episode: EpisodeToPlay) -> ChannelEnvironment:
        nothing = cast(Any, asyncio.sleep)
        environment = ChannelEnvironment(
            cast(Any, SleepingChannel()),
            self._timeouts,
            on_close=partial(nothing, 0),
            explain_loss=partial(nothing, 0),
        )
        await environment.start(episode)
        environment.tools = (ToolSpec("nap", "Sleep.", {"type": "object", "properties": {}}, 3600.0),)
        return environment


class Planned:
    """The episode, with the deadline of its run."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline = START + timedelta(seconds=deadline_s)

    async def to_play(self, episode_id: str) -> EpisodeToPlay:
        return EpisodeToPlay(episode_id, PythonEnvironment("naps", "naps.py"), "nap", "{}", self._deadline)

    async def opened(self, episode_ids: Any) -> None: ...


class Wire:
    """In the place of gRPC: the servicer's methods, each with the time that its caller gives."""

    def __init__(self, servicer: EnvironmentServicer) -> None:
        self._servicer = servicer

    def __getattr__(self, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(request: Any, timeout: float) -> Any:
            async with asyncio.timeout(timeout):
                return await getattr(self._servicer, method)(request, None)

        return call


class Client(EnvironmentClient):
    """The sampler's own, without a network."""

    wire: Wire

    def _stub(self, address: str) -> Any:
        return self.wire


class Engine:
    """Calls the tool in each turn but the last."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat, self._turns = chat, 0

    async def version_now(self, _: PolicyWanted) -> int:
        return 3

    async def sample(self, *_: Any, **__: Any) -> Completion:
        self._turns += 1
        text = CALL if self._turns < TURNS else "rested"
        ids = (*self._chat.encode(text), min(self._chat.stop_token_ids))
        spans = (TokenSpan(3, 0, len(ids)),)
        logprobs = (-0.1,) * len(ids)
        return Completion(ids, logprobs, FinishReason.STOP, spans, engine_id="e", weights_digests={3: "d"})


class Formats:
    def __init__(self, chat: ChatFormat) -> None:
        self._form = PolicyFormat(chat, {token: "" for token in range(chat.vocab_size)})

    async def chat_format(self, *_: Any) -> PolicyFormat:
        return self._form


def defaults(settings: type[Any]) -> Mapping[str, Any]:
    return {name: field.default for name, field in settings.model_fields.items()}


async def four_hours(loop: VirtualLoop, chat: ChatFormat, deadline_s: float) -> tuple[Any, Any]:
    fleet, sampler = defaults(ScenarioRunnerSettings), defaults(RolloutSamplerSettings)
    blobs, planned = MemoryBlobStore(), Planned(deadline_s)
    timeouts = EpisodeTimeouts(fleet["start_timeout_s"], fleet["tool_timeout_s"], fleet["grade_timeout_s"])
    leases = Leases(
        cast(Any, Host(timeouts)),
        cast(Any, planned),
        ScenarioTranscripts(blobs),
        LeaseRules(8, fleet["lease_s"]),
        now=loop.utc_now,
        new_id=lambda prefix: f"{prefix}-1",
    )
    keeping_house = asyncio.create_task(FleetLoop(leases, cast(Any, planned)).run(asyncio.Event()))
    limits = EnvironmentTimeouts(
        open_s=sampler["open_timeout_s"],
        tool_s=sampler["tool_timeout_s"],
        unreachable_s=sampler["environment_retry_s"],
    )
    client = Client("fleet", limits)
    client.wire = Wire(EnvironmentServicer(leases, address=lambda: "fleet"))
    deps = SamplerDeps(client, cast(Any, Engine(chat)), cast(Any, Formats(chat)), StoredTrajectories(blobs))
    play = PlayEpisode(deps, _limits(RolloutSamplerSettings()), now=loop.utc_now, new_nonce=lambda: "n")
    task = EpisodeTask(
        IDENTITY,
        PolicyWanted("m", Channel.LATEST),
        Sampling(max_turns=TURNS, max_tokens_per_episode=1 << 20),
        seed=None,
        deadline=START + timedelta(seconds=deadline_s),
        time_s=deadline_s,
    )
    outcome = await play(task, may_be_stored=False)
    if not isinstance(outcome, Recorded):
        return outcome, None
    keeping_house.cancel()
    request = GradeRequest(lease_id=outcome.body.lease_id, body=to_wire(outcome.ref))
    return outcome, await client.wire.Grade(request, timeout=60.0)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    folder = tmp_path_factory.mktemp("policy")
    write_model_dir(folder)
    return ChatFormat.load(folder)


def test_it_is_played_to_its_end_and_graded_without_a_default_in_its_way(chat: ChatFormat) -> None:
    loop = VirtualLoop(random.Random(0), lambda _: None)
    outcome, grade = run_virtually(loop, four_hours(loop, chat, 5 * 3600.0))
    assert isinstance(outcome, Recorded)
    body = outcome.body
    assert (len(body.turns), body.stop_reason) == (TURNS, trajectory_pb2.STOP_REASON_ANSWERED)
    assert {result.content for turn in body.turns for result in turn.tool_results} == {"slept"}
    assert loop.time() >= HOURS_S
    assert grade.reward == 1.0


def test_the_deadline_of_a_run_is_what_ends_it(chat: ChatFormat) -> None:
    loop = VirtualLoop(random.Random(0), lambda _: None)
    deadline_s = float(RunSpec.__dataclass_fields__["episode_deadline_s"].default)
    outcome, _ = run_virtually(loop, four_hours(loop, chat, deadline_s))
    assert json.dumps(str(outcome)).count("timeout") > 0
    assert loop.time() < 2 * deadline_s + NAP_S
