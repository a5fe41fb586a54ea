"""`upcycle states convert`: training states of an earlier release, once, so that trainers open no pickle."""

from pathlib import Path
from typing import TYPE_CHECKING

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json, result_console
from upcycle.cli.platform_needed import require_train
from upcycle.cli.stored_objects import operator_keys, places
from upcycle.wording import amount

if TYPE_CHECKING:
    from blob_store import BlobStore
    from service_kit.groups import SigningSettings
    from training_states.converting import OldState


async def convert(*, apply: bool = False, as_json: JsonFlag = False) -> int:
    """List training states whose files hold a pickle, as trainers of 0.3.0 wrote them; with --apply, store
    the same tensors without one beside each. No trainer opens the old files: a run whose newest state is one
    waits for this command.

    Of the nearest running `upcycle up`; with UPCYCLE_S3_* of the platform that they name, with
    UPCYCLE_SIGNING_KEY (the operator's) and UPCYCLE_SIGNING_TRUSTED where that platform signs. What is not
    proven is not converted. The old files stay, and go when the state is old. Repeat it as you like.

    :param apply: convert them.
    :param as_json: one JSON line per state, and one for all.
    """
    require_train("states convert")
    from blob_store import S3BlobStore
    from training_states.converting import convert_all, old_states

    s3, signing, data_dir = places("upcycle states convert")
    raw = S3BlobStore(s3)
    try:
        await raw.start()
        store = _signed(raw, signing, data_dir)
        num_states, found = await old_states(store)
        left = await convert_all(store, found) if apply else found
    finally:
        await raw.stop()
    _say(found, left, num_states, is_applied=apply, as_json=as_json)
    return Exit.FAILED if any(one.broken for one in left) else Exit.OK


def _signed(store: "BlobStore", signing: "SigningSettings", data_dir: Path | None) -> "BlobStore":
    """Proves what it reads and signs as the operator; as it is, for a platform without keys. Raises
    SigningSettingsInvalid, SigningKeyRefused."""
    from local_stack.signing import accepts_unsigned
    from signed_objects import SignedStore

    if signing.key is None and signing.trusted is None:
        return store
    operator, trusted = operator_keys(signing)
    is_accepting = signing.unsigned == "accept" or (data_dir is not None and accepts_unsigned(data_dir))
    return SignedStore(store, signer=operator, trusted=trusted, accepts_unsigned=is_accepting)


def _say(
    found: "list[OldState]", left: "list[OldState]", num_states: int, *, is_applied: bool, as_json: bool
) -> None:
    why = {one.key: one.broken for one in left}
    for one in found:
        is_converted = one.key not in why
        if as_json:
            plain = {"key": one.key, "size_bytes": one.num_bytes, "is_converted": is_converted}
            print_json("old_state", {**plain, "why": why.get(one.key, "")})
            continue
        broken = why.get(one.key, "")
        mark = "broken" if broken else "converted" if is_converted else "old"
        text = f"{mark:<9} {one.key}{': ' if broken else ''}{broken}"
        result_console().print(text, markup=False, soft_wrap=True)
    num_converted = len(found) - len(left)
    if as_json:
        print_json("states", {"states": num_states, "converted_now": num_converted, "left": len(left)})
        return
    human().print(f"{amount(num_states, 'state')}, {num_converted} converted now, {len(left)} left")
    if left and not is_applied:
        human().print("nothing was converted: upcycle states convert --apply")
