"""An edited environment: new episodes are judged by the edit, open ones by what they began with."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.services.scenario_runner.fleets import ARITH, Fleet
from tests.support.waiting import until

from scenario_runner.adapters.zygote_pool import ZygotePool
from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EnvironmentLost,
    Opened,
    PythonEnvironment,
    SourceChanged,
)
from upcycle.environment.source_files import source_digest

ENV = """from upcycle import Environment
from worth import WORTH
env = Environment("shop", data={data})

@env.scenario("ask")
async def ask():
    yield f"worth {{WORTH}}"
    import late
    yield late.WORTH
"""

READS_DATA = """
import json, pathlib

@env.scenario("cases")
async def cases():
    yield "?"
    yield json.loads((pathlib.Path(__file__).parent / "cases.json").read_text())
"""


class Shop:
    """The environment's files; the scenario pays what they say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = PythonEnvironment("shop", str(folder / "env.py"))
        self.write("env", ENV.format(data=[]))
        self.edit(0.25)

    def write(self, name: str, text: str) -> None:
        """As editors save: a reader sees the file before or after."""
        (self.folder / "saving").write_text(text)
        (self.folder / "saving").replace(self.folder / f"{name}.py")

    def edit(self, worth: float) -> str:
        """The source digest after it."""
        self.write("worth", f"WORTH = {worth}\n")
        self.write("late", f"WORTH = {worth}\n")
        return source_digest(self.source.path)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
async def hasty_pool(fleet: Fleet) -> AsyncIterator[ZygotePool]:
    """The fleet's, which ends unused zygotes of old sources at once."""
    spare = fleet.hosts.forked._pool
    fleet.hosts.forked._pool = ZygotePool(
        spare._options, fleet.sources.find, retire_after_s=0.0, look_every_s=0.05
    )
    yield fleet.hosts.forked._pool
    await spare.stop()


async def graded(fleet: Fleet, lease: Opened) -> float:
    """What the episode earned."""
    return float((await fleet.grade(lease)).reward)


async def test_an_edit_is_played_by_new_episodes_and_not_by_open_ones(fleet: Fleet, shop: Shop) -> None:
    before = await fleet.open("ask", source=shop.source)
    edited = shop.edit(0.75)
    after = await fleet.open("ask", source=shop.source)
    assert (before.prompt[0]["content"], after.prompt[0]["content"]) == ("worth 0.25", "worth 0.75")
    assert (after.source_digest, before.source_digest == edited) == (edited, False)
    assert await graded(fleet, after) == 0.75
    assert await graded(fleet, before) == 0.25  # also what it imports only now


async def test_edits_within_one_second_and_of_equal_size_are_each_played(fleet: Fleet, shop: Shop) -> None:
    """Bytecode is taken for current by the second and the size of its source."""
    for worth in (0.25, 0.5, 0.75, 0.5):
        shop.edit(worth)
        assert await graded(fleet, await fleet.open("ask", source=shop.source)) == worth


async def test_two_runs_are_judged_by_two_versions_at_once(fleet: Fleet, shop: Shop) -> None:
    first = source_digest(shop.source.path)
    await fleet.open("ask", source=shop.source, digest=first)
    second = shop.edit(0.75)
    for _ in range(2):
        for digest, worth in ((first, 0.25), (second, 0.75)):
            opened = await fleet.open("ask", source=shop.source, digest=digest)
            assert (opened.source_digest, await graded(fleet, opened)) == (digest, worth)
    assert sorted(fleet.hosts.forked._pool.digests) == sorted(
        (shop.source.path, one) for one in (first, second)
    )


async def test_a_run_is_never_judged_by_another_source_than_its_own(fleet: Fleet, shop: Shop) -> None:
    first = source_digest(shop.source.path)
    (await fleet.hosts.forked.zygote(shop.source, first)).kill()
    edited = shop.edit(0.75)
    await until(lambda: fleet.hosts.forked._pool._zygotes[shop.source, first].result().dead.done())
    with pytest.raises(
        SourceChanged, match=f"source {edited[:12]} now; the run is judged by source {first[:12]}"
    ):
        await fleet.open("ask", source=shop.source, digest=first)
    assert shop.edit(0.25) == first
    assert await graded(fleet, await fleet.open("ask", source=shop.source, digest=first)) == 0.25


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_run_whose_zygote_is_killed_after_an_edit_goes_on_with_its_own_code(
    fleet: Fleet, shop: Shop, is_gone: bool
) -> None:
    (shop.folder / "cases.json").write_text("0.125")
    shop.write("env", ENV.format(data=["cases.json"]) + READS_DATA)
    files = await fleet.hosts.files_now(shop.source)
    assert files is not None
    await fleet.sources.keep(files)
    playing = await fleet.open("cases", source=shop.source, digest=files.digest)
    zygote = await fleet.hosts.forked.zygote(shop.source, files.digest)
    assert zygote._process is not None
    os.kill(zygote._process.pid, signal.SIGKILL)
    await zygote.dead
    (shop.folder / "cases.json").write_text("0.5")
    shop.edit(0.75)
    if is_gone:
        shutil.rmtree(shop.folder)
    with pytest.raises(EnvironmentLost):
        await fleet.grade(playing)
    again = await fleet.open("ask", source=shop.source, digest=files.digest)
    data = await fleet.open("cases", source=shop.source, digest=files.digest)
    assert again.source_digest == files.digest
    assert (again.prompt[0]["content"], await graded(fleet, again)) == ("worth 0.25", 0.25)
    assert await graded(fleet, data) == 0.125
    if not is_gone:
        assert await graded(fleet, await fleet.open("ask", source=shop.source)) == 0.75


