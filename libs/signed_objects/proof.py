"""Whether an object is proven, and if not, why and what a person can do."""

from dataclasses import dataclass

from signed_objects.keys import TrustedKeys
from signed_objects.signature import Signature, statement


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why an object is not proven. is_false: it bears a signature of a trusted key that this key did not make
    for these bytes at this place: somebody altered or moved one."""

    text: str
    way_out: str
    is_false: bool = False


def doubt(trusted: TrustedKeys, key: str, data: bytes, stored: bytes | None) -> Doubt | None:
    """None: a trusted key has signed these bytes for this place. stored: the signature that lies beside."""
    if stored is None:
        return Doubt(
            "no signature of these bytes lies beside it: they were written without a key, or altered since",
            "an operator who knows them signs them: upcycle signing sign",
        )
    try:
        found = Signature.parse(stored)
    except ValueError as error:
        return Doubt(f"its signature cannot be read: {error}", "upcycle signing sign --again", is_false=True)
    named = trusted.named(found.key)
    if found.key not in trusted.keys:
        return Doubt(
            f"it is signed with key {found.key}, which is not trusted here",
            "add the key to the file of UPCYCLE_SIGNING_TRUSTED, or: upcycle signing sign --again",
        )
    if not trusted.proves(found.key, found.value, statement(key, data)):
        return Doubt(
            f"its signature says key {named}, and is not of that key for these bytes at this place",
            "it was altered or moved: find out by whom, before you remove it or sign it: "
            "upcycle signing sign --again",
            is_false=True,
        )
    if beyond := trusted.refusal(found.key, key):
        return Doubt(
            f"it is signed with {beyond}",
            "find out who has that key, before you sign the object: upcycle signing sign --again",
            is_false=True,
        )
    return None
