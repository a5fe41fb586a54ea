"""A stack in which every service has replicas, and every process its own address for each dependency."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Final

from tests.chaos.machine import WITH_DISK, Disks
from tests.chaos.proxy import Links

from event_bus.provision import provision
from local_stack.health import health_url, http_probe
from local_stack.nats import NatsMember, nats_command
from local_stack.services import Plan
from local_stack.spec import ProcessSpec, StepSpec
from local_stack.stack import Stack, StackSettings
from service_kit.groups import BusSettings
from service_kit.ports import LOOPBACK, free_ports

INFRASTRUCTURE: Final = ("nats", "s3")
PEERS: Final[Mapping[str, str]] = {
    "registry": "checkpoint_registry",
    "tasksets": "scenario_runner",
    "environments": "scenario_runner",
    "trajectories": "trajectory_store",
    "training": "grpo_trainer",
    "grading": "reward_grader",
    "gateway": "model_gateway",
}
"""Which service answers under each name of PeerSettings."""
CLIENT: Final = "client"
"""Whose links the campaign itself uses: nothing ever happens to them."""
DATABASES: Final = ("checkpoint_registry", "scenario_runner", "trajectory_store", "model_gateway")
"""Services that have one."""
_PORTS: Final = ("_HTTP_PORT", "_GRPC_PORT", "_PUBLIC_PORT", "_ENGINE_PORT")
_PART_BYTES: Final = 5 << 20
"""The least that a store takes, so that a training state is uploaded in several."""
_START_FACTOR: Final = 3.0
"""Many more processes start at once than a stack of `upcycle up` has."""


def nothing_more(_process: str) -> Mapping[str, str]:
    """The processes get what the stack gives them."""
    return {}


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How many of what. database: URL of a service's own database, by service; None: SQLite files."""

    replicas: int = 1
    nats_servers: int = 1
    database: Callable[[str], str] | None = None
    environment: Callable[[str], Mapping[str, str]] = nothing_more
    """Further environment of one process, by its name."""


