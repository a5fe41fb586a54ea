"""`make pin` finds every image of others, and writes a digest behind each."""

import re
import subprocess
from pathlib import Path

import pytest
from deploy.images import pin
from deploy.kubernetes.composed import COMPOSE, default

OURS = re.compile(r"^\$\{UPCYCLE(_TRAIN)?_IMAGE:-")
A_DIGEST = f"sha256:{'1' * 64}"
ANOTHER_DIGEST = f"sha256:{'2' * 64}"


def pinned(text: str, digest: str) -> str:
    return pin.pinned(text, dict.fromkeys(pin.tags(text), digest))


def test_each_image_of_others_can_be_pinned_and_none_of_ours() -> None:
    images = {service["image"] for service in COMPOSE["services"].values()}
    of_others = {default(image).partition("@")[0] for image in images if not OURS.match(image)}
    compose, dockerfile = (file.read_text() for file in pin.FILES)
    assert {*pin.tags(compose)} == of_others
    assert pin.tags(dockerfile) == ["python:3.11-slim"]
    listed = subprocess.run(
        [pin.ROOT / "deploy" / "images" / "others.sh"], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[1].partition("@")[0] for line in listed.splitlines()} == {
        *of_others, "python:3.11-slim",
    }  # fmt: skip


@pytest.mark.parametrize("file", pin.FILES, ids=lambda file: str(file.name))
def test_pinning_anew_replaces_the_digest_and_nothing_else(file: Path) -> None:
    text = file.read_text()
    once = pinned(text, A_DIGEST)
    assert once.count(f"@{A_DIGEST}") == len(pin.tags(text)) > 0
    assert pin.tags(once) == pin.tags(text)
    again = pinned(once, ANOTHER_DIGEST)
    assert again == once.replace(A_DIGEST, ANOTHER_DIGEST)
    assert pinned(again, A_DIGEST) == once
    without = re.compile("@sha256:[0-9a-f]{64}")
    assert without.sub("", once) == without.sub("", text)


def test_an_image_without_a_digest_stays_as_it_is_named() -> None:
    text = pin.FILES[0].read_text()
    assert pin.pinned(text, {"nats:2.15.1-alpine": A_DIGEST}).count(A_DIGEST) == 1
    assert pin.pinned(pinned(text, A_DIGEST), {}) == pinned(text, A_DIGEST)


def test_what_cannot_be_pulled_changes_no_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    before = [file.read_text() for file in pin.FILES]
    assert pin.main() == 1
    assert "nats:2.15.1-alpine was not pinned: docker pull" in capsys.readouterr().err
    assert [file.read_text() for file in pin.FILES] == before
