"""What the keeper decides, with an engine process and a platform that do as the test says."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from blob_store import BlobRef
from engine_client import EngineRejected, EngineUnavailable
from policy_engine.domain import (
    CanaryRow,
    EngineBroken,
    EngineState,
    FailureKind,
    LeaseFacts,
    ModelUnknown,
    Policy,
    Reloaded,
    Serving,
    Target,
    VersionRefused,
    judge_canary,
)
from policy_engine.usecases.keeper import Keeper, KeeperTimings, World
from policy_engine.usecases.pins import PinRequests, Pins
from policy_engine.usecases.reload import ReloadProtocol

TOLD = (-1.0, -2.0)


def target(version: int) -> Target:
    return Target(version, f"digest-{version}", BlobRef(f"k{version}", "0" * 64, 1))


def policy(version: int, *, told: Sequence[float] = TOLD, dtype: str = "float32") -> Policy:
    rows = (CanaryRow((1, 2, 3), tuple(told)),)
    return Policy(target(version), Path(f"/policies/{version}"), rows, dtype, f"weights-{version}")


class EngineDouble:
    """Scores `TOLD` plus what its weights are off; writes down every order."""

    def __init__(self, *, answers_while_paused: bool = True) -> None:
        self.orders: list[str] = []
        self.off = {version: version * 1e-6 for version in range(20)}
        self.loaded = 0
        self.fails: dict[str, Exception] = {}
        self._answers_while_paused = answers_while_paused

    def _note(self, order: str) -> None:
        self.orders.append(order)
        for start, error in self.fails.items():
            if order.startswith(start):
                raise error

    async def pause(self, mode: str = "keep") -> None:
        self._note(f"pause {mode}")

    async def resume(self) -> None:
        self._note("resume")

    async def reload_weights(self, directory: Path) -> None:
        self._note(f"reload {directory.name}")
        self.loaded = int(directory.name)

    async def update_weight_version(self, label: str) -> None:
        self._note(f"label {label}")

    async def reset_prefix_cache(self, *, recompute_running: bool = False) -> None:
        self._note("reset" + (" all" if recompute_running else ""))

    async def score_while_paused(
        self, rows: Sequence[Sequence[int]], *, model: str | None = None
    ) -> list[list[float]] | None:
        if not self._answers_while_paused:
            return None
        version = self.loaded if model is None else int(model.rpartition("v")[2])
        return [[value + self.off[version] for value in TOLD] for _ in rows]

    async def prompt_logprobs(self, model: str, token_ids: Sequence[int]) -> list[float]:
        return [value + self.off[self.loaded] for value in TOLD]

    async def load_adapter(self, name: str, directory: Path) -> None:
        self._note(f"hold {name}")

    async def unload_adapter(self, name: str) -> None:
        self._note(f"drop {name}")


@dataclass
class HostDouble:
    """An engine process that starts when allowed."""

    engine: EngineDouble = field(default_factory=EngineDouble)
    base_url: str = "http://127.0.0.1:1"
    started: list[int] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)
    dead: str | None = None

    async def start(self, chosen: Policy) -> EngineDouble:
        self.started.append(chosen.target.version)
        if chosen.target.version in self.broken:
            raise EngineBroken(f"v{chosen.target.version} does not start")
        self.dead = None
        self.engine.loaded = chosen.target.version
        return self.engine

    async def stop(self) -> None:
        return None

    def failure(self) -> str | None:
        return self.dead

    async def died(self) -> None:
        while self.dead is None:
            await asyncio.sleep(0.005)

    def prepare(self, chosen: Policy) -> Path:
        return chosen.directory


@dataclass
class PlatformDouble:
    """Store, versions and announcements in memory."""

    wanted: list[int] = field(default_factory=lambda: [0])
    known: bool = True
    refused: dict[int, VersionRefused] = field(default_factory=dict)
    told: dict[int, Sequence[float]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    reloads: list[Reloaded] = field(default_factory=list)
    fetches: list[int] = field(default_factory=list)

    async def fetch(self, wanted: Target) -> Policy:
        self.fetches.append(wanted.version)
        if wanted.version in self.refused:
            raise self.refused[wanted.version]
        return policy(wanted.version, told=self.told.get(wanted.version, TOLD))

    async def prune(self, keep: Sequence[Policy]) -> None:
        self.said.append(f"keep {sorted(kept.target.version for kept in keep)}")

    async def current(self) -> list[Target]:
        if not self.known:
            raise ModelUnknown("model 'm' to be imported")
        return [target(version) for version in self.wanted]

    async def find(self, version: int) -> Target:
        return target(version)

    async def ready(self, serving: Serving) -> None:
        self.said.append(f"ready {serving.version}")

    async def reloaded(self, done: Reloaded) -> None:
        self.reloads.append(done)
        self.said.append(f"reloaded {done.from_version}->{done.serving.version}")

    async def reload_failed(self, serving: Serving | None, wanted: Target, why: VersionRefused) -> None:
        self.said.append(f"failed {wanted.version} {why.kind}")

    async def renew_lease(self, facts: LeaseFacts, ttl_s: float) -> None:
        return None


class Bench:
    """A keeper over doubles, with short waits."""

    def __init__(self, *, max_held: int = 2) -> None:
        self.host, self.platform, self.requests = HostDouble(), PlatformDouble(), PinRequests()
        clock = asyncio.get_running_loop().time
        protocol = ReloadProtocol(self.host, "m", recompute_running=False, clock=clock)
        pins = Pins(
            "m", self.requests, (self.platform, self.platform, self.platform), protocol, max_held=max_held
        )
        world = World(self.host, self.platform, self.platform, self.platform, clock)
        timings = KeeperTimings(poll_s=0.02, retry_s=0.01, max_retry_s=0.05)
        self.keeper = Keeper(world, protocol, pins, timings)
        self.states: list[EngineState] = []
        self.keeper.on_change(self._note)
        self._stop = asyncio.Event()

    def _note(self) -> None:
        facts = self.keeper.facts()
        if facts is not None and (not self.states or self.states[-1] is not facts.state):
            self.states.append(facts.state)

    async def __aenter__(self) -> "Bench":
        self._task = asyncio.create_task(self.keeper.run(self._stop))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.wait_for(self._task, 5)

    async def until(self, said: str) -> None:
        for _ in range(500):
            if said in self.platform.said:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"{said!r} was never said: {self.platform.said}")

    def facts(self) -> LeaseFacts:
        found = self.keeper.facts()
        assert found is not None
        return found

    def version(self) -> int:
        serving = self.facts().serving
        assert serving is not None
        return serving.version


def refusal(kind: FailureKind, *, may_pass_later: bool) -> VersionRefused:
    return VersionRefused(kind, "because", may_pass_later=may_pass_later)


async def test_an_unknown_model_is_waited_for_by_name() -> None:
    bench = Bench()
    bench.platform.known = False
    async with bench:
        await asyncio.sleep(0.05)
        assert bench.keeper.facts() is None
        assert "imported" in (bench.keeper.ready() or "")
        bench.platform.known = True
        await bench.until("ready 0")
        assert bench.keeper.ready() is None


async def test_the_newest_version_wins_and_those_between_are_skipped() -> None:
    async with Bench() as bench:
        await bench.until("ready 0")
        bench.platform.wanted = [7, 0]
        bench.keeper.look()
        await bench.until("reloaded 0->7")
        assert bench.platform.fetches == [0, 7]
        assert bench.states[-3:] == [EngineState.READY, EngineState.RELOADING, EngineState.READY]
        assert "keep [7]" in bench.platform.said


async def test_a_bad_version_is_refused_once_and_the_next_one_taken() -> None:
    async with Bench() as bench:
        await bench.until("ready 0")
        bench.platform.told[1] = (-5.0, -5.0)
        bench.platform.wanted = [1, 0]
        await bench.until("failed 1 canary_mismatch")
        await asyncio.sleep(0.1)
        assert bench.platform.said.count("failed 1 canary_mismatch") == 1
        assert (bench.version(), bench.host.engine.loaded) == (0, 0)
        bench.platform.wanted = [2, 0]
        await bench.until("reloaded 0->2")


async def test_a_fetch_that_fails_is_tried_again() -> None:
    async with Bench() as bench:
        await bench.until("ready 0")
        bench.platform.refused[1] = refusal(FailureKind.FETCH_FAILED, may_pass_later=True)
        bench.platform.wanted = [1, 0]
        await bench.until("failed 1 fetch_failed")
        assert bench.version() == 0
        bench.platform.refused.clear()
        await bench.until("reloaded 0->1")


async def test_at_start_a_bad_newest_version_falls_back_to_head() -> None:
    bench = Bench()
    bench.platform.wanted = [5, 3, 0]
    bench.platform.refused[5] = refusal(FailureKind.DIGEST_MISMATCH, may_pass_later=False)
    bench.host.broken.add(3)
    async with bench:
        await bench.until("ready 0")
        assert bench.platform.said[:2] == ["failed 5 digest_mismatch", "failed 3 engine_error"]


async def test_a_dead_engine_is_started_on_what_it_served() -> None:
    async with Bench() as bench:
        await bench.until("ready 0")
        bench.platform.wanted = [4, 0]
        await bench.until("reloaded 0->4")
        bench.platform.wanted = [4, 0]
        bench.host.dead = "killed"
        await bench.until("ready 4")
        assert bench.host.started == [0, 4]
        assert EngineState.FAILED in bench.states
        assert bench.facts().state is EngineState.READY


async def test_an_engine_that_can_go_neither_forth_nor_back_is_restarted() -> None:
    async with Bench() as bench:
        await bench.until("ready 0")
        bench.host.engine.fails["reload"] = EngineUnavailable("it hangs")
        bench.platform.wanted = [1, 0]
        for _ in range(200):
            if len(bench.host.started) > 1:
                break
            await asyncio.sleep(0.005)
        bench.host.engine.fails.clear()
        assert bench.host.started[:2] == [0, 0]
        await bench.until("reloaded 0->1")


async def test_pins_are_held_while_runs_need_them_and_a_little_longer() -> None:
    async with Bench(max_held=2) as bench:
        await bench.until("ready 0")
        bench.requests.submitted("run-a", 3)
        bench.keeper.look()
        await _until_held(bench, (3,))
        bench.requests.finished("run-a")
        bench.requests.submitted("run-b", 4)
        await _until_held(bench, (3, 4))
        bench.requests.submitted("run-c", 5)
        await _until_held(bench, (4, 5))
        assert "drop m@v3" in bench.host.engine.orders
        assert bench.version() == 0


async def test_more_pins_than_places_are_served_in_their_order() -> None:
    async with Bench(max_held=1) as bench:
        await bench.until("ready 0")
        bench.requests.submitted("run-a", 3)
        bench.requests.submitted("run-b", 4)
        await _until_held(bench, (3,))
        await asyncio.sleep(0.1)
        assert bench.facts().held_versions == (3,), "a run in progress keeps its version"
        bench.requests.finished("run-a")
        await _until_held(bench, (4,))


async def test_a_pin_that_cannot_be_proven_is_not_held() -> None:
    async with Bench() as bench:
        await bench.until("ready 0")
        bench.platform.told[3] = (-9.0, -9.0)
        bench.requests.submitted("run-a", 3)
        bench.keeper.look()
        await bench.until("failed 3 canary_mismatch")
        assert bench.host.engine.orders[-2:] == ["hold m@v3", "drop m@v3"]
        assert bench.facts().held_versions == ()


async def test_a_restarted_engine_gets_its_pins_again() -> None:
    async with Bench() as bench:
        await bench.until("ready 0")
        bench.requests.submitted("run-a", 3)
        bench.keeper.look()
        await _until_held(bench, (3,))
        bench.host.dead = "killed"
        for _ in range(400):
            if bench.host.engine.orders.count("hold m@v3") == 2:
                break
            await asyncio.sleep(0.005)
        await _until_held(bench, (3,))


async def _until_held(bench: Bench, versions: tuple[int, ...]) -> None:
    for _ in range(500):
        facts = bench.keeper.facts()
        if facts is not None and facts.held_versions == versions:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"held {bench.facts().held_versions}, wanted {versions}")


def _protocol(engine: EngineDouble) -> ReloadProtocol:
    return ReloadProtocol(HostDouble(engine), "m", recompute_running=False, clock=lambda: 0.0)


async def test_an_engine_that_answers_while_paused_proves_before_anything_is_sampled() -> None:
    engine = EngineDouble()
    await _protocol(engine).reload(engine, Serving(policy(0), 0.0), policy(1))
    assert engine.orders == ["pause keep", "reload 1", "label 1", "reset", "resume"]


async def test_an_engine_that_does_not_gets_an_unproven_label_until_it_is_proven() -> None:
    engine = EngineDouble(answers_while_paused=False)
    await _protocol(engine).reload(engine, Serving(policy(0), 0.0), policy(1))
    assert engine.orders == [
        "pause keep", "reload 1", "label unproven-1-after-0", "reset", "resume", "label 1",
    ]  # fmt: skip


async def test_refused_weights_that_already_sampled_take_their_requests_with_them() -> None:
    engine = EngineDouble(answers_while_paused=False)
    with pytest.raises(VersionRefused, match="canary_mismatch"):
        await _protocol(engine).reload(engine, Serving(policy(0), 0.0), policy(1, told=(-7.0, -7.0)))
    assert engine.orders[-5:] == ["pause abort", "reload 0", "label 0", "reset all", "resume"]


@pytest.mark.parametrize("order", ["reload 1", "label 1", "reset", "resume"])
async def test_whatever_fails_the_old_weights_come_back(order: str) -> None:
    engine = EngineDouble()
    engine.fails[order] = EngineRejected(500, "no")
    protocol = _protocol(engine)
    if order in ("reset", "resume"):
        with pytest.raises(EngineBroken):
            await protocol.reload(engine, Serving(policy(0), 0.0), policy(1))
        return
    with pytest.raises(VersionRefused, match="engine_error"):
        await protocol.reload(engine, Serving(policy(0), 0.0), policy(1))
    assert engine.orders[-4:] == ["reload 0", "label 0", "reset all", "resume"]


def _judge(measured: Any, before: Any = None, **changes: Any) -> float:
    return judge_canary(policy(1, **changes), measured, before)


def test_the_canary_agrees_within_its_precision() -> None:
    assert _judge([[-1.00005, -2.0]]) == pytest.approx(5e-5)
    assert _judge([[-1.01, -2.005]], dtype="bfloat16") == pytest.approx(0.01)
    assert judge_canary(Policy(target(0), Path("/p"), (), "float32", "w"), [], None) == 0.0


@pytest.mark.parametrize(
    "measured",
    [[[-1.001, -2.0]], [[-1.0, -2.01]], [[float("nan"), -2.0]], [[-1.0, float("-inf")]]],
)
def test_the_canary_says_no(measured: list[list[float]]) -> None:
    with pytest.raises(VersionRefused, match="canary_mismatch"):
        _judge(measured)


def test_scores_that_did_not_move_are_no_proof() -> None:
    with pytest.raises(VersionRefused, match="kept its old weights"):
        _judge([[-1.0, -2.0]], [[-1.0, -2.0]])
    assert _judge([[-1.0, -2.0]], [[-1.0, -2.0000002]]) == 0.0