async def test_the_zygote_of_an_old_source_ends_with_its_last_episode(
    fleet: Fleet, shop: Shop, hasty_pool: ZygotePool
) -> None:
    before = await fleet.open("ask", source=shop.source)
    old = await hasty_pool.get(shop.source, before.source_digest)
    edited = shop.edit(0.75)
    after = await fleet.open("ask", source=shop.source)
    await asyncio.sleep(0.3)
    assert not old.dead.done()
    assert await graded(fleet, before) == 0.25
    await until(old.dead.done, "the old zygote ends")
    assert hasty_pool.digests == [(shop.source.path, edited)]
    assert await graded(fleet, after) == 0.75


async def test_a_zygote_without_a_play_for_an_hour_is_ended(fleet: Fleet, shop: Shop) -> None:
    spare = fleet.hosts.forked._pool
    pool = ZygotePool(spare._options, fleet.sources.find, idle_after_s=3.0, look_every_s=0.05)
    fleet.hosts.forked._pool = pool
    playing = await fleet.open("ask", source=shop.source)
    assert await graded(fleet, await fleet.open("sum", '{"a": 1, "b": 2}', source=ARITH)) == 0.25
    await until(lambda: pool.digests == [(shop.source.path, playing.source_digest)], "the unused one ends")
    assert await graded(fleet, await fleet.open("sum", '{"a": 1, "b": 2}', source=ARITH)) == 0.25
    assert await graded(fleet, playing) == 0.25
    await until(lambda: pool.digests == [], "both are unused now")
    await spare.stop()


async def test_open_episodes_outlive_the_files(fleet: Fleet, shop: Shop) -> None:
    before = await fleet.open("ask", source=shop.source)
    for name in ("env", "worth", "late"):
        (shop.folder / f"{name}.py").unlink()
    with pytest.raises(EnvironmentBroken, match=r"no such file: .*env\.py"):
        await fleet.open("ask", source=shop.source)
    assert await graded(fleet, before) == 0.25


async def test_an_edit_that_does_not_load_fails_by_its_line_and_its_mend_is_taken(
    fleet: Fleet, shop: Shop
) -> None:
    before = await fleet.open("ask", source=shop.source)
    shop.write("worth", "WORTH = = 1\n")
    with pytest.raises(EnvironmentBroken, match=r"worth\.py, line 1"):
        await fleet.open("ask", source=shop.source)
    shop.edit(0.5)
    assert await graded(fleet, await fleet.open("ask", source=shop.source)) == 0.5
    assert await graded(fleet, before) == 0.25


async def test_episodes_go_on_while_the_file_is_edited_all_the_time(fleet: Fleet, shop: Shop) -> None:
    """Each episode is judged by one source, as a whole."""
    shop.write("late", "from worth import WORTH\n")
    is_over = asyncio.Event()

    async def edit() -> None:
        worths = [0.25, 0.5, 0.75, 1.0]
        while not is_over.is_set():
            shop.write("worth", f"WORTH = {worths[0]}\n")
            worths = [*worths[1:], worths[0]]
            await asyncio.sleep(0.5)

    editing = asyncio.create_task(edit())
    for _ in range(6):
        opened = await fleet.open("ask", source=shop.source)
        said = opened.prompt[0]["content"]
        assert said == f"worth {await graded(fleet, opened)}"
    is_over.set()
    await editing


async def test_data_that_is_not_read_from_the_text_is_refused(fleet: Fleet, shop: Shop) -> None:
    shop.write(
        "env", ENV.format(data=["notes.txt"]).replace("env = Environment(", "make = Environment\nenv = make(")
    )
    with pytest.raises(EnvironmentBroken, match="is not read from its text"):
        await fleet.open("ask", source=shop.source)
    (shop.folder / "cases.json").write_text("[]")
    shop.write("env", ENV.format(data=["cases.json"]))
    assert await graded(fleet, await fleet.open("ask", source=shop.source)) == 0.25
