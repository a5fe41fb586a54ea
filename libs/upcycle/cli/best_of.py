"""`upcycle eval --best-of N --select orm:FOLDER`: of several attempts at each task, the chosen one counts."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from upcycle.cli.eval_flags import Report, UnclearEvaluation
from upcycle.cli.platform_needed import require_train
from upcycle.reporting.best_of import BestOfReport, best_of_report
from upcycle.reporting.words import number, percent
from upcycle.run_config.reading import Given, Sources
from upcycle.wording import amount

if TYPE_CHECKING:
    from reward_models.model import OutcomeRewardModel
    from upcycle.platform import Platform
    from upcycle.reporting.episodes import EvaluatedRun

_ORM: Final = "orm:"
_EXAMPLE: Final = "--best-of 4 --select orm:FOLDER"
EXPORT_S: Final = 600.0


@Parameter(name="*", group="Best of several attempts")
@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfFlags:
    """How many attempts, and what chooses among them."""

    best_of: Annotated[int | None, Parameter(name="--best-of")] = None
    """attempts at each task, of which the chosen one counts; it is --group at the same time."""
    select: str = ""
    """orm:FOLDER, an outcome reward model of `upcycle reward-model train`: the attempt that it scores highest
    is chosen. It reads what the policy saw and wrote, and no grade."""

    def check(self, report: Report) -> None:
        """Raises UnclearEvaluation."""
        if self.best_of is None and not self.select:
            return
        if self.best_of is None:
            raise UnclearEvaluation(f"--select {self.select:.80} chooses among how many attempts?", _EXAMPLE)
        if not self.select:
            raise UnclearEvaluation(
                f"--best-of {self.best_of} says not what chooses", f"add --select orm:FOLDER: {_EXAMPLE}"
            )
        if self.best_of < 2:
            raise UnclearEvaluation(f"--best-of is {self.best_of}", "there is a choice among 2 or more")
        if self.select == "reward":
            raise UnclearEvaluation(
                "--select reward would look at the answer: no policy can in use",
                f"choose by a model: {_EXAMPLE}",
            )
        if not self.select.startswith(_ORM) or self.select == _ORM:
            raise UnclearEvaluation(
                f"--select {self.select!r:.80} chooses nothing", f"use orm:FOLDER: {_EXAMPLE}"
            )
        if report.detach:
            raise UnclearEvaluation(
                "--detach leaves before there is anything to choose",
                f"leave out --best-of, play with --group {self.best_of}, and choose at its end: "
                f"`upcycle eval --attach RUN {_EXAMPLE}`",
            )

    def with_group(self, given: Sources) -> Sources:
        """With as many attempts as there are to choose from. Raises UnclearEvaluation where --group says
        another number."""
        if self.best_of is None:
            return given
        asked = given.values.get("group_size")
        if asked is not None and asked.value != self.best_of:
            raise UnclearEvaluation(
                f"--best-of is {self.best_of}, and {asked.where} is {asked.value}", "give --best-of alone"
            )
        return replace(given, values={**given.values, "group_size": Given(self.best_of, "--best-of")})

    async def selector(self) -> "Selector | None":
        """What chooses, loaded; None where nothing is chosen. Raises RewardModelRefused."""
        if self.best_of is None:
            return None
        require_train("eval --select orm")
        from reward_models.model import OutcomeRewardModel

        model = await asyncio.to_thread(OutcomeRewardModel.load, Path(self.select.removeprefix(_ORM)))
        return Selector(self.best_of, model)


NO_BEST_OF: Final = BestOfFlags()


@dataclass(frozen=True, slots=True)
class Selector:
    """Chooses among the attempts at each task."""

    num_attempts: int
    model: "OutcomeRewardModel"

    def check(self, group: int, max_tokens: int | None, run: str) -> None:
        """Before it is played, or followed again. Raises UnclearEvaluation and RewardModelRefused."""
        from reward_models import RewardModelRefused

        if group != self.num_attempts:
            raise UnclearEvaluation(
                f"{run} has {amount(group, 'attempt')} at each task, and --best-of is {self.num_attempts}",
                f"give --best-of {group}" if group > 1 else "choose in one that was played with --group",
            )
        limit = self.model.facts.max_tokens
        if max_tokens is not None and max_tokens > limit:
            raise RewardModelRefused(
                f"episodes of {run} may have {max_tokens:,} tokens, and {self.model.name} reads {limit:,}",
                f"give --max-tokens-per-episode {limit}, or train a reward model that reads more",
            )

    async def choose_on_platform(self, platform: "Platform", evaluated: "EvaluatedRun") -> BestOfReport:
        """Raises RewardModelRefused."""
        lines = {line["trajectory_id"]: line async for line in lines_of_run(platform, evaluated.run_id)}
        return await self.choose(evaluated, lines)

    async def choose(self, evaluated: "EvaluatedRun", lines: Mapping[str, Mapping[str, Any]]) -> BestOfReport:
        """lines: of a trajectories file, by the name that shows the episode. What has no reward, whose end is
        not known, and what the reward model cannot read is never chosen. Raises RewardModelRefused."""
        from reward_models import conversation_of

        found = {
            one.episode_id: conversation_of(lines[one.show_name], one.show_name)
            for one in evaluated.counted
            if one.reward is not None and one.show_name in lines
        }
        reasons = {name: self.model.why_unreadable(one) for name, one in found.items()}
        read = {name: one for name, one in found.items() if not reasons[name]}
        scores = await asyncio.to_thread(self.model.score, list(read.values()))
        return best_of_report(
            evaluated.counted,
            dict(zip(read, scores, strict=True)),
            num_attempts=self.num_attempts,
            chosen_by=f"orm:{self.model.name}",
            unread=next((reason for reason in reasons.values() if reason), ""),
            seen=frozenset(self.model.facts.tasks),
        )


async def lines_of_run(platform: "Platform", run_id: str) -> Any:
    """The stored trajectories of a run as lines of a trajectories file, without those that are in
    quarantine."""
    from upcycle.api.trajectory.v1 import service_pb2 as pb
    from upcycle.rpc import remote_errors
    from upcycle.trajectory_lines.writing import line_of_record

    request = pb.ExportTrajectoriesRequest(
        filter=pb.TrajectoryFilter(run_id=run_id), format=pb.EXPORT_FORMAT_RECORDS
    )
    with remote_errors(f"read the trajectories of {run_id}"):
        async for part in platform.trajectories.ExportTrajectories(request, timeout=EXPORT_S):
            for record in part.jsonl.split("\n"):
                if record:
                    yield line_of_record(json.loads(record))


def best_of_json(found: BestOfReport | None) -> dict[str, Any]:
    """Of the line `done`."""
    return {} if found is None else {"best_of": found.to_json()}


def best_of_lines(found: BestOfReport | None) -> Iterator[str]:
    """For people; none where nothing was chosen."""
    if found is None:
        return
    n = found.num_attempts
    yield f"best of {n}, chosen by {found.chosen_by}: 95 % intervals clustered by task, gains paired by task"
    yield f"  chosen           {percent(found.chosen)}"
    yield f"  mean of all {n:<4} {percent(found.mean)}  (pass@1: what a random choice gives)"
    yield f"  any of {n:<9} {percent(found.ceiling)}  (pass@{n}: what a perfect choice gives)"
    yield f"  gain             {points(found.gain)} over the mean; {points(found.left)} left to the ceiling"
    ranks = f"AUC {number(found.auc)}, within tasks {number(found.within)}"
    yield f"  its scores       {ranks}"
    if found.num_unscored:
        why = found.unread or "without a reward or a stored trajectory"
        yield f"  {amount(found.num_unscored, 'attempt')} could not be chosen: {why}"
    if found.num_seen:
        seen = f"{found.num_seen} of {amount(found.num_tasks, 'task')} trained this reward model"
        yield f"  {seen}: of other tasks the gain says less"
    yield "  no evidence for a gate: it judges the policy alone, and what chose is not part of it"


def points(estimate: Any) -> str:
    """`+12.5 points [3.1, 21.9]`."""
    ends = estimate.interval
    shown = f" [{100 * ends.low:+.1f}, {100 * ends.high:+.1f}]" if ends is not None else ""
    return f"{100 * estimate.value:+.1f} points{shown}"
