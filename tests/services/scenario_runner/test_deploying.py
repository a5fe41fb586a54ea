"""Environments that are sent as packed source: who may, what is refused, and that the fleet plays them."""

from pathlib import Path
from typing import Any, Final

import pytest
from tests.services.scenario_runner.conftest import Runner, Start
from tests.services.scenario_runner.fleets import ENVIRONMENTS
from tests.services.scenario_runner.support import (
    arith,
    finished,
    play_to_grade,
    refusal,
    register,
    run_spec,
    sampling,
    submit,
)

from identities import objects
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2
from upcycle.environment.source_files import SourceFiles
from upcycle.environment.source_pack import pack_source

KEY: Final = "an-operators-own-key"
ARITH: Final = (ENVIRONMENTS / "arith.py").read_bytes()


def source(text: bytes = ARITH, **others: bytes) -> SourceFiles:
    """An environment of one file, and modules beside it."""
    return SourceFiles(Path("/"), "env.py", {"env.py": text, **{f"{n}.py": t for n, t in others.items()}})


def request(files: SourceFiles, **fields: Any) -> service_pb2.DeployEnvironmentRequest:
    """As a client sends it."""
    sent = {"name": "arith", "source_digest": files.digest, "packed": pack_source(files)}
    return service_pb2.DeployEnvironmentRequest(**{**sent, **fields})


def deploy(runner: Runner, asked: service_pb2.DeployEnvironmentRequest, key: str | None = KEY) -> Any:
    """The call."""
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    return runner.tasksets.DeployEnvironment(asked, metadata=metadata)


def deployed(files: SourceFiles) -> taskset_pb2.Taskset:
    """Two tasks of it."""
    taskset = arith(2)
    taskset.environment.python.path = f"deployed:{files.digest}"
    return taskset


async def kept(runner: Runner, files: SourceFiles) -> bytes | None:
    """Its pack in the object store."""
    return await runner.bodies.read(objects.packed_source(files.digest))


async def test_the_fleet_plays_what_was_sent_also_after_a_restart(start_runner: Start) -> None:
    files = source(ARITH.replace(b"else 0.25,", b"else worth(),") + b"\n\nfrom prices import worth\n",
                   prices=b"def worth():\n    return 0.5\n")  # fmt: skip
    first = await start_runner(operator_key=KEY)
    answer = await deploy(first, request(files))
    assert answer.environment.name == "arith"
    assert answer.environment.python.path == f"deployed:{files.digest}"
    assert list(answer.scenarios) == ["sum"]
    assert await deploy(first, request(files)) == answer  # once more changes nothing
    await register(first, deployed(files))
    listed = await first.tasksets.ListTasksets(service_pb2.ListTasksetsRequest(with_summaries=True))
    assert [one.source_digest for one in listed.summaries] == [files.digest]
    await first.service.stop()
    second = await start_runner()  # plays and submits; only deploying needs the key
    run = await submit(second, run_spec())
    assert run.source_digest == files.digest
    rewards = []

    async def play(asked: Any) -> None:
        rewards.append(await play_to_grade(second, asked))

    async with sampling(second, play):
        done = await finished(second, run.run_id)
    assert done.run.state == taskset_pb2.RUN_STATE_COMPLETED
    assert sorted(rewards) == [0.5, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (None, "needs the operator's key, and none was sent"),
        ("guess", "is another one than the one that was sent"),
    ],
)
async def test_without_the_operators_key_nothing_is_run_or_kept(
    start_runner: Start, tmp_path: Path, key: str | None, says: str
) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    runner = await start_runner(operator_key=KEY, cell_folders=(seen,))
    marker = seen / "it-ran"
    files = source(ARITH + f"\nopen({str(marker)!r}, 'w')\n".encode())
    error = await refusal(deploy(runner, request(files), key))
    assert error.code().name == "UNAUTHENTICATED"
    assert says in (error.details() or "")
    assert await kept(runner, files) is None
    assert not marker.exists()
    await deploy(runner, request(files))
    assert marker.exists()  # the same pack, with the key: so it would have been seen


async def test_a_platform_without_a_key_takes_none(runner: Runner) -> None:
    error = await refusal(deploy(runner, request(source()), ""))
    assert error.code().name == "FAILED_PRECONDITION"
    assert "SCENARIO_RUNNER_OPERATOR_KEY" in (error.details() or "")


async def test_what_is_no_such_environment_is_refused_and_not_kept(start_runner: Start) -> None:
    runner = await start_runner(operator_key=KEY)
    mute = b"from upcycle import Environment\nenv = Environment('arith')\n"
    cases: list[tuple[SourceFiles, dict[str, Any], str]] = [
        (source(), {"packed": b"no archive"}, "cannot be read"),
        (source(), {"source_digest": "ab" * 32}, "source_digest is abababababab, and what is packed is"),
        (source(), {"source_digest": "../../etc"}, "names no deployed environment"),
        (source(), {"name": "shop"}, "declares no environment 'shop'; it has arith"),
        (source(b"import plugins_of_mine\n" + ARITH), {}, "No module named 'plugins_of_mine'"),
        (source(mute), {}, "declares no scenario"),
    ]
    for files, fields, says in cases:
        error = await refusal(deploy(runner, request(files, **fields)))
        assert (error.code().name, says in (error.details() or "")) == ("INVALID_ARGUMENT", True), error
        assert await kept(runner, files) is None, says


async def test_a_pack_that_names_files_outside_is_refused(start_runner: Start, tmp_path: Path) -> None:
    runner = await start_runner(operator_key=KEY)
    outside = tmp_path / "outside.py"
    files = SourceFiles(Path("/"), "env.py", {"env.py": ARITH, f"../../..{outside}": b"import os\n"})
    error = await refusal(deploy(runner, request(files)))
    assert "outside its root" in (error.details() or "")
    assert not outside.exists()


async def test_a_taskset_of_what_was_never_deployed_is_refused_by_name(start_runner: Start) -> None:
    runner = await start_runner(operator_key=KEY)
    never = source(ARITH + b"# never sent\n")
    error = await refusal(register(runner, deployed(never)))
    assert error.code().name == "INVALID_ARGUMENT"
    assert f"no source {never.digest} is deployed here" in (error.details() or "")
    taskset = deployed(source())
    taskset.environment.python.path = "deployed:latest"
    error = await refusal(register(runner, taskset))
    assert "'deployed:latest' names no deployed environment" in (error.details() or "")
