"""Settings refuse what they do not know, all at once, and never show a secret."""

from pathlib import Path
from typing import Self

import pytest
from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from service_kit.groups import BusSettings, S3Settings, SqlSettings
from service_kit.settings import ServiceSettings, SettingsError, load_settings


class ToySettings(ServiceSettings):
    """A toy service."""

    model_config = SettingsConfigDict(env_prefix="TOY_")

    group_size: int = Field(8, ge=2)
    """Rollouts per group."""
    ack_wait_s: float = 120.0
    timeout_s: float = 90.0
    roots: tuple[str, ...] = ()
    api_key: SecretStr | None = None
    bus: BusSettings = Field(default_factory=BusSettings)
    s3: S3Settings = Field(default_factory=S3Settings)

    @model_validator(mode="after")
    def _redelivery_outlasts_work(self) -> Self:
        if self.ack_wait_s <= self.timeout_s:
            raise ValueError(
                f"TOY_ACK_WAIT_S={self.ack_wait_s:g} must exceed TOY_TIMEOUT_S={self.timeout_s:g}"
            )
        return self


def problems(**environ: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(ToySettings, environ=environ)
    return caught.value.problems


def test_defaults_need_no_environment() -> None:
    settings = load_settings(ToySettings, environ={})

    assert (settings.group_size, settings.host, settings.bus.url) == (8, "127.0.0.1", "nats://127.0.0.1:4222")


def test_values_come_from_the_environment_of_the_class_and_of_its_groups() -> None:
    environ = {"TOY_GROUP_SIZE": "4", "UPCYCLE_BUS_URL": "nats://a:1,nats://b:2", "TOY_ROOTS": '["/a", "/b"]'}

    settings = load_settings(ToySettings, environ=environ)

    assert (settings.group_size, settings.roots) == (4, ("/a", "/b"))
    assert settings.bus.servers == ["nats://a:1", "nats://b:2"]


def test_a_misspelt_variable_is_refused_with_the_nearest_name() -> None:
    assert problems(TOY_GROUPSIZE="4") == ["TOY_GROUPSIZE: unknown variable; did you mean TOY_GROUP_SIZE?"]


def test_shared_prefixes_are_checked_even_where_the_group_is_not_used() -> None:
    assert problems(UPCYCLE_PEERS_REGISTRI="x:1") == [
        "UPCYCLE_PEERS_REGISTRI: unknown variable; did you mean UPCYCLE_PEERS_REGISTRY?"
    ]


def test_everything_wrong_is_listed_at_once() -> None:
    found = problems(
        TOY_GROUP_SIZE="1",
        TOY_HTTP_PORT="many",
        TOY_NONSENSE="1",
        UPCYCLE_BUS_URL="http://bus",
        UPCYCLE_S3_ENDPOINT="http://s3:1",
    )

    assert [line.split(":")[0].split("=")[0] for line in found] == [
        "TOY_NONSENSE",
        "UPCYCLE_BUS_URL",
        "UPCYCLE_S3_ENDPOINT",
        "TOY_HTTP_PORT",
        "TOY_GROUP_SIZE",
    ]
    assert "TOY_GROUP_SIZE='1': Input should be greater than or equal to 2" in found


def test_a_rule_across_fields_names_both() -> None:
    assert problems(TOY_ACK_WAIT_S="10") == ["TOY_ACK_WAIT_S=10 must exceed TOY_TIMEOUT_S=90"]


def test_a_group_cannot_be_set_as_a_whole() -> None:
    assert problems(TOY_BUS='{"url": "nats://x:1"}')[0].startswith("TOY_BUS: unknown variable")


def test_a_value_that_is_no_json_is_a_problem_not_a_crash() -> None:
    (found,) = problems(TOY_ROOTS="/a:/b")

    assert "roots" in found


def test_other_programs_variables_are_none_of_our_business() -> None:
    load_settings(
        ToySettings, environ={"UPCYCLE_API_KEY": "x", "OTHER_TOY": "1", "TOYS": "1", "PATH": "/bin"}
    )


@pytest.mark.parametrize(
    "environ",
    [
        {"UPCYCLE_BUS_URL": "nats://user:hunter2hunter2@bus:4222"},
        {"UPCYCLE_BUS_URL": "http://user:hunter2hunter2@bus:4222"},
        {"UPCYCLE_S3_SECRET_KEYS": "hunter2hunter2"},
        {"TOY_API_KEY": "hunter2hunter2", "TOY_GROUP_SIZE": "1"},
    ],
)
def test_secrets_never_show(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(ToySettings, environ=environ)

    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(load_settings(ToySettings, environ={"TOY_API_KEY": "hunter2hunter2"}))


def test_a_file_gives_values_and_the_environment_wins(tmp_path: Path) -> None:
    file = tmp_path / "toy.env"
    file.write_text("TOY_GROUP_SIZE=4\nTOY_TIMEOUT_S=30\nUPCYCLE_S3_BUCKET=from-file\n")

    settings = load_settings(ToySettings, environ={"TOY_SETTINGS_FILE": str(file), "TOY_GROUP_SIZE": "6"})

    assert (settings.group_size, settings.timeout_s, settings.s3.bucket) == (6, 30.0, "from-file")


def test_a_file_may_hold_nothing_that_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "toy.env"
    file.write_text("TOY_GROUPSIZE=4\nPATH=/bin\n")

    found = problems(TOY_SETTINGS_FILE=str(file))

    assert len(found) == 2
    assert problems(TOY_SETTINGS_FILE="/no/such") == ["TOY_SETTINGS_FILE='/no/such': no such file"]


def test_settings_cannot_be_changed_afterwards() -> None:
    settings = load_settings(ToySettings, environ={})

    with pytest.raises(ValueError, match="frozen"):
        settings.group_size = 4  # type: ignore[misc]


def test_each_service_has_a_database_of_its_own(tmp_path: Path) -> None:
    embedded = SqlSettings(data_dir=tmp_path)
    server = SqlSettings(url=SecretStr("postgresql+psycopg://u:p@db/registry"))

    assert embedded.url_for("registry") == f"sqlite:///{tmp_path}/registry.sqlite"
    assert server.url_for("registry") == "postgresql+psycopg://u:p@db/registry"


def test_a_rule_of_a_group_is_said_once() -> None:
    """Pydantic finds it broken in the group, and again in the settings that hold the group."""
    from checkpoint_registry.settings import CheckpointRegistrySettings

    with pytest.raises(SettingsError) as refused:
        load_settings(CheckpointRegistrySettings, environ={})
    assert [problem[:30] for problem in refused.value.problems] == ["set UPCYCLE_ACCESS_SERVICE_KEY"]
