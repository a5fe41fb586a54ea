"""An engine goes on serving while its events cannot be published."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from tests.services.policy_engine.doubles import policy

from episodes import Channel
from event_bus import BusError, EventBus
from policy_engine.adapters.announcer import PlatformAnnouncer
from policy_engine.domain import ServedPolicy
from policy_engine.wire import EngineIdentity
from upcycle.errors import Unavailable


class BrokenBus:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def publish(self, *_: object, **__: object) -> None:
        raise self._error


@pytest.mark.parametrize("error", [Unavailable("NATS"), BusError("refused")])
async def test_an_event_that_cannot_be_published_is_logged_and_the_engine_serves(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    who = EngineIdentity("e-1", "incident", Channel.LATEST, "embedded")
    bus = cast("EventBus", BrokenBus(error))
    announcer = PlatformAnnouncer(who, bus, cast("Any", None), now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    await announcer.ready(ServedPolicy(policy(3), 0.0))
    assert [record.message for record in caplog.records] == ["event_lost"]
