"""Logins of the services at Postgres: `python -m sql_store.logins FOLDER` makes a password for each, in a
file that only its process gets, and what provisioning gives the server to compare them with.
"""

import argparse
import base64
import hashlib
import hmac
import json
import secrets
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from service_kit.errors import SqlPasswordRefused
from service_kit.private_files import read_private, write_private
from service_kit.sql_settings import read_password

SERVICES: Final = ("scenario_runner", "trajectory_store", "checkpoint_registry", "model_gateway")
"""Those that keep tables, one database each."""
_BYTES: Final = 24
_SALT_BYTES: Final = 16
_ROUNDS: Final = 4096
"""As Postgres itself; a password that is random has no need of more."""
_KIND: Final = "SCRAM-SHA-256"


def password_file(folder: Path, service: str) -> Path:
    """Where the password of a service is: in a folder of its own, which can be given to its process alone."""
    return folder / service / "postgres.password"


def logins_file(folder: Path) -> Path:
    """Where the verifiers of all are, for `python -m sql_store.provision`."""
    return folder / "provision" / "logins.json"


def write_logins(folder: Path, *, renew: Collection[str] = ()) -> Path:
    """Passwords that are missing or to be renewed, and the file with the verifiers of all, whose path is
    returned. Raises SqlPasswordRefused."""
    target = logins_file(folder)
    before = read_logins(target) if target.exists() else {}
    verifiers = {}
    for service in SERVICES:
        file = password_file(folder, service)
        if service in renew or not file.exists():
            write_private(file, f"{secrets.token_hex(_BYTES)}\n".encode())
        password = read_password(file)
        known = before.get(service, "")
        verifiers[service] = known if is_of(known, password) else verifier(password)
    write_private(target, f"{json.dumps(verifiers, indent=1)}\n".encode())
    return target


def read_logins(path: Path) -> dict[str, str]:
    """Service -> verifier. Raises SqlPasswordRefused."""
    try:
        found = json.loads(read_private(path, "the file of logins", SqlPasswordRefused))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        way_out = "python -m sql_store.logins FOLDER makes one"
        raise SqlPasswordRefused(f"{path} is no file of logins", way_out)
    return found


def verifier(password: str, salt: bytes = b"") -> str:
    """What Postgres stores of a password (SCRAM, RFC 7677): one cannot log in with it."""
    salt = salt or secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ROUNDS)
    stored = hashlib.sha256(_signed(salted, b"Client Key")).digest()
    return f"{_KIND}${_ROUNDS}:{_text(salt)}${_text(stored)}:{_text(_signed(salted, b'Server Key'))}"


def is_of(known: str, password: str) -> bool:
    """Whether a verifier is one of this password."""
    salt = known.partition(":")[2].partition("$")[0]
    try:
        made = verifier(password, base64.b64decode(salt, validate=True))
    except ValueError:  # no base64: the file was edited
        return False
    return hmac.compare_digest(known.encode(), made.encode())


def _signed(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def main() -> None:
    """Exit status: 0 they are there, 1 a file is not what it should be."""
    parser = argparse.ArgumentParser(prog="python -m sql_store.logins", description=__doc__)
    parser.add_argument("folder", type=Path, help="is made where it is missing")
    parser.add_argument("--renew", action="append", default=[], choices=SERVICES, help="make a new password")
    arguments = parser.parse_args()
    try:
        print(write_logins(arguments.folder.absolute(), renew=arguments.renew))
    except SqlPasswordRefused as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
