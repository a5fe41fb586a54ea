"""What the scripted players earn: `python -m upcycle.benchmarks.repair_30.baseline` writes baseline.json."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from upcycle import EvaluationResult
from upcycle.transcripts import Answer, Transcript, Turn

from .drawing import NUM_HELD_OUT, drawn
from .env import env, repair
from .players import ANCHOR, PLAYERS, Calls, Repairer, calls_of

FILE: Final = Path(__file__).with_name("baseline.json")


async def played(number: int, calls: Calls) -> EvaluationResult:
    """The reward of calls of tools in one task, in this process."""
    play = repair.play({"number": number})
    try:
        await play.start()
        for name, arguments in calls:
            await env.call_tool(name, arguments)
        return await play.grade(Answer("", Transcript((Turn(""),))))
    finally:
        await play.close()


def rewards(player: Repairer, numbers: Iterable[int]) -> dict[str, float]:
    """The reward of each task, by its number."""
    found = {number: asyncio.run(played(number, calls_of(player, number))) for number in numbers}
    return {str(number): round(result.score, 4) for number, result in found.items()}


def table() -> dict[str, Any]:
    """Every player on every task. people: how many of the players are people."""
    rows = []
    for player in PLAYERS:
        earned = rewards(player, range(NUM_HELD_OUT))
        families: dict[str, list[float]] = {}
        for number, reward in earned.items():
            families.setdefault(drawn("held_out", int(number)).library.name, []).append(reward)
        rows.append(
            {
                "player": player.name,
                "skill": player.skill,
                "reward": _mean(list(earned.values())),
                "success": _mean([float(reward == 1) for reward in earned.values()]),
                "families": {name: _mean(values) for name, values in families.items()},
                "rewards": earned,
            }
        )
    return {"benchmark": "repair-30", "anchor": ANCHOR, "people": 0, "players": rows}


def _mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 4)


if __name__ == "__main__":
    FILE.write_text(json.dumps(table(), indent=1) + "\n")
    print(f"wrote {FILE}")
