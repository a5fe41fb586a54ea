"""What a policy did with guidance does not count where rewards of the process fade by what it can do."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any, cast

from tests.services.grpo_trainer.runs.test_assembly import graded, spec

from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.runs.group_buffer import GroupBuffer


async def test_the_share_of_successes_is_of_unguided_episodes() -> None:
    deps = cast(Any, SimpleNamespace(bodies=None, facts=None, instruments=None))
    buffer = GroupBuffer(spec(), SettledGroups("run-1"), {}, deps)
    handling = asyncio.create_task(buffer.run())
    for member, reward in enumerate((1.0, 0.0, 0.0)):
        buffer.put(graded(0, member, reward, member + 1))
    for member in range(3):
        buffer.put(dataclasses.replace(graded(1, member, 1.0, member + 4), guided=True))
    while not buffer.is_drained:
        await asyncio.sleep(0)
    handling.cancel()
    assert buffer.ended.success == 1 / 3
    assert buffer.assembler.num_open == 2, "guided ones make groups like others"
