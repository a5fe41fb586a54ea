"""The six commands that `upcycle init` prints, as a newcomer runs them: minutes, and what the policy gained.

`python -m benchmarks.six_commands PRESET… --seeds 0 1 2` prints a JSON line for each preset and seed.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import load, machine_line
from benchmarks.stacks import BenchmarkFailed
from upcycle.projects.writing import PRESETS

_COMMAND_S: Final = 3600.0
_READY_S: Final = 300.0
_STOP_S: Final = 120.0
_PORT_OFFSET: Final = 600
_PROGRAMS: Final = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Gain:
    """Of the success on held-out tasks, between two versions: paired, in points, 95 % interval by task."""

    before: float
    after: float
    points: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Way:
    """One way from `init` to a measured policy. seconds: of each command; processor_s: of all processes,
    the two extra evaluations included; whole: from before SFT; of_rewards: of GRPO alone."""

    preset: str
    seed: int
    seconds: dict[str, float]
    processor_s: float
    load_before: float
    whole: Gain
    of_rewards: Gain
    machine: str = field(default_factory=machine_line)

    @property
    def total_s(self) -> float:
        """Of `init` and the six commands."""
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, Any]:
        """For a line of JSON."""
        return {**asdict(self), "total_s": round(self.total_s, 1)}


def go(preset: str, seed: int, folder: Path, port_offset: int) -> Way:
    """Run them all in a new project in `folder`. Raises BenchmarkFailed."""
    clock, before, used = _Stopwatch(), load(), _processor_s()
    with clock.measures("init"):
        printed = run(folder, f"upcycle init agent --preset {preset} --json")
    commands = json.loads(printed.splitlines()[-1])["commands"]
    play, create, up, learn, train, measure = commands
    project = folder / "agent"
    with clock.measures("play"):
        run(project, f"{play} --script player.py")
    with clock.measures("create"):
        run(project, f"{create} --seed {seed}")
    with running(project, f"{up} --port-offset {port_offset}", clock):
        start = last(run(project, f"{measure} --json"))
        with clock.measures("learn"):
            run(project, f"{learn} --seed {seed}")
        taught = last(run(project, f"{measure} --json"))
        with clock.measures("train"):
            run(project, f"{train} --seed {seed}")
        with clock.measures("measure"):
            end = last(run(project, f"{measure} --json"))
        whole, of_rewards = gain(project, start, end), gain(project, taught, end)
    return Way(preset, seed, clock.seconds, round(_processor_s() - used, 1), before, whole, of_rewards)


def gain(folder: Path, before: Mapping[str, Any], after: Mapping[str, Any]) -> Gain:
    """What `upcycle compare` says of two evaluations."""
    said = last(run(folder, f"upcycle compare {before['run_id']} {after['run_id']} --json"))["overall"]
    interval = said["success"]["interval"] or {"low": 0.0, "high": 0.0}  # None: no attempt differs
    values = said["a_success"], said["b_success"], said["success"]["value"], interval["low"], interval["high"]
    return Gain(*(round(100 * value, 1) for value in values))


def last(printed: str) -> dict[str, Any]:
    """The last line of JSON lines."""
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def run(folder: Path, command: str) -> str:
    """What a command prints. Raises BenchmarkFailed where it does not succeed."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise BenchmarkFailed(
            f"{command} ended with {done.returncode}: {(done.stdout + done.stderr)[-4000:]}"
        )
    return done.stdout


@contextmanager
def running(folder: Path, command: str, clock: "_Stopwatch") -> Iterator[None]:
    """`upcycle up`, as in a terminal of its own, until it is ready; Ctrl-C at the end."""
    log = folder / "up.log"
    with log.open("wb") as out, clock.measures("up"):
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=_environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        _await_ready(process, log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(_STOP_S)


def _await_ready(process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up_at = time.monotonic() + _READY_S
    while "for development only" not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > give_up_at:
            process.kill()
            process.wait()
            raise BenchmarkFailed(log.read_text(errors="replace"))
        time.sleep(0.2)


class _Stopwatch:
    """Seconds of each command."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measures(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 1)


def _processor_s() -> float:
    """Of all processes that were started here and ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    """With our programs on the path."""
    return {**os.environ, "PATH": f"{_PROGRAMS}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}


def main(argv: Sequence[str]) -> int:
    """1: a command failed, or a policy did not beat its start."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.six_commands", allow_abbrev=False)
    parser.add_argument("presets", nargs="*", metavar="PRESET", help=", ".join(PRESETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--port-offset", type=int, default=_PORT_OFFSET)
    arguments = parser.parse_args(argv)
    presets = arguments.presets or PRESETS
    ways = [_tried(preset, seed, arguments.port_offset) for preset in presets for seed in arguments.seeds]
    return 0 if all(way is not None and way.whole.low > 0 for way in ways) else 1


def _tried(preset: str, seed: int, port_offset: int) -> Way | None:
    """Print the way, or why it ended early."""
    with tempfile.TemporaryDirectory(prefix="upcycle-six-") as folder:
        try:
            way = go(preset, seed, Path(folder), port_offset)
        except BenchmarkFailed as error:
            print(f"{preset}, seed {seed}: {error}", file=sys.stderr)
            return None
    print(json.dumps(way.to_json()), flush=True)
    return way


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
