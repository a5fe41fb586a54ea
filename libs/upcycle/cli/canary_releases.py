"""`upcycle models canary`: a share of the conversations for another checkpoint, and who decided it."""

import getpass
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.holds import until_served
from upcycle.cli.models import checkpoint_id_of, print_table
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.errors import UpcycleError
from upcycle.platform import Platform

if TYPE_CHECKING:
    from upcycle.api.registry.v1.registry_pb2 import CanaryRelease

_TIMEOUT_S = 10.0


class CanaryOptions(UpcycleError, ValueError):
    """Options that do not go together."""

    kind = "canary_options"


async def canary(
    model: str,
    checkpoint: str = "",
    *,
    share: float = 0.0,
    shadow: float = 0.0,
    end: Annotated[bool, Parameter(negative="")] = False,
    reason: str = "set from the command line",
    as_json: JsonFlag = False,
) -> int:
    """The canary release of MODEL and its audit; with CHECKPOINT and `--share` or `--shadow` begin or change
    one, with `--end` end it.

    Begun, it waits until an engine serves the checkpoint. A move of head ends a release, too.

    :param model: slug.
    :param checkpoint: checkpoint that answers the share: its id, or its version as `v14`.
    :param share: of the conversations that it answers, below 1.
    :param shadow: of the requests that head answers: it is asked the same, and its answer is recorded.
    :param end: all conversations go to head again.
    :param reason: written to the audit log.
    :param as_json: one JSON line per change of a release, oldest first.
    """
    shares = _Shares(share, shadow)
    _check(checkpoint, shares, end)
    async with Platform() as platform:
        if checkpoint:
            await _begin(platform, model, checkpoint, shares, reason)
        elif end:
            await _end(platform, model, reason)
        changes = await _changes(platform, model)
    if as_json:
        for change in changes:
            print_json("canary_release", change)
        return Exit.OK
    human().print(state_words(model, changes))
    print_table(("revision", "checkpoint", "share", "shadow", "by", "why", "at"), map(_row, changes))
    return Exit.OK


@dataclass(frozen=True, slots=True)
class _Shares:
    share: float
    shadow: float


def _check(checkpoint: str, shares: _Shares, end: bool) -> None:
    if bool(checkpoint) != (shares != _Shares(0.0, 0.0)):
        raise CanaryOptions(
            "a canary release needs a checkpoint and a share",
            "write `upcycle models canary MODEL v14 --share 0.1`, or `--shadow 0.1`",
        )
    if end and checkpoint:
        raise CanaryOptions("--end ends the release, whichever checkpoint it has", "leave the checkpoint out")


async def _begin(platform: Platform, model: str, checkpoint: str, shares: _Shares, reason: str) -> None:
    from upcycle.api.registry.v1.registry_pb2 import PolicyHold
    from upcycle.api.registry.v1.service_pb2 import GetModelRequest, SetCanaryReleaseRequest

    now = (await platform.registry.GetModel(GetModelRequest(model=model), timeout=_TIMEOUT_S)).model
    request = SetCanaryReleaseRequest(
        model=model,
        checkpoint_id=await checkpoint_id_of(platform, model, checkpoint),
        share=shares.share,
        shadow_share=shares.shadow,
        actor=getpass.getuser(),
        reason=reason,
        expected_head_revision=now.head_revision,
    )
    begun = await platform.registry.SetCanaryRelease(request, timeout=_TIMEOUT_S)
    held = PolicyHold(model=model, version=begun.release.version, engine_id=begun.engine.engine_id)
    await until_served(platform, held, way_out=f"`upcycle models canary {model} --end` ends the release")


async def _end(platform: Platform, model: str, reason: str) -> None:
    from upcycle.api.registry.v1.service_pb2 import EndCanaryReleaseRequest

    request = EndCanaryReleaseRequest(model=model, actor=getpass.getuser(), reason=reason)
    await platform.registry.EndCanaryRelease(request, timeout=_TIMEOUT_S)


async def _changes(platform: Platform, model: str) -> "list[CanaryRelease]":
    """Oldest first."""
    from upcycle.api.registry.v1.service_pb2 import ListCanaryReleasesRequest

    request = ListCanaryReleasesRequest(model=model)
    return list((await platform.registry.ListCanaryReleases(request, timeout=_TIMEOUT_S)).changes)


def state_words(model: str, changes: "list[CanaryRelease]") -> str:
    if not changes or not _is_under_way(changes[-1]):
        return f"[bold]{model}[/bold] has no canary release: head answers everything"
    last = changes[-1]
    answers = f"answers {last.share:.1%} of the conversations" if last.share else ""
    shadows = f"shadows {last.shadow_share:.1%} of what head answers: recorded and never served"
    does = [answers, shadows if last.shadow_share else ""]
    return f"[bold]{model}[/bold]: {last.checkpoint_id} {', and '.join(filter(None, does))}"


def _is_under_way(change: "CanaryRelease") -> bool:
    return change.share > 0 or change.shadow_share > 0


def _row(change: "CanaryRelease") -> tuple[str, ...]:
    is_under_way = _is_under_way(change)
    shares = (f"{change.share:.1%}", f"{change.shadow_share:.1%}") if is_under_way else ("ended", "")
    at = f"{change.changed_at.ToDatetime():%Y-%m-%d %H:%M:%S} UTC"
    return str(change.revision), change.checkpoint_id, *shares, change.actor, change.reason, at
