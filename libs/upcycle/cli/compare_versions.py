"""`upcycle models compare`: two versions of a model by graded sessions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from upcycle.cli.compare import points
from upcycle.cli.exits import Exit
from upcycle.cli.holds import seconds
from upcycle.cli.output import JsonFlag, print_json
from upcycle.errors import UpcycleError
from upcycle.model_names import named_version
from upcycle.moments import moment_of
from upcycle.platform import Platform
from upcycle.reporting.verdicts import verdict_of
from upcycle.reporting.versions import (
    METHODS,
    GradedSession,
    VersionComparison,
    VersionScore,
    compare_versions,
)
from upcycle.reporting.words import number, percent
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.registry.v1.registry_pb2 import CanaryRelease

_SESSION: Final = "session"
"""Slug that the gateway gives the task of every recorded session."""
_PAGE: Final = 1000
_MOST: Final = 50_000
_TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class _Found:
    """graded: by one version from the first token to the last. ungraded, mixed: sessions that do not count.
    is_cut: there are older ones."""

    graded: list[GradedSession] = field(default_factory=list)
    ungraded: int = 0
    mixed: int = 0
    is_cut: bool = False

    @property
    def seen(self) -> int:
        return len(self.graded) + self.ungraded + self.mixed


async def compare(model: str, a: str, b: str, *, since: str = "", as_json: JsonFlag = False) -> int:
    """Version B minus version A of MODEL by recorded sessions that have their reward: 95 % intervals
    clustered by task, and a verdict as of `upcycle compare`.

    Sessions that begin with the same messages attempt one task. A session counts for the version that sampled
    all of it; one in which the version changed counts for none.

    :param model: slug.
    :param a: version as `v11`, or a checkpoint id.
    :param b: the other one, likewise.
    :param since: of the last 90m, 24h; by default since the newest canary release of one of the two began,
        else of all sessions.
    :param as_json: one JSON line.
    """
    versions = [named_version(f"{model}@{name}").version for name in (a, b)]
    first, second = (_required(version, name) for version, name in zip(versions, (a, b), strict=True))
    async with Platform() as platform:
        after = await _after(platform, model, {first, second}, since)
        found = [await _sessions(platform, model, version, after) for version in (first, second)]
    done = compare_versions(first, found[0].graded, second, found[1].graded)
    if as_json:
        asked = {"model": model, "since": None if after is None else after.isoformat()}
        left = {"ungraded": [one.ungraded for one in found], "mixed": [one.mixed for one in found]}
        print_json(
            "version_comparison", {**asked, **done.to_json(), **left, "verdict": verdict_of(done).to_json()}
        )
        return Exit.OK
    when = "of all time" if after is None else f"since {after:%Y-%m-%d %H:%M:%S} UTC"
    print(f"recorded sessions of {model} {when}")
    for line in _lines(done, found):
        print(line)
    return Exit.OK


def _required(version: int | None, name: str) -> int:
    if version is None:
        raise UpcycleError(f"{name!r} moves: head is another version later", "name two versions, as v11 v12")
    return version


async def _after(platform: Platform, model: str, versions: set[int], since: str) -> datetime | None:
    """From when on sessions count; None: all do."""
    from upcycle.api.registry.v1.service_pb2 import ListCanaryReleasesRequest

    if since:
        return datetime.now(UTC) - timedelta(seconds=seconds(since))
    request = ListCanaryReleasesRequest(model=model)
    changes = (await platform.registry.ListCanaryReleases(request, timeout=_TIMEOUT_S)).changes
    return newest_begin(list(changes), versions)


def newest_begin(changes: "list[CanaryRelease]", versions: set[int]) -> datetime | None:
    """When the newest canary release of one of these versions began. changes: the audit, oldest first."""
    begin, under_way = None, None
    for change in changes:
        is_under_way = change.share > 0 or change.shadow_share > 0
        now = change.version if is_under_way else None
        if now in versions and now != under_way:
            begin = moment_of(change.changed_at)
        under_way = now
    return begin


async def _sessions(platform: Platform, model: str, version: int, after: datetime | None) -> _Found:
    """Newest first, so that the first older one is the end."""
    from upcycle.api.trajectory.v1.service_pb2 import ListTrajectoriesRequest, TrajectoryFilter

    wanted = TrajectoryFilter(model=model, task_slug=_SESSION, version=version)
    found, token = _Found(), ""
    while True:
        request = ListTrajectoriesRequest(filter=wanted, page_size=_PAGE, page_token=token)
        page = await platform.trajectories.ListTrajectories(request, timeout=_TIMEOUT_S)
        for one in page.trajectories:
            if after is not None and moment_of(one.recorded_at) < after:
                return found
            if one.sampled_by.oldest != one.sampled_by.newest:
                found.mixed += 1
            elif not one.graded:
                found.ungraded += 1
            else:
                found.graded.append(GradedSession(one.episode.task_digest, one.reward, one.success))
        token = page.next_page_token
        if not token or found.seen >= _MOST:
            found.is_cut = bool(token)
            return found


def _lines(done: VersionComparison, found: list[_Found]) -> Iterator[str]:
    for name, score, sessions in zip("AB", (done.a, done.b), found, strict=True):
        yield f"{name}  {_score(score)}"
        if sessions.ungraded or sessions.mixed:
            left = f"{sessions.ungraded} without a reward, {sessions.mixed} of several versions"
            yield f"   not counted: {left}"
        if sessions.is_cut:
            yield f"   the newest {sessions.seen}; give --since for fewer"
    yield f"B − A over {amount(done.num_tasks, 'task')}, 95 % intervals clustered by task:"
    exact = "" if done.p_value is None else f", exact p {done.p_value:.2g}"
    yield f"success {points(done.success)}{exact}"
    yield f"reward {number(done.reward, '+')}"
    yield from verdict_of(done).lines()
    yield f"by {METHODS[done.method]}"


def _score(score: VersionScore) -> str:
    counted = f"{amount(score.num_sessions, 'session')}, {amount(score.num_tasks, 'task')}"
    return f"v{score.version}: {counted}, success {percent(score.success)}, reward {number(score.reward)}"
