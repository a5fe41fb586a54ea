"""`upcycle store keys`: a key of the object store for each service."""

from pathlib import Path
from typing import TYPE_CHECKING

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, print_json, result_console
from upcycle.cli.platform_needed import require_platform
from upcycle.errors import UpcycleError

if TYPE_CHECKING:
    from service_kit.groups import S3Settings


class StoreSettingsInvalid(UpcycleError, ValueError):
    """What the environment or the command line says of the object store cannot be used."""

    kind = "settings_invalid"


async def make_keys(
    folder: Path,
    *,
    renew: tuple[str, ...] = (),
    one_key: bool = False,
    server_folder: Path | None = None,
    as_json: JsonFlag = False,
) -> int:
    """Make a key of the object store for each service that has none in FOLDER, and what SeaweedFS reads:
    which key reaches which objects, and what closes its inner ports.

    FOLDER/NAME/s3.json is for UPCYCLE_S3_KEY_FILE of that service's processes, and for no other.
    FOLDER/seaweedfs/s3.json is for `weed -s3.config`, and FOLDER/seaweedfs/security.toml for the folder
    `.seaweedfs` of its home. In the former UPCYCLE_S3_ACCESS_KEY and UPCYCLE_S3_SECRET_KEY,
    which have to be set, are the operator's: for buckets, backups and restores, they may do everything.

    :param folder: is made where it is missing.
    :param renew: a name whose key is replaced; repeat it for more. Start the server again, then the service.
    :param one_key: every service gets the operator's key: for a store that has no others.
    :param server_folder: where the server finds FOLDER/seaweedfs, if elsewhere; the next call remembers it.
    :param as_json: print one JSON line instead of text.
    """
    require_platform("store")
    from blob_store.keys import key_file, key_of
    from blob_store.rights import rights, write_identities

    services = _known(sorted(rights()), renew)
    settings = _of_the_operator()
    server = write_identities(
        folder.absolute(),
        key_of(settings),
        settings.bucket,
        renew=renew,
        one_key=one_key,
        seen_at=server_folder,
    )
    files = {name: str(key_file(folder.absolute(), name)) for name in services}
    _show(files, str(server), renew, as_json)
    return Exit.OK


def _known(services: list[str], renew: tuple[str, ...]) -> list[str]:
    """The services, where every name of `renew` is one of them. Raises StoreSettingsInvalid."""
    if unknown := sorted({*renew} - {*services}):
        raise StoreSettingsInvalid(f"no key is called {unknown[0]!r}", f"there are: {', '.join(services)}")
    return services


def _show(files: dict[str, str], server: str, renewed: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        print_json("store_keys", {"keys": files, "server": server, "renewed": list(renewed)})
        return
    for name, path in {**files, "the server": server}.items():
        result_console().print(f"{name:<20} {path}", markup=False, soft_wrap=True)


def _of_the_operator() -> "S3Settings":
    """Raises StoreSettingsInvalid."""
    from service_kit.groups import S3Settings
    from service_kit.settings import SettingsError, load_settings

    try:
        settings = load_settings(S3Settings, program="upcycle store")
    except SettingsError as error:
        raise StoreSettingsInvalid(str(error)) from error
    for name in ("access_key", "secret_key"):
        if name not in settings.model_fields_set or not getattr(settings, name).get_secret_value():
            raise StoreSettingsInvalid(
                f"UPCYCLE_S3_{name.upper()} is not set",
                "set the key of the operator, which the server shall let do everything",
            )
    return settings
