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

from blob_store.provision import provision_bucket
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
    assert _synced_prefixes(s3_server.ports) >= {"/buckets/durable-bucket/"}


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


def test_the_container_script_starts_a_durable_store_with_the_given_key(tmp_path: Path) -> None:
    ports = S3Ports.pick()
    settings = S3Settings(
        endpoint=f"127.0.0.1:{ports.s3}",
        access_key=SecretStr("from-the-environment"),
        secret_key=SecretStr("a-long-secret"),
    )
    process = subprocess.Popen(
        [str(REPOSITORY / "deploy/s3/start.sh"), f"-dir={tmp_path}", "-ip.bind=127.0.0.1", *ports.flags()],
        env=_script_env(settings, ports),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert provision_bucket(settings, wait_s=60)
        assert _within(30, lambda: takes_a_write(settings))
        assert not takes_a_write(settings.model_copy(update={"secret_key": SecretStr("another-secret")}))
        assert _within(60, lambda: _synced_prefixes(ports) == {"/buckets/upcycle/"})
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def test_the_collector_scrapes_the_ports_of_the_composition() -> None:
    config = yaml.safe_load((REPOSITORY / "deploy/otel/collector.yaml").read_text())
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
    (job,) = config["receivers"]["prometheus"]["config"]["scrape_configs"]

    for target in job["static_configs"][0]["targets"]:
        name, _, port = target.partition(":")
        environment = compose["services"][name]["environment"]
        assert port in {str(value) for key, value in environment.items() if key.endswith("_HTTP_PORT")}


def _synced_prefixes(ports: S3Ports) -> set[str]:
    """Where the server syncs volume data before it answers."""
    argv = (
        weed_binary(),
        "shell",
        f"-master=127.0.0.1:{ports.master}.{ports.master_grpc}",
        f"-filer=127.0.0.1:{ports.filer}.{ports.filer_grpc}",
    )
    done = subprocess.run(
        argv, input="fs.configure\nexit\n", capture_output=True, text=True, timeout=30, check=False
    )
    try:
        locations = json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1])["locations"]
    except ValueError:  # no rule yet, or no server
        return set()
    return {rule["locationPrefix"] for rule in locations if rule["fsync"]}


def _script_env(settings: S3Settings, ports: S3Ports) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(weed_binary()).parent}:{os.environ['PATH']}",
        "UPCYCLE_S3_ACCESS_KEY": settings.access_key.get_secret_value(),
        "UPCYCLE_S3_SECRET_KEY": settings.secret_key.get_secret_value(),
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
