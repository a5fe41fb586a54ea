"""What becomes of programs that an environment starts: docs/understand/environments.md says it to authors."""

from tests.services.scenario_runner.environments.children import env
from tests.services.scenario_runner.fleets import ENVIRONMENTS, Fleet
from tests.support.waiting import until

from scenario_runner.domain.environments import Opened, PythonEnvironment

CHILDREN = PythonEnvironment(env.name, str(ENVIRONMENTS / "children.py"))


async def started(fleet: Fleet, playing: Opened, how: str) -> int:
    return int((await fleet.call(playing, "start", f'{{"how": "{how}"}}')).content)


async def test_programs_live_until_the_episode_ends_and_daemons_until_their_parent_does(fleet: Fleet) -> None:
    playing = await fleet.open("play", source=CHILDREN)
    child, orphan = [await started(fleet, playing, how) for how in ("child", "orphan")]
    daemon = await started(fleet, playing, "daemon")
    await fleet.grade(await fleet.open("play", source=CHILDREN))  # at its end the zygote looks what is left
    await until(lambda: daemon == 0 or not lives(daemon), "the daemon is killed")
    assert [lives(one) for one in (child, orphan)] == [True, True]
    assert (await fleet.grade(playing)).reward == 1.0
    await until(lambda: not any(lives(one) for one in (child, orphan)), "they end with the episode")


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
