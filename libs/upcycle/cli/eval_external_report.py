"""What `upcycle eval` of an agent of others says at its end."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycle.cli.anchor_text import anchor_json, anchor_lines, anchor_of
from upcycle.cli.best_of import best_of_json, best_of_lines
from upcycle.cli.eval_commands import recorded_json, say_recorded
from upcycle.cli.eval_flags import Report, unmet_bars
from upcycle.cli.exits import Exit
from upcycle.cli.failures_text import failure_examples, failures_json, failures_text
from upcycle.cli.output import human, print_json
from upcycle.cli.report_text import report_lines
from upcycle.external.command_agent import RecordedEpisodes
from upcycle.reporting.best_of import BestOfReport
from upcycle.reporting.episodes import EvaluatedRun
from upcycle.reporting.report import report_of
from upcycle.reporting.trajectory_files import FOLDER, NAME
from upcycle.results import Coverage, Run, coverage_of
from upcycle.usage import total_usage
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.external.sending import SentTrajectories


def way_back(run_id: str) -> str:
    """To an evaluation that is not whole."""
    return f"the same command with --resume {run_id} plays what is missing"


def _means(coverage: Coverage, runs: list[Run]) -> tuple[str, str, float]:
    rewards = [run.reward for run in runs if run.counts and not run.is_error]
    if not rewards:
        return "–", "–", 0.0
    mean = sum(rewards) / len(rewards)
    return f"{mean:.3f}", f"{coverage.success_rate:.1%}", mean


def say(
    evaluated: EvaluatedRun,
    runs: list[Run],
    path: Path,
    report: Report,
    sent: "SentTrajectories | RecordedEpisodes | None",
    chosen: BestOfReport | None,
) -> int:
    """Print the result; the exit status that it deserves."""
    coverage = coverage_of(runs)
    if report.as_json:
        print_json(
            "done", {**_done(evaluated, runs, coverage, path), **_sent_json(sent), **best_of_json(chosen)}
        )
    else:
        _print_report(evaluated, runs, coverage, path)
        for line in best_of_lines(chosen):
            print(line)
        _say_sent(evaluated.run_id, sent)
    unmet = unmet_bars(coverage, report, chosen)
    for bar in unmet:
        human().print(bar, style="red", markup=False, soft_wrap=True)
    return Exit.GATE_UNMET if unmet else Exit.OK


def _done(evaluated: EvaluatedRun, runs: list[Run], coverage: Coverage, path: Path) -> dict[str, Any]:
    found = report_of(evaluated)
    return {
        "run_id": evaluated.run_id,
        "trajectories": str(path),
        "reward_mean": _means(coverage, runs)[2],
        "success_rate": coverage.success_rate,
        "usage": asdict(total_usage(run.usage for run in runs)),
        "coverage": {**asdict(coverage), "share": coverage.share},
        "failures": failures_json(failure_examples(runs)),
        "report": found.to_json() if found else None,
        "evaluation": evaluated.to_json(),
        **anchor_json(anchor_of(evaluated)),
    }


def _print_report(evaluated: EvaluatedRun, runs: list[Run], coverage: Coverage, path: Path) -> None:
    """As of a model of the platform: the same lines."""
    reward, success, _ = _means(coverage, runs)
    print(f"{evaluated.run_id}: success {success}, reward {reward}, {coverage}")
    print(total_usage(run.usage for run in runs))
    if (found := report_of(evaluated)) is not None:
        elsewhere = None if path == FOLDER / evaluated.run_id / NAME else path
        for line in report_lines(found, evaluated, elsewhere):
            print(line)
    for line in anchor_lines(anchor_of(evaluated)):
        print(line)
    if failures := failure_examples(runs):
        print(failures_text(failures))
    if coverage.missing:
        print(way_back(evaluated.run_id))
    print(f"read them in: {path}")


def _say_sent(run_id: str, sent: "SentTrajectories | RecordedEpisodes | None") -> None:
    """What of it the platform keeps, where one is found."""
    if sent is None:
        return
    if isinstance(sent, RecordedEpisodes):
        say_recorded(sent)
        return
    if sent.ids:
        kept = amount(len(sent.ids), "episode", "episodes")
        print(f"the platform keeps {kept} as client_graded: upcycle trajectories list --run {run_id}")
    if sent.left:
        human().print(sent.why_left, style="yellow", markup=False, soft_wrap=True)


def _sent_json(sent: "SentTrajectories | RecordedEpisodes | None") -> dict[str, Any]:
    if isinstance(sent, RecordedEpisodes):
        return recorded_json(sent)
    return {} if sent is None else {"sent": len(sent.ids), "not_sent": dict(sent.left)}
