"""Engines on demand: who is started, who stops, and what may not bring the rest down."""

from dataclasses import dataclass, field

import pytest

from local_stack.demand import EngineKey, is_asked, key_of
from local_stack.engines_on_demand import EnginesOnDemand, OnDemandLimits
from local_stack.services import Engine
from local_stack.spec import ProcessSpec
from local_stack.supervisor import ProcessStatus
from upcycle.api.common.v1.common_pb2 import CHANNEL_HEAD, CHANNEL_LATEST, PolicySelector
from upcycle.api.taskset.v1.taskset_pb2 import Run, RunSpec

A, B, C = (EngineKey(name, "latest") for name in ("a", "b", "c"))


@dataclass
class Platform:
    """A supervisor and a platform in memory, with a clock."""

    asked: set[EngineKey] = field(default_factory=set)
    served: set[EngineKey] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    running: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    now: float = 0.0
    is_away: bool = False

    async def wanted(self, recent_s: float) -> frozenset[EngineKey]:
        if self.is_away:
            raise OSError("the planner does not answer")
        return frozenset(self.asked)

    async def is_served(self, key: EngineKey) -> bool:
        return key in self.served

    def add(self, spec: ProcessSpec) -> None:
        self.running.append(spec.name)

    async def remove(self, name: str) -> None:
        self.running.remove(name)

    def process(self, name: str) -> ProcessStatus:
        phase = "failed" if name in self.failed else "ready"
        return ProcessStatus(name, phase, 1, "", None, "", 0, 0.0, None)

    def engines(self, fixed: frozenset[EngineKey] = frozenset(), max_engines: int = 8) -> EnginesOnDemand:
        return EnginesOnDemand(
            processes=self,
            needs=self,
            spec=lambda key: ProcessSpec(key.model, ("engine",)),
            report=lambda name, what: self.said.append(what),
            fixed=fixed,
            limits=OnDemandLimits(idle_s=10.0, max_engines=max_engines, again_s=60.0),
            monotonic=lambda: self.now,
            sleep=self._stop_after_3,
        )

    async def _stop_after_3(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= 3:
            raise KeyboardInterrupt


async def test_what_is_asked_for_is_started_once_and_stops_when_it_is_not_used() -> None:
    platform = Platform(asked={A, B})
    engines = platform.engines(fixed=frozenset({B}))
    await engines.look()
    await engines.look()
    assert platform.running == ["a"]  # B runs anyway
    platform.now, platform.asked = 10.0, {A}
    await engines.look()
    platform.now, platform.asked = 20.0, set()
    await engines.look()
    assert platform.running == ["a"]  # used 10 s ago, which is not longer than it may be idle
    platform.now = 20.1
    await engines.look()
    assert platform.running == []
    platform.asked = {A}
    await engines.look()
    assert platform.running == ["a"]


async def test_what_another_engine_serves_is_not_started() -> None:
    platform = Platform(asked={A}, served={A})
    await platform.engines().look()
    assert platform.running == []


async def test_one_that_cannot_be_started_is_tried_again_after_a_pause() -> None:
    platform = Platform(asked={A})
    engines = platform.engines()
    await engines.look()
    platform.failed = {"a"}
    await engines.look()
    assert platform.running == []
    platform.now = 59.9
    await engines.look()
    assert platform.running == []
    platform.now, platform.failed = 60.0, set()
    await engines.look()
    assert platform.running == ["a"]


async def test_the_one_idle_longest_gives_way_and_one_that_is_needed_does_not() -> None:
    platform = Platform(asked={A})
    engines = platform.engines(max_engines=2)
    await engines.look()
    platform.now, platform.asked = 1.0, {B}
    await engines.look()
    platform.now, platform.asked = 2.0, {B, C}
    await engines.look()
    assert platform.running == ["b", "c"]
    platform.asked = {A, B, C}
    await engines.look()
    await engines.look()
    assert platform.running == ["b", "c"]
    assert [line for line in platform.said if "others wait" in line] == [
        "2 engines run and are needed: others wait for one of them"
    ]


async def test_a_platform_that_does_not_answer_is_said_once_and_stops_nothing() -> None:
    platform = Platform(asked={A})
    engines = platform.engines()
    await engines.look()
    platform.is_away = True
    with pytest.raises(KeyboardInterrupt):
        await engines.run()
    assert platform.running == ["a"]
    assert platform.said[1:] == ["what is needed is not known: the planner does not answer"]


@pytest.mark.parametrize(
    ("policy", "engine", "channel"),
    [
        (PolicySelector(model="a"), "embedded", "latest"),
        (PolicySelector(model="a", channel=CHANNEL_LATEST), "embedded", "latest"),
        (PolicySelector(model="a", channel=CHANNEL_HEAD), "embedded", "head"),
        (PolicySelector(model="a", pinned_version=3), "embedded", "latest"),
        (PolicySelector(model="a", pinned_version=0), "vllm-cpu", "candidate"),
    ],
)
def test_the_engine_of_a_run(policy: PolicySelector, engine: Engine, channel: str) -> None:
    assert key_of(Run(spec=RunSpec(policy=policy)), engine) == EngineKey("a", channel)


@pytest.mark.parametrize(
    ("waiting", "seconds_ago", "asked"),
    [(0, None, False), (0, 5.0, True), (0, 5.1, False), (1, None, True), (2, 90.0, True)],
)
def test_a_request_asks_while_it_waits_and_for_a_while_after(
    waiting: int, seconds_ago: float | None, asked: bool
) -> None:
    assert is_asked({"waiting": waiting, "asked_s_ago": seconds_ago}, 5.0) is asked
