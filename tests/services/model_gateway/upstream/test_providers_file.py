"""The file of providers: read, or refused by the name of what is wrong, without showing a key."""

import json
from pathlib import Path
from typing import Any

import pytest

from model_gateway.adapters.providers_file import BadProviders, read_providers
from model_gateway.app import build_app
from model_gateway.domain.errors import UnknownModel
from model_gateway.domain.upstream.providers import Price, UpstreamDialect
from model_gateway.settings import ModelGatewaySettings
from service_kit.settings import SettingsError

KEY = "sk-a-secret-of-the-operator"


def written(folder: Path, providers: Any, **more: Any) -> Path:
    (folder / "acme.key").write_text(KEY + "\n")
    path = folder / "providers.json"
    path.write_text(json.dumps({"providers": providers, **more}))
    return path


def entry(**changes: Any) -> dict[str, Any]:
    models = {"large": {"upstream_name": "vendor/large:free", "input_price": 2, "output_price": 8}}
    whole = {"url": "https://acme.test/v1/", "dialect": "openai", "key_file": "acme.key", "models": models}
    return {**whole, **changes}


def test_a_file_becomes_providers_models_and_fallbacks(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"acme": entry()}, fallbacks={"incident": {"model": "acme/large", "after_s": 0.5}}
    )
    found = read_providers(path)
    model = found.models["acme/large"]
    assert (model.served_name, model.price) == ("vendor/large:free", Price(2, 8))
    assert (model.provider.url, model.provider.key) == ("https://acme.test/v1", KEY)
    assert model.provider.dialect is UpstreamDialect.OPENAI
    assert model.price.of(1_000_000, 500_000) == 6.0
    assert (found.fallbacks["incident"].model, found.fallbacks["incident"].after_s) == (model, 0.5)
    assert found.find("incident") is None
    assert found.find("Qwen/Qwen3.5-4B") is None
    with pytest.raises(UnknownModel, match="provider 'acme' serves acme/large"):
        found.find("acme/small")
    assert KEY not in repr(found)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"url": "file:///etc/passwd"}, r"providers\.acme\.url.*http or https"),
        ({"url": "https://user:secret-word@acme.test"}, "put the key into a file"),
        ({"url": "https://acme.test/v1?key=secret-word"}, "query"),
        ({"dialect": "gopher"}, r"providers\.acme\.dialect"),
        ({"models": {}}, r"providers\.acme\.models"),
        ({"models": {"a/b": {}}}, "upstream_name"),
        ({"models": {"large": {"input_price": -1}}}, "input_price"),
        ({"models": {"large": {"price": 1}}}, r"large\.price"),
        ({"key": "secret-word"}, r"providers\.acme\.key"),
        ({"key_file": "nowhere"}, "key_file nowhere cannot be read"),
        ({"key_file": "two.key"}, "holds no key"),
        ({"max_tries": 0}, "max_tries"),
        ({"extra_fields": ["chat_template"]}, "chat_template"),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_is_shown(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    (tmp_path / "two.key").write_text("secret-word one\n")
    path = written(tmp_path, {"acme": entry(**changes)})
    with pytest.raises(BadProviders, match=why) as refused:
        read_providers(path)
    assert "secret-word" not in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("fallbacks", "why"),
    [
        ({"incident": {"model": "acme/small"}}, "'acme/small' is none of acme/large"),
        ({"acme/large": {"model": "acme/large"}}, "no name of a registered model"),
        ({"incident": {"model": "acme/large", "after_s": -1}}, "after_s"),
    ],
)
def test_a_fallback_is_one_of_the_models_of_the_file(
    tmp_path: Path, fallbacks: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadProviders, match=why):
        read_providers(written(tmp_path, {"acme": entry()}, fallbacks=fallbacks))


async def test_a_gateway_with_a_file_that_cannot_be_used_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "providers.json"
    path.write_text("{")
    with pytest.raises(SettingsError, match=r"MODEL_GATEWAY_PROVIDERS_FILE .*providers\.json"):
        build_app(ModelGatewaySettings(providers_file=path))
