"""Settings that contradict each other are refused with both names; none of the contract's options is lost."""

from pathlib import Path

import pytest

from scenario_runner.hosting import cell_rules
from scenario_runner.settings import ScenarioRunnerSettings
from service_kit.settings import SettingsError, load_settings
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.environment import landlock
from upcycle.run_config import Training

OPEN = {"UPCYCLE_ACCESS_OPEN": "true"}


def refused(**environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(ScenarioRunnerSettings, environ=OPEN | environ)
    return str(caught.value)


def test_roles_apart_need_a_database_server() -> None:
    text = refused(SCENARIO_RUNNER_ROLE="fleet")
    assert "SCENARIO_RUNNER_ROLE=fleet needs UPCYCLE_SQL_URL=postgresql://" in text
    environ = {**OPEN, "SCENARIO_RUNNER_ROLE": "planner", "UPCYCLE_SQL_URL": "postgresql://u@h/db"}
    assert load_settings(ScenarioRunnerSettings, environ=environ).role == "planner"


def test_a_lease_must_outlast_a_grade() -> None:
    text = refused(SCENARIO_RUNNER_LEASE_S="40")
    assert "SCENARIO_RUNNER_LEASE_S=40 must exceed SCENARIO_RUNNER_GRADE_TIMEOUT_S=50" in text


def test_a_misspelt_variable_is_named_with_the_nearest() -> None:
    assert "did you mean SCENARIO_RUNNER_MAX_ENVIRONMENTS" in refused(SCENARIO_RUNNER_MAX_ENVIRONMENT="5")


def test_the_cell_hides_the_runners_own_tables_and_what_the_operator_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {
        **OPEN,
        "UPCYCLE_SQL_DATA_DIR": str(tmp_path),
        "SCENARIO_RUNNER_CELL_HIDDEN": '["/srv/platform"]',
        "SCENARIO_RUNNER_CELL_PORTS": "[443, 53]",
    }
    monkeypatch.setattr(landlock, "version", lambda: 4)
    rules = cell_rules(load_settings(ScenarioRunnerSettings, environ=environ))
    tables = tmp_path / "scenario_runner.sqlite"
    assert {"/srv/platform", str(tmp_path), str(tables), f"{tables}-wal"} <= set(rules.hidden)
    assert (rules.mode, rules.ports) == ("enforced", (443, 53))
    (said,) = [record.__dict__ for record in caplog.records if record.message == "cell_incomplete"]
    assert (said["missing"], said["deployed"]) == ("signals (Linux 6.12)", "refused")
    assert "SCENARIO_RUNNER_CELL_PORTS" in refused(SCENARIO_RUNNER_CELL_PORTS="[70000]")


def test_every_training_option_of_the_contract_reaches_the_trainer() -> None:
    config = taskset_pb2.TrainingConfig.DESCRIPTOR
    assert {field.name for field in config.fields} == set(Training.__slots__)
