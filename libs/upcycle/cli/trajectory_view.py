"""A trajectory as text: messages, tool calls with results, log-probabilities of tokens, the reward tree."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree

from upcycle.api.trajectory.v1.trajectory_pb2 import (
    LEDGER_STATE_TRAINED,
    FinishReason,
    LedgerState,
    StopReason,
)
from upcycle.cli.terminal_text import terminal_text
from upcycle.reporting.state_texts import state_text
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.trajectory.v1.trajectory_pb2 import (
        LedgerEntry,
        StateSnapshot,
        Subscore,
        TrajectoryBody,
        TrajectorySummary,
        Turn,
    )

MAX_STATE_CHARS = 2000
# Probability of the sampled token -> colour: green was expected, red was a gamble.
SURENESS = ((0.9, "green"), (0.5, "bright_green"), (0.2, "yellow"), (0.05, "dark_orange"), (0.0, "red"))


def render(
    summary: "TrajectorySummary", body: "TrajectoryBody", *, with_tokens: bool, failure: str = ""
) -> RenderableType:
    """The whole trajectory, one panel per turn. failure: why it has no reward, with the traceback."""
    parts: list[RenderableType] = [_heading(summary, body)]
    parts += [_text(f"{message.role}: {message.content}", "dim") for message in body.prompt]
    parts += [_state(body.first_state)] if body.HasField("first_state") else []
    parts += [_turn(number, turn, with_tokens) for number, turn in enumerate(body.turns, start=1)]
    parts += [_state(body.last_state)] if body.HasField("last_state") else []
    parts.append(_reward(summary))
    if failure:
        parts.append(_text(failure, "red"))
    return Group(*parts)


def _text(text: str, style: str = "") -> Text:
    """What an agent, a tool or an environment wrote, whole."""
    return Text(terminal_text(text, max_chars=len(text)), style=style)


def _heading(summary: "TrajectorySummary", body: "TrajectoryBody") -> Text:
    stop = StopReason.Name(body.stop_reason).removeprefix("STOP_REASON_").lower()
    is_ours = body.sampled_by.oldest >= 0
    span = f" v{body.sampled_by.oldest}–v{body.sampled_by.newest}" if is_ours else ""
    text = Text(summary.episode.trajectory_id, style="bold")
    ended, episode = ledger_words(summary.ledger), body.episode
    text.append(f"\n{episode.task_slug} · {episode.model}{span} · {stop} · ledger: {ended}", style="not bold")
    labels = " ".join(summary.episode.labels)
    text.append(f"\nlabels {labels}" if labels else "", "not bold dim")
    text.append(f"\nof taskset {episode.taskset}" if episode.taskset else "", "not bold dim")
    if body.unrecorded_calls:
        text.append(
            f"\n{amount(body.unrecorded_calls, 'call')} beyond what is recorded of a session", "yellow"
        )
    text.append(f"\njudged by source {body.source_digest[:12]}" if body.source_digest else "", "not bold dim")
    text.append(f"\nguided after {episode.guided_after}" if episode.guided_after else "", "not bold dim")
    for part in body.guidance_parts:
        text.append(f"\n  {part.kind}: {terminal_text(part.text, max_chars=200)}", "not bold dim")
    text.append(f"\ntrace {summary.trace_id}" if summary.trace_id else "", style="not bold dim")
    return text


def ledger_words(entry: "LedgerEntry") -> str:
    """Where it is: `excluded(stale)`, `trained(step 3)`, `trained(step 3 of run-…)` by another run."""
    state = LedgerState.Name(entry.state).removeprefix("LEDGER_STATE_").lower()
    if entry.state != LEDGER_STATE_TRAINED:
        return f"{state}({entry.reason})" if entry.reason else state
    other = entry.trained_by_run if entry.trained_by_run != entry.run_id else ""
    return f"{state}(step {entry.step} of {other})" if other else f"{state}(step {entry.step})"


def _turn(number: int, turn: "Turn", with_tokens: bool) -> Panel:
    parts: list[RenderableType] = [
        _text(f"{message.role}: {message.content}", "dim") for message in turn.new_messages
    ]
    if with_tokens and turn.sampled_texts:
        parts.append(token_strip(turn.sampled_texts, turn.sampled_logprobs))
    else:
        parts += [_text(f"reasoning: {turn.reasoning}", "dim")] if turn.reasoning else []
        parts += [_text(turn.text)] if turn.text else []
    results = {result.call_id: result for result in turn.tool_results}
    for call in turn.tool_calls:
        parts.append(_text(f"→ {call.name}({call.arguments_json})", "cyan"))
        if (result := results.get(call.call_id)) is not None:
            style = "red" if result.is_error else "blue"
            parts.append(_text(f"← {result.content}  [{result.duration_s * 1e3:.1f} ms]", style))
            parts += [_state(result.state)] if result.HasField("state") else []
    if turn.parse_error:
        parts.append(_text(f"unreadable: {turn.parse_error}", "red"))
    return Panel(Group(*parts), title=_turn_title(number, turn), title_align="left", border_style="dim")


def _state(state: "StateSnapshot") -> Text:
    """Cut: a state may have 64 KB, and there is one after each call."""
    return Text(terminal_text(state_text(state), max_chars=MAX_STATE_CHARS), style="magenta")


def _turn_title(number: int, turn: "Turn") -> str:
    if not turn.sampled_ids and not turn.versions:  # a client's: its model told no tokens
        return f"turn {number}"
    finish = FinishReason.Name(turn.finish_reason).removeprefix("FINISH_REASON_").lower()
    versions = ", ".join(f"v{span.version}×{span.num_tokens}" for span in turn.versions)
    took = f"{turn.sampling_s * 1e3:.0f} ms"
    restarted = "new row" if turn.new_messages else "context compressed"
    number_text = f"{number} · {restarted}" if turn.restarts_context else f"{number}"
    return f"turn {number_text} · {amount(len(turn.sampled_ids), 'token')} · {versions} · {finish} · {took}"


def token_strip(texts: Sequence[str], logprobs: Iterable[float]) -> Text:
    """Sampled tokens, coloured by the probability the policy gave them."""
    strip = Text()
    for text, logprob in zip(texts, logprobs, strict=True):
        strip.append(terminal_text(text), style=sureness_style(logprob))
    mean = math.fsum(logprobs) / max(len(texts), 1)
    strip.append(f"   mean logprob {mean:.3f}", style="dim")
    return strip


def sureness_style(logprob: float) -> str:
    """Colour for a token sampled with this log-probability."""
    probability = math.exp(min(logprob, 0.0))
    return next(style for floor, style in SURENESS if probability >= floor)


def _reward(summary: "TrajectorySummary") -> RenderableType:
    if not summary.graded:
        return Text("not graded", style="yellow")
    verdict = "[green]success[/green]" if summary.success else "[red]no success[/red]"
    tree = Tree(f"[bold]reward {summary.reward:.3f}[/bold] {verdict}")
    if summary.turn_rewards:
        tree.add(f"turns earn {', '.join(f'{one:.3g}' for one in summary.turn_rewards)}")
    for subscore in summary.subscores:
        _add_subscore(tree, subscore)
    if summary.HasField("failure"):
        failed = tree.add(_text(f"{summary.failure.kind}: {summary.failure.rule}", "red"))
        failed.add(_text(summary.failure.detail))
    return tree


def _add_subscore(tree: Tree, subscore: "Subscore") -> None:
    branch = tree.add(_text(f"{subscore.name} {subscore.value:.3f} × {subscore.weight:g}  {subscore.info}"))
    for child in subscore.children:
        _add_subscore(branch, child)
