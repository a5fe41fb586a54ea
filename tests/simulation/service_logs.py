"""What the services of a history log is part of its trace, and shows bugs that a service survives."""

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from opentelemetry import context
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase
from tests.simulation.invariants import Broken
from tests.simulation.virtual_time import VirtualLoop, running_process

BUGS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)
"""Errors that no fault of a history may cause."""


class ServiceLogs(logging.Handler):
    """What the services log is part of the trace. A bug that a service survives ends the history."""

    def __init__(self, loop: VirtualLoop, say: Callable[[str, str], None]) -> None:
        super().__init__(logging.INFO)
        self._loop = loop
        self._say = say
        self._usual = set(vars(logging.makeLogRecord({}))) | {"message"}

    def emit(self, record: logging.LogRecord) -> None:
        if self._loop.is_over:
            return
        extra = {name: value for name, value in vars(record).items() if name not in self._usual}
        error = record.exc_info[1] if record.exc_info else None
        process = running_process()
        who = process.name if process else ""
        self._say(
            f"{record.getMessage()} {extra} {error!r}" if error else f"{record.getMessage()} {extra}", who
        )
        if isinstance(error, BUGS):
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._loop.failure = Broken(
                "BUG", f"{who}: {error!r} in {Path(where.filename).name}:{where.lineno}"
            )


_MEASURING: Final = (
    (Counter, ("inc",)),
    (Gauge, ("inc", "dec", "set", "set_function")),
    (Histogram, ("observe",)),
    (MetricWrapperBase, ("remove",)),
)


@contextmanager
def unmeasured() -> Iterator[None]:
    """Metrics and trace headers cost a history time and change nothing in it."""
    with ExitStack() as patches:
        for metric, methods in _MEASURING:
            for method in methods:
                patches.enter_context(patch.object(metric, method, _nothing))
        patches.enter_context(patch.object(MetricWrapperBase, "labels", _itself))
        patches.enter_context(patch.object(Histogram, "time", nullcontext))
        patches.enter_context(patch.object(Gauge, "track_inprogress", nullcontext))
        patches.enter_context(patch("opentelemetry.propagate.inject", _nothing))
        patches.enter_context(patch("opentelemetry.propagate.extract", _no_parent))
        yield


def _nothing(*_: Any, **__: Any) -> None:
    """It is not read."""


def _itself(metric: MetricWrapperBase, *_: Any, **__: Any) -> MetricWrapperBase:
    return metric


def _no_parent(*_: Any, **__: Any) -> context.Context:
    return context.get_current()
