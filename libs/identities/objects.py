"""Keys in the object store. Everything of a tenant lies below its name:

<tenant>/trajectories/<run>/<episode>.pb.zst      bodies
<tenant>/policies/<model>/v<8 digits>/...         files of a published version, manifest.json last; its facts
<tenant>/training/<model>/<run>/...               states of a training run
<tenant>/interactive/<model>/...                  states of an interactive session
<tenant>/trainers/processes/<name>.json           what each trainer process says of itself
<tenant>/trainers/models/<model>/<8 digits>.json  which trainer took the model with that token
<tenant>/sources/<digest>.zip                     sources of environments, packed when a run is submitted

Beside what leads to weights and states, a manifest, a fact of a version, a marker of a step, lies its
signature: <key>.<first 16 digits of its sha256>.sig
"""

import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from identities.errors import InvalidIdentity
from identities.tenants import OWN_TENANT

MANIFEST: Final = "manifest.json"
"""Last part of a version's manifest key."""
PUBLISHED: Final = "published.json"
"""Last part of the key of a version's policy.published."""
SAVED: Final = "checkpoint.json"
"""Last part of the key of a version's checkpoint.saved."""


_VERSION: Final = re.compile(r"v(\d{8,18})")
_TOKEN: Final = re.compile(r"(\d{8,18})\.json")
_STEP: Final = re.compile(r"(.*/step-(\d{8,18}))/")
_MARKER: Final = re.compile(r"state(?:-(\d{1,9}))?\.json")
_CONVERTED: Final = re.compile(r"(.*/state(?:-\d{1,9})?)\.converted\.json")
_SIGNATURE: Final = re.compile(r"(.+)\.[0-9a-f]{16}\.sig")


class PolicyFolder(NamedTuple):
    """What the folder of a published version says."""

    model: str
    version: int


class TrainingStep(NamedTuple):
    """What a key below the folder of a step says."""

    folder: str
    step: int


class StepMarker(NamedTuple):
    """What the key of a marker says: of the step's markers it is the one with this number, from 0."""

    step: int
    number: int


class ModelToken(NamedTuple):
    """What the key of a trainer's lease says."""

    model: str
    token: int


class TrainingFolder(NamedTuple):
    """What the folder of a training run says."""

    model: str
    run_id: str


def _part(name: str, what: str) -> str:
    if not name:
        raise InvalidIdentity(f"the {what} is empty: an object key needs one")
    return quote(name, safe="")


def trajectories(tenant: str = OWN_TENANT) -> str:
    """Prefix of the bodies of all episodes, with the slash."""
    return f"{_part(tenant, 'tenant')}/trajectories/"


def trajectory_body(run_id: str, episode_id: str, tenant: str = OWN_TENANT) -> str:
    """Where the body of an episode is stored, written at most once."""
    run, episode = _part(run_id, "run id"), _part(episode_id, "episode id")
    return f"{trajectories(tenant)}{run}/{episode}.pb.zst"


def packed_sources(tenant: str = OWN_TENANT) -> str:
    """Prefix of all kept sources, with the slash."""
    return f"{_part(tenant, 'tenant')}/sources/"


def packed_source(digest: str, tenant: str = OWN_TENANT) -> str:
    """Where the source of an environment with this digest is kept."""
    return f"{_part(tenant, 'tenant')}/sources/{_part(digest, 'source digest')}.zip"


def policies(tenant: str = OWN_TENANT) -> str:
    """Prefix of the published versions of all models, with the slash."""
    return f"{_part(tenant, 'tenant')}/policies/"


def policy_versions(model: str, tenant: str = OWN_TENANT) -> str:
    """Prefix of all versions of a model, with the slash."""
    return f"{policies(tenant)}{_part(model, 'model slug')}/"


def policy_version(model: str, version: int, tenant: str = OWN_TENANT) -> str:
    """Prefix of everything that a version owns, without a slash at its end. Raises InvalidIdentity."""
    if version < 0:
        raise InvalidIdentity(f"version is {version}; versions count from 0, the base model")
    return f"{policy_versions(model, tenant)}v{version:08d}"


def policy_manifest(model: str, version: int, tenant: str = OWN_TENANT) -> str:
    """Where the manifest of a version lies: that it is there means that the version is complete."""
    return f"{policy_version(model, version, tenant)}/{MANIFEST}"


def parse_policy_version(key: str) -> PolicyFolder | None:
    """The version that a key below `policies` belongs to; None for a key that belongs to none."""
    match key.split("/"):
        case [_, "policies", model, version, _, *_] if found := _VERSION.fullmatch(version):
            number = int(found[1])
            return PolicyFolder(unquote(model), number) if found[1] == f"{number:08d}" else None
    return None


def parse_policy_manifest(key: str) -> PolicyFolder | None:
    """The version whose manifest lies at `key`; None for every other key."""
    folder = parse_policy_version(key)
    return folder if key.split("/")[4:] == [MANIFEST] else None


def policy_fact(model: str, version: int, name: str, tenant: str = OWN_TENANT) -> str:
    """Where a fact that announced a version is kept. name: PUBLISHED or SAVED."""
    return f"{policy_version(model, version, tenant)}/{name}"


def parse_policy_fact(key: str, name: str) -> PolicyFolder | None:
    """The version whose fact of this name lies at `key`; None for every other key."""
    folder = parse_policy_version(key)
    return folder if key.split("/")[4:] == [name] else None


def training_states(tenant: str = OWN_TENANT) -> str:
    """Prefix of the states of all training runs, with the slash."""
    return f"{_part(tenant, 'tenant')}/training/"


