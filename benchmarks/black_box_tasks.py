"""Incidents with different prompts: an agent with tools of its own finds its incident by the prompt."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from examples.incident import tasks as incident
from examples.incident.world import draw_incident

from upcycle import Task, Taskset

COUNT: Final = 96


def _with_new_prompts() -> Iterator[Task]:
    """Those whose alerting service, all that a prompt differs in, no earlier task has."""
    seen = set[str]()
    for task in incident.train:
        alerting = draw_incident("train", task.args["seed"]).alerting
        if alerting not in seen:
            seen.add(alerting)
            yield task


tasks = Taskset("bench-black-box", islice(_with_new_prompts(), COUNT), "train")
