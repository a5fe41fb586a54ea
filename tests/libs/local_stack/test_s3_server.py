"""The object store that tests, benchmarks and `upcycle up` start: durable, closed, restartable."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from pydantic import SecretStr
from tests.local_servers import S3Server

from blob_store.keys import StoreKey, key_file, key_of, read_key
from blob_store.provision import provision_bucket
from blob_store.rights import write_identities
from local_stack.s3 import S3Ports, S3ServerError, takes_a_write, weed_binary
from service_kit.groups import S3Settings

REPOSITORY = Path(__file__).parents[3]


def test_a_read_without_a_key_is_refused(s3_server: S3Server) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{s3_server.settings.endpoint}/{s3_server.settings.bucket}/")
    assert caught.value.code == 403


def test_buckets_are_made_durable(s3_server: S3Server) -> None:
    settings = s3_server.settings_for("durable-bucket")

    assert takes_a_write(settings)
    assert _synced_prefixes(s3_server.ports, s3_server.home) >= {"/buckets/durable-bucket/"}


def test_it_starts_again_on_the_same_ports_and_data(tmp_path: Path) -> None:
    with S3Server(tmp_path) as server:
        before = (server.settings.endpoint, server.pid)
        server.kill()
        assert not takes_a_write(server.settings)
        server.start()
        assert server.settings.endpoint == before[0]
        assert server.pid != before[1]
    with pytest.raises(S3ServerError, match="is not running"):
        _ = server.pid


def test_two_servers_share_a_machine(s3_server: S3Server, tmp_path: Path) -> None:
    with S3Server(tmp_path) as second:
        assert takes_a_write(second.settings)
        assert takes_a_write(s3_server.settings)


def test_a_server_that_cannot_start_says_what_its_log_says(tmp_path: Path) -> None:
    server = S3Server(tmp_path, extra_args=["-no.such.flag"])

    with pytest.raises(S3ServerError, match=r"weed ended with 2 before listening:\n"):
        server.start(timeout_s=30)


def test_the_container_script_starts_a_durable_store_with_the_keys_that_were_made(tmp_path: Path) -> None:
    ports, keys = S3Ports.pick(), tmp_path / "keys"
    settings = S3Settings(
        endpoint=f"127.0.0.1:{ports.s3}",
        access_key=SecretStr("from-the-environment"),
        secret_key=SecretStr("a-long-secret"),
    )
    of_an_engine = {
        "endpoint": settings.endpoint, "bucket": settings.bucket,
        "key_file": key_file(keys, "policy_engine"),
    }  # fmt: skip
    process = subprocess.Popen(
        [str(REPOSITORY / "deploy/s3/start.sh"), f"-dir={tmp_path}", "-ip.bind=127.0.0.1", *ports.flags()],
        env=_script_env(write_identities(keys, key_of(settings), settings.bucket), ports),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert provision_bucket(settings, wait_s=60)
        assert _within(30, lambda: takes_a_write(settings))
        assert not takes_a_write(settings.model_copy(update={"secret_key": SecretStr("another-secret")}))
        assert not takes_a_write(S3Settings.model_validate(of_an_engine))
        assert _within(60, lambda: _synced_prefixes(ports, tmp_path / "home") == {"/buckets/upcycle/"})
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def test_a_renewed_key_leaves_the_server_its_folder(tmp_path: Path) -> None:
    keys, operator, elsewhere = tmp_path / "keys", StoreKey("operator", "secret"), Path("/etc/seaweedfs/keys")
    security = write_identities(keys, operator, "upcycle", seen_at=elsewhere).with_name("security.toml")
    written, engine = security.read_text(), read_key(key_file(keys, "policy_engine"))

    write_identities(keys, operator, "upcycle", renew=["policy_engine"])

    assert security.read_text() == written
    assert f'"{elsewhere}/inner-ca.pem"' in written
    assert read_key(key_file(keys, "policy_engine")) != engine


def test_the_container_script_names_the_file_that_the_server_would_not_find(tmp_path: Path) -> None:
    server = write_identities(
        tmp_path / "keys", StoreKey("operator", "secret"), "upcycle", seen_at=Path("/nowhere/keys")
    )
    done = subprocess.run(
        [str(REPOSITORY / "deploy/s3/start.sh"), f"-dir={tmp_path}"],
        env=_script_env(server, S3Ports.pick()),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "/nowhere/keys/inner-ca.pem, which" in done.stderr
    assert f"--server-folder {server.parent}" in done.stderr


def test_the_collector_scrapes_the_ports_of_the_composition() -> None:
    config = yaml.safe_load((REPOSITORY / "deploy/otel/collector.yaml").read_text())
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
    (job,) = config["receivers"]["prometheus"]["config"]["scrape_configs"]

    for target in job["static_configs"][0]["targets"]:
        name, _, port = target.partition(":")
        environment = compose["services"][name]["environment"]
        assert port in {str(value) for key, value in environment.items() if key.endswith("_HTTP_PORT")}


def _synced_prefixes(ports: S3Ports, home: Path) -> set[str]:
    """Where the server syncs volume data before it answers. home: that of the server."""
    argv = (
        weed_binary(),
        "shell",
        f"-master=127.0.0.1:{ports.master}.{ports.master_grpc}",
        f"-filer=127.0.0.1:{ports.filer}.{ports.filer_grpc}",
    )
    done = subprocess.run(
        argv,
        input="fs.configure\nexit\n",
        env=os.environ | {"HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    try:
        locations = json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1])["locations"]
    except ValueError:  # no rule yet, or no server
        return set()
    return {rule["locationPrefix"] for rule in locations if rule["fsync"]}


def _script_env(identities: Path, ports: S3Ports) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(weed_binary()).parent}:{os.environ['PATH']}",
        "HOME": str(identities.parents[2] / "home"),
        "WEED_IDENTITIES": str(identities),
        "WEED_MASTER": f"127.0.0.1:{ports.master}.{ports.master_grpc}",
        "WEED_FILER": f"127.0.0.1:{ports.filer}.{ports.filer_grpc}",
    }


def _within(limit_s: float, happened: Callable[[], bool]) -> bool:
    give_up_at = time.monotonic() + limit_s
    while time.monotonic() < give_up_at:
        if happened():
            return True
        time.sleep(0.1)
    return False
