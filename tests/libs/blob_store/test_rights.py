"""Each service reaches the objects that its work needs, and no others: on a real server."""

import json
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError
from tests.local_servers import S3Server

from blob_store.errors import BucketMissing, StoreDenied, StoreKeyRefused
from blob_store.inner_ports import write_security
from blob_store.keys import StoreKey, key_file, load_or_make, read_key
from blob_store.rights import rights, seaweed_identities, write_identities
from blob_store.s3 import S3BlobStore
from event_bus.rights import SERVICES
from identities import objects
from service_kit.groups import S3Settings
from upcycle.errors import UpcycleError

OTHER = "acme"
PLACES = {
    "trajectories": objects.trajectory_body("run-1", "run-1/tea/0"),
    "policies": objects.policy_manifest("incident", 3),
    "training": f"{objects.training_run('incident', 'run-1')}/step-00000001/state.json",
    "interactive": objects.interactive_unsaved("incident"),
    "trainers": objects.trainer_process("trainer-1"),
    "sources": objects.packed_source("ab" * 32),
    "of another tenant": objects.policy_manifest("incident", 3, OTHER),
    "restore": "restore-unfinished.json",
}
R, A, K = "read", "read put", "read put list delete"
ALLOWED = {
    "scenario_runner": {"sources": K, "trajectories": R},
    "rollout_sampler": {"policies": R, "trajectories": A},
    "policy_engine": {"policies": R},
    "reward_grader": {"trajectories": R},
    "trajectory_store": {"trajectories": K},
    "grpo_trainer": {"trajectories": R, "policies": K, "training": K, "interactive": K, "trainers": K},
    "checkpoint_registry": {"policies": K},
    "model_gateway": {"trajectories": A},
}


@dataclass(frozen=True)
class Keyed:
    """A server whose services have keys in `folder`."""

    server: S3Server
    folder: Path

    def settings(self, identity: str) -> S3Settings:
        """With which a service reaches it."""
        place = {"endpoint": self.server.settings.endpoint, "bucket": self.server.settings.bucket}
        return S3Settings.model_validate({**place, "key_file": key_file(self.folder, identity)})


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """Started once."""
    folder = tmp_path_factory.mktemp("keys")
    with S3Server(tmp_path_factory.mktemp("keyed"), keys=load_or_make(folder, rights())) as server:
        yield Keyed(server, folder)


def test_each_service_of_the_bus_has_rights_at_the_store() -> None:
    assert rights().keys() == set(SERVICES) == ALLOWED.keys()


@pytest.mark.parametrize("identity", SERVICES)
async def test_a_service_does_what_it_may_and_nothing_else(keyed: Keyed, identity: str) -> None:
    operator, store = S3BlobStore(keyed.server.settings), S3BlobStore(keyed.settings(identity))
    await store.start()
    for place, key in PLACES.items():
        await operator.put(key, b"kept")
        allowed = ALLOWED[identity].get(place, "")
        done = await what_it_does(store, key)
        # A store that lets a service put lets it delete as well: S3 has no right to add alone.
        assert done - {"delete"} == set(allowed.split()) - {"delete"}, f"{identity}: {place}"
        assert ("delete" in done) == ("put" in allowed), f"{identity}: {place}"
    for held in (store, operator):
        await held.stop()


async def what_it_does(store: S3BlobStore, key: str) -> set[str]:
    """Names of the requests that are not denied."""
    requests: dict[str, Callable[[], Awaitable[object]]] = {
        "read": lambda: store.read(key),
        "put": lambda: store.put(key, b"replaced"),
        "list": lambda: store.list(key.rpartition("/")[0] + "/" if "/" in key else ""),
        "delete": lambda: store.delete(key),
    }
    done = set[str]()
    for name, request in requests.items():
        try:
            await request()
        except StoreDenied:
            continue
        done.add(name)
    return done


async def test_a_service_sees_that_its_bucket_is_missing(keyed: Keyed) -> None:
    settings = keyed.settings("policy_engine").model_copy(update={"bucket": "nowhere"})
    store = S3BlobStore(settings)
    with pytest.raises((BucketMissing, StoreDenied)):
        await store.start()
    await store.stop()


def test_keys_are_made_once_and_are_their_owners_alone(tmp_path: Path) -> None:
    made = load_or_make(tmp_path, ["policy_engine", "grpo_trainer"])
    assert load_or_make(tmp_path, ["policy_engine", "grpo_trainer"]) == made
    assert made["policy_engine"] != made["grpo_trainer"]
    path = key_file(tmp_path, "policy_engine")
    assert path.stat().st_mode & 0o777 == 0o600
    assert made["policy_engine"].secret_key not in repr(made)
    path.chmod(0o644)
    with pytest.raises(StoreKeyRefused, match="other users can open"):
        read_key(path)


def test_no_two_share_an_access_key_after_one_key_for_all(tmp_path: Path) -> None:
    write_identities(tmp_path, StoreKey("operator", "before"), "upcycle", one_key=True)
    server = write_identities(tmp_path, StoreKey("operator", "replaced"), "upcycle")
    known = [one["credentials"][0]["accessKey"] for one in json.loads(server.read_text())["identities"]]
    assert len(set(known)) == len(known) == 1 + len(rights())


@pytest.mark.parametrize("name", ["inner-cert.pem", "inner-key.pem"])
@pytest.mark.parametrize("left", ["nothing", "that of another"])
def test_a_certificate_that_a_crash_left_without_its_key_is_made_again(
    tmp_path: Path, name: str, left: str
) -> None:
    write_security(tmp_path / "ours")
    write_security(tmp_path / "other")
    damaged = b"" if left == "nothing" else (tmp_path / "other" / name).read_bytes()
    (tmp_path / "ours" / name).write_bytes(damaged)

    write_security(tmp_path / "ours")

    ssl.create_default_context().load_cert_chain(
        tmp_path / "ours" / "inner-cert.pem", tmp_path / "ours" / "inner-key.pem"
    )


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"access_key": "a"}', '{"access_key": 1, "secret_key": ""}']
)
def test_a_file_without_a_key_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s3.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UpcycleError, match=f"{path} holds no key of an object store"):
        read_key(path)
    with pytest.raises(UpcycleError, match="cannot be read"):
        read_key(tmp_path / "none.json")


def test_two_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s3.json"
    path.write_text(json.dumps({"access_key": "a", "secret_key": "b"}))
    with pytest.raises(ValidationError, match="are two keys"):
        S3Settings(key_file=path, access_key=SecretStr("c"))
    assert S3Settings(key_file=path, access_key=SecretStr("")).key_file == path


def test_the_names_of_two_tenants_on_one_server_differ() -> None:
    operator = StoreKey("operator", "secret")
    keys = {"policy_engine": StoreKey("a", "b")}
    names = [
        one["name"]
        for tenant in ("default", OTHER)
        for one in seaweed_identities(operator, keys, "upcycle", tenant)["identities"][1:]
    ]
    assert names == ["policy_engine", "acme-policy_engine"]
