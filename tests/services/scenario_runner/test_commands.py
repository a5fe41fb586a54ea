"""BashGrader in the fleet: the command that judges runs in the isolation of the episode that it judges."""

import json
import os

import pytest
from tests.services.scenario_runner.fleets import ENVIRONMENTS, Fleet
from tests.services.scenario_runner.test_sandbox import UNPRIVILEGED_UID, fleet_with
from tests.support.waiting import until

from scenario_runner.adapters.sandbox import Limits
from scenario_runner.domain.environments import PythonEnvironment

COMMANDS = PythonEnvironment("commands", str(ENVIRONMENTS / "commands.py"))


async def graded(fleet: Fleet, line: str, answer: str = "x") -> tuple[float, str, object]:
    """Reward, output and status of a command."""
    opened = await fleet.open("command", json.dumps({"line": line}), source=COMMANDS)
    grade = await fleet.grade(opened, answer)
    info = grade.subscores[0]["info"]
    return grade.reward, info["output"], info["status"]


@pytest.mark.parametrize(
    ("module", "answer", "reward"),
    [
        ("def add(a, b): return a + b", "done", 1.0),
        ("def add(a, b): return a - b", "done", 0.0),
        ("def add(a, b): return a + b", "finished", 0.0),
        ("", "done", 0.0),
        ("raise SystemExit(1)", "done", 0.0),
        ("def add(a, b): return '5'", "$(echo done)", 0.0),
    ],
)
async def test_a_hidden_test_over_what_the_agent_wrote_says_no(
    fleet: Fleet, module: str, answer: str, reward: float
) -> None:
    opened = await fleet.open("fix", source=COMMANDS)
    await fleet.call(opened, "write", json.dumps({"content": module}))
    grade = await fleet.grade(opened, answer)
    assert (grade.reward, grade.success) == (reward, reward == 1.0)


async def test_the_command_has_the_episodes_folder_and_none_of_the_platforms_variables(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPCYCLE_S3_SECRET_KEY", "hidden-from-commands")
    reward, output, _ = await graded(fleet, 'env; pwd; test "$PWD" = "$TMPDIR" && test "$HOME" = "$TMPDIR"')
    assert reward == 1.0, output
    assert "hidden-from-commands" not in output


async def test_the_command_has_the_limits_and_the_filter_of_its_episode() -> None:
    uid = UNPRIVILEGED_UID if os.getuid() == 0 else 0
    async with fleet_with(Limits(file_size_bytes=1 << 20, open_files=32, uid=uid)) as fleet:
        limits = await graded(fleet, "ulimit -f; ulimit -n; id -u; grep -c '^Seccomp:.*2' /proc/self/status")
        assert limits == (1.0, f"1024\n32\n{uid or os.getuid()}\n1\n", 0)
        assert (await graded(fleet, "head -c 2000000 /dev/zero > big && echo written"))[0] == 0.0
        for line in ("unshare --user true", "mount -t tmpfs none .", "chroot / true"):
            reward, output, _ = await graded(fleet, line)
            assert (reward, "not permitted" in output or "denied" in output or "must be" in output) == (
                0.0,
                True,
            )


async def test_what_a_command_leaves_running_ends_with_its_episode(fleet: Fleet) -> None:
    mark = f"{os.getpid()}.7"
    started = "until tr '\\0' ' ' </proc/$!/cmdline | grep -q '^sleep'; do sleep 0.05; done"
    line = f"setsid sleep {mark} >/dev/null 2>&1 & {started}"
    opened = await fleet.open("command", json.dumps({"line": line}), source=COMMANDS)
    assert (await fleet.grade(opened)).reward == 1.0, "the command saw it run"
    await fleet.leases.close(opened.lease_id)
    await until(lambda: not sleeping(mark))
    assert await fleet.works()


def sleeping(seconds: str) -> list[int]:
    """Processes that sleep so long."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/cmdline", "rb") as line:
                    if line.read().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                        found.append(int(entry.name))
            except OSError:
                continue
    return found
