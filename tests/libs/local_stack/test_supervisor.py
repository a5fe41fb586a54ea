"""The supervisor against real processes: whatever dies, nothing is left over and nothing is forgotten."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.waiting import until

from local_stack.health import http_probe
from local_stack.logfile import rotate, tail
from local_stack.managed import GaveUp
from local_stack.orphans import marked
from local_stack.spec import ProcessSpec, RestartPolicy, StepSpec
from local_stack.starving import starved_s
from local_stack.supervisor import AlreadyRunning, Supervisor, UnknownProcess
from service_kit.deadlines import DeadlineExceeded
from service_kit.ports import free_ports

HERE = Path(__file__).parent
FAST = RestartPolicy(first_delay_s=0.05, max_delay_s=0.1, max_failed_starts=2)
ToyFactory = Callable[..., ProcessSpec]
Spec = ProcessSpec | StepSpec


@pytest.fixture
def toy(tmp_path: Path) -> ToyFactory:
    """Builds specs of the toy program, each on a port of its own."""

    def build(name: str, mode: str = "good", after: tuple[str, ...] = ()) -> ProcessSpec:
        (port,) = free_ports(1)
        return ProcessSpec(
            name,
            (sys.executable, "-I", "-S", str(HERE / "toy_program.py")),
            env={"PORT": str(port), "MODE": mode, "NAME": name, "STOP_LOG": str(tmp_path / "stops")},
            ready=http_probe(f"http://127.0.0.1:{port}/readyz"),
            after=after,
            http_port=port,
            start_s=60.0,
            stop_s=60.0,
        )

    return build


@pytest.mark.parametrize(
    ("status", "reasons", "said"),
    [
        ("200 OK", {}, None),
        ("503 Wait", {"bus": "alarm: facts were lost"}, None),
        ("503 Wait", {"bus": "alarm: facts were lost", "sql": "no answer"}, "sql: no answer"),
        ("503 Wait", {}, "answers 503"),
    ],
)
async def test_a_process_that_names_nothing_but_alarms_is_started(
    status: str, reasons: dict[str, str], said: str | None
) -> None:
    """Another start would not mend them, and `upcycle bus` needs the platform that it belongs to."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.0 {status}\r\n\r\n{json.dumps({'reasons': reasons})}".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        answered = await http_probe(f"http://127.0.0.1:{port}/readyz")()
    assert (answered is None) == (said is None)
    assert (said or "") in (answered or "")


async def test_processes_start_in_order_and_stop_in_reverse(tmp_path: Path, toy: ToyFactory) -> None:
    events: list[str] = []
    specs = [toy("bus"), toy("store", after=("bus",)), toy("service", after=("store",))]

    async with Supervisor(tmp_path, specs, policy=FAST, on_event=events.append) as supervisor:
        assert [line.split(":")[0] for line in events] == ["bus", "store", "service"]
        assert all(process.phase == "ready" and process.pid > 0 for process in supervisor.processes)

    assert (tmp_path / "stops").read_text().split() == ["service", "store", "bus"]
    assert marked(tmp_path) == []


async def test_state_file_names_every_process_while_it_runs(tmp_path: Path, toy: ToyFactory) -> None:
    supervisor = Supervisor(tmp_path, [toy("bus")], describe=lambda: {"engine": "embedded"})

    async with supervisor:
        state = json.loads((tmp_path / "state.json").read_text())
        assert (state["schema_version"], state["pid"], state["engine"]) == (1, os.getpid(), "embedded")
        (process,) = state["processes"]
        assert process["pid"] == supervisor.process("bus").pid
        assert "toy starts as good" in tail(Path(process["log"]))
    assert not (tmp_path / "state.json").exists()


async def test_a_killed_process_is_started_again(tmp_path: Path, toy: ToyFactory) -> None:
    async with Supervisor(tmp_path, [toy("bus")], policy=FAST) as supervisor:
        before = supervisor.process("bus").pid
        await supervisor.kill("bus")
        await supervisor.wait_ready("bus", timeout_s=60)

        after = supervisor.process("bus")
        assert after.pid not in (0, before)
        assert after.restarts == 1


