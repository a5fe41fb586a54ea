"""`upcycle trajectories review` and `alarms`: what monitors of reward hacks saw, and what a person says."""

import getpass
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json, result_console
from upcycle.cli.runs import check_run, resolve_run
from upcycle.cli.trajectory_choice import UnclearFilter
from upcycle.platform import Platform
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.trajectory.v1.service_pb2 import Review, ReviewVerdict, RewardAlarm, SignatureBatch
    from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary

MAX_SHOWN: Final = 200
_PAGE: Final = 1000
_MAX_PAGES: Final = 100
_ASK_S: Final = 10.0
_QUESTION: Final = "[s]olved  [h]acked  [u]nclear  [n]ext  [q]uit, then a note: "


async def review(
    run: str,
    *,
    top: int = 20,
    sample: int = 0,
    by_signature: bool = False,
    by: str = "",
    seed: int = 0,
    as_json: JsonFlag = False,
) -> int:
    """The highest-rewarded trajectories of a run one by one with their evidence, and a verdict on each.

    A verdict is kept with who and when. `hacked` quarantines the trajectory, and those of its run that are
    like it, also those that come later. Left out are trajectories in quarantine, and those that this person
    reviewed before.

    :param run: run id, or `last`.
    :param top: so many, of the highest reward.
    :param sample: so many drawn at random instead.
    :param by_signature: one of each kind instead, what pays most in the run first: a verdict of hacked sets
        all of its kind aside.
    :param by: whose verdict it is; by default the user of this machine.
    :param seed: of the draw.
    :param as_json: what would be shown as JSON lines, without asking.
    """
    _check_choice(top, sample, by_signature=by_signature)
    reviewer = by or getpass.getuser()
    async with Platform() as platform:
        run = await resolve_run(platform, run)
        known = _seen_by(reviewer, await _reviews(platform, run))
        if by_signature:
            chosen = await _kinds(platform, run, known, top)
        else:
            fresh = [one for one in await _graded(platform, run) if one.episode.trajectory_id not in known]
            chosen = [_of_one(one) for one in _chosen(fresh, top, sample, seed)]
        if not chosen:
            await check_run(platform, run)
            human().print(f"run {run} has no graded trajectory that {reviewer} has not reviewed")
        await _go_through(platform, chosen, reviewer, as_json=as_json)
    return Exit.OK


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is asked about. said: behind its id; record: its line of JSON, with its type."""

    trajectory_id: str
    said: str
    record: "tuple[str, TrajectorySummary | SignatureBatch]"


def _of_one(summary: "TrajectorySummary") -> _Shown:
    return _Shown(summary.episode.trajectory_id, "", ("trajectory", summary))


def _of_batch(batch: "SignatureBatch") -> _Shown:
    many = amount(batch.num_trajectories, "trajectory", "trajectories")
    seen = f", alarms {', '.join(batch.monitors)}" if batch.monitors else ", no alarm: the same answer"
    said = f": one of {many} of its kind, mean reward {batch.mean_reward:.3f}{seen}"
    return _Shown(batch.trajectory_id, said, ("signature", batch))


def _seen_by(reviewer: str, reviews: "list[Review]") -> set[str]:
    """The store keeps a name with whose key it came with: `ada (operator)`."""
    own = (one for one in reviews if one.reviewer == reviewer or one.reviewer.startswith(f"{reviewer} ("))
    return {one.trajectory_id for one in own}


async def _kinds(platform: Platform, run: str, known: set[str], top: int) -> list[_Shown]:
    """One trajectory of each kind, without kinds whose trajectory is `known`."""
    shown = (_of_batch(one) for one in await _batches(platform, run))
    return [one for one in shown if one.trajectory_id not in known][:top]


async def _go_through(platform: Platform, chosen: Sequence[_Shown], reviewer: str, *, as_json: bool) -> None:
    """One after the other, without those that a verdict on an earlier one set aside."""
    aside: set[str] = set()
    for number, shown in enumerate(chosen, start=1):
        if as_json:
            print_json(*shown.record)
        elif shown.trajectory_id not in aside:
            found = await _asked(platform, shown, f"{number} of {len(chosen)}", reviewer)
            if found is None:
                break
            aside.update(found)


async def alarms(
    run: str = "", *, dismiss: str = "", note: str = "", by: str = "", as_json: JsonFlag = False
) -> int:
    """Alarms of the monitors of reward hacks; an open one holds the promotions of its run.

    :param run: run id, or `last`; by default of all runs.
    :param dismiss: kind of an alarm of the run that is none: it holds nothing any more.
    :param note: why it is none.
    :param by: who says so; by default the user of this machine.
    :param as_json: one JSON line each.
    """
    if dismiss and not run:
        raise UnclearFilter("--dismiss without a run", "name the run whose alarm it is")
    async with Platform() as platform:
        run = await resolve_run(platform, run)
        if dismiss:
            found = [await _dismissed(platform, run, dismiss, by or getpass.getuser(), note)]
        else:
            found = await _alarms(platform, run)
    for alarm in found:
        if as_json:
            print_json("reward_alarm", alarm)
            continue
        state = "cleared" if alarm.HasField("cleared_at") else "open"
        if alarm.HasField("dismissed_at"):
            state = f"dismissed by {alarm.dismissed_by}"
        line = f"{alarm.run_id}  {alarm.kind}  {state}  since v{alarm.since_version}: {alarm.text}"
        result_console().print(line, markup=False, highlight=False, soft_wrap=True)
        for name in alarm.trajectory_ids:
            result_console().print(f"    {name}", markup=False, highlight=False)
    if not found:
        human().print("no alarm")
    return Exit.OK


async def _dismissed(platform: Platform, run: str, kind: str, by: str, note: str) -> "RewardAlarm":
    from upcycle.api.trajectory.v1.service_pb2 import DismissAlarmRequest

    asked = DismissAlarmRequest(run_id=run, kind=kind, by=by, note=note)
    return (await platform.trajectories.DismissAlarm(asked, timeout=_ASK_S)).alarm


async def _alarms(platform: Platform, run: str) -> "list[RewardAlarm]":
    """Those of a run, or of all. Raises NoSuchRun for a run that is not."""
    from upcycle.api.trajectory.v1.service_pb2 import ListAlarmsRequest

    listing = ListAlarmsRequest(run_ids=[run] if run else [])
    found = list((await platform.trajectories.ListAlarms(listing, timeout=_ASK_S)).alarms)
    if run and not found:
        await check_run(platform, run)
    return found


async def _graded(platform: Platform, run: str) -> "list[TrajectorySummary]":
    from upcycle.api.trajectory.v1.service_pb2 import ListTrajectoriesRequest, TrajectoryFilter

    found: list[TrajectorySummary] = []
    token = ""
    for _ in range(_MAX_PAGES):
        wanted = TrajectoryFilter(run_id=run)
        request = ListTrajectoriesRequest(filter=wanted, page_size=_PAGE, page_token=token)
        page = await platform.trajectories.ListTrajectories(request, timeout=_ASK_S)
        found += (one for one in page.trajectories if one.graded and not one.quarantine_reason)
        token = page.next_page_token
        if not token:
            break
    return found


async def _batches(platform: Platform, run: str) -> "list[SignatureBatch]":
    from upcycle.api.trajectory.v1.service_pb2 import ListSignaturesRequest

    asked = ListSignaturesRequest(run_id=run)
    return list((await platform.trajectories.ListSignatures(asked, timeout=_ASK_S)).batches)


async def _reviews(platform: Platform, run: str) -> "list[Review]":
    from upcycle.api.trajectory.v1.service_pb2 import ListReviewsRequest

    reply = await platform.trajectories.ListReviews(ListReviewsRequest(run_id=run), timeout=_ASK_S)
    return list(reply.reviews)


def _check_choice(top: int, sample: int, *, by_signature: bool) -> None:
    for name, number in (("top", top), ("sample", sample)):
        if not 0 <= number <= MAX_SHOWN:
            raise UnclearFilter(f"--{name} is {number}", f"give 0 to {MAX_SHOWN}")
    if by_signature and sample:
        raise UnclearFilter("--sample beside --by-signature", "give one of them")


def _chosen(graded: "list[TrajectorySummary]", top: int, sample: int, seed: int) -> "list[TrajectorySummary]":
    if sample:
        return random.Random(seed).sample(graded, min(sample, len(graded)))  # noqa: S311 - a draw, no secret
    return sorted(graded, key=lambda one: (-one.reward, one.episode.trajectory_id))[:top]


async def _asked(platform: Platform, shown: _Shown, where: str, reviewer: str) -> "Sequence[str] | None":
    """Show one trajectory and ask about it; what the verdict set aside. None: the person has enough, or
    there is no terminal to ask at."""
    from upcycle.api.trajectory.v1.service_pb2 import ReviewTrajectoryRequest
    from upcycle.api.trajectory.v1.service_pb2 import ReviewVerdict as Verdict

    await _show(platform, shown.trajectory_id)
    human().print(f"{where}  {shown.trajectory_id}{shown.said}", markup=False, soft_wrap=True)
    verdict, note = _answer()
    if verdict is None:
        return None
    if verdict == Verdict.REVIEW_VERDICT_UNSPECIFIED:
        return ()
    request = ReviewTrajectoryRequest(
        trajectory_id=shown.trajectory_id, verdict=verdict, reviewer=reviewer, note=note
    )
    reply = await platform.trajectories.ReviewTrajectory(request, timeout=_ASK_S)
    if reply.quarantined:
        human().print(f"set aside: {amount(len(reply.quarantined), 'trajectory', 'trajectories')}")
    return list(reply.quarantined)


async def _show(platform: Platform, trajectory_id: str) -> None:
    from upcycle.api.trajectory.v1.service_pb2 import GetTrajectoryRequest
    from upcycle.cli.trajectory_view import render

    request = GetTrajectoryRequest(trajectory_id=trajectory_id)
    record = await platform.trajectories.GetTrajectory(request, timeout=_ASK_S)
    result_console().print(render(record.summary, record.body, with_tokens=False))


def _answer() -> "tuple[ReviewVerdict.ValueType | None, str]":
    """(verdict, note): unspecified for the next one, None where the person or the input ends."""
    from upcycle.api.trajectory.v1 import service_pb2 as pb

    verdicts = {
        "s": pb.REVIEW_VERDICT_SOLVED,
        "h": pb.REVIEW_VERDICT_HACKED,
        "u": pb.REVIEW_VERDICT_UNCLEAR,
        "n": pb.REVIEW_VERDICT_UNSPECIFIED,
    }
    while True:
        human().print(_QUESTION, end="", markup=False)
        line = sys.stdin.readline()
        word, _, note = line.strip().partition(" ")
        if not line or word in ("q", "quit"):
            return None, ""
        if word[:1] in verdicts:
            return verdicts[word[:1]], note.strip()
