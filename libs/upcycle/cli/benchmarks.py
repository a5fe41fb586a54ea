"""`--benchmark NAME`: the tasks that ship with the package, in the place of TASKS."""

from upcycle.cli.output import human
from upcycle.errors import UpcycleError


class UnclearBenchmark(UpcycleError, ValueError):
    """The command names a benchmark and other tasks."""

    kind = "unclear_benchmark"


def with_benchmark(name: str, tasks: str | None, model: str | None) -> tuple[str | None, str | None]:
    """TASKS and MODEL as they are meant: with a benchmark the first argument is the model.

    Raises UnknownName, and UnclearBenchmark where TASKS is given as well.
    """
    if not name:
        return tasks, model
    if tasks is not None and model is not None:
        raise UnclearBenchmark(
            f"--benchmark {name} and TASKS {tasks}",
            f"name one of them: upcycle eval --benchmark {name} MODEL",
        )
    from upcycle.shipped import benchmark_named

    benchmark, said = benchmark_named(name)
    if said:
        human().print(said, markup=False, soft_wrap=True)
    return str(benchmark.tasks_file), tasks or model
