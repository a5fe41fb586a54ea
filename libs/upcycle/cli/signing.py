"""`upcycle signing keys|sign`: who signs manifests and training states, and which objects are unsigned."""

from pathlib import Path
from typing import TYPE_CHECKING

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json, result_console
from upcycle.cli.platform_needed import require_platform
from upcycle.cli.stored_objects import SigningSettingsInvalid, operator_keys, places
from upcycle.wording import amount

if TYPE_CHECKING:
    from signed_objects.migration import Unproven


async def make_keys(
    folder: Path, *, renew: tuple[str, ...] = (), limit: bool = False, as_json: JsonFlag = False
) -> int:
    """Make an ed25519 key for each writer that has none in FOLDER, and the file of the keys that readers
    trust.

    FOLDER/NAME/signing.pem is for UPCYCLE_SIGNING_KEY of that service's processes, and for no other; that of
    `operator` stays with you. FOLDER/trusted.pub is for UPCYCLE_SIGNING_TRUSTED of all.

    :param folder: is made where it is missing.
    :param renew: a name whose key is replaced; repeat it for more. The old key stays trusted, until you take
        its line out of FOLDER/trusted.pub.
    :param limit: write into FOLDER/trusted.pub which kinds of objects each writer's key may sign, for keys
        that an earlier release made; new ones are limited from the start.
    :param as_json: print one JSON line instead of text.
    """
    require_platform("signing")
    from signed_objects.keys import WRITERS, key_file, load_or_make, trusted_file
    from signed_objects.keys import limit as limited
    from signed_objects.keys import renew as renewed

    if unknown := sorted({*renew} - {*WRITERS}):
        raise SigningSettingsInvalid(f"no key is called {unknown[0]!r}", f"there are: {', '.join(WRITERS)}")
    for name in renew:
        renewed(folder, name)
    ids = load_or_make(folder)
    if limit:
        limited(folder)
    files = {name: str(key_file(folder.absolute(), name)) for name in ids}
    trusted = str(trusted_file(folder.absolute()))
    if as_json:
        print_json("signing_keys", {"keys": files, "ids": ids, "trusted": trusted, "renewed": list(renew)})
        return Exit.OK
    for name, path in files.items():
        result_console().print(f"{name:<20} {ids[name]}  {path}", markup=False, soft_wrap=True)
    result_console().print(f"{'trusted':<20} {trusted}", markup=False, soft_wrap=True)
    return Exit.OK


async def sign(
    *, apply: bool = False, again: bool = False, given_up: tuple[str, ...] = (), as_json: JsonFlag = False
) -> int:
    """List manifests and training states that no trusted key has signed; with --apply, sign them with the
    operator's key.

    Who wrote them cannot be known: look at the list, and sign what was there before you had keys. Of the
    nearest running `upcycle up`; with UPCYCLE_S3_* of the platform that they name, with UPCYCLE_SIGNING_KEY
    (the operator's) and UPCYCLE_SIGNING_TRUSTED.

    :param apply: sign them. The platform of `upcycle up` refuses what is unsigned from its next start on.
    :param again: also those with a signature that does not count: of a key that is not trusted, or false.
    :param given_up: id of a trusted key whose signatures do not count any more, as SHA256:...; repeat it for
        more.
    :param as_json: one JSON line per object, and one for all.
    """
    require_platform("signing")
    from blob_store import S3BlobStore
    from signed_objects.migration import sign_all, unproven

    s3, signing, data_dir = places("upcycle signing sign")
    operator, trusted = operator_keys(signing, given_up)
    store = S3BlobStore(s3)
    try:
        await store.start()
        num_objects, found = await unproven(store, trusted, given_up=given_up)
        chosen = [one for one in found if again or given_up or not one.has_signature]
        if apply:
            await sign_all(store, operator, chosen)
    finally:
        await store.stop()
    _say(found, chosen, num_objects, is_applied=apply, as_json=as_json)
    if apply and len(chosen) == len(found) and data_dir is not None:
        _refuse_from_now_on(data_dir)
    return Exit.OK


def _say(
    found: "list[Unproven]", chosen: "list[Unproven]", num_objects: int, *, is_applied: bool, as_json: bool
) -> None:
    signed = {one.key for one in chosen} if is_applied else set[str]()
    for one in found:
        why = one.broken or one.doubt.text
        if as_json:
            print_json("unproven", {"key": one.key, "why": why, "is_signed_now": one.key in signed})
        else:
            mark = "signed" if one.key in signed else "broken" if one.broken else "unproven"
            result_console().print(f"{mark:<9} {one.key}: {why}", markup=False, soft_wrap=True)
    left = len(found) - len(signed)
    if as_json:
        print_json("signing", {"objects": num_objects, "signed_now": len(signed), "unproven": left})
        return
    human().print(f"{amount(num_objects, 'object')}, {len(signed)} signed now, {left} not proven")
    if left and is_applied:
        human().print("what bears a signature that does not count is signed with --again")
    elif left:
        human().print("nothing was signed; look at the list, then: upcycle signing sign --apply")


def _refuse_from_now_on(data_dir: Path) -> None:
    from local_stack.signing import accepts_unsigned, refuse_unsigned

    if accepts_unsigned(data_dir):
        refuse_unsigned(data_dir)
        human().print("from its next start on, `upcycle up` refuses unsigned objects")