async def test_what_a_killed_process_started_goes_with_it(tmp_path: Path, toy: ToyFactory) -> None:
    """The child in its group before the restart; the one that escaped, when the stack goes down."""
    async with Supervisor(tmp_path, [toy("zygote", "parent")], policy=FAST) as supervisor:
        assert len(marked(tmp_path)) == 3
        await supervisor.kill("zygote")
        await supervisor.wait_ready("zygote", timeout_s=60)
        await until(lambda: len(marked(tmp_path)) == 4)  # what was killed is gone a moment later
    assert marked(tmp_path) == []


async def test_many_kills_in_a_row_are_not_a_crash_loop(tmp_path: Path, toy: ToyFactory) -> None:
    async with Supervisor(tmp_path, [toy("bus")], policy=FAST) as supervisor:
        for _ in range(FAST.max_failed_starts * 2 + 1):
            await supervisor.kill("bus")
            await supervisor.wait_ready("bus", timeout_s=60)
        assert supervisor.process("bus").restarts == FAST.max_failed_starts * 2 + 1


async def test_a_crash_loop_ends_with_the_log(tmp_path: Path, toy: ToyFactory) -> None:
    supervisor = Supervisor(tmp_path, [toy("good"), toy("bad", "crash")], policy=FAST)

    with pytest.raises(GaveUp, match=r"bad did not become ready in 3 starts.*status 3(.|\n)*no oil"):
        await supervisor.up()

    assert marked(tmp_path) == []
    async with Supervisor(tmp_path, [toy("good")]):  # the folder's lock was given back
        pass


async def test_wrong_settings_are_not_tried_again(tmp_path: Path, toy: ToyFactory) -> None:
    with pytest.raises(GaveUp, match=r"in 1 starts.*status 2"):
        await Supervisor(tmp_path, [toy("bad", "misconfigured")], policy=FAST).up()


async def test_a_start_that_waits_for_a_processor_is_not_killed(
    tmp_path: Path, toy: ToyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("local_stack.managed.starved_s", lambda _: 3600.0)
    spec = toy("good")
    began = asyncio.get_running_loop().time()

    async def late() -> str | None:
        return "importing" if asyncio.get_running_loop().time() - began < 3 else await spec.ready()

    async with Supervisor(tmp_path, [replace(spec, start_s=1.0, ready=late)], policy=FAST) as supervisor:
        assert supervisor.process("good").restarts == 0


def test_processes_that_share_a_processor_starve() -> None:
    """The time goes on the clock of each whenever another one runs."""
    one_processor = {min(os.sched_getaffinity(0))}
    spin = "import time\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-I", "-S", "-c", spin]) for _ in range(3)]
    try:
        for process in spinning:
            os.sched_setaffinity(process.pid, one_processor)
        give_up_at = time.monotonic() + 60
        while not all(starved_s(process.pid) > 0.05 for process in spinning):
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert starved_s(spinning[0].pid) == 0.0


async def test_what_earlier_starts_wrote_stands_above_no_refusal(tmp_path: Path, toy: ToyFactory) -> None:
    async with Supervisor(tmp_path, [toy("bad")]):
        pass
    with pytest.raises(GaveUp) as refused:
        await Supervisor(tmp_path, [toy("bad", "misconfigured")], policy=FAST).up()
    log = tmp_path / "logs" / "bad.log"
    assert "toy starts as good" in log.read_text()
    assert str(refused.value).partition(f"{log}:\n")[2].splitlines() == [
        "toy starts as misconfigured",
        "toy cannot work: no oil",
    ]


