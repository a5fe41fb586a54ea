"""Planner, store and registry as processes: how long one takes from its start until it is ready."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from local_stack.services import Plan
from local_stack.spec import ProcessSpec, StepSpec
from local_stack.stack import Stack, StackSettings

_SERVERS: Final = ("nats", "s3")
_READY_S: Final = 600.0


class ServicesWithTables(Stack):
    """NATS, the object store, and the services that have these databases."""

    def __init__(self, folder: Path, urls: Mapping[str, str]) -> None:
        super().__init__(StackSettings(data_dir=folder, ephemeral_ports=True))
        self._urls = urls

    def _specs(self, plan: Plan) -> list[ProcessSpec | StepSpec]:
        kept = (*_SERVERS, *self._urls)
        return [self._on_tables(one) for one in super()._specs(plan) if _is_step(one) or one.name in kept]

    def _on_tables(self, spec: ProcessSpec | StepSpec) -> ProcessSpec | StepSpec:
        if not isinstance(spec, ProcessSpec) or spec.name not in self._urls:
            return spec
        return replace(spec, start_s=_READY_S, env={**spec.env, "UPCYCLE_SQL_URL": self._urls[spec.name]})


def _is_step(spec: ProcessSpec | StepSpec) -> bool:
    return isinstance(spec, StepSpec)


async def restarts(folder: Path, urls: Mapping[str, str], times: int) -> dict[str, list[float]]:
    """Milliseconds by service. urls: of databases that no other process has open."""
    taken: dict[str, list[float]] = {service: [] for service in urls}
    async with ServicesWithTables(folder, urls) as stack:
        for service in urls:
            for _ in range(times):
                await stack.stop(service)
                began = time.perf_counter()
                await stack.start(service, timeout_s=_READY_S)
                taken[service].append((time.perf_counter() - began) * 1e3)
    return taken
