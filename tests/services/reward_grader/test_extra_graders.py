"""Extra graders of the operator: weighed into the tree, and never a zero when they break."""

import asyncio
import sys
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.services.reward_grader.conftest import Testbed, tree

from reward_grader.adapters.extra_graders import ExtraGraderInvalid, load_grader
from reward_grader.domain import GraderTranscript
from reward_grader.settings import ExtraGraderSettings
from upcycle.api.environment.v1.service_pb2 import GradeResponse
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.errors import DefinitionError
from upcycle.graders import BashGrader, Rubric, grader

HERE = "tests.services.reward_grader.test_extra_graders"


def brief(transcript: GraderTranscript) -> float:
    """An operator's grader: short conversations are good."""
    assert transcript.messages[1]["tool_calls"][0]["function"]["name"] == "search_logs"
    return 1.0 if len(transcript.messages) <= 4 else 0.0


async def polite(transcript: GraderTranscript) -> float:
    return 0.0 if "please" not in transcript.answer else 1.0


def broken(_: GraderTranscript) -> float:
    raise RuntimeError("no model here")


def leaves(_: GraderTranscript) -> float:
    sys.exit(1)


async def cancels(_: GraderTranscript) -> float:
    raise asyncio.CancelledError


def silly(_: GraderTranscript) -> float:
    return 7.0


async def unknown(_: GraderTranscript) -> float:
    """As a reward model whose weights overflowed."""
    return float("nan")


async def boundless(_: GraderTranscript) -> float:
    return float("inf")


async def silent(_: GraderTranscript) -> Any:
    return None


async def wordy(_: GraderTranscript) -> Any:
    return "0.9"


def wordy_in_a_thread(_: GraderTranscript) -> Any:
    return "0.9"


def huge(_: GraderTranscript) -> Any:
    """As a count of tokens in place of a share of them."""
    return 10**400


def unsure(_: GraderTranscript) -> Any:
    return Decimal("sNaN")


def several(_: GraderTranscript) -> Any:
    """As a reward model that scored a whole batch."""
    return np.array([0.5, 0.6])


class Odd:
    """A number that is none, and cannot be shown."""

    def __float__(self) -> float:
        raise RuntimeError("it has no value")

    def __repr__(self) -> str:
        raise RuntimeError("it has no text")


def odd(_: GraderTranscript) -> Any:
    return Odd()


UNKNOWN = grader(lambda answer: float("nan"))
HUGE = Rubric([grader(lambda answer: 10**400, name="length")])
RUBRIC = Rubric([grader(lambda answer: len(answer.trajectory.tool_calls) == 1, name="one_call")])
SILENT = grader(lambda answer: not answer)
BROKEN = grader(lambda answer: 1 / 0)


COMMAND = BashGrader("true")
WEIGHED = COMMAND.weighing(0.5, name="suite")
COMMANDS = Rubric([RUBRIC.graders[0], WEIGHED])
HIDDEN = BashGrader("touch ran; true").shadow()
"""No look at it tells that it runs a command."""


def calls_a_command(_: GraderTranscript) -> float:
    return BashGrader("touch ran; true")("x").value


def extra(name: str, weight: float = 1.0) -> ExtraGraderSettings:
    return ExtraGraderSettings(path=f"{HERE}:{name}", weight=weight)


async def test_extra_graders_are_weighed_into_the_tree(bed: Testbed) -> None:
    bed.environments.grade = lambda _: GradeResponse(reward=0.5, success=True, subscores=[tree()])
    await bed.grader(environment_weight=2.0, extra_graders=(extra("brief"), extra("polite")))
    await bed.publish(await bed.record())
    (fact,) = await bed.outcomes(1)
    # (2 x 0.5 + 1 x 1 + 1 x 0) / 4
    assert fact.reward == 0.5
    assert [(node.name, node.weight, node.value) for node in fact.subscores] == [
        ("environment", 2.0, 0.5),
        ("brief", 1.0, 1.0),
        ("polite", 1.0, 0.0),
    ]
    assert fact.subscores[0].children[0].name == "service"


