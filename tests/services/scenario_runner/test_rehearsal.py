"""The rehearsal of a zygote plays our scenario for real and leaves nothing behind that episodes inherit."""

import asyncio
import os

import pytest

from scenario_runner.adapters import rehearsal
from scenario_runner.adapters.rehearsal import RehearsalFailed, rehearse


def test_it_leaves_no_descriptor_open_and_no_loop_running() -> None:
    rehearse()
    before = os.listdir("/proc/self/fd")
    rehearse()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_a_channel_that_answers_with_an_error_is_no_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_CALLS", (("tasks.start", {"id": "another", "args": {}}),))
    with pytest.raises(RehearsalFailed, match=r"tasks\.start was answered with .*another"):
        rehearse()
