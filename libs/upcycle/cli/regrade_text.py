"""The report of a run that was graded again, as plain text and as JSON; what others wrote stays text."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from upcycle.cli.compare import points
from upcycle.cli.report_text import one_line, table
from upcycle.regrading.grading import Regraded
from upcycle.regrading.report import RegradedRun, RegradeReport, change_of
from upcycle.reporting.words import number
from upcycle.wording import amount

MAX_ROWS: Final = 10
MAX_JSON_ROWS: Final = 100
_MAX_SAID_CHARS: Final = 60
_MAX_WHY_CHARS: Final = 2_000
_MAX_REASON_CHARS: Final = 300
_REPORT: Final = "a report: the run's grades, ledger and evidence are as they were"
_WORDS: Final = {
    "kept": "0 as before: the policy failed before it answered, which no grader sees",
    "not_reproducible": "not reproducible: the environment says something else now",
    "failed": "not graded: the environment or its grader failed",
    "unread": "not read: the trajectory is not there",
}


def regrade_lines(done: RegradedRun, report: RegradeReport) -> Iterator[str]:
    """Everything that is printed."""
    whose = "the source that judged it" if done.is_own_source else "another source"
    many = f"{report.counts['graded']:,} of {amount(report.num_chosen, 'trajectory', 'trajectories')}"
    yield f"{one_line(done.run_id)}: {many} graded again by {whose}, {one_line(done.by, 200)}"
    yield from _counts(done, report)
    if report.num_compared:
        yield from _difference(report)
        yield from _subscores(report)
        yield from _changed(report)
    yield from _differing(done.trajectories)
    yield from _failed(done.trajectories)
    if report.num_judged:
        judged = amount(report.num_judged, "trajectory was", "trajectories were")
        yield f"{judged} graded with a model as judge, which may say something else each time"
    if report.num_extras:
        extras = amount(report.num_extras, "stored reward has", "stored rewards have")
        yield f"{extras} a part of the operator's extra graders: compared is the environment's part"
    if done.notice:
        yield one_line(done.notice, 200)
    yield _REPORT


def regrade_fields(done: RegradedRun, report: RegradeReport) -> dict[str, Any]:
    """Of the JSON line: all counts, and at most MAX_JSON_ROWS trajectories of each kind."""
    rows = {"changed": report.changed[:MAX_JSON_ROWS]}
    for outcome in ("not_reproducible", "failed", "unread"):
        rows[outcome] = tuple(one for one in done.trajectories if one.outcome == outcome)[:MAX_JSON_ROWS]
    return {
        "run_id": done.run_id,
        "source": done.by,
        "is_own_source": done.is_own_source,
        "num_ungraded": done.num_ungraded,
        "notice": done.notice,
        **report.to_json(),
        "trajectories": {name: [regraded_row(one) for one in some] for name, some in rows.items()},
    }


def regraded_row(one: Regraded) -> dict[str, Any]:
    """One trajectory with both grades."""
    return {
        "trajectory": one.name,
        "task": one.task.slug,
        "family": one.task.family,
        "task_digest": one.task.digest,
        "outcome": one.outcome,
        "old": asdict(one.old) if one.old is not None else None,
        "new": asdict(one.new) if one.new is not None else None,
        "why": one.why[:_MAX_WHY_CHARS],
        "difference": asdict(one.difference) if one.difference is not None else None,
        "asked_judge": one.asked_judge,
        "had_extras": one.had_extras,
    }


def _counts(done: RegradedRun, report: RegradeReport) -> Iterator[str]:
    for outcome, words in _WORDS.items():
        if count := report.counts[outcome]:
            yield f"  {count:,} {words}"
    if done.num_ungraded:
        yield f"  {done.num_ungraded:,} of the run have no grade, and are left out"


def _difference(report: RegradeReport) -> Iterator[str]:
    compared = amount(report.num_compared, "trajectory", "trajectories")
    tasks = amount(report.num_tasks, "task")
    yield f"new − old over {compared} of {tasks}, 95 % intervals clustered by task:"
    if report.success is not None and report.reward is not None:
        rates = f"{report.old_success:.1%} → {report.new_success:.1%}"
        yield f"success {rates}: {points(report.success)}; {report.gained:,} gained, {report.lost:,} lost"
        means = f"{report.old_reward:.3f} → {report.new_reward:.3f}"
        yield f"reward {means}: {number(report.reward, '+')}; {report.up:,} up, {report.down:,} down"
    if not report.changed:
        yield "each one has the grade that it had"


def _subscores(report: RegradeReport) -> Iterator[str]:
    found = [one for one in report.subscores if one[1] != one[2]]
    if not found:
        return
    rows = [
        [one_line(name, 40), *("–" if mean is None else f"{mean:.3f}" for mean in (old, new))]
        for name, old, new in found[:MAX_ROWS]
    ]
    yield from table([["subscore", "old", "new"], *rows])
    yield from _more(len(found) - MAX_ROWS)


def _changed(report: RegradeReport) -> Iterator[str]:
    if not report.changed:
        return
    yield "changed most:"
    yield from table([_change_row(one) for one in report.changed[:MAX_ROWS]])
    yield from _more(len(report.changed) - MAX_ROWS)


def _change_row(one: Regraded) -> list[str]:
    old, new = (side.reward if side is not None else 0.0 for side in (one.old, one.new))
    how = f"  {change_of(one):+.3f}"
    return [how, f"{old:.3f} → {new:.3f}", one_line(one.task.slug, 60), one_line(_shown(one), 200)]


def _shown(one: Regraded) -> str:
    why = f"  {one.why}" if one.why else ""
    return f"upcycle trajectories show {shlex.quote(one.name)}{why}"


def _differing(done: Sequence[Regraded]) -> Iterator[str]:
    found = [one for one in done if one.difference is not None]
    if not found:
        return
    yield "not reproducible, by where it first differs (recorded → now):"
    rows = []
    for one in found[:MAX_ROWS]:
        if (difference := one.difference) is not None:
            before, after = _around(difference.recorded, difference.now)
            rows.append(
                [f"  {one_line(one.name, 100)}", one_line(difference.place), f"{before!r} → {after!r}"]
            )
    yield from table(rows)
    yield from _more(len(found) - MAX_ROWS)
    yield "  what may differ there, such as a time that a tool took: --ignore PATTERN"


def _around(recorded: str, now: str) -> tuple[str, str]:
    """Both from a little before where they part."""
    pairs = enumerate(zip(recorded, now, strict=False))
    parts = next((at for at, (before, after) in pairs if before != after), min(len(recorded), len(now)))
    begin = max(0, parts - _MAX_SAID_CHARS // 3)
    cut = ("…" if begin else "") + recorded[begin:], ("…" if begin else "") + now[begin:]
    return one_line(cut[0], _MAX_SAID_CHARS), one_line(cut[1], _MAX_SAID_CHARS)


def _failed(done: Sequence[Regraded]) -> Iterator[str]:
    found = [one for one in done if one.outcome in ("failed", "unread")]
    if not found:
        return
    yield "without a new grade, by reason:"
    reasons = Counter(one_line(one.why, _MAX_REASON_CHARS) for one in found)
    examples = {one_line(one.why, _MAX_REASON_CHARS): one.name for one in reversed(found)}
    rows = [
        [f"  {count}×", reason, one_line(examples[reason], 100)]
        for reason, count in reasons.most_common(MAX_ROWS)
    ]
    yield from table(rows)
    yield from _more(len(reasons) - MAX_ROWS)


def _more(count: int) -> Iterator[str]:
    if count > 0:
        yield f"  and {count:,} more: -o FILE has all of them"
