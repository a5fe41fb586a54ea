"""What the streams hold, and how many days that is at the present rate."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from nats.js import JetStreamContext
from nats.js.api import StreamInfo
from nats.js.errors import NotFoundError

from event_bus.connection import connected
from event_bus.topology import DAY_S, UPCYCLE, Keep, StreamSpec, Topology
from event_bus.watch import NEARLY_FULL
from service_kit.clock import utc_now
from service_kit.groups import BusSettings
from upcycle.wording import amount

HOUR_S: Final = 3600.0
"""The present rate is what came in so many seconds."""
_MIB: Final = 1 << 20
_API_TIMEOUT_S: Final = 5.0
_MANY_DAYS: Final = 100.0


@dataclass(frozen=True, slots=True)
class Holding:
    """One stream. text: for people."""

    name: str
    is_well: bool
    text: str
    days: float | None = None
    """How long it takes to fill from empty at the present rate; None for no bound, no age, or no messages."""


async def held(settings: BusSettings, topology: Topology = UPCYCLE) -> list[Holding]:
    """Each stream of the topology. Raises Unavailable."""
    async with connected(settings, "upcycle doctor") as client:
        jetstream = client.jetstream(timeout=_API_TIMEOUT_S)
        return [await _holding(jetstream, spec) for spec in topology.streams]


async def _holding(jetstream: JetStreamContext, spec: StreamSpec) -> Holding:
    try:
        info = await jetstream.stream_info(spec.name)
    except NotFoundError:
        return Holding(spec.name, False, "does not exist: run upcycle-provision")
    bound, most, state = info.config.max_bytes or 0, info.config.max_msgs or 0, info.state
    held = f"{amount(state.messages, 'message')}{f' of {most}' * (most > 0)}"
    text = f"{held}, {state.bytes / _MIB:.1f} MiB"
    if bound <= 0:
        return Holding(spec.name, True, f"{text}, no bound")
    text += f" of {bound / _MIB:.0f} MiB"
    if spec.keep is Keep.UNTIL_ACKED:
        filled = max(state.bytes / bound, state.messages / most if most > 0 else 0.0)
        return Holding(spec.name, filled < NEARLY_FULL, f"{text} wait for a worker")
    rate = await _messages_per_day(jetstream, info)
    if not rate:
        return Holding(spec.name, True, text)
    room = bound * state.messages / state.bytes  # messages of the present size
    days, kept = min(room, most if most > 0 else room) / rate, (info.config.max_age or 0.0) / DAY_S
    is_well = spec.may_forget or not kept or days >= kept
    after = f"{days:.1f}" if days < _MANY_DAYS else f"{days:.0f}"
    text += f"; full after {after} days at this rate" + (f"; messages are kept {kept:g} days" if kept else "")
    return Holding(spec.name, is_well, text, days)


async def _messages_per_day(jetstream: JetStreamContext, info: StreamInfo) -> float:
    """What came in the last hour, for a day."""
    state = info.state
    if not state.messages:
        return 0.0
    since, name = utc_now() - timedelta(seconds=HOUR_S), str(info.config.name)
    below, above = state.first_seq, state.last_seq + 1  # the first message of the hour is in [below, above]
    while below < above:
        middle = (below + above) // 2
        at = (await jetstream.get_msg(name, middle, next=True, subject=">")).time
        below, above = (middle + 1, above) if at is not None and at < since else (below, middle)
    return (state.last_seq + 1 - below) * DAY_S / HOUR_S
