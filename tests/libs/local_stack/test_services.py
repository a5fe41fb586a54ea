"""The description of the stack fits the settings of the services that it describes."""

import importlib
import importlib.metadata
import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from local_stack.credentials import load_or_make, operator_key_file
from local_stack.s3 import S3Ports
from local_stack.services import CHANNELS, Engine, Plan, StackPorts, process_specs
from local_stack.signing import refuse_unsigned
from local_stack.spec import ProcessSpec
from service_kit.groups import SigningSettings
from service_kit.ports import free_ports
from service_kit.settings import ServiceSettings, load_settings
from signed_objects import SigningKey

INFRASTRUCTURE = {"nats", "s3"}


def plan(folder: Path, engine: Engine = "embedded") -> Plan:
    return Plan(
        data_dir=folder,
        ports=StackPorts(),
        credentials=load_or_make(folder),
        engine=engine,
        model="incident",
        environment_roots=(folder,),
        vllm_python=folder / "python",
        extra_env={},
    )


def services(folder: Path, engine: Engine = "embedded") -> dict[str, ProcessSpec]:
    specs = process_specs(plan(folder, engine))
    return {spec.name: spec for spec in specs if spec.name not in INFRASTRUCTURE}


def settings_class(spec: ProcessSpec) -> type[ServiceSettings]:
    """The settings class of the service that a spec's console script belongs to."""
    script = Path(spec.argv[0]).name
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=script)
    module = importlib.import_module(f"{entry.module.partition('.')[0]}.settings")
    (found,) = _settings_classes(module.__name__)
    return found


def _settings_classes(module: str) -> Iterator[type[ServiceSettings]]:
    for _, kind in inspect.getmembers(sys.modules[module], inspect.isclass):
        if issubclass(kind, ServiceSettings) and kind.__module__ == module:
            yield kind


