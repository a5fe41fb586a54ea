"""docker-compose.yml as a platform of its own, brought up and down by its command."""

import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import docker  # type: ignore[import-untyped]

from upcycle.platform import Addresses

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = "upcycle-test"
PUBLISHED: Final = {
    "tasksets": "127.0.0.1:7101",
    "environments": "127.0.0.1:7101",
    "trajectories": "127.0.0.1:7105",
    "training": "127.0.0.1:7106",
    "registry": "127.0.0.1:7107",
    "gateway": "127.0.0.1:7180",
}
"""Peer -> the address that docker-compose.yml publishes on this machine."""


ENDED_JOBS: Final = {("volumes", 0), ("keys", 0), ("signing-keys", 0), ("provision", 0), ("model", 0)}
"""Services that end by themselves, each with its exit status when it did its work."""
KILLED: Final = 128 + signal.SIGKILL


def image_of(variable: str) -> str:
    """What docker-compose.yml or deploy/Dockerfile names where a variable of Compose does not choose another,
    or what deploy/images/stand_in.sh put in its place on this machine.
    """
    named = subprocess.run(
        [ROOT / "deploy" / "images" / "others.sh"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    images = dict(line.split(" ", 1) for line in named) | stand_ins()
    return os.environ.get(variable) or images[variable]


def stand_ins() -> dict[str, str]:
    """Variables of the images that could not be pulled on this machine; none where all could."""
    made = ROOT / "build" / "stand_ins.env"
    return dict(line.split("=", 1) for line in made.read_text().splitlines()) if made.exists() else {}


def compose_program() -> str:
    """Compose itself: the command that its wheel installs always exits with 0."""
    wheel = find_spec("compose")
    inside = None if wheel is None or wheel.origin is None else Path(wheel.origin).parent / "docker-compose"
    if inside is not None and inside.exists():
        return str(inside)
    return shutil.which("docker-compose") or "docker-compose"


@dataclass(frozen=True, slots=True)
class Composed:
    """A compose project. secrets: the file that stands for deploy/secrets.env and .env. backups: the folder
    of the service `backup`.
    """

    secrets: Path
    backups: Path

    def up(self, **settings: str) -> None:
        """Start everything and wait until all of it is healthy. settings: in the shell of the command."""
        self._compose("up", "--detach", "--no-build", "--wait", "--wait-timeout", "480", **settings)

    def down(self) -> None:
        """Remove containers, networks and volumes."""
        self._compose("down", "--volumes", "--timeout", "40")

    def stop(self) -> None:
        """End every container and keep its volume."""
        self._compose("stop", "--timeout", "40")

    def run(self, service: str, *command: str) -> str:
        """Standard output of a command in a container of its own."""
        return self._compose("run", "--rm", "--no-TTY", service, *command)

    def kill(self, service: str) -> None:
        """SIGKILL to the container's first process; the container stays down."""
        self._compose("kill", "--signal", "KILL", service)

    def start(self, service: str) -> None:
        """Start a killed container again."""
        self._compose("start", service)

    def execute(self, service: str, *command: str) -> str:
        """Standard output of a command in a running container."""
        return self._compose("exec", "--no-TTY", service, *command)

    def logs(self) -> str:
        """The last lines of every container."""
        return self._compose("logs", "--tail", "20", "--no-color")

    def not_running(self) -> list[str]:
        """Services that should run and do not."""
        services = [row for row in self._containers() if (row["Service"], row["ExitCode"]) not in ENDED_JOBS]
        return [row["Service"] for row in services if row["State"] != "running"]

    def cut_short(self) -> list[str]:
        """Services that did not end when they were asked to, and were killed after their grace."""
        return [row["Service"] for row in self._containers() if row["ExitCode"] == KILLED]

    def addresses_of(self, service: str) -> list[str]:
        """Of its container, one in each of its networks."""
        container = self._compose("ps", "--quiet", service).strip()
        networks = docker.from_env().containers.get(container).attrs["NetworkSettings"]["Networks"]
        return [network["IPAddress"] for network in networks.values()]

    def _containers(self) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self._compose("ps", "--all", "--format", "json").splitlines()]

    @property
    def addresses(self) -> Addresses:
        """How a client on this machine finds it."""
        key = self.backups / "operator.key"
        if not key.exists():
            key.touch(mode=0o600)
            lines = dict(line.split("=", 1) for line in self.secrets.read_text().splitlines() if "=" in line)
            key.write_text(lines["UPCYCLE_ACCESS_OPERATOR_KEY"])
        return Addresses(PUBLISHED, "docker-compose.yml", operator_key_file=key)

    def _compose(self, *arguments: str, **settings: str) -> str:
        done = subprocess.run(
            [compose_program(), "--project-name", PROJECT, "--env-file", str(self.secrets), *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "PWD": str(ROOT),
                "UPCYCLE_SECRETS": str(self.secrets),
                "UPCYCLE_BACKUPS": str(self.backups),
                **stand_ins(),
                **settings,
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"docker-compose {' '.join(arguments)}: {done.stderr[-4000:]}"
        return done.stdout
