"""A trajectory of the store as an episode of a page."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from upcycle.reporting.episodes import EpisodeRow
from upcycle.reporting.state_texts import states_in_order
from upcycle.run_pages.texts import MAX_EPISODE_CHARS, kept
from upcycle.run_pages.values import Message, ShownCall, ShownEpisode, ShownGrade, ShownToken, ShownTurn
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.trajectory.v1 import trajectory_pb2 as pb
    from upcycle.api.trajectory.v1.service_pb2 import GetTrajectoryResponse

MAX_GRADES = 200
MAX_DETAIL_CHARS = 16_000
MAX_TOKENS = MAX_EPISODE_CHARS // 48


def shown_episode(
    row: EpisodeRow, why: str, record: "GetTrajectoryResponse", detail: str, *, tokens: bool
) -> ShownEpisode:
    """detail: of its failure, where the planner knows more than the trajectory."""
    body, summary = record.body, record.summary
    failure = summary.failure if summary.HasField("failure") else body.failure
    said = f"{failure.rule}\n{failure.detail}".strip()
    return ShownEpisode(
        row=row,
        why=why,
        words=_words(body, summary),
        prompt=tuple(Message(one.role, kept(one.content)) for one in body.prompt),
        turns=tuple(_turn(turn, tokens=tokens) for turn in body.turns),
        answer=kept(body.answer),
        grades=tuple(_grades(summary.subscores)),
        detail=kept(detail or said, MAX_DETAIL_CHARS),
        states=tuple(map(kept, states_in_order(body))),
    )


def _words(body: "pb.TrajectoryBody", summary: "pb.TrajectorySummary") -> tuple[str, ...]:
    from upcycle.api.trajectory.v1.trajectory_pb2 import LedgerState, StopReason

    span = body.sampled_by
    version = f"v{span.oldest}" if span.oldest == span.newest else f"v{span.oldest}–v{span.newest}"
    version = "" if span.oldest < 0 else version  # no version of a model here
    stop = StopReason.Name(body.stop_reason).removeprefix("STOP_REASON_").lower().replace("_", " ")
    ledger = LedgerState.Name(summary.ledger.state).removeprefix("LEDGER_STATE_").lower()
    reason = f" ({summary.ledger.reason})" if summary.ledger.reason else ""
    step = f" in step {summary.ledger.step}" if summary.ledger.step else ""
    source = f"judged by source {body.source_digest[:12]}" if body.source_digest else ""
    return tuple(word for word in (version, stop, f"{ledger}{reason}{step}", source) if word)


def _turn(turn: "pb.Turn", *, tokens: bool) -> ShownTurn:
    from upcycle.api.trajectory.v1.trajectory_pb2 import FinishReason

    results = {one.call_id: one for one in turn.tool_results}
    versions = ", ".join(f"v{span.version} × {span.num_tokens}" for span in turn.versions)
    finish = FinishReason.Name(turn.finish_reason).removeprefix("FINISH_REASON_").lower()
    words = (amount(len(turn.sampled_ids), "token"), versions, finish, f"{turn.sampling_s:.2g} s")
    sampled = zip(turn.sampled_texts[:MAX_TOKENS], turn.sampled_logprobs, strict=False) if tokens else ()
    return ShownTurn(
        text=kept(turn.text),
        calls=tuple(_call(call, results.get(call.call_id)) for call in turn.tool_calls),
        words=tuple(word for word in words if word),
        parse_error=kept(turn.parse_error),
        tokens=tuple(ShownToken(kept(text), logprob) for text, logprob in sampled),
        reasoning=kept(turn.reasoning),
    )


def _call(call: "pb.ToolCall", result: "pb.ToolResult | None") -> ShownCall:
    if result is None:
        return ShownCall(call.name, kept(call.arguments_json))
    content, took_s = kept(result.content), result.duration_s
    return ShownCall(call.name, kept(call.arguments_json), content, result.is_error, took_s)


def _grades(subscores: "Sequence[pb.Subscore]") -> Iterator[ShownGrade]:
    """The reward tree from its top, at most MAX_GRADES of it."""
    left = [(0, one) for one in reversed(subscores)]
    for _ in range(MAX_GRADES):
        if not left:
            return
        depth, one = left.pop()
        yield ShownGrade(depth, one.name, one.value, one.weight, kept(one.info))
        left += [(depth + 1, child) for child in reversed(one.children)]
