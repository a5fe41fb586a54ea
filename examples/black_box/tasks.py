"""Alerts that an agent with a loop and tools of its own shall explain."""

from collections.abc import AsyncGenerator

from upcycle import Environment, Taskset

env = Environment("alerts")
CAUSES = {
    "worker killed, heap full": "out_of_memory",
    "no free connection in pool": "pool_exhausted",
    "connection to database refused": "database_down",
}


@env.scenario("explain")
async def explain(service: str, log: str) -> AsyncGenerator[str | float, str]:
    """Half for the service, half for the cause."""
    answer = yield (
        f"Alert: {service} is failing. {log}\n"
        "Answer as\nservice: NAME cause: database_down|out_of_memory|pool_exhausted"
    )
    yield 0.5 * (service in answer) + 0.5 * (CAUSES[log] in answer)


SERVICES = ("amber-queue", "koala-cart", "lunar-mail")
tasks = Taskset(
    "alerts",
    [explain.task(slug=name, service=name, log=log) for name, log in zip(SERVICES, CAUSES, strict=True)],
    "train",
)
