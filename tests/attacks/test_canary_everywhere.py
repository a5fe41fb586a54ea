"""A secret of an environment passes through a whole platform: its MCP server says it in each answer, episodes
repeat it in prompts, states, logs and grades. Afterwards every byte that the platform keeps is searched: the
secret is there in its sealed form alone."""

import asyncio
import base64
import io
import json
import os
import secrets
import sqlite3
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
from pydantic import SecretStr
from tests.attacks.conftest import UPCYCLE, Attacked, running_platform
from tests.e2e.otlp_sink import OtlpSink
from tests.platform_recipes import MODEL
from tests.support.waiting import until

from blob_store import S3BlobStore
from scenario_runner.adapters.sealing import Sealer
from service_kit.groups import S3Settings
from trajectory_body import unpack
from upcycle.environment import landlock

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(landlock.lacking()), reason=f"this kernel lacks {', '.join(landlock.lacking())}"),
]
ENVIRONMENT = Path(__file__).parent / "environments" / "echoing.py"
SERVER = Path(__file__).parents[1] / "libs" / "upcycle" / "mcp_keyed.py"
SAID = b"[secret TOKEN]"
"""What stands in the secret's place: that it is found shows that the search sees what episodes said."""
COMMAND_S = 300


def forms(secret: str) -> list[bytes]:
    """As bytes may hold it: plain, two bytes for a character, hex, base64 at each of three places."""
    plain = secret.encode()
    encoded = [base64.b64encode(bytes(shift) + plain)[2 * shift : -4] for shift in range(3)]
    return [plain, secret.encode("utf-16-le"), plain.hex().encode(), *encoded]


def holding(secret: str, places: dict[str, bytes]) -> list[str]:
    """Names of the places that have it, in any form."""
    return [name for name, data in places.items() if any(form in data for form in forms(secret))]


def files_of(folder: Path) -> dict[str, bytes]:
    """Data folder, logs, NATS's store, SQL and its log, the object store's volumes."""
    return {
        str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    }


async def objects_of(attacked: Attacked) -> dict[str, bytes]:
    """What the object store gives out, unpacked: bodies are compressed on its disks."""
    logins = json.loads((attacked.data_dir / "credentials.json").read_text())
    settings = S3Settings(
        endpoint=attacked.state["s3"]["endpoint"],
        bucket=attacked.state["s3"]["bucket"],
        access_key=SecretStr(logins["s3_access_key"]),
        secret_key=SecretStr(logins["s3_secret_key"]),
    )
    store, found = S3BlobStore(settings), dict[str, bytes]()
    await store.start()
    try:
        for key in await store.list(""):
            data = await store.read(key) or b""
            found.update({f"{key}{inside}": part for inside, part in _unpacked(key, data)})
    finally:
        await store.stop()
    return found


def _unpacked(key: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "", data
    if key.endswith(".pb.zst"):
        yield " unpacked", unpack(data).SerializeToString()
    if key.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as pack:
            yield from ((f" {name}", pack.read(name)) for name in pack.namelist())


def command(attacked: Attacked, *arguments: str, given: str = "") -> list[dict[str, Any]]:
    """An operator's command; its lines of JSON."""
    done = subprocess.run(
        [str(UPCYCLE), *arguments],
        input=given, capture_output=True, text=True, timeout=COMMAND_S, check=False,
        env={**os.environ, "UPCYCLE_UP_DATA_DIR": str(attacked.data_dir)}, cwd=attacked.data_dir,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def play(attacked: Attacked, folder: Path, secret: str) -> None:
    """Episodes of a deployed environment whose server says the secret."""
    for file in (ENVIRONMENT, SERVER):
        copyfile(file, folder / file.name)
    command(attacked, "set", "secret", "TOKEN", "--from-file=-", given=secret)
    deployed = command(attacked, "deploy", str(folder / ENVIRONMENT.name), "--json")[-1]
    tasks, digest = str(folder / ENVIRONMENT.name), deployed["source_digest"]
    command(attacked, "sync", "tasks", tasks, "echoing", "--deployed", digest, "--yes")
    command(attacked, "eval", "echoing", MODEL, "--group", "2", "--max-turns", "2", "--json")


def sealed(attacked: Attacked) -> str:
    """What the planner's database holds, opened with its key: the secret is kept, and this is where."""
    file = next((attacked.data_dir / "sql").rglob("scenario_runner.sqlite"))
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
        row = connection.execute("select sealed, tenant, name, environments, key_id from server_secret")
        blob, tenant, name, environments, key_id = row.fetchone()
    sealer = Sealer(attacked.data_dir / "secrets.key")
    allowed = json.loads(environments)
    return sealer.unseal(blob, tenant=tenant, name=name, environments=allowed, key_id=key_id)


async def assert_nowhere(attacked: Attacked, secret: str) -> None:
    files, objects = files_of(attacked.data_dir.parent), await objects_of(attacked)
    assert sealed(attacked) == secret
    assert [name for name, data in objects.items() if name.endswith(" unpacked") and SAID in data]
    for part in ("sqlite", "nats", "s3", ".log"):
        assert any(part in name for name in files), part
    assert holding("echoing", {name: data for name, data in files.items() if "nats" in name})  # is searchable
    assert holding(secret, {**files, **objects}) == []


def test_the_search_finds_each_form() -> None:
    secret = f"canary-{secrets.token_hex(8)}"
    for shift in range(3):
        encoded = base64.b64encode(b"x" * shift + secret.encode() + b"and more")
        assert holding(secret, {"place": b"before " + encoded}) == ["place"]
    for form in (secret.encode(), secret.encode("utf-16-le"), secret.encode().hex().encode()):
        assert holding(secret, {"place": b"before" + form, "other": b"none"}) == ["place"]


async def test_a_secret_is_nowhere_on_a_platform_but_sealed(tmp_path: Path) -> None:
    secret = f"canary-{secrets.token_hex(12)}"
    async with OtlpSink() as sink:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        with running_platform(3100, variables) as attacked:
            await asyncio.to_thread(play, attacked, tmp_path, secret)
            await until(lambda: bool(sink.named("execute_tool") or len(sink.spans) > 20), timeout_s=60)
            await assert_nowhere(attacked, secret)
        assert holding(secret, {f"span {span.name}": repr(span).encode() for span in sink.spans}) == []
