"""Training runs on several tasksets: registered before the run, and what its gate leaves out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from upcycle.mixing import parse_mixed
from upcycle.tasks import plain_name

if TYPE_CHECKING:
    from upcycle.platform import Platform
    from upcycle.run_config import RunSpec


async def registered_mix(platform: "Platform", mix: Sequence[str], *, exact: bool) -> tuple[str, ...]:
    """The other tasksets of a run by the names that the platform knows; those of tasks files are registered.
    exact: as of TasksetSource.register. Raises AmbiguousTaskset for a file that defines several."""
    from upcycle.cli.tasksets import AmbiguousTaskset, load_source

    named = []
    for text in mix:
        path = parse_mixed(text).taskset
        try:
            source = load_source(path)
        except AmbiguousTaskset as error:
            hint = f"register them (upcycle sync tasks {path} NAME), then --mix NAME:share=SHARE"
            raise AmbiguousTaskset(f"--mix: {error.message}", hint) from error
        name = await source.register(platform, exact=exact)
        named.append(f"{name}:{text.rpartition(':')[2]}")
    return tuple(named)


def gate_line(spec: "RunSpec") -> str:
    """What the gate of a run on several tasksets does not judge; empty where it judges all."""
    if spec.gate is None or not spec.mix:
        return ""
    others = ", ".join(plain_name(parse_mixed(text).taskset) for text in spec.mix)
    return (
        f"gate: {plain_name(spec.gate.taskset)} alone decides; what the run does to the tasks of {others} is "
        "not judged: follow it on held-out tasks of each with --track"
    )
