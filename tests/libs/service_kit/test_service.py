"""The life of a service: order, readiness, deadlines, and deaths that are never silent."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.support.waiting import until

from service_kit.background import BackgroundTasks, Worker
from service_kit.component import TaskDied
from service_kit.deadlines import DeadlineExceeded
from service_kit.service import EXIT_DIED, EXIT_FAILED, ComponentFailed, Service
from service_kit.settings import ServiceSettings


class Part:
    """A component that writes down what happens to it."""

    def __init__(self, name: str, log: list[str], *, stop_takes_s: float = 0.0) -> None:
        self.name = name
        self.objection: str | None = None
        self.fails: Exception | None = None
        self._log = log
        self._stop_takes_s = stop_takes_s

    async def start(self) -> None:
        if self.fails is not None:
            raise self.fails
        self._log.append(f"+{self.name}")

    async def stop(self) -> None:
        await asyncio.sleep(self._stop_takes_s)
        self._log.append(f"-{self.name}")

    def ready(self) -> str | None:
        return self.objection


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service("toy", ServiceSettings())
    yield made
    await made.stop()


@pytest.fixture
def hasty() -> Service:
    """For what never starts or never ends."""
    return Service("toy", ServiceSettings(drain_s=2.0), start_s=2.0)


async def answer(service: Service, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{service.http_port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_components_start_in_order_and_stop_in_reverse(service: Service, log: list[str]) -> None:
    for name in ("sql", "bus", "grpc"):
        service.add(Part(name, log))

    await service.start()
    assert await service.stop() is True

    assert log == ["+sql", "+bus", "+grpc", "-grpc", "-bus", "-sql"]


async def test_readyz_names_who_objects(service: Service, log: list[str]) -> None:
    bus = service.add(Part("bus", log))
    await service.start()
    assert await answer(service, "/readyz") == (
        200,
        '{"ready": true, "service": "toy", "phase": "running", "reasons": {}}',
    )

    bus.objection = "reconnecting to nats://127.0.0.1:4222"
    status, body = await answer(service, "/readyz")

    assert status == 503
    assert '"reasons": {"bus": "reconnecting to nats://127.0.0.1:4222"}' in body
    assert (await answer(service, "/livez"))[0] == 200


async def test_metrics_are_openmetrics_where_asked_for(service: Service) -> None:
    await service.start()
    async with (
        aiohttp.ClientSession(headers={"Accept": "application/openmetrics-text"}) as http,
        http.get(f"http://127.0.0.1:{service.http_port}/metrics") as response,
    ):
        assert response.content_type == "application/openmetrics-text"
        assert (await response.text()).endswith("# EOF\n")


async def test_a_failed_start_names_the_component_and_stops_the_others(
    service: Service, log: list[str]
) -> None:
    service.add(Part("sql", log))
    service.add(Part("bus", log)).fails = ConnectionRefusedError("nats://127.0.0.1:1")

    assert await service.run() == EXIT_FAILED
    assert log == ["+sql", "-bus", "-sql"]


async def test_a_start_has_a_deadline(hasty: Service, log: list[str]) -> None:
    class Stuck(Part):
        async def start(self) -> None:
            await asyncio.sleep(60)

    hasty.add(Stuck("stuck", log))

    with pytest.raises(ComponentFailed, match=r"stuck: DeadlineExceeded: .* stuck to start after 2 s"):
        await hasty.start()
    await hasty.stop()


async def test_a_stop_has_a_deadline_and_the_others_still_stop(hasty: Service, log: list[str]) -> None:
    hasty.add(Part("sql", log))
    hasty.add(Part("stuck", log, stop_takes_s=60))
    await hasty.start()

    assert await hasty.stop() is False
    assert log == ["+sql", "+stuck", "-sql"]


async def test_a_request_to_stop_ends_a_run_clean(service: Service, log: list[str]) -> None:
    service.add(Part("sql", log))
    run = asyncio.create_task(service.run())
    await until(lambda: service.readiness().ready)
    service.request_stop()

    assert await run == 0
    assert log == ["+sql", "-sql"]


async def test_a_loop_that_dies_ends_the_process_and_is_named(
    service: Service, log: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def loop(stop: asyncio.Event) -> None:
        raise ZeroDivisionError("planner divides")

    service.add(Part("sql", log))
    service.add(Worker("planner", loop))

    assert await service.run() == EXIT_DIED
    (record,) = [r for r in caplog.records if r.getMessage() == "died"]
    assert vars(record)["component"] == "planner"
    assert "planner divides" in vars(record)["why"]
    assert log == ["+sql", "-sql"]


async def test_a_loop_that_returns_early_died_too(service: Service) -> None:
    async def loop(stop: asyncio.Event) -> None:
        return

    service.add(Worker("planner", loop))

    assert await service.run() == EXIT_DIED


async def test_a_loop_drains_when_it_is_asked_to_stop(service: Service, log: list[str]) -> None:
    async def loop(stop: asyncio.Event) -> None:
        await stop.wait()
        log.append("last item")

    worker = service.add(Worker("planner", loop, ready=lambda: "no plan yet"))
    await service.start()
    assert worker.ready() == "no plan yet"

    assert await service.stop() is True
    assert log == ["last item"]
    assert worker.ready() == "ended"


async def test_a_task_of_the_service_that_dies_ends_the_process(service: Service) -> None:
    async def work() -> None:
        raise LookupError("gone")

    run = asyncio.create_task(service.run())
    service.tasks.spawn("sweeper", work())

    assert await run == EXIT_DIED


async def test_background_tasks_report_deaths_and_only_deaths() -> None:
    async def fine() -> None:
        return

    async def endless() -> None:
        await asyncio.sleep(60)

    tasks = BackgroundTasks("toy")
    tasks.spawn("fine", fine(), may_end=True)
    tasks.spawn("endless", endless())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(tasks.closed(), 0.05)
    tasks.spawn("early", fine())
    with pytest.raises(TaskDied, match="toy/early died: it ended although it should run until stopped"):
        await tasks.closed()
    await tasks.cancel()


async def test_a_library_without_a_name_becomes_a_component(service: Service) -> None:
    class Connection:
        name = "bus"
        up = False

        async def start(self) -> None:
            self.up = True

        async def stop(self) -> None:
            self.up = False

        def ready(self) -> str | None:
            return None if self.up else "not connected"

    connection = Connection()
    service.add(connection)
    await service.start()
    assert service.readiness().ready

    connection.up = False
    assert service.readiness().reasons == {"bus": "not connected"}


async def test_a_port_that_is_taken_says_how_to_go_on(service: Service) -> None:
    await service.start()
    second = Service("second", ServiceSettings(http_port=service.http_port))

    with pytest.raises(ComponentFailed, match=r"ops-http: .*choose another http_port"):
        await second.start()
    await second.stop()


async def test_nothing_is_added_once_it_runs(service: Service, log: list[str]) -> None:
    await service.start()

    with pytest.raises(RuntimeError, match="late was added to toy while it is running"):
        service.add(Part("late", log))


async def test_a_deadline_names_what_was_waited_for() -> None:
    from service_kit.deadlines import deadline

    with pytest.raises(DeadlineExceeded, match=r"gave up waiting for the lease after 0.01 s") as caught:
        async with deadline("the lease", 0.01):
            await asyncio.sleep(1)
    assert isinstance(caught.value, TimeoutError)

    with pytest.raises(TimeoutError) as inner:
        async with deadline("the lease", 10):
            raise TimeoutError("a timeout of somebody else")
    assert not isinstance(inner.value, DeadlineExceeded)