class ReplicatedStack(Stack):
    """As Stack, with `links`. The second replica of `grpo_trainer` is called `grpo_trainer-2`."""

    def __init__(self, settings: StackSettings, arrangement: Arrangement) -> None:
        super().__init__(settings)
        self.links = Links()
        self.disks = Disks()
        self.homes: dict[str, Path] = {}
        self._arrangement = arrangement
        self._nats: list[tuple[str, int]] = []
        self._databases: dict[str, str] = {}
        self._peers: dict[str, str] = {}
        self._promised: set[int] = set()

    @property
    def peers(self) -> dict[str, str]:
        """host:port by service, over links of the campaign's own."""
        return self._peers

    @property
    def bus(self) -> BusSettings:
        """How to reach NATS, not over links."""
        urls = ",".join(f"nats://{host}:{port}" for host, port in self._nats)
        return self._planned.bus.model_copy(update={"url": urls})

    async def up(self) -> None:
        """As of one stack; what it mounted is gone when it cannot start."""
        try:
            await super().up()
        except BaseException:
            await self.down()
            raise

    async def down(self) -> None:
        """Stop everything."""
        await super().down()
        await self.links.close()
        self.disks.unmount()

    async def _provision(self) -> None:
        await self.links.serve()
        await provision(self.bus, replicas=self._arrangement.nats_servers)

    def _specs(self, plan: Plan) -> list[ProcessSpec | StepSpec]:
        """As of one stack, each service `replicas` times; its own ports, folders and links for each."""
        arranged: list[ProcessSpec | StepSpec] = []
        specs = super()._specs(plan)
        self._promised = {*astuple(plan.ports), *_numbers(specs)}
        services = [
            spec for spec in specs if isinstance(spec, ProcessSpec) and spec.name not in INFRASTRUCTURE
        ]
        copies = {spec.name: self._copies(spec, plan.data_dir) for spec in services}
        servers = self._servers(plan, copies)
        self._peers = {peer: self.links.make(CLIENT, peer, servers[peer]).address for peer in PEERS}
        names = {name: tuple(copy.name for copy in of) for name, of in copies.items()}
        for spec in specs:
            if isinstance(spec, ProcessSpec) and spec.name == "nats":
                arranged += self._nats_servers(plan, spec)
                names["nats"] = tuple(one.name for one in arranged)
            elif spec.name in copies:
                arranged += [self._linked(copy, servers, names) for copy in copies[spec.name]]
            elif isinstance(spec, StepSpec):
                after = tuple(each for name in spec.after for each in names.get(name, (name,)))
                arranged.append(replace(spec, after=after))
            else:
                arranged.append(spec)
        return arranged

    def _copies(self, spec: ProcessSpec, data_dir: Path) -> list[ProcessSpec]:
        first = replace(spec, start_s=spec.start_s * _START_FACTOR)
        more = range(2, self._arrangement.replicas + 1)
        copies = [first, *(self._copy(first, number) for number in more)]
        return [self._housed(one, data_dir) for one in copies]

    def _housed(self, spec: ProcessSpec, data_dir: Path) -> ProcessSpec:
        """With folders of its own, on a disk of its own where that can be."""
        home = data_dir / "machines" / spec.name
        shared = f"{data_dir}{os.sep}"
        own = {
            name: str(home / value.removeprefix(shared))
            for name, value in spec.env.items()
            if name.endswith("_DIR") and value.startswith(shared)
        }
        if service_of(spec.name) in WITH_DISK and self.disks.why_not() is None:
            self.disks.mount(home)
        self.homes[spec.name] = home
        return replace(spec, env={**spec.env, **own})

    def _ports(self, count: int) -> list[int]:
        """Free, and promised to no program that does not listen yet."""
        ports = [port for port in free_ports(count + len(self._promised)) if port not in self._promised]
        self._promised.update(ports[:count])
        return ports[:count]

    def _copy(self, spec: ProcessSpec, number: int) -> ProcessSpec:
        """Another replica: as the first, with ports of its own."""
        env = dict(spec.env)
        for name in spec.env:
            if name.endswith(_PORTS):
                env[name] = str(self._ports(1)[0])
        http_port = int(next(value for name, value in env.items() if name.endswith("_HTTP_PORT")))
        ready = http_probe(health_url(spec.name, http_port))
        return replace(spec, name=f"{spec.name}-{number}", env=env, ready=ready, http_port=http_port, url="")

    def _servers(
        self, plan: Plan, copies: Mapping[str, list[ProcessSpec]]
    ) -> dict[str, list[tuple[str, int]]]:
        """Where each dependency really listens."""
        listens = {
            peer: [
                _listens(copy, "_PUBLIC_PORT" if peer == "gateway" else "_GRPC_PORT")
                for copy in copies[service]
            ]
            for peer, service in PEERS.items()
        }
        host, port = plan.s3.endpoint.split(":")
        return {**listens, "s3": [(host, int(port))]}

    def _nats_servers(self, plan: Plan, spec: ProcessSpec) -> list[ProcessSpec]:
        """One server as it is, or a cluster. All start at once: none is ready before its peers are."""
        count = self._arrangement.nats_servers
        if count == 1:
            self._nats = [(LOOPBACK, plan.ports.nats)]
            return [spec]
        ports = self._ports(3 * count)
        clients, https, routes = ports[:count], ports[count : 2 * count], ports[2 * count :]
        self._nats = [(LOOPBACK, port) for port in clients]
        login, accounts = plan.nats_login, plan.nats_accounts()
        servers = []
        for number, (port, http_port, route) in enumerate(zip(clients, https, routes, strict=True), 1):
            member = NatsMember(f"nats-{number}", route, tuple(routes))
            folder = plan.data_dir / member.name
            argv = nats_command(
                folder, port=port, http_port=http_port, login=login, accounts=accounts, member=member
            )
            healthz = http_probe(health_url("nats", http_port))
            servers.append(
                replace(spec, name=member.name, argv=argv, ready=healthz, http_port=http_port, url="")
            )
        return servers

    def _linked(
        self,
        spec: ProcessSpec,
        servers: Mapping[str, list[tuple[str, int]]],
        names: Mapping[str, tuple[str, ...]],
    ) -> ProcessSpec:
        """The process with links of its own instead of the addresses of others."""

        def link(dependency: str, to: list[tuple[str, int]]) -> str:
            return self.links.make(spec.name, dependency, to).address

        env = {
            **spec.env,
            **{f"UPCYCLE_PEERS_{peer.upper()}": link(peer, servers[peer]) for peer in PEERS},
            "UPCYCLE_BUS_URL": ",".join(f"nats://{link('nats', [server])}" for server in self._nats),
            "UPCYCLE_S3_ENDPOINT": link("s3", servers["s3"]),
            "UPCYCLE_S3_PART_BYTES": str(_PART_BYTES),
            **self._sql(spec),
            **self._arrangement.environment(spec.name),
        }
        uses = tuple(each for name in spec.uses for each in names.get(name, (name,)))
        return replace(spec, env=env, uses=uses)

    def _sql(self, spec: ProcessSpec) -> dict[str, str]:
        service = service_of(spec.name)
        if self._arrangement.database is None or service not in DATABASES:
            return {}
        if service not in self._databases:
            self._databases[service] = self._arrangement.database(service)
        start, _, rest = self._databases[service].partition("@")
        address, _, database = rest.partition("/")
        host, _, port = address.partition(":")
        link = self.links.make(spec.name, "postgres", [(host, int(port))])
        return {"UPCYCLE_SQL_URL": f"{start}@{link.address}/{database}"}


def _numbers(specs: Sequence[ProcessSpec | StepSpec]) -> set[int]:
    """Everything on a command line that may be a port."""
    words = (word for spec in specs if isinstance(spec, ProcessSpec) for word in spec.argv)
    return {int(word) for word in words if word.isdigit()}


def service_of(process: str) -> str:
    """`grpo_trainer` of `grpo_trainer-2`."""
    return process.partition("-")[0]


def _listens(spec: ProcessSpec, kind: str) -> tuple[str, int]:
    return LOOPBACK, int(next(value for name, value in spec.env.items() if name.endswith(kind)))
