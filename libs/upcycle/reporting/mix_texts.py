"""The tasksets of a run that plays several, in words."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from upcycle.tasks import plain_name
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import MixedTaskset, Run


def mix_lines(run: "Run") -> list[str]:
    """Each taskset of a run that plays several, with what it gave."""
    return [_line(one) for one in run.mix]


def _line(one: "MixedTaskset") -> str:
    return f"{plain_name(one.taskset)} ({one.share:.3g} of the groups): {', '.join(_parts(one))}"


def _parts(one: "MixedTaskset") -> Iterator[str]:
    yield amount(one.groups, "group") + (f" ({one.guided_groups} guided)" if one.guided_groups else "")
    yield f"{one.trained} trained"
    yield f"{one.left_out} left out" + (
        f", the last {one.left_out_in_a_row} in a row" if one.left_out_in_a_row > 1 else ""
    )
    if one.episodes:
        episodes = amount(one.episodes, "episode")
        yield f"reward {one.reward_mean:.3f}, success {one.success_rate:.1%} of {episodes}"
