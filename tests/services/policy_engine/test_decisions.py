"""What the keeper decides, with an engine process and a platform that do as the test says."""

import asyncio

from tests.services.policy_engine.doubles import HostDouble, PlatformDouble

from engine_client import EngineUnavailable
from policy_engine.domain import EngineState, FailureKind, LeaseFacts, VersionRefused
from policy_engine.usecases.keeper import Keeper, KeeperTimings, World
from policy_engine.usecases.pins import PinRequests, Pins
from policy_engine.usecases.reload import ReloadProtocol


class Bench:
    """A keeper over doubles, with short waits."""

    def __init__(self, *, max_held: int = 2, refused_s: float = 0.01) -> None:
        self.host, self.platform, self.requests = HostDouble(), PlatformDouble(), PinRequests()
        clock = asyncio.get_running_loop().time
        protocol = ReloadProtocol(self.host, "m", recompute_running=False, clock=clock)
        pins = Pins(
            "m", self.requests, (self.platform, self.platform, self.platform), protocol, max_held=max_held
        )
        world = World(self.host, self.platform, self.platform, self.platform, self.platform, clock)
        timings = KeeperTimings(poll_s=0.02, retry_s=0.01, refused_s=refused_s, max_refused_s=60.0)
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


async def test_a_version_that_kills_the_engine_is_not_tried_again_at_once() -> None:
    bench = Bench(refused_s=60.0)
    async with bench:
        await bench.until("ready 0")
        bench.host.engine.fails["reload"] = EngineUnavailable("it died")
        bench.platform.wanted = [1, 0]
        await bench.until("failed 1 engine_error")
        bench.host.engine.fails.clear()
        for _ in range(100):
            if bench.platform.said.count("ready 0") == 2:
                break
            await asyncio.sleep(0.005)
        assert bench.platform.said.count("ready 0") == 2
        assert bench.version() == 0


async def test_a_pin_that_failed_for_the_engines_sake_is_tried_again() -> None:
    async with Bench() as bench:
        await bench.until("ready 0")
        bench.host.engine.fails["hold"] = EngineUnavailable("busy")
        bench.requests.submitted("run-a", 3)
        await bench.until("failed 3 engine_error")
        bench.host.engine.fails.clear()
        await _until_held(bench, (3,))


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
