from collections.abc import AsyncGenerator
from typing import Any

from upcycle import Environment, EvaluationResult, SubScore, Task, Taskset

CAUSES = {
    "database refused connection": "database_down",
    "worker killed, heap full": "out_of_memory",
    "no free connection in pool": "pool_exhausted",
}
env = Environment("oncall")


@env.scenario("oncall")
async def oncall(service: str, log: str) -> AsyncGenerator[Any, str]:
    choices = "|".join(CAUSES.values())
    answer = yield f"Alert: {service} is failing. {log}\nAnswer as\nservice: NAME cause: {choices}"
    exact = answer.strip() == f"service: {service} cause: {CAUSES[log]}"
    named, right = service in answer, CAUSES[log] in answer
    shadow = SubScore("shadow_exact", float(exact), weight=0.0)
    parts = (SubScore("service", float(named), 0.3), SubScore("cause", float(right), 0.7), shadow)
    yield EvaluationResult(0.3 * named + 0.7 * right, right, parts)


def tasks(second: str) -> list[Task]:
    services = [
        f"{first}-{second}"
        for first in ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron")
    ]
    return [oncall.task(service=service, log=log) for service in services for log in CAUSES]


train = Taskset("oncall-train", tasks("cart"), "train")
held_out = Taskset("oncall-held-out", tasks("queue"), "held_out")
