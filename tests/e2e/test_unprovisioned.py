"""Every process on a NATS without streams says so, and is ready once they are there."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.platform_recipes import small_stack
from tests.support.waiting import until

from local_stack.health import ask_health
from local_stack.services import Plan
from local_stack.spec import ProcessSpec, StepSpec
from local_stack.stack import Stack

WATCH = "provision_watch"
SERVERS = ("nats", "s3")


class Unprovisioned(Stack):
    """Its streams are made by `upcycle-provision --watch`, which starts when it is allowed to."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.settings)
        self.may_provision = asyncio.Event()

    def _specs(self, plan: Plan) -> list[ProcessSpec | StepSpec]:
        async def allowed() -> None:
            await self.may_provision.wait()

        specs: list[ProcessSpec | StepSpec] = []
        for spec in super()._specs(plan):
            if spec.name == WATCH and isinstance(spec, ProcessSpec):
                specs.append(StepSpec("allowed", allowed, after=SERVERS, limit_s=300))
                specs.append(replace(spec, after=("allowed",)))
            else:
                specs.append(spec)
        return specs

    async def _provision(self) -> None:
        """Nothing is made here."""


@pytest.mark.study
@pytest.mark.timeout(600)
async def test_each_process_names_the_stream_that_is_missing_and_is_ready_once_it_is_there(
    tmp_path: Path,
) -> None:
    stack = Unprovisioned(small_stack(tmp_path / "stack"))
    starting = asyncio.create_task(stack.up())
    try:
        await until(lambda: starting.done() or _running(stack), "processes", timeout_s=120)
        waiting, named = set(_running(stack)) - {WATCH}, dict[str, str]()

        async def all_named() -> bool:
            assert not starting.done(), starting.result()
            for name in waiting - named.keys():
                if (why := await _missing(stack, name)) is not None:
                    named[name] = why
            return waiting == named.keys()

        await until(all_named, "a missing stream named by every process", timeout_s=240)
        stack.may_provision.set()
        await starting

        async def all_ready() -> bool:
            answers = [await _status(stack, name) for name in (*waiting, WATCH)]
            return all(status == 200 for status, _ in answers)

        await until(all_ready, "every process ready", timeout_s=120)
    finally:
        starting.cancel()
        await asyncio.wait({starting})
        await stack.down()


def _running(stack: Stack) -> list[str]:
    """Names of the services, once the stack has begun."""
    try:
        return [one.name for one in stack.processes if one.name not in SERVERS]
    except RuntimeError:
        return []


async def _status(stack: Stack, name: str) -> tuple[int, str]:
    port = stack.process(name).http_port
    try:
        answer = await ask_health(f"http://127.0.0.1:{port}/readyz")
    except (OSError, TimeoutError, ValueError):  # it starts, or starts again
        return 0, ""
    return answer.status, answer.why


async def _missing(stack: Stack, name: str) -> str | None:
    """What a process says of a stream that is missing; it is not ready then."""
    status, why = await _status(stack, name)
    return why if status == 503 and "stream" in why and "does not exist" in why else None
