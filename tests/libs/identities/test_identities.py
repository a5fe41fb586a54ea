"""Ids, subjects and keys: what is made can be parsed, and what is foreign is refused."""

from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from identities import entities, events, objects, subjects
from identities.errors import InvalidIdentity

_NAMES: st.SearchStrategy[str] = st.text(min_size=1, max_size=40).filter(
    lambda name: len(quote(name, safe="")) <= 190
)


def test_ids_read_as_documented() -> None:
    assert entities.trajectory_id("run-1-g00002-m3") == "traj-run-1-g00002-m3"
    assert entities.group_id("run-1", 2) == "run-1-g00002"
    assert entities.checkpoint_id("incident", 12) == "ckpt-incident-v00000012"
    assert entities.interactive_run_id("incident") == "interactive-incident"
    assert events.episode_outcome("e") == "episode.outcome/e"
    assert events.group_settled("g") == "group.settled/g"
    assert events.group_settled("g", offered_to="run-2") == "group.settled/run-2/g"
    assert events.run_stopping("run-1", is_final=True) != events.run_stopping("run-1", is_final=False)
    assert subjects.fact("run.submitted", "a.b") == "up.default.evt.run.submitted.a%2Eb"
    assert subjects.command("episode", "train", None) == "up.default.task.episode.train.*"
    assert objects.policy_manifest("a/b", 3) == "default/policies/a%2Fb/v00000003/manifest.json"


@given(_NAMES, st.integers(0, 10**9))
def test_a_group_and_a_checkpoint_are_parsed_back(name: str, number: int) -> None:
    name = name.replace("\n", "-")
    assert entities.parse_group_id(entities.group_id(name, number)) == (name, number)
    assert entities.parse_checkpoint_id(entities.checkpoint_id(name, number)) == (name, number)


@given(_NAMES, _NAMES, _NAMES)
def test_a_subject_is_parsed_back_whatever_the_names(tenant: str, pool: str, model: str) -> None:
    fact, command = (
        subjects.fact("run.submitted", model, tenant),
        subjects.command("episode", pool, model, tenant),
    )
    assert subjects.parse(fact) == (tenant, "run.submitted", "", model)
    assert subjects.parse(command) == (tenant, "episode", pool, model)
    assert subjects.original(subjects.dead_letter(fact)) == fact


@given(_NAMES, _NAMES)
def test_the_folder_of_a_run_is_parsed_back_whatever_the_names(model: str, run: str) -> None:
    key = f"{objects.training_run(model, run)}/step-00000001/DONE"
    assert objects.parse_training_run(key) == (model, run)
    assert objects.parse_interactive_session(f"{objects.interactive_session(model)}/x") == model


@given(_NAMES, st.integers(0, 10**8))
def test_the_folder_of_a_version_is_parsed_back_whatever_the_model(model: str, version: int) -> None:
    assert objects.parse_policy_version(objects.policy_manifest(model, version)) == (model, version)
    assert objects.parse_policy_version(objects.training_run(model, "run") + "/step") is None
    assert objects.parse_policy_version(objects.policies()) is None


def test_only_the_manifest_of_a_version_says_that_it_is_complete() -> None:
    assert objects.parse_policy_manifest(objects.policy_manifest("m", 7)) == ("m", 7)
    for other in ("config.json", "manifest.json.part", "v00000009/manifest.json"):
        assert objects.parse_policy_manifest(f"{objects.policy_version('m', 7)}/{other}") is None
    assert objects.parse_policy_manifest(objects.policy_version("m", 7)) is None


@pytest.mark.parametrize("text", ["", "ckpt-m-v1", "ckpt--v00000001", "ckpt-m-v000000001", "run-1-g1"])
def test_foreign_spellings_are_not_taken_for_ours(text: str) -> None:
    assert entities.parse_checkpoint_id(text) is None
    assert entities.parse_group_id(text) is None


