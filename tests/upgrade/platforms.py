"""A platform of which each process runs the last release or today's code, and can be upgraded."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.chaos.replicated import INFRASTRUCTURE, Arrangement, ReplicatedStack, service_of
from tests.upgrade.release import Release

from event_bus.provision import provision
from local_stack.services import Plan, script
from local_stack.spec import ProcessSpec, StepSpec
from local_stack.stack import StackSettings
from service_kit.groups import BusSettings

TRAINER: Final = "grpo_trainer"
ORDER: Final = (
    "provision_watch",
    "trajectory_store",
    "checkpoint_registry",
    "scenario_runner",
    "rollout_sampler",
    "reward_grader",
    "model_gateway",
    "policy_engine_latest",
    "policy_engine_head",
    TRAINER,
)
"""In which services are upgraded, by docs/do/upgrade.md: readers of a new fact go before its author."""
_PROVISION_S: Final = 60.0
_CONVERT_S: Final = 120.0


class UpgradingStack(ReplicatedStack):
    """Everything starts as the last release. What a process imports is a link that `upgrade` turns."""

    def __init__(self, settings: StackSettings, arrangement: Arrangement, release: Release) -> None:
        super().__init__(settings, arrangement)
        self._release = release
        self._newer = release.settings_added_since()
        self._versions = settings.data_dir.absolute() / "versions"
        self._today = self._versions / "today"
        self._copies_per_stream = arrangement.nats_servers
        self._new_ports: dict[str, dict[str, str]] = {}
        """By process: of what its service serves since the last release, which refuses to know of it."""

    async def upgrade(self, service: str, replica: int | None = None) -> None:
        """Stop one replica (None: each, one after the other) and start it with today's code."""
        names = [process.name for process in self.processes if service_of(process.name) == service]
        wanted = names if replica is None else [names[min(replica, len(names)) - 1]]
        for name in wanted:
            await self.stop(name)
            if service == TRAINER:
                await self._convert_states()
            self._turn(name, self._today)
            self._give_ports(name)
            await self.start(name)

    async def _convert_states(self) -> None:
        """By docs/do/upgrade.md: no trainer of today opens the states of the last release."""
        settings = self.s3
        login = {
            "UPCYCLE_S3_ENDPOINT": settings.endpoint,
            "UPCYCLE_S3_BUCKET": settings.bucket,
            "UPCYCLE_S3_ACCESS_KEY": settings.access_key.get_secret_value(),
            "UPCYCLE_S3_SECRET_KEY": settings.secret_key.get_secret_value(),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, script("upcycle"), "states", "convert", "--apply", env={**os.environ, **login}
        )
        async with asyncio.timeout(_CONVERT_S):
            status = await process.wait()
        assert status == 0, f"upcycle states convert ended with {status}"

    async def provision_today(self) -> None:
        """What an operator does first: today's streams and durables."""
        await provision(self.bus, replicas=self._copies_per_stream)

    def version_of(self, process: str) -> str:
        """`v0.3.0` or `today`."""
        return (self._versions / process).resolve().name

    def _specs(self, plan: Plan) -> list[ProcessSpec | StepSpec]:
        self._today.mkdir(parents=True)
        return [self._versioned(spec) for spec in super()._specs(plan)]

    def _versioned(self, spec: ProcessSpec | StepSpec) -> ProcessSpec | StepSpec:
        if isinstance(spec, StepSpec) or service_of(spec.name) in INFRASTRUCTURE:
            return spec
        self._turn(spec.name, self._release.folder)
        inherited = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, [str(self._versions / spec.name), inherited]))
        env = {name: value for name, value in spec.env.items() if name not in self._newer}
        self._new_ports[spec.name] = {
            name: value
            for name, value in spec.env.items()
            if name in self._newer and name.endswith("_GRPC_PORT")
        }
        without_keys = {"UPCYCLE_ACCESS_OPEN": "true"}  # 0.3.0 sends none
        return replace(spec, env={**env, **without_keys, "PYTHONPATH": path})

    def _give_ports(self, process: str) -> None:
        """Two replicas on one default port would not start."""
        assert self._supervisor is not None
        managed = self._supervisor._of(process)
        managed.spec = replace(managed.spec, env={**managed.spec.env, **self._new_ports[process]})

    def _turn(self, process: str, to: Path) -> None:
        link = self._versions / process
        link.unlink(missing_ok=True)
        link.symlink_to(to)

    async def _provision(self) -> None:
        """The streams and durables of the last release, made by its own program."""
        await self.links.serve()
        await _provision_with(self._release, self.bus, self._copies_per_stream)


async def _provision_with(release: Release, bus: BusSettings, copies: int) -> None:
    password = bus.password.get_secret_value() if bus.password is not None else ""
    login = {"UPCYCLE_BUS_URL": bus.url, "UPCYCLE_BUS_USER": bus.user or "", "UPCYCLE_BUS_PASSWORD": password}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        script("upcycle-provision"),
        *("--replicas", str(copies)),
        env={**os.environ, **login, **release.environment},
    )
    async with asyncio.timeout(_PROVISION_S):
        status = await process.wait()
    assert status == 0, f"{release.tag}'s upcycle-provision ended with {status}"
