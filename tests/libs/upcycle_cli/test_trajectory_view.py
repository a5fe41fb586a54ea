"""A trajectory on a terminal: everything that was said is there, and hostile text stays text."""

import io

import pytest
from rich.console import Console

from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.trajectory.v1 import trajectory_pb2 as pb
from upcycle.cli.trajectory_view import ledger_words, render, sureness_style, token_strip


def shown(summary: pb.TrajectorySummary, body: pb.TrajectoryBody, *, with_tokens: bool = True) -> str:
    """What a person sees, without colours."""
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    console.print(render(summary, body, with_tokens=with_tokens))
    out = console.file
    assert isinstance(out, io.StringIO)
    return out.getvalue()


def turn() -> pb.Turn:
    """One tool call with its answer."""
    return pb.Turn(
        sampled_ids=[5, 6],
        sampled_texts=["look", " now"],
        sampled_logprobs=[-0.1, -3.0],
        versions=[pb.TokenVersions(version=3, num_tokens=2)],
        finish_reason=pb.FINISH_REASON_STOP,
        tool_calls=[pb.ToolCall(call_id="c1", name="search_logs", arguments_json='{"service":"cart"}')],
        tool_results=[pb.ToolResult(call_id="c1", content="[bold]timeout[/bold]", duration_s=0.002)],
    )


def test_turns_calls_results_and_rewards_are_shown_as_they_are() -> None:
    body = pb.TrajectoryBody(
        episode=EpisodeIdentity(task_slug="cart-500s", model="incident"),
        turns=[turn()],
        stop_reason=pb.STOP_REASON_ANSWERED,
    )
    tree = pb.Subscore(
        name="service", weight=0.5, value=1.0, children=[pb.Subscore(name="exact", weight=1, value=1)]
    )
    summary = pb.TrajectorySummary(
        episode=EpisodeIdentity(trajectory_id="traj-x"),
        graded=True,
        reward=0.75,
        success=True,
        subscores=[tree],
    )
    text = shown(summary, body)
    for part in (
        "traj-x",
        "cart-500s",
        "look now",
        'search_logs({"service":"cart"})',
        "[bold]timeout[/bold]",
        "v3×2",
    ):
        assert part in text
    for part in ("reward 0.750", "service 1.000", "exact"):
        assert part in text


def test_no_control_character_of_an_episode_reaches_the_terminal() -> None:
    """Title, colours and C1, from each who may write: prompt, policy, tool, grader."""
    evil = "\x1b]0;owned\x07\x9b2Jkept"
    hostile = turn()
    hostile.text = hostile.parse_error = evil
    hostile.sampled_texts[:] = [evil, evil]
    hostile.tool_calls[0].arguments_json = hostile.tool_results[0].content = evil
    body = pb.TrajectoryBody(prompt=[pb.Message(role="user", content=evil)], turns=[hostile])
    failure = pb.PolicyFailure(kind="answer_error", rule="raised", detail=evil)
    summary = pb.TrajectorySummary(
        graded=True, failure=failure, subscores=[pb.Subscore(name=evil, info=evil)]
    )
    text = shown(summary, body)
    assert text.count("kept") == 9
    assert not {"\x1b", "\x07", "\x9b"} & set(text)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (pb.LedgerEntry(state=pb.LEDGER_STATE_EVALUATED), "evaluated"),
        (pb.LedgerEntry(state=pb.LEDGER_STATE_EXCLUDED, reason="stale"), "excluded(stale)"),
        (
            pb.LedgerEntry(state=pb.LEDGER_STATE_TRAINED, step=3, run_id="run-t", trained_by_run="run-t"),
            "trained(step 3)",
        ),
        (
            pb.LedgerEntry(state=pb.LEDGER_STATE_TRAINED, step=3, run_id="run-e", trained_by_run="run-t"),
            "trained(step 3 of run-t)",
        ),
    ],
)
def test_the_ledger_is_shown_in_words(entry: pb.LedgerEntry, words: str) -> None:
    assert ledger_words(entry) == words
    summary = pb.TrajectorySummary(episode=EpisodeIdentity(trajectory_id="t"), ledger=entry)
    assert f"ledger: {words}" in shown(summary, pb.TrajectoryBody())


def test_an_ungraded_trajectory_says_so() -> None:
    assert "not graded" in shown(
        pb.TrajectorySummary(episode=EpisodeIdentity(trajectory_id="t")), pb.TrajectoryBody()
    )


def test_a_guided_trajectory_says_after_which_attempt() -> None:
    summary = pb.TrajectorySummary(episode=EpisodeIdentity(trajectory_id="t"))
    assert "guided" not in shown(summary, pb.TrajectoryBody())
    guided = pb.TrajectoryBody(episode=EpisodeIdentity(guided_after="run-1-g00000-e000-a0"))
    assert "guided after run-1-g00000-e000-a0" in shown(summary, guided)
    for kind, text in (("plan", "Look first."), ("hint", "It begins with c.")):
        guided.guidance_parts.append(pb.GuidancePart(kind=kind, text=text))
    lines = [line.strip() for line in shown(summary, guided).splitlines()]
    assert {"plan: Look first.", "hint: It begins with c."} <= set(lines)


def test_colours_follow_probability() -> None:
    assert [sureness_style(logprob) for logprob in (0.0, -0.5, -1.2, -2.5, -9.0)] == [
        "green",
        "bright_green",
        "yellow",
        "dark_orange",
        "red",
    ]


def test_a_strip_holds_every_token() -> None:
    assert token_strip(["a", "b"], [-1.0, -2.0]).plain.startswith("ab")


def test_reasoning_and_states_are_shown_apart_from_what_was_said() -> None:
    said = turn()
    said.reasoning, said.text = "Is it [bold]the pool[/bold]?", "I look."
    said.tool_results[0].state.patch_json = '[{"op":"add","path":"/looks","value":1}]'
    body = pb.TrajectoryBody(turns=[said], first_state=pb.StateSnapshot(value_json='{"stock":"\x1b[31m"}'))
    body.last_state.note = "left out: the state has 70000 bytes, limit 65536"
    text = shown(pb.TrajectorySummary(), body, with_tokens=False)
    for part in (
        "reasoning: Is it [bold]the pool[/bold]?",
        "I look.",
        'state changed: [{"op":"add","path":"/looks","value":1}]',
        "state: left out: the state has 70000 bytes, limit 65536",
        'state: {"stock":',
    ):
        assert part in text
    assert "\x1b[31m" not in text
    unchanged = pb.TrajectoryBody(last_state=pb.StateSnapshot(patch_json="[]"))
    assert "state unchanged" in shown(pb.TrajectorySummary(), unchanged)
    assert "state" not in shown(pb.TrajectorySummary(), pb.TrajectoryBody())
    large = pb.TrajectoryBody(first_state=pb.StateSnapshot(value_json='"' + "x" * 60_000 + '"'))
    assert len(shown(pb.TrajectorySummary(), large)) < 10_000
