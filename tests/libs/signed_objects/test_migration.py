"""An operator signs what was there before keys, and what a key had signed that is given up."""

import json
from pathlib import Path

import pytest
from tests.libs.signed_objects.writers import Keys, signer_of
from tests.services.policy_engine.policies import make_policy

from blob_store import MemoryBlobStore
from identities import objects
from policy_files import PolicyFacts, load, upload
from service_kit.clock import utc_now
from service_kit.groups import S3Settings
from signed_objects import SigningKey, TrustedKeys
from signed_objects.keys import OPERATOR, key_file, renew, trusted_file
from signed_objects.migration import NotSigned, Unproven, sign_all, unproven
from upcycle.cli.exits import Exit
from upcycle.cli.main import run

LINE = objects.training_run("m", "run-1")
CLAIM = objects.step_marker(objects.training_step(LINE, 1), 0)
STATE = objects.step_marker(objects.training_step(LINE, 1), 1)
MANIFEST = objects.policy_manifest("m", 1)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "signing")


@pytest.fixture
async def before(tmp_path: Path) -> MemoryBlobStore:
    """What a platform without keys stored."""
    store = MemoryBlobStore()
    await upload(store, make_policy(tmp_path / "base", seed=1), PolicyFacts("m", 1, utc_now()))
    await store.put(CLAIM, json.dumps({"claim": {"token": 1, "by": "t"}}).encode())
    await store.put(STATE, json.dumps({"spec": {"model": "m", "run_id": "run-1"}, "step": 1}).encode())
    await store.put(objects.trajectory_body("run-1", "e1"), b"body")
    return store


def trusted(keys: Keys) -> TrustedKeys:
    return TrustedKeys.read(trusted_file(keys.folder))


def operator(keys: Keys) -> SigningKey:
    return SigningKey.read(key_file(keys.folder, OPERATOR))


async def refused(store: MemoryBlobStore, keys: Keys, *given_up: str) -> dict[str, Unproven]:
    num_objects, found = await unproven(store, trusted(keys), given_up=given_up)
    assert num_objects == 3
    return {one.key: one for one in found}


async def test_what_was_there_before_is_signed_with_the_operators_key_and_used(
    keys: Keys, before: MemoryBlobStore
) -> None:
    found = await refused(before, keys)
    assert found.keys() == {MANIFEST, CLAIM, STATE}
    assert not any(one.broken or one.has_signature for one in found.values())
    await sign_all(before, operator(keys), list(found.values()))
    assert await refused(before, keys) == {}
    assert await signer_of(before, MANIFEST) == keys.ids[OPERATOR]
    assert (await load(keys.store(before), "m", 1)).version == 1


@pytest.mark.parametrize("key", [objects.policy_manifest("m", 2), objects.policy_manifest("other", 1)])
async def test_a_manifest_in_another_place_than_it_says_is_not_signed(
    key: str, keys: Keys, before: MemoryBlobStore
) -> None:
    await before.put(key, before.objects[MANIFEST])
    _, found = await unproven(before, trusted(keys))
    with pytest.raises(NotSigned, match=f"1 objects are not.*{key}: it says that it is {MANIFEST}"):
        await sign_all(before, operator(keys), found)
    assert await unproven(before, trusted(keys)) == (4, found)


async def test_states_in_another_place_and_what_cannot_be_read_are_named(
    keys: Keys, before: MemoryBlobStore
) -> None:
    elsewhere = objects.step_marker(objects.training_step(LINE, 2), 0)
    fact = objects.policy_fact("m", 1, objects.PUBLISHED)
    await before.put(elsewhere, before.objects[STATE])
    await before.put(fact, json.dumps({"model": "m", "version": 7}).encode())
    await before.put(MANIFEST, b"{}")
    _, found = await unproven(before, trusted(keys))
    broken = {one.key: one.broken for one in found if one.broken}
    assert broken[elsewhere].startswith(f"it says that it is {objects.training_step(LINE, 1)}/state")
    assert broken[fact].endswith("v00000007/published.json")
    assert "InvalidManifest" in broken[MANIFEST]
    assert broken.keys() == {elsewhere, fact, MANIFEST}


async def test_what_a_key_that_is_given_up_had_signed_is_signed_anew(
    keys: Keys, before: MemoryBlobStore
) -> None:
    trainer, old = keys.store(before, "grpo_trainer"), keys.ids["grpo_trainer"]
    for key in (MANIFEST, CLAIM, STATE):
        await trainer.put(key, before.objects[key])
    assert await refused(before, keys) == {}
    renew(keys.folder, "grpo_trainer")
    found = await refused(before, keys, old)
    await sign_all(before, operator(keys), list(found.values()))
    assert await refused(before, keys, old) == {}


def test_the_command_lists_and_signs_what_a_real_store_has(
    keys: Keys, s3_settings: S3Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    import asyncio

    from blob_store import S3BlobStore

    async def store_one() -> None:
        store = S3BlobStore(s3_settings)
        await store.start()
        await upload(store, make_policy(tmp_path / "base", seed=1), PolicyFacts("m", 0, utc_now()))
        await store.stop()

    asyncio.run(store_one())
    for name, value in s3_settings:
        shown = value.get_secret_value() if hasattr(value, "get_secret_value") else value
        if shown is not None:
            monkeypatch.setenv(f"UPCYCLE_S3_{name.upper()}", str(shown))
    monkeypatch.setenv("UPCYCLE_SIGNING_TRUSTED", str(trusted_file(keys.folder)))
    assert run(["signing", "sign"]) == Exit.USAGE  # without the operator's key
    monkeypatch.setenv("UPCYCLE_SIGNING_KEY", str(key_file(keys.folder, OPERATOR)))
    capsys.readouterr()
    for command, left in ((["--json"], 1), (["--apply", "--json"], 0), (["--json"], 0)):
        assert run(["signing", "sign", *command]) == Exit.OK
        said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert said[-1]["unproven"] == left
        assert said[-1]["objects"] == 1