async def test_a_process_that_never_gets_ready_says_why(tmp_path: Path, toy: ToyFactory) -> None:
    never = toy("slow", "never")

    async def said() -> str | None:
        """Why it is not ready, in its own words: it may take longer than its 0.3 s to be up at all."""

        async def thinking() -> str | None:
            why = await never.ready()
            return why if "thinking" in str(why) else None

        return str(await until(thinking))

    slow = replace(never, start_s=0.3, ready=said)

    with pytest.raises(GaveUp, match=r"slow did not become ready.*SIGKILL.*toy: thinking"):
        await Supervisor(tmp_path, [slow], policy=FAST).up()


async def test_a_process_deaf_to_term_is_killed_after_its_grace(tmp_path: Path, toy: ToyFactory) -> None:
    events: list[str] = []
    deaf = replace(toy("deaf", "deaf"), stop_s=0.3)
    supervisor = Supervisor(tmp_path, [deaf], on_event=events.append)
    await supervisor.up()

    await supervisor.down()

    assert events[-1] == "deaf: did not stop within 0.3 s and is killed"
    assert marked(tmp_path) == []


async def test_what_takes_long_to_stop_is_named(
    tmp_path: Path, toy: ToyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("local_stack.supervisor.STOP_SAID_EVERY_S", 0.2)
    events: list[str] = []
    specs = [replace(toy("deaf", "deaf"), stop_s=2.0), toy("good")]
    async with Supervisor(tmp_path, specs, on_event=events.append):
        events.clear()
    assert "supervisor: waiting for deaf to stop" in events
    assert "deaf: did not stop within 2 s and is killed" in events


async def test_stop_leaves_it_stopped_and_start_brings_it_back(tmp_path: Path, toy: ToyFactory) -> None:
    async with Supervisor(tmp_path, [toy("grader")], policy=FAST) as supervisor:
        await supervisor.stop("grader")
        assert (supervisor.process("grader").phase, supervisor.process("grader").pid) == ("stopped", 0)
        with pytest.raises(GaveUp, match="stopped"):
            await supervisor.wait_ready("grader", timeout_s=30)
        await supervisor.start("grader")
        assert supervisor.process("grader").phase == "ready"


async def test_waiting_has_a_deadline_and_a_name(tmp_path: Path, toy: ToyFactory) -> None:
    async with Supervisor(tmp_path, [toy("bus")]) as supervisor:
        os.kill(supervisor.process("bus").pid, signal.SIGSTOP)
        with pytest.raises(DeadlineExceeded, match="bus to be ready"):
            await supervisor.wait_ready("bus", timeout_s=0.3)
        with pytest.raises(UnknownProcess, match="'sub' is not one of bus"):
            await supervisor.kill("sub")


async def test_a_step_runs_between_and_its_failure_stops_everything(tmp_path: Path, toy: ToyFactory) -> None:
    async def provision() -> None:
        raise PermissionError("stream TASKS: not allowed")

    specs: list[Spec] = [
        toy("bus"),
        StepSpec("provision", provision, after=("bus",)),
        toy("app", after=("provision",)),
    ]
    with pytest.raises(PermissionError, match="TASKS"):
        await Supervisor(tmp_path, specs).up()
    assert (tmp_path / "stops").read_text().split() == ["bus"]
    assert marked(tmp_path) == []


async def test_dependents_stop_first_even_through_a_step(tmp_path: Path, toy: ToyFactory) -> None:
    async def provision() -> None:
        assert supervisor.process("bus").phase == "ready"

    specs: list[Spec] = [
        toy("bus"),
        StepSpec("provision", provision, after=("bus",)),
        toy("app", after=("provision",)),
    ]
    supervisor = Supervisor(tmp_path, specs)
    async with supervisor:
        pass
    assert (tmp_path / "stops").read_text().split() == ["app", "bus"]


def test_an_order_that_cannot_be_kept_is_refused(tmp_path: Path, toy: ToyFactory) -> None:
    with pytest.raises(ValueError, match="app names bus, which come no earlier"):
        Supervisor(tmp_path, [toy("app", after=("bus",)), toy("bus")])
    with pytest.raises(ValueError, match="two specs are called bus"):
        Supervisor(tmp_path, [toy("bus"), toy("bus")])


async def test_a_folder_has_one_supervisor(tmp_path: Path, toy: ToyFactory) -> None:
    async with Supervisor(tmp_path, [toy("bus")]) as first:
        with pytest.raises(
            AlreadyRunning, match=f"already runs in {tmp_path}, as process {os.getpid()}; .* --data-dir"
        ):
            await Supervisor(tmp_path, [toy("bus")]).up()
        assert first.process("bus").phase == "ready"


async def test_killing_the_supervisor_leaves_nothing_after_the_next_start(
    tmp_path: Path, toy: ToyFactory
) -> None:
    """Its children die with it at once; what they hid in other sessions is ended by the next start."""
    runner = _run_supervisor(tmp_path)
    toy_pid = json.loads((tmp_path / "state.json").read_text())["processes"][0]["pid"]
    runner.kill()
    runner.wait()

    await until(lambda: not Path(f"/proc/{toy_pid}").exists() or _is_zombie(toy_pid))
    await until(lambda: len(marked(tmp_path)) == 2)
    events: list[str] = []
    async with Supervisor(tmp_path, [toy("bus")], on_event=events.append):
        assert events[0] == "supervisor: ended 2 processes that an earlier start had left behind"
        assert len(marked(tmp_path)) == 1
    assert marked(tmp_path) == []


def _run_supervisor(folder: Path) -> subprocess.Popen[str]:
    (port,) = free_ports(1)
    runner = subprocess.Popen(
        [sys.executable, str(HERE / "run_supervisor.py"), str(folder), str(port)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert runner.stdout is not None
    assert runner.stdout.readline() == "up\n"
    return runner


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_log_past_its_limit_moves_on_and_its_writer_does_not_notice(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    with log.open("ab", buffering=0) as writer:
        for generation in range(5):
            writer.write(f"generation {generation}\n".encode() * 100)
            assert rotate(log, max_bytes=1000) is True
        writer.write(b"now\n")

    assert log.read_text() == "now\n"
    assert tail(tmp_path / "app.log.1", lines=1) == "generation 4"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "app.log",
        "app.log.1",
        "app.log.2",
        "app.log.3",
    ]
    assert rotate(log, max_bytes=1000) is False


async def test_a_process_that_was_added_comes_and_goes_beside_the_others(
    tmp_path: Path, toy: ToyFactory
) -> None:
    async with Supervisor(tmp_path / "stack", [toy("one")], policy=FAST) as supervisor:
        supervisor.add(toy("two", after=("one",)))
        await supervisor.wait_ready("two", timeout_s=60)
        with pytest.raises(ValueError, match="two specs are called two"):
            supervisor.add(toy("two"))
        with pytest.raises(ValueError, match="three names four"):
            supervisor.add(toy("three", after=("four",)))
        with pytest.raises(UnknownProcess, match="'one' was not added"):
            await supervisor.remove("one")
        await supervisor.remove("two")
        assert [process.name for process in supervisor.processes] == ["one"]
        supervisor.add(toy("two"))
        await supervisor.wait_ready("two", timeout_s=60)
    assert marked(tmp_path / "stack") == []


async def test_a_process_that_was_added_and_given_up_does_not_end_the_others(
    tmp_path: Path, toy: ToyFactory
) -> None:
    async with Supervisor(tmp_path / "stack", [toy("one")], policy=FAST) as supervisor:
        supervisor.add(toy("two", mode="crash"))

        async def given_up() -> bool:
            return supervisor.process("two").phase == "failed"

        await until(given_up, "two to be given up")
        watching = asyncio.create_task(supervisor.failed())
        done, _ = await asyncio.wait({watching}, timeout=3)
        assert not done
        watching.cancel()
        assert supervisor.process("one").phase == "ready"
