"""SDK values as protobuf messages, and back."""

from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.tasks import EnvironmentRef, Split, Task, Taskset
from upcycle.usage import Usage

SPLITS: dict[Split, "common_pb2.Split.ValueType"] = {
    "train": common_pb2.SPLIT_TRAIN,
    "held_out": common_pb2.SPLIT_HELD_OUT,
    "audit": common_pb2.SPLIT_AUDIT,
    "unassigned": common_pb2.SPLIT_UNASSIGNED,
}


def taskset_to_wire(taskset: Taskset) -> taskset_pb2.Taskset:
    """What `RegisterTaskset` takes."""
    return taskset_pb2.Taskset(
        name=taskset.name,
        digest=taskset.digest,
        split=SPLITS[taskset.split],
        environment=environment_to_wire(taskset.environment),
        tasks=[task_to_wire(task) for task in taskset],
    )


def task_to_wire(task: Task) -> taskset_pb2.Task:
    """One row."""
    return taskset_pb2.Task(
        slug=task.slug,
        scenario=task.scenario,
        args_json=task.args_json,
        family=task.family,
        digest=task.digest,
    )


def environment_to_wire(environment: EnvironmentRef) -> taskset_pb2.EnvironmentSpec:
    """A served environment by its URL, any other by its file."""
    if environment.url:
        return taskset_pb2.EnvironmentSpec(
            name=environment.name, tcp=taskset_pb2.TcpSource(url=environment.url)
        )
    return taskset_pb2.EnvironmentSpec(
        name=environment.name, python=taskset_pb2.PythonSource(path=environment.path)
    )


def taskset_from_wire(message: taskset_pb2.Taskset) -> Taskset:
    """The inverse of `taskset_to_wire`. Raises TasksetInvalid."""
    return Taskset.from_message(message)


def usage_of(message: common_pb2.Usage) -> Usage:
    """Seconds of the platform's machines, and their cost where it has prices."""
    return Usage(
        engine_s=message.engine_s,
        environment_s=message.environment_s,
        trainer_s=message.trainer_s,
        cost=message.cost if message.HasField("cost") else None,
    )
