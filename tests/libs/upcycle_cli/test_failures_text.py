"""What `upcycle eval` prints of episodes that failed."""

from upcycle.cli.failures_text import failure_examples, failures_json, failures_text
from upcycle.results import Run

RAISED = "scenario raised: KeyError\nTraceback: env.py, line 7\nit printed:\nhello"


def run(number: int, failure: str = "", policy_failure: str = "", detail: str = "") -> Run:
    return Run(
        f"t{number}", 0.0, False, "", f"e{number}",
        failure=failure, policy_failure=policy_failure, failure_detail=detail,
    )  # fmt: skip


def test_alike_failures_are_one_with_the_first_as_example() -> None:
    runs = [run(0), run(1, "environment_broken", detail=RAISED), run(2, "environment_broken", detail=RAISED)]
    runs.append(run(3, policy_failure="answer_error", detail="ValueError"))
    assert failures_text(failure_examples(runs)) == (
        "environment_broken (no reward): task t1, e1 and 1 more\n"
        "  scenario raised: KeyError\n  Traceback: env.py, line 7\n  it printed:\n  hello\n"
        "answer_error (by the policy, reward 0): task t3, e3\n  ValueError"
    )


def test_failures_that_differ_by_the_id_of_a_request_are_alike() -> None:
    said = "the server answered 400: too long, request req-4069bcc4a19f000000"
    examples = failure_examples([run(n, "player_failed", detail=f"{said}{n}0") for n in range(4)])
    assert [(one.count, one.task_slug) for one in examples] == [(4, "t0")]


def test_nothing_is_said_where_nothing_failed() -> None:
    assert failures_text(failure_examples([run(0)])) == ""


def test_only_three_are_shown_and_all_are_in_the_json() -> None:
    examples = failure_examples(
        [run(number, "scenario_error", detail=f"error {number}") for number in range(5)]
    )
    text = failures_text(examples)
    assert ("error 2" in text, "error 3" in text) == (True, False)
    assert "2 other failures" in text
    assert "\n1 other failure:" in failures_text(examples[:4])
    assert [one["detail"] for one in failures_json(examples)] == [f"error {number}" for number in range(5)]


def test_what_an_environment_printed_moves_no_cursor() -> None:
    text = failures_text(failure_examples([run(0, "scenario_error", detail="\x1b[2Jgone\x07")]))
    assert "gone" in text
    assert not {"\x1b", "\x07"} & set(text)
