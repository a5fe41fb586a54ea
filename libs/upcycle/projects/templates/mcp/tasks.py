"""The tasksets, drawn from seeds: tasks of `held_out` only measure, and have projects of their own."""

from env import investigate
from names import Split
from projects import incident_of, project_of

from upcycle import Task, Taskset

NUM_TRAIN = 200
NUM_HELD_OUT = 100


def task(split: Split, seed: int) -> Task:
    """The task of a seed; its family is the cause."""
    project = project_of(split, seed)
    incident = incident_of(project)
    return investigate.task(
        slug=f"{split}-{seed:07d}",
        family=incident.cause,
        query=f"{incident.alerting} of project {project} answers with 500 errors",
        expected_finding=f"service: {incident.faulty} cause: {incident.cause}",
    )


train = Taskset("my-agent-train", [task("train", seed) for seed in range(NUM_TRAIN)], "train")
held_out = Taskset("my-agent-held-out", [task("held_out", seed) for seed in range(NUM_HELD_OUT)], "held_out")