@pytest.mark.parametrize("subject", ["up.evt.run.submitted.m", "up.default.dlq.x.y.z", "x.default.evt.a.b.m"])
def test_a_foreign_subject_is_refused(subject: str) -> None:
    with pytest.raises(InvalidIdentity, match="is no subject"):
        subjects.parse(subject)


def test_an_empty_or_endless_name_is_refused() -> None:
    with pytest.raises(InvalidIdentity, match="must not be empty"):
        subjects.token("")
    with pytest.raises(InvalidIdentity, match="limit 200"):
        subjects.token("x" * 201)
    with pytest.raises(InvalidIdentity, match="count from 0"):
        objects.policy_version("m", -1)
    with pytest.raises(InvalidIdentity, match="run id is empty"):
        objects.trajectory_body("", "e")


def test_an_id_cannot_leave_its_folder_in_the_object_store() -> None:
    assert objects.trajectory_body("../x", "a/b") == "default/trajectories/..%2Fx/a%2Fb.pb.zst"


def test_templates_hide_tenant_and_model_also_in_dead_letters() -> None:
    fact = subjects.fact("policy.published", "incident", "acme")
    assert subjects.template_of(fact) == "up.{tenant}.evt.policy.published.{model}"
    command = subjects.command("episode", "train", "incident", "acme")
    assert subjects.template_of(command) == "up.{tenant}.task.episode.train.{model}"
    dead = subjects.dead_letter(fact)
    assert dead == "up.acme.dlq.up.acme.evt.policy.published.incident"
    assert subjects.template_of(dead) == "up.{tenant}.dlq.up.{tenant}.evt.policy.published.{model}"
    assert subjects.tenant_of(dead) == "acme"


def test_a_filter_without_tenant_or_model_takes_all() -> None:
    assert subjects.fact("run.submitted", None, None) == "up.*.evt.run.submitted.*"
    assert subjects.command("episode", "train", None, None) == "up.*.task.episode.train.*"


@pytest.mark.parametrize("dispatch", [0, 1, 2, 17])
def test_how_often_a_command_was_sent_is_read_from_its_id_and_from_no_other(dispatch: int) -> None:
    assert events.parse_dispatch(events.episode_requested("run-1-g00000-e000-a0", dispatch)) == dispatch
    assert events.parse_dispatch(events.episode_outcome("run-1-g00000-e000-a0")) is None


SLUGS = ("incident", "a", "0", "incident.v2_x-1", "Qwen/Qwen3.5-4B", "a" * 64, f"{'a' * 31}/{'b' * 32}")
_LONG = ("a" * 65, f"{'a' * 32}/{'b' * 32}")
_ODD = ("a b", "a@b", "a*", "a>", "a\n", "\u0430", "a%2Fb", "a\\b")
_PATHS = ("/a", "a/", "a//b", "a/b/c", "../a", "a/..", "a/../b", "a/-b")
NO_SLUGS = ("", ".a", "a.", "-a", *_LONG, *_ODD, *_PATHS)


@pytest.mark.parametrize("slug", SLUGS)
def test_a_slug_is_one_token_one_part_of_a_key_and_one_file_name(slug: str) -> None:
    assert entities.SLUG.fullmatch(slug)
    address = subjects.fact("policy.published", slug)
    assert (address.count("."), subjects.parse(address).model) == (5, slug)
    assert objects.parse_policy_version(objects.policy_manifest(slug, 3)) == (slug, 3)
    assert entities.parse_checkpoint_id(entities.checkpoint_id(slug, 3)) == (slug, 3)
    name = entities.slug_file_name(slug)
    assert "/" not in name
    assert unquote(name) == slug
    if "/" not in slug:  # known to the versions before: nothing of them moved
        assert name == slug
        assert objects.policy_versions(slug).endswith(f"/policies/{slug}/")


@pytest.mark.parametrize("text", NO_SLUGS)
def test_what_cannot_be_a_file_a_token_or_a_key_is_no_slug(text: str) -> None:
    assert entities.SLUG.fullmatch(text) is None
