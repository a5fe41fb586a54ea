"""SDK values as protobuf messages, and back."""

from collections.abc import Iterable

from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.tasks import EnvironmentRef, Split, Task, Taskset
from upcycle.usage import Usage

_SPLITS: dict[Split, "common_pb2.Split.ValueType"] = {
    "train": common_pb2.SPLIT_TRAIN,
    "held_out": common_pb2.SPLIT_HELD_OUT,
    "unassigned": common_pb2.SPLIT_UNASSIGNED,
}


def taskset_to_wire(taskset: Taskset) -> taskset_pb2.Taskset:
    """What `RegisterTaskset` takes."""
    return taskset_pb2.Taskset(
        name=taskset.name,
        digest=taskset.digest,
        split=_SPLITS[taskset.split],
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


def usage_of(messages: Iterable[common_pb2.Usage]) -> Usage:
    """The sum of messages. It has a cost if one of them has."""
    found = list(messages)
    costs = [one.cost for one in found if one.HasField("cost")]
    return Usage(
        engine_s=sum(one.engine_s for one in found),
        environment_s=sum(one.environment_s for one in found),
        trainer_s=sum(one.trainer_s for one in found),
        cost=sum(costs) if costs else None,
    )