def training_run(model: str, run_id: str, tenant: str = OWN_TENANT) -> str:
    """Folder of one training run, without a slash at its end."""
    return f"{training_states(tenant)}{_part(model, 'model slug')}/{_part(run_id, 'run id')}"


def parse_training_run(key: str) -> TrainingFolder:
    """The run that a key below `training_states` belongs to. Raises InvalidIdentity."""
    match key.split("/"):
        case [_, "training", model, run_id, *_]:
            return TrainingFolder(unquote(model), unquote(run_id))
    raise InvalidIdentity(f"{key!r} is no key of a training run")


def training_step(line: str, step: int) -> str:
    """Folder of the state after a step, without a slash at its end. line: that of a run or a session."""
    return f"{line}/step-{step:08d}"


def parse_training_step(key: str) -> TrainingStep | None:
    """The step whose folder holds `key`; None for every other key."""
    found = _STEP.match(key)
    return None if found is None else TrainingStep(found[1], int(found[2]))


def step_marker(folder: str, number: int) -> str:
    """Where a marker of a step lies. folder: that of the step."""
    return f"{folder}/state.json" if number == 0 else f"{folder}/state-{number}.json"


def parse_step_marker(key: str) -> StepMarker | None:
    """Step and number of a marker; None for every other key."""
    found, name = parse_training_step(key), _MARKER.fullmatch(key.rpartition("/")[2])
    if found is None or name is None or f"{found.folder}/{name[0]}" != key:
        return None
    return StepMarker(found.step, int(name[1] or 0))


def converted_state(marker: str) -> str:
    """Where it says that the state of a marker is in files without a pickle, too. marker: its key."""
    return f"{marker.removesuffix('.json')}.converted.json"


def parse_converted_state(key: str) -> str | None:
    """The key of the marker whose conversion is said at `key`; None for every other key."""
    found = _CONVERTED.fullmatch(key)
    marker = "" if found is None else f"{found[1]}.json"
    return marker if parse_step_marker(marker) is not None else None


def interactive_states(tenant: str = OWN_TENANT) -> str:
    """Prefix of the states of all interactive sessions, with the slash."""
    return f"{_part(tenant, 'tenant')}/interactive/"


def interactive_session(model: str, tenant: str = OWN_TENANT) -> str:
    """Folder of a model's interactive session, without a slash at its end."""
    return f"{interactive_states(tenant)}{_part(model, 'model slug')}"


def interactive_unsaved(model: str, tenant: str = OWN_TENANT) -> str:
    """Where a trainer notes which steps of a model's interactive session are in its memory only."""
    return f"{interactive_session(model, tenant)}/unsaved.json"


def parse_interactive_session(key: str) -> str:
    """The model that a key below `interactive_states` belongs to. Raises InvalidIdentity."""
    match key.split("/"):
        case [_, "interactive", model, *_]:
            return unquote(model)
    raise InvalidIdentity(f"{key!r} is no key of an interactive session")


def trainers(tenant: str = OWN_TENANT) -> str:
    """Prefix of what trainer processes say of themselves and of the models that they took, with the slash."""
    return f"{_part(tenant, 'tenant')}/trainers/"


def trainer_process(name: str, tenant: str = OWN_TENANT) -> str:
    """Where a trainer process says that it lives."""
    return f"{trainers(tenant)}processes/{_part(name, 'name of the trainer')}.json"


def trainer_lease(model: str, token: int, tenant: str = OWN_TENANT) -> str:
    """Where the trainer that took a model with this token is named, written at most once."""
    return f"{trainers(tenant)}models/{_part(model, 'model slug')}/{token:08d}.json"


def parse_trainer_process(key: str) -> str | None:
    """The process whose record lies at `key`; None for every other key."""
    match key.split("/"):
        case [_, "trainers", "processes", name] if name.endswith(".json"):
            return unquote(name.removesuffix(".json"))
    return None


def parse_trainer_lease(key: str) -> ModelToken | None:
    """The lease that lies at `key`; None for every other key."""
    match key.split("/"):
        case [_, "trainers", "models", model, name] if found := _TOKEN.fullmatch(name):
            return ModelToken(unquote(model), int(found[1]))
    return None


SIGNED_KINDS: Final = frozenset({"bases", "versions", "states", "conversions"})
"""What a signing key may be limited to: manifests of imported and forked models; manifests of trained
versions, and what was announced of them; markers of training states; records that say that one was
converted."""


def signed_kind(key: str) -> str:
    """The kind of the signed object at `key`; empty for one that is not signed."""
    if parse_step_marker(key) is not None:
        return "states"
    if parse_converted_state(key) is not None:
        return "conversions"
    if (manifest := parse_policy_manifest(key)) is not None:
        return "bases" if manifest.version == 0 else "versions"
    return "versions" if any(parse_policy_fact(key, name) for name in (PUBLISHED, SAVED)) else ""


def is_signed(key: str) -> bool:
    """Whether what lies at `key` is signed: everything else that weights and states are made of is named by
    it, with a digest."""
    return signed_kind(key) != ""


def signature(key: str, sha256: str) -> str:
    """Where the signature of the bytes with this digest at `key` lies. Writers that race for a key write
    other bytes, so none replaces the signature of the one that wins."""
    return f"{key}.{sha256[:16]}.sig"


def parse_signature(key: str) -> str | None:
    """The key of the object whose signature lies at `key`; None for every other key."""
    found = _SIGNATURE.fullmatch(key)
    return found[1] if found is not None and is_signed(found[1]) else None
