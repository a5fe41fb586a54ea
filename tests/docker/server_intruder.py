"""What an intruder in a container asks of the object store and of Postgres, run with the container's own
Python: at ports that know no keys, without a key, and with the key of its container.

Prints {attack: answer}. `python -c PROGRAM BUCKET SERVER...`, where SERVER is seaweedfs or postgres.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

STORE = "seaweedfs"
FILER, MASTER, VOLUMES, S3 = 8888, 9333, 9340, 8333
INNER_GRPC = {"master": 19333, "filer": 18888, "volume": 19340, "s3": 18333, "admin": 33646}
ORDERS = ("/col/delete?collection={bucket}", "/vol/vacuum", "/dir/assign")
ANSWER_S = 5.0
KEY = Path("/run/keys/s3.json")
Attack = tuple[str, str]


def asked(port: int, method: str, path: str) -> str:
    """The status of the answer, or that there is none."""
    request = urllib.request.Request(f"http://{STORE}:{port}{path}", method=method, data=b"other")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError:
        return "closed"


def inner_http(bucket: str) -> Iterator[Attack]:
    """Objects by way of the filer, orders to the master, bytes of volumes."""
    for method in ("GET", "PUT", "POST", "DELETE"):
        for path in (f"/buckets/{bucket}/default/policies/x", f"/buckets/{bucket}/?recursive=true"):
            yield f"filer {method} {path}", asked(FILER, method, path)
    for order in ORDERS:
        for method in ("GET", "POST"):
            yield f"master {method} {order}", asked(MASTER, method, order.format(bucket=bucket))
    for method in ("PUT", "POST", "DELETE"):
        for volume in range(1, 8):
            yield f"volume {method} {volume}", asked(VOLUMES, method, f"/{volume},01637037d6")


def inner_grpc() -> Iterator[Attack]:
    import grpc

    for part, port in INNER_GRPC.items():
        with grpc.insecure_channel(f"{STORE}:{port}") as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=2)
                yield f"{part} gRPC", "answers"
            except grpc.FutureTimeoutError:
                yield f"{part} gRPC", "closed"


def without_a_key(bucket: str) -> Iterator[Attack]:
    paths = {
        "GET": f"/{bucket}?list-type=2", "PUT": f"/{bucket}/default/policies/x",
        "DELETE": f"/{bucket}/default/policies/x",
    }  # fmt: skip
    for method, path in paths.items():
        yield f"S3 {method} {path} without a key", asked(S3, method, path)


def with_its_key(bucket: str) -> Iterator[Attack]:
    """What the rights of this container's key leave out: reads, writes, removals and lists by folder."""
    import io

    from blob_store.client import make_client
    from blob_store.rights import rights
    from identities.tenants import OWN_TENANT
    from service_kit.groups import S3Settings

    identity = json.loads(KEY.read_text())["access_key"].rpartition("-")[0]
    client, pool = make_client(S3Settings())
    allowed = rights(OWN_TENANT)
    folders = {folder for of in allowed.values() for folder in of} | {"another-tenant/policies/"}
    tries: dict[str, Callable[[str], object]] = {
        "Read": lambda folder: client.get_object(bucket, f"{folder}intruder"),
        "Write": lambda folder: client.put_object(bucket, f"{folder}intruder", io.BytesIO(b"x"), 1),
        "List": lambda folder: list(client.list_objects(bucket, folder)),
    }
    for folder in sorted(folders):
        for right in {*tries} - {*allowed[identity].get(folder, ())}:
            yield f"S3 {right} of {folder} with the key of {identity}", code_of(tries[right], folder)
    pool.clear()


def code_of(attempt: Callable[[str], object], folder: str) -> str:
    from minio.error import S3Error

    try:
        attempt(folder)
    except S3Error as error:
        return str(error.code)
    return "done"


def tables() -> Iterator[Attack]:
    """Postgres with logins that somebody would guess."""
    import psycopg

    for user in ("upcycle", "postgres"):
        for password in (None, "", "upcycle", "postgres", "change-me"):
            for database in ("upcycle", "postgres"):
                try:
                    psycopg.connect(
                        host="postgres", user=user, password=password, dbname=database, connect_timeout=10
                    ).close()
                    said = "connected"
                except psycopg.OperationalError:
                    said = "refused"
                yield f"Postgres {database} as {user} with {password!r}", said


def main() -> None:
    """Try all of it."""
    bucket, *servers = sys.argv[1:]
    os.environ.pop("PGPASSWORD", None)
    said: dict[str, str] = {}
    if "seaweedfs" in servers:
        said |= dict([*inner_http(bucket), *inner_grpc(), *without_a_key(bucket)])
        if KEY.exists():
            said |= dict(with_its_key(bucket))
    if "postgres" in servers:
        said |= dict(tables())
    print(json.dumps(said))


if __name__ == "__main__":
    main()
