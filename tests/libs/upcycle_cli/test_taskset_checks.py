"""What `upcycle tasksets list` says of checks in one word, and `show` in lines that none can forge."""

import pytest

from upcycle.api.taskset.v1.taskset_pb2 import (
    TASKSET_CHECK_KIND_ATTACK,
    TASKSET_CHECK_KIND_LEAK_SCAN,
    TasksetCheck,
    TasksetSummary,
)
from upcycle.cli.taskset_checks import check_lines, found_in

NOW, BEFORE = "a" * 64, "b" * 64


def scan(num_looked: int, num_findings: int = 0, source: str = NOW) -> TasksetCheck:
    check = TasksetCheck(
        kind=TASKSET_CHECK_KIND_LEAK_SCAN,
        num_tasks=5,
        num_looked=num_looked,
        num_findings=num_findings,
        source_digest=source,
    )
    check.checked_at.GetCurrentTime()
    return check


def attack(num_findings: int) -> TasksetCheck:
    check = scan(5, num_findings)
    check.kind = TASKSET_CHECK_KIND_ATTACK
    return check


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ([], "not looked at"),
        ([TasksetCheck(kind=TASKSET_CHECK_KIND_LEAK_SCAN)], "not looked at"),
        ([scan(0)], "not searched"),
        ([scan(5)], "nothing"),
        ([scan(5, 1), attack(2)], "1 leak, 2 by attacks"),
        ([scan(5), scan(5, 3, BEFORE)], "nothing"),
    ],
)
def test_what_was_found_in_a_taskset(checks: list[TasksetCheck], said: str) -> None:
    assert found_in(TasksetSummary(source_digest=NOW, checks=checks)) == said


def test_a_check_writes_no_line_of_its_own() -> None:
    kept = attack(1)
    kept.model_family, kept.stopped = "qwen\nleak scan: 0 findings", "\x1b[2Jlate"
    kept.findings.append("t1: x\u2028leak scan\tover")
    head, finding = check_lines(TasksetSummary(checks=[kept], source_digest=NOW))
    assert head.startswith("attack on the graders (against qwen leak scan: 0 findings): 1 finding")
    assert head.endswith("; \ufffd[2Jlate")
    assert finding == "  t1: x leak scan over"
