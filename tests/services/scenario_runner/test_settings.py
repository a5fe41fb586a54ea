"""Settings that contradict each other are refused with both names; none of the contract's options is lost."""

import pytest

from scenario_runner.settings import ScenarioRunnerSettings
from service_kit.settings import SettingsError, load_settings
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.run_config import Training


def refused(**environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(ScenarioRunnerSettings, environ=environ)
    return str(caught.value)


def test_roles_apart_need_a_database_server() -> None:
    text = refused(SCENARIO_RUNNER_ROLE="fleet")
    assert "SCENARIO_RUNNER_ROLE=fleet needs UPCYCLE_SQL_URL=postgresql://" in text
    environ = {"SCENARIO_RUNNER_ROLE": "planner", "UPCYCLE_SQL_URL": "postgresql://u@h/db"}
    assert load_settings(ScenarioRunnerSettings, environ=environ).role == "planner"


def test_a_lease_must_outlast_a_grade() -> None:
    text = refused(SCENARIO_RUNNER_LEASE_S="40")
    assert "SCENARIO_RUNNER_LEASE_S=40 must exceed SCENARIO_RUNNER_GRADE_TIMEOUT_S=50" in text


def test_a_misspelt_variable_is_named_with_the_nearest() -> None:
    assert "did you mean SCENARIO_RUNNER_MAX_ENVIRONMENTS" in refused(SCENARIO_RUNNER_MAX_ENVIRONMENT="5")


def test_every_training_option_of_the_contract_reaches_the_trainer() -> None:
    config = taskset_pb2.TrainingConfig.DESCRIPTOR
    assert {field.name for field in config.fields} == set(Training.__slots__)
