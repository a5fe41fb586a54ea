"""Servers that tests of several folders share. They are the real programs: nats-server is up in 0.1 s."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.local_servers import NatsServer, S3Server
from tests.long_tests import listed, name_of
from tests.postgres import BACKENDS, PROGRAMS, PostgresServer

from service_kit.groups import S3Settings

NatsFactory = Callable[[], NatsServer]
_MAX_BUCKET_CHARS = 63
_MAX_CAPTURED_CHARS = 4_000
_SMALL_VOLUMES = ("-master.volumeSizeLimitMB", "64")
"""Each bucket has volumes of its own, of which there are as many as fit on the free disk: 30 of 1 GB, its
default on a large disk, are fewer than there are modules with a bucket."""
# No test reads the profile of the person who runs it.
os.environ["XDG_CONFIG_HOME"] = f"{tempfile.gettempdir()}/upcycle-tests-without-a-profile"

# A service that a test starts alone serves it without a key; stacks make keys of their own, and drop this.
os.environ["UPCYCLE_ACCESS_OPEN"] = "true"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--long`: which of the tests in long_tests.txt are meant."""
    said = "the tests that long_tests.txt lists: run them like all others, skip them, or run only them"
    parser.addoption("--long", choices=("all", "skip", "only"), default="all", help=said)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `--long` says."""
    chosen = config.getoption("--long")
    if chosen == "all":
        return
    by_meant: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        by_meant[(name_of(item) in listed()) == (chosen == "only")].append(item)
    config.hook.pytest_deselected(items=by_meant[False])
    items[:] = by_meant[True]


def pytest_report_header() -> str:
    """What the SQL suites run on, since that depends on the machine."""
    return f"sql backends: {', '.join(BACKENDS)} (postgres programs: {PROGRAMS or 'none on this machine'})"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """A wait that ran out and was tried once more (`make test`) is printed whole, whatever came of that, and
    named in the last lines.

    A machine that stood still or a race of ours: only its text tells which.
    """
    tried = terminalreporter.stats.get("rerun", [])
    for report in tried:
        terminalreporter.section(f"tried once more: {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)
        for name, text in report.sections:
            terminalreporter.section(name, sep="-")
            terminalreporter.write_line(text[-_MAX_CAPTURED_CHARS:])
    yield
    for report in tried:
        errors = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        terminalreporter.write_line(f"tried once more: {report.nodeid} {' '.join(errors[:1])}")


@pytest.fixture(autouse=True)
def working_directory() -> Iterator[None]:
    """A test that leaves another working directory fails itself, not whichever of its worker comes later."""
    before = Path.cwd()
    yield
    after = Path.cwd()
    os.chdir(before)
    assert after == before, f"the test began in {before} and left {after}"


@pytest.fixture(scope="session")
def nats_url_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A provisioned nats-server of this test session."""
    with _provisioned(tmp_path_factory) as url:
        yield url


@pytest.fixture
def nats_url(
    request: pytest.FixtureRequest, nats_url_of_session: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The session's NATS, where tests keep apart by model, pool and event ids. A second try of a test has
    one of its own: its facts' ids are those of the first try, and the bus would drop them as repeats.
    """
    if getattr(request.node, "execution_count", 1) == 1:
        yield nats_url_of_session
        return
    with _provisioned(tmp_path_factory) as url:
        yield url


@contextmanager
def _provisioned(folders: pytest.TempPathFactory) -> Iterator[str]:
    import asyncio

    from event_bus.provision import provision

    with NatsServer(folders.mktemp("nats")) as server:
        asyncio.run(provision(server.url))
        yield server.url


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsFactory]:
    """Starts fresh, empty servers that the test may kill and restart; they end with the test."""
    with ExitStack() as servers:
        started: list[NatsServer] = []

        def start() -> NatsServer:
            server = NatsServer(tmp_path / f"nats-{len(started)}")
            server.start()
            started.append(server)
            servers.callback(server.stop)
            return server

        yield start


@pytest.fixture
async def own_nats_url(nats_server: NatsFactory) -> str:
    """A provisioned nats-server of one test, for what asks about dead letters of all tests before."""
    from event_bus.provision import provision

    server = nats_server()
    await provision(server.url)
    return server.url


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real SeaweedFS for the session (1.5 s). A test that kills or fills one starts its own."""
    with S3Server(tmp_path_factory.mktemp("s3"), extra_args=_SMALL_VOLUMES) as server:
        yield server
        server.kill()  # its own shutdown takes 10 s, and nothing in it is needed any more


@pytest.fixture(scope="module")
def s3_settings(s3_server: S3Server, request: pytest.FixtureRequest) -> S3Settings:
    """A bucket of its own for each test module."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.nodeid.lower())
    return s3_server.settings_for(f"t-{name[-(_MAX_BUCKET_CHARS - 2) :].strip('-')}")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real Postgres for the session (2 s). A test that kills one starts its own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=BACKENDS)
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty database: SQLite always, Postgres too where this machine has it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'test.sqlite'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.database()
    yield url
    server.give_back(url)