NAMES = (
    "checkpoint_registry",
    "provision_watch",
    "scenario_runner",
    "trajectory_store",
    "grpo_trainer",
    "rollout_sampler",
    "reward_grader",
    "model_gateway",
    "policy_engine_latest",
    "policy_engine_head",
    "policy_engine_candidate",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_service_accepts_every_variable_that_the_stack_sets(tmp_path: Path, name: str) -> None:
    spec = services(tmp_path, "vllm-cpu")[name]

    settings = load_settings(settings_class(spec), environ=dict(spec.env))

    assert settings.http_port == spec.http_port
    assert settings.host == "127.0.0.1"


def test_every_service_is_in_the_stack(tmp_path: Path) -> None:
    assert set(services(tmp_path)) == set(NAMES) - {"policy_engine_candidate"}
    assert set(services(tmp_path, "vllm-cpu")) == set(NAMES)
    assert CHANNELS["embedded"] == ("latest", "head")


def test_a_trainer_is_not_killed_within_the_time_that_it_has_to_leave(tmp_path: Path) -> None:
    spec = services(tmp_path)["grpo_trainer"]
    grace_s = settings_class(spec).model_fields["spot_grace_s"].default
    assert spec.stop_s > grace_s


def test_secrets_are_made_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    first = load_or_make(tmp_path)

    assert load_or_make(tmp_path) == first
    assert load_or_make(tmp_path / "other") != first
    assert (tmp_path / "credentials.json").stat().st_mode & 0o777 == 0o600


def test_no_secret_is_on_a_command_line(tmp_path: Path) -> None:
    made = load_or_make(tmp_path)
    command_lines = json.dumps([spec.argv for spec in process_specs(plan(tmp_path))])

    for secret in (made.bus_password, made.s3_secret_key):
        assert secret not in command_lines


def test_ports_move_up_where_they_are_taken() -> None:
    import socket

    (wanted,) = free_ports(1)
    with socket.create_server(("127.0.0.1", wanted)):
        picked = StackPorts.pick(offset=wanted - StackPorts().nats)

    assert picked.nats in range(wanted + 1, wanted + 20)
    assert (
        len(set(StackPorts.pick(ephemeral=True).peers().values())) == 6
    )  # tasksets and environments share one


def test_the_object_store_gets_no_port_that_was_promised_to_a_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Services are promised ports before anything listens on them; else both may get the same."""
    promised = set(range(21_000, 21_030))
    monkeypatch.setattr("local_stack.s3.free_ports", lambda count: list(range(21_000, 21_000 + count)))
    monkeypatch.setattr("local_stack.s3.is_free", lambda port: True)
    picked = astuple(S3Ports.pick(21_003, avoid=promised))
    assert picked[0] == 21_003
    assert len(set(picked)) == len(picked)
    assert promised.isdisjoint(picked[1:])


def test_no_environment_of_a_stack_may_read_its_data(tmp_path: Path) -> None:
    runner = services(tmp_path)["scenario_runner"]
    assert json.loads(runner.env["SCENARIO_RUNNER_CELL_HIDDEN"]) == [str(tmp_path)]


def test_the_operators_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    given = [services(tmp_path)["scenario_runner"].env["UPCYCLE_ACCESS_OPERATOR_KEY"] for _ in range(2)]
    file = operator_key_file(tmp_path)
    assert given == [file.read_text().strip()] * 2
    assert len(given[0]) >= 16
    assert file.stat().st_mode & 0o777 == 0o600
    others = [name for name, spec in services(tmp_path).items() if given[0] in spec.env.values()]
    serve_grpc = {
        "scenario_runner",
        "trajectory_store",
        "grpo_trainer",
        "checkpoint_registry",
        "reward_grader",
    }
    assert set(others) == serve_grpc


def test_the_services_send_one_key_and_it_is_not_the_operators(tmp_path: Path) -> None:
    found = services(tmp_path)
    ours = [spec for spec in found.values() if not spec.is_foreign]
    keys = {spec.env["UPCYCLE_ACCESS_SERVICE_KEY"] for spec in ours}
    assert keys == {(tmp_path / "service.key").read_text().strip()}
    assert (tmp_path / "service.key").stat().st_mode & 0o777 == 0o600
    assert keys.isdisjoint({operator_key_file(tmp_path).read_text().strip()})
    assert not any("UPCYCLE_ACCESS_OPEN" in spec.env for spec in ours)


def test_each_service_gets_its_own_key_of_nats_and_no_password(tmp_path: Path) -> None:
    specs = services(tmp_path)
    keys = {name: spec.env["UPCYCLE_BUS_NKEY"] for name, spec in specs.items()}

    assert keys["provision_watch"].endswith("bus/provision/bus.nk")
    assert keys["policy_engine_latest"] == keys["policy_engine_head"]
    assert len(set(keys.values())) == len(keys) - 1
    assert not any("UPCYCLE_BUS_PASSWORD" in spec.env for spec in specs.values())
    assert '"user"' not in (tmp_path / "nats" / "nats.conf").read_text()


def test_services_of_the_last_release_share_a_user(tmp_path: Path) -> None:
    shared = replace(plan(tmp_path), single_login=True)
    specs = {spec.name: spec for spec in process_specs(shared) if spec.name not in INFRASTRUCTURE}

    assert not any("UPCYCLE_BUS_NKEY" in spec.env for spec in specs.values())
    logins = {(one.env["UPCYCLE_BUS_USER"], one.env["UPCYCLE_BUS_PASSWORD"]) for one in specs.values()}
    assert logins == {("upcycle", load_or_make(tmp_path).bus_password)}


SIGNING = ("checkpoint_registry", "grpo_trainer")
PROVING = ("policy_engine_head", "policy_engine_latest", "rollout_sampler")


def test_who_writes_signs_with_its_own_key_and_who_reads_proves(tmp_path: Path) -> None:
    specs = services(tmp_path)
    signing = {
        name: SigningSettings(
            key=spec.env.get("UPCYCLE_SIGNING_KEY"), trusted=spec.env.get("UPCYCLE_SIGNING_TRUSTED")
        )
        for name, spec in specs.items()
        if "UPCYCLE_SIGNING_TRUSTED" in spec.env
    }
    assert sorted(signing) == sorted((*SIGNING, *PROVING))
    keys = {name: one.key for name, one in signing.items() if one.key is not None}
    assert sorted(keys) == sorted(SIGNING)
    assert len({SigningKey.read(key).id for key in keys.values()}) == len(SIGNING)
    assert not any("UPCYCLE_SIGNING_UNSIGNED" in spec.env for spec in specs.values())


def test_a_platform_that_stored_something_before_it_had_keys_accepts_it_until_it_is_signed(
    tmp_path: Path,
) -> None:
    (tmp_path / "s3").mkdir()
    (tmp_path / "signing.partial").mkdir()  # as a kill left it
    for _ in "12":
        accepting = {name for name, spec in services(tmp_path).items() if accepts(spec)}
        assert accepting == {*SIGNING, *PROVING}
    refuse_unsigned(tmp_path)
    assert not any(map(accepts, services(tmp_path).values()))


def accepts(spec: ProcessSpec) -> bool:
    return spec.env.get("UPCYCLE_SIGNING_UNSIGNED") == "accept"
