"""Environments that are sent as packed source: who may, what is refused, and that the fleet plays them."""

from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import SecretStr
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
from identities.entities import checkpoint_id, pair_request_id, track_request_id, watch_request_id
from scenario_runner.servicer import tasksets
from service_kit.groups import ServerAccessSettings
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2
from upcycle.environment.source_files import SourceFiles
from upcycle.environment.source_pack import pack_source, unpack_source

KEY: Final = "an-operators-own-key"
ADAS_KEY: Final = "a-key-of-the-user-ada"
SERVICE_KEY: Final = "a-key-of-the-services"
KEYS: Final = ServerAccessSettings(
    open=False,
    service_key=SecretStr(SERVICE_KEY),
    operator_key=SecretStr(KEY),
    user_keys=SecretStr(f"ada:{ADAS_KEY}"),
)
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
    metadata = (("authorization", "" if key is None else f"Bearer {key}"),)
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
    first = await start_runner(access=KEYS)
    answer = await deploy(first, request(files))
    assert answer.environment.name == "arith"
    assert answer.environment.python.path == f"deployed:{files.digest}"
    assert list(answer.scenarios) == ["sum"]
    assert await deploy(first, request(files)) == answer  # once more changes nothing
    await register(first, deployed(files))
    listed = await first.tasksets.ListTasksets(service_pb2.ListTasksetsRequest(with_summaries=True))
    assert [one.source_digest for one in listed.summaries] == [files.digest]
    await first.service.stop()
    second = await start_runner(access=KEYS)
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
        (None, "UNAUTHENTICATED: this call needs a key that the server knows"),
        ("guess", "UNAUTHENTICATED: this call needs a key that the server knows"),
        (ADAS_KEY, "PERMISSION_DENIED: a key of a user was sent"),
        (SERVICE_KEY, "PERMISSION_DENIED: a key of a service was sent"),
    ],
)
async def test_without_the_operators_key_nothing_is_run_or_kept(
    start_runner: Start, tmp_path: Path, key: str | None, says: str
) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    runner = await start_runner(access=KEYS, cell_folders=(seen,))
    marker = seen / "it-ran"
    files = source(ARITH + f"\nopen({str(marker)!r}, 'w')\n".encode())
    error = await refusal(deploy(runner, request(files), key))
    assert f"{error.code().name}: {error.details()}".startswith(says)
    assert await kept(runner, files) is None
    assert not marker.exists()
    await deploy(runner, request(files))
    assert marker.exists()  # the same pack, with the key: so it would have been seen


async def test_a_platform_that_is_open_to_all_takes_none(runner: Runner) -> None:
    error = await refusal(deploy(runner, request(source()), ""))
    assert error.code().name == "FAILED_PRECONDITION"
    assert "UPCYCLE_ACCESS_OPEN" in (error.details() or "")


async def test_a_user_names_deployed_environments_and_nothing_else(start_runner: Start) -> None:
    runner = await start_runner(access=KEYS)
    files = source(ARITH + b"# for ada\n")
    await deploy(runner, request(files))
    ada = (("authorization", f"Bearer {ADAS_KEY}"),)

    def ask(taskset: taskset_pb2.Taskset) -> Any:
        asked = service_pb2.RegisterTasksetRequest(taskset=taskset)
        return runner.tasksets.RegisterTaskset(asked, metadata=ada)

    elsewhere = arith(2)
    elsewhere.environment.tcp.url = "tcp://169.254.169.254:80"
    for taskset, where in ((arith(2), "arith.py"), (elsewhere, "169.254.169.254")):
        error = await refusal(ask(taskset))
        assert error.code().name == "PERMISSION_DENIED"
        assert where in (error.details() or "")
        assert "upcycle deploy" in (error.details() or "")
    assert (await ask(deployed(files))).created
    run = await runner.tasksets.SubmitRun(
        service_pb2.SubmitRunRequest(request_id="adas", spec=run_spec()), metadata=ada
    )
    assert run.run.source_digest == files.digest


async def read(runner: Runner, digest: str, key: str = KEY) -> bytes:
    """What GetSource answers, put together."""
    asked = service_pb2.GetSourceRequest(source_digest=digest)
    parts = runner.tasksets.GetSource(asked, metadata=(("authorization", f"Bearer {key}"),))
    return b"".join([part.packed async for part in parts])


async def test_an_operator_reads_a_packed_source_in_parts(
    start_runner: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasksets, "SOURCE_PART_BYTES", 100)
    runner = await start_runner(access=KEYS)
    files = source(ARITH + b"# to be graded again\n")
    await deploy(runner, request(files))
    assert unpack_source(await read(runner, files.digest), Path("/")).digest == files.digest
    assert await read(runner, f"deployed:{files.digest}") == await kept(runner, files)
    for digest, key, says in (
        (files.digest, ADAS_KEY, "PERMISSION_DENIED: a key of a user was sent"),
        (files.digest, SERVICE_KEY, "PERMISSION_DENIED: a key of a service was sent"),
        ("ab" * 32, KEY, "NOT_FOUND: source abababababab is not kept here"),
        ("../../etc", KEY, "INVALID_ARGUMENT: '../../etc' names no deployed environment"),
    ):
        error = await refusal(read(runner, digest, key))
        assert f"{error.code().name}: {error.details()}".startswith(says)


@pytest.mark.parametrize("key", [KEY, ADAS_KEY])
async def test_only_a_service_takes_the_request_id_of_a_gate(start_runner: Start, key: str) -> None:
    """A run that has it would be the gate's, or have the gate's own refused."""
    runner = await start_runner(access=KEYS)
    await register(runner, arith(2))
    ids = [
        pair_request_id(checkpoint_id("incident", 3), 2, 0),
        watch_request_id("incident", 2, 0),
        track_request_id("run-1", "arith", 5),
    ]
    for request_id in ids:
        asked = service_pb2.SubmitRunRequest(request_id=request_id, spec=run_spec())
        error = await refusal(
            runner.tasksets.SubmitRun(asked, metadata=(("authorization", f"Bearer {key}"),))
        )
        assert error.code().name == "INVALID_ARGUMENT"
        assert "choose another one" in (error.details() or "")
        as_service = (("authorization", f"Bearer {SERVICE_KEY}"),)
        assert (await runner.tasksets.SubmitRun(asked, metadata=as_service)).run.run_id


async def test_what_is_no_such_environment_is_refused_and_not_kept(start_runner: Start) -> None:
    runner = await start_runner(access=KEYS)
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
    runner = await start_runner(access=KEYS)
    outside = tmp_path / "outside.py"
    files = SourceFiles(Path("/"), "env.py", {"env.py": ARITH, f"../../..{outside}": b"import os\n"})
    error = await refusal(deploy(runner, request(files)))
    assert "outside its root" in (error.details() or "")
    assert not outside.exists()


async def test_a_taskset_of_what_was_never_deployed_is_refused_by_name(start_runner: Start) -> None:
    runner = await start_runner(access=KEYS)
    never = source(ARITH + b"# never sent\n")
    error = await refusal(register(runner, deployed(never)))
    assert error.code().name == "INVALID_ARGUMENT"
    assert f"no source {never.digest} is deployed here" in (error.details() or "")
    taskset = deployed(source())
    taskset.environment.python.path = "deployed:latest"
    error = await refusal(register(runner, taskset))
    assert "'deployed:latest' names no deployed environment" in (error.details() or "")
