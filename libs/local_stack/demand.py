"""Which policy engines are needed now: by runs that are not over, and by requests at the gateway."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from local_stack.services import Engine
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1.service_pb2 import ListEnginesRequest
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest
from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceStub
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_PAUSED, Run
from upcycle.rpc import connect, remote_errors

CALL_S: Final = 10.0
_GATEWAY_S: Final = 5.0
_LATEST, _HEAD = "latest", "head"
_PINNED: Final[Mapping[Engine, str]] = {"embedded": _LATEST, "vllm-cpu": "candidate"}
"""The channel whose engine also serves versions that a run pins."""
_CHANNELS: Final = {
    common_pb2.CHANNEL_UNSPECIFIED: _LATEST,
    common_pb2.CHANNEL_LATEST: _LATEST,
    common_pb2.CHANNEL_HEAD: _HEAD,
}


@dataclass(frozen=True, slots=True, order=True)
class EngineKey:
    """An engine serves one channel of one model."""

    model: str
    channel: str


class Demand:
    """Asks planner, gateway and registry of one platform. Each call raises RemoteError, OSError or
    TimeoutError where one of them does not answer."""

    def __init__(
        self, peers: Mapping[str, str], gateway_key_file: Path, engine: Engine, operator_key: str
    ) -> None:
        self._peers = peers
        self._key_file = gateway_key_file
        self._operator_key = operator_key
        self._engine = engine

    async def wanted(self, recent_s: float) -> frozenset[EngineKey]:
        """What runs play with, and what requests asked for in the last `recent_s` seconds."""
        return frozenset(await self._of_runs() | await self._of_requests(recent_s))

    async def is_served(self, key: EngineKey) -> bool:
        """Whether an engine holds a lease for it, by whichever program that was started."""
        channel = common_pb2.Channel.Value(f"CHANNEL_{key.channel.upper()}")
        request = ListEnginesRequest(model=key.model, channel=channel)
        async with connect(self._peers["registry"], api_key=self._operator_key) as connection:
            with remote_errors("the list of engines"):
                answer = await RegistryServiceStub(connection).ListEngines(request, timeout=CALL_S)
        return bool(answer.engines)

    async def _of_runs(self) -> set[EngineKey]:
        async with connect(self._peers["tasksets"], api_key=self._operator_key) as connection:
            with remote_errors("the list of runs"):
                answer = await TasksetServiceStub(connection).ListRuns(
                    ListRunsRequest(unfinished=True), timeout=CALL_S
                )
        return {key_of(run, self._engine) for run in answer.runs if run.state != RUN_STATE_PAUSED}

    async def _of_requests(self, recent_s: float) -> set[EngineKey]:
        key = (self._key_file).read_text(encoding="utf-8").strip()
        limit = aiohttp.ClientTimeout(total=_GATEWAY_S)
        async with aiohttp.ClientSession(timeout=limit) as session:
            answer = await session.get(
                f"http://{self._peers['gateway']}/upcycle/v1/serving",
                headers={"Authorization": f"Bearer {key}"},
                raise_for_status=True,
            )
            said: Mapping[str, Any] = await answer.json()
        return {EngineKey(row["model"], _HEAD) for row in said["models"] if is_asked(row, recent_s)}


def key_of(run: Run, engine: Engine) -> EngineKey:
    """The engine that plays a run."""
    policy = run.spec.policy
    if policy.WhichOneof("at") == "pinned_version":
        return EngineKey(policy.model, _PINNED[engine])
    return EngineKey(policy.model, _CHANNELS.get(policy.channel, _LATEST))


def is_asked(row: Mapping[str, Any], recent_s: float) -> bool:
    """Whether requests wait for a model, or the last one came `recent_s` seconds ago or later. row: of
    `GET /upcycle/v1/serving`."""
    asked = row["asked_s_ago"]
    return bool(row["waiting"]) or (asked is not None and asked <= recent_s)