async def test_a_rubric_of_the_sdk_is_an_extra_grader(bed: Testbed) -> None:
    bed.environments.grade = lambda _: GradeResponse(reward=0.5, success=True)
    await bed.grader(extra_graders=(extra("RUBRIC"), extra("SILENT")))
    await bed.publish(await bed.record())
    (fact,) = await bed.outcomes(1)
    assert fact.reward == 0.5  # (0.5 + 1 + 0) / 3
    assert [(node.name, node.value) for node in fact.subscores[1:]] == [("RUBRIC", 1.0), ("SILENT", 0.0)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("BROKEN", "grader_error"),
        ("broken", "grader_error"),
        ("leaves", "grader_error"),
        ("cancels", "grader_error"),
        ("silly", "reward_invalid"),
    ],
)
async def test_an_extra_grader_that_fails_has_not_scored_zero(bed: Testbed, name: str, kind: str) -> None:
    await bed.grader(extra_graders=(extra(name),))
    await bed.publish(await bed.record())
    (fact,) = await bed.outcomes(1)
    assert fact.kind == kind


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("silly", "7.0"),
        ("unknown", "nan"),
        ("boundless", "inf"),
        ("silent", "None"),
        ("wordy", "'0.9'"),
        ("wordy_in_a_thread", "'0.9'"),
        ("huge", "1000"),
        ("unsure", "Decimal('sNaN')"),
        ("several", "array([0.5, 0.6])"),
        ("odd", "a value of type Odd"),
    ],
)
async def test_a_score_that_is_no_number_from_0_to_1_is_a_failure_of_the_grader_by_name(
    bed: Testbed, name: str, shown: str
) -> None:
    await bed.grader(extra_graders=(extra("brief"), extra(name)))
    await bed.publish(await bed.record())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "reward_invalid"
    assert f"grader {name}: score is {shown}" in fact.detail


@pytest.mark.parametrize(("name", "shown"), [("UNKNOWN", "is nan"), ("HUGE", "'length' is 1000")])
async def test_a_score_that_a_grader_of_the_sdk_refuses_itself_is_no_failure_of_its_code(
    bed: Testbed, name: str, shown: str
) -> None:
    await bed.grader(extra_graders=(extra(name),))
    await bed.publish(await bed.record())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "reward_invalid"
    assert f"grader {name}: " in fact.detail
    assert shown in fact.detail


def test_an_extra_grader_that_does_not_exist_stops_the_start() -> None:
    for path in ("nowhere.at_all:grade", f"{HERE}:nothing", f"{HERE}:HERE"):
        with pytest.raises(ExtraGraderInvalid, match="REWARD_GRADER_EXTRA_GRADERS"):
            load_grader(path, 1.0, "")


def test_a_command_is_no_extra_grader() -> None:
    for name in ("COMMAND", "WEIGHED", "COMMANDS"):
        with pytest.raises(
            ExtraGraderInvalid, match=f"{name}.*a BashGrader: this is the grader's process.*scenario"
        ):
            load_grader(f"{HERE}:{name}", 1.0, "")


@pytest.mark.parametrize("name", ["calls_a_command", "HIDDEN"])
async def test_no_function_of_an_operator_runs_a_command_in_the_graders_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_grader(f"{HERE}:{name}", 1.0, "")
    transcript = GraderTranscript("traj-1", "task-1", "x", ())
    with suppress(DefinitionError):
        assert await loaded.score(transcript) == 0.0
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("stored", [b"garbage", b""])
async def test_a_body_that_extra_graders_cannot_read_fails_its_episode(bed: Testbed, stored: bytes) -> None:
    await bed.grader(extra_graders=(extra("brief"),))
    await bed.publish(await bed.record(body=stored))
    flipped = await bed.record(1)
    flipped.body.sha256 = "0" * 64
    await bed.publish(flipped)
    facts = await bed.outcomes(2)
    assert [fact.kind for fact in facts] == ["body_corrupt", "body_corrupt"]
    assert bed.environments.grades == []
