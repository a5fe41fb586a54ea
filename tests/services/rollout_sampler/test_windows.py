"""How many requests an engine gets at once, and which engine gets the next turn of an episode."""

import asyncio
import math
from typing import Any, cast

from aiohttp import web
from tests.libs.engine_client.engine_double import generated
from tests.support.waiting import until

from engine_client import Completion, EngineLoad, SamplingParams
from rollout_sampler.adapters.engines import LeasedEngines
from rollout_sampler.adapters.leases import LeaseCache
from rollout_sampler.adapters.windows import EngineWindow
from rollout_sampler.domain import PolicyWanted
from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST, Usage
from upcycle.api.registry.v1 import registry_pb2, service_pb2

WANTED, ONE = PolicyWanted("m"), SamplingParams(max_tokens=1)


def test_a_window_shrinks_while_the_queue_is_long_and_grows_while_it_is_not() -> None:
    window = EngineWindow(1.0)
    assert window.has_room(10_000)
    window.see(EngineLoad(num_running=64, num_waiting=16), 80)
    assert window.limit == math.inf, "a fourth of the batch in the queue keeps it full"
    window.see(EngineLoad(num_running=64, num_waiting=40), 100)
    assert window.limit == 70
    for _ in range(10):
        window.see(EngineLoad(num_running=64, num_waiting=36), 90)
    assert window.limit == 70, "what was sent before the limit fell is still there"
    window.see(EngineLoad(num_running=64, num_waiting=20), 70)
    assert window.limit == 49
    assert (window.has_room(48), window.has_room(49)) == (True, False)
    window.see(EngineLoad(num_running=49), 30)
    assert window.limit == 49, "it is not the limit that keeps requests away"
    window.see(EngineLoad(num_running=49), 49)
    assert window.limit == 53
    for _ in range(100):
        window.see(EngineLoad(num_running=64), int(min(window.limit, 5000)))
    assert window.limit == math.inf


def test_an_engine_that_runs_nothing_says_nothing_and_one_request_is_always_allowed() -> None:
    window = EngineWindow(1.0)
    window.see(EngineLoad(num_running=0, num_waiting=64), 64)
    assert window.limit == math.inf
    for _ in range(50):
        window.see(EngineLoad(num_running=1, num_waiting=500), 2)
    assert window.limit == 1
    assert window.has_room(0)


class Engines:
    """Two engines that answer when they are let, and a registry that lists them."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {"a": 0, "b": 0}
        self.answers = asyncio.Event()
        self.load = "vllm:num_requests_running 1\n"

    async def ListEngines(self, request: object, timeout: float) -> service_pb2.ListEnginesResponse:
        return service_pb2.ListEnginesResponse(
            engines=[
                registry_pb2.EngineLease(
                    engine_id=name,
                    model="m",
                    channel=CHANNEL_LATEST,
                    version=3,
                    digest="d",
                    state=registry_pb2.ENGINE_STATE_READY,
                    base_url=f"{self.url}/{name}",
                )
                for name in self.asked
            ]
        )

    async def _generate(self, request: web.Request) -> web.Response:
        self.asked[request.match_info["engine"]] += 1
        await self.answers.wait()
        return web.json_response(generated([5], [("3", 0, 1)]))

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.load)

    async def __aenter__(self) -> LeasedEngines:
        app = web.Application()
        app.router.add_post("/{engine}/inference/v1/generate", self._generate)
        app.router.add_get("/{engine}/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

        async def digest_of(model: str, version: int) -> str:
            return "d"

        leases = LeaseCache(cast(Any, self))
        self._engines = LeasedEngines(leases, digest_of, turn_timeout_s=30.0, look_s=0.01)
        return self._engines

    async def __aexit__(self, *_: object) -> None:
        self.answers.set()
        await self._engines.stop()
        await self._runner.cleanup()


def begin(engines: LeasedEngines, count: int, before: str = "") -> list[asyncio.Task[Completion]]:
    def one() -> asyncio.Task[Completion]:
        return asyncio.create_task(engines.sample(WANTED, [1], ONE, Usage(), before=before))

    return [one() for _ in range(count)]


async def test_an_episode_stays_with_its_engine_unless_that_is_much_busier() -> None:
    double = Engines()
    async with double as engines:
        asked = begin(engines, 7, before="a")
        await until(lambda: sum(double.asked.values()) == 7)
        assert double.asked == {"a": 6, "b": 1}, "it stays up to twice as busy and four more"
        asked += begin(engines, 3)
        await until(lambda: sum(double.asked.values()) == 10)
        assert double.asked == {"a": 6, "b": 4}, "a first turn goes to the least busy"
        double.answers.set()
        made = await asyncio.gather(*asked)
        again = await engines.sample(WANTED, [1], ONE, Usage(), before="b")
        assert again.engine_id == "b"
        assert {one.engine_id for one in made} == {"a", "b"}


async def test_requests_wait_for_room_where_the_queues_of_all_engines_are_long() -> None:
    double = Engines()
    double.load = "vllm:num_requests_running 4\nvllm:num_requests_waiting 9\n"
    async with double as engines:
        asked = begin(engines, 40)
        await until(lambda: sum(double.asked.values()) == 40)  # nothing is known of the queues yet
        later = begin(engines, 10)
        await until(lambda: all(engines._windows[f"{double.url}/{one}"].limit < 20 for one in "ab"))
        assert sum(double.asked.values()) < 50
        assert not any(one.done() for one in (*asked, *later))
        double.load = "vllm:num_requests_running 4\n"
        double.answers.set()
        await asyncio.wait_for(asyncio.gather(*asked, *later), 30)
        assert sum(double.asked.values()) == 50
