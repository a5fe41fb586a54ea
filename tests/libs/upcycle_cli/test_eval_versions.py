"""`upcycle eval tasks.py incident@v12` pins the version that the name says."""

import pytest

from upcycle.cli.eval_flags import UnclearEvaluation
from upcycle.cli.evaluate import _with_version
from upcycle.cli.run_flags import eval_defaults
from upcycle.errors import UnknownName
from upcycle.run_config import Purpose
from upcycle.run_config.reading import Given, Sources


def asked(model: str, version: int | None = None) -> Sources:
    values = {"policy.model": Given(model, "MODEL"), "taskset": Given("incidents", "TASKS")}
    if version is not None:
        values["policy.pinned_version"] = Given(version, "--at-version")
    return Sources(values)


@pytest.mark.parametrize(
    ("model", "flag", "version"),
    [("incident@v12", None, 12), ("incident@v12", 12, 12), ("incident", 3, 3), ("incident@head", None, None)],
)
def test_a_name_with_a_version_is_a_pinned_evaluation(
    model: str, flag: int | None, version: int | None
) -> None:
    given = _with_version(asked(model, flag))
    run = given.run(Purpose.EVAL, eval_defaults(given)).run
    assert (run.policy.model, run.policy.pinned_version) == ("incident", version)


def test_two_versions_and_a_wrong_name_are_refused() -> None:
    with pytest.raises(UnclearEvaluation, match="MODEL incident@v12 and --at-version 3 name two versions"):
        _with_version(asked("incident@v12", 3))
    with pytest.raises(UnknownName, match="names no version of 'incident'"):
        _with_version(asked("incident@newest"))
