"""An object store and a Postgres that tenants share, set up as the page about tenants says: the login of one
has nothing of the other's."""

import json
from collections.abc import Iterator, Mapping, Sequence

import psycopg
import pytest
from pydantic import SecretStr
from tests.local_servers import S3Server
from tests.postgres import PROGRAMS, PostgresServer

from blob_store import S3BlobStore, StoreDenied
from service_kit.groups import S3Settings

TENANTS = ("acme", "beta")
KEY = "acme/trajectories/run-1/e-1.pb.zst"


class SharedS3(S3Server):
    """With an identity of each tenant beside the operator's."""

    def _command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        argv, environment = super()._command()
        path = self._data_dir / "s3.json"
        identities = json.loads(path.read_text())
        identities["identities"] += [
            {
                "name": tenant,
                "credentials": [{"accessKey": tenant, "secretKey": f"{tenant}-secret"}],
                "actions": [f"{action}:{tenant}" for action in ("Read", "Write", "List", "Tagging")],
            }
            for tenant in TENANTS
        ]
        path.write_text(json.dumps(identities))
        return argv, environment


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedS3]:
    with SharedS3(tmp_path_factory.mktemp("shared") / "s3") as server:
        for tenant in TENANTS:
            server.settings_for(tenant)
        yield server


def as_tenant(server: SharedS3, tenant: str, *, bucket: str) -> S3BlobStore:
    login = {"access_key": SecretStr(tenant), "secret_key": SecretStr(f"{tenant}-secret"), "bucket": bucket}
    settings: S3Settings = server.settings.model_copy(update=login)
    return S3BlobStore(settings, retry_s=0.5)


async def test_a_tenant_neither_reads_nor_writes_the_bucket_of_another(s3: SharedS3) -> None:
    owner, thief = as_tenant(s3, "acme", bucket="acme"), as_tenant(s3, "beta", bucket="acme")
    kept = await owner.put(KEY, b"weights")

    with pytest.raises(StoreDenied):
        await thief.get(kept)
    with pytest.raises(StoreDenied):
        await thief.list("")
    with pytest.raises(StoreDenied):
        await thief.put(KEY, b"forged")
    with pytest.raises(StoreDenied):
        await thief.delete(KEY)

    assert await owner.get(kept) == b"weights"


@pytest.mark.skipif(PROGRAMS is None, reason="no Postgres on this machine")
def test_a_tenants_role_opens_no_database_of_another() -> None:
    with PostgresServer() as server:
        admin = server.database()
        with psycopg.connect(admin, autocommit=True) as connection:
            for tenant in TENANTS:
                connection.execute(f"CREATE ROLE {tenant} LOGIN".encode())
                connection.execute(f"CREATE DATABASE {tenant}_registry OWNER {tenant}".encode())
                connection.execute(f"REVOKE CONNECT ON DATABASE {tenant}_registry FROM PUBLIC".encode())

        as_beta = admin.rpartition("/")[0].replace("upcycle@", "beta@")
        with psycopg.connect(f"{as_beta}/beta_registry") as connection:
            connection.execute("CREATE TABLE checkpoint (number int)")
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(f"{as_beta}/acme_registry")
