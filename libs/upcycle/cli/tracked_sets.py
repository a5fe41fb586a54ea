"""Held-out sets that a training run is followed on: registered before it, shown beside its steps."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from upcycle.cli.output import fields_of, print_json
from upcycle.cli.run_follower import RewardAlone, VersionMeasured
from upcycle.tasks import plain_name
from upcycle.tracking import parse_tracked
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run, TrackedRate
    from upcycle.platform import Platform

PLAYED: Final = "played"
OPEN: Final = ("due", "playing")


async def with_benchmarks(platform: "Platform", track: Sequence[str]) -> tuple[str, ...]:
    """The sets by the names that the platform knows; benchmarks that ship with the package are registered."""
    from upcycle.cli.tasksets import load_source
    from upcycle.shipped import BENCHMARKS, OTHER_NAMES

    named = []
    for text in track:
        one = parse_tracked(text)
        name = OTHER_NAMES.get(one.taskset, one.taskset)
        if name in BENCHMARKS:
            name = await load_source(str(BENCHMARKS[name].tasks_file)).register(platform)
        named.append(f"{name}:every={one.every}")
    return tuple(named)


def newest_rates(run: "Run") -> "dict[str, TrackedRate]":
    """By set, the newest version that was measured."""
    return {plain_name(one.taskset): one for one in run.tracked if _is_measured(one)}


def _is_measured(rate: "TrackedRate") -> bool:
    return rate.state == PLAYED and rate.HasField("rate")


def rate_text(rate: "TrackedRate") -> str:
    """`held 45.0% [38.1%, 52.0%] at step 10`."""
    between = f" [{rate.low:.1%}, {rate.high:.1%}]" if rate.HasField("low") else ""
    return f"{plain_name(rate.taskset)} {rate.rate:.1%}{between} at step {rate.step}"


def rate_line(rate: "TrackedRate") -> str:
    """A version that was measured, beside the reward and the drift of its step."""
    drift = f"  drift {rate.drift_kl:.2e}" if rate.HasField("drift_kl") else ""
    dropped = "  dropped" if rate.dropped else ""
    return f"tracked v{rate.version}: {rate_text(rate)}  reward {rate.reward_mean:.3f}{drift}{dropped}"


def tracking_line(event: VersionMeasured | RewardAlone) -> str:
    """For logs and pipes."""
    return rate_line(event.rate) if isinstance(event, VersionMeasured) else f"alarm {event.text}"


def print_tracking(event: VersionMeasured | RewardAlone) -> None:
    """One JSON line."""
    if isinstance(event, VersionMeasured):
        print_json("tracked", {**fields_of(event.rate), **epoch_record(event.rate)})
    else:
        print_json("tracking_alarm", {"text": event.text})


def rates_record(run: "Run") -> dict[str, Any]:
    """What a JSON line of a step has of the sets: the newest rate of each, under `tracked`."""
    rates = {name: fields_of(rate) for name, rate in newest_rates(run).items()}
    return {"tracked": rates} if rates else {}


def epoch_record(rate: "TrackedRate") -> dict[str, Any]:
    """The same under the names that scripts of others read."""
    drift = rate.drift_kl if rate.HasField("drift_kl") else None
    return {
        "epoch": rate.epoch,
        "grpo_reward_mean": rate.reward_mean,
        f"{plain_name(rate.taskset)}_score": rate.rate,
        "kl_divergence": drift,
    }


def tracked_curves(run: "Run") -> list[tuple[str, list[float], str]]:
    """(name, values, last value as text) of each set, as curves of a run are."""
    curves: dict[str, list[float]] = {}
    for one in run.tracked:
        if _is_measured(one):
            curves.setdefault(plain_name(one.taskset), []).append(one.rate)
    newest = newest_rates(run)
    return [(name, values, rate_text(newest[name]).partition(" ")[2]) for name, values in curves.items()]


def done_lines(run: "Run") -> list[str]:
    """What is known of the sets when the run is over, and what is still played."""
    lines = [rate_line(one) for one in newest_rates(run).values()]
    if left := sum(one.state in OPEN for one in run.tracked):
        versions = amount(left, "version is", "versions are")
        lines.append(f"{versions} still measured: upcycle train --attach {run.run_id}")
    return lines
