"""Which model `upcycle eval` plays where none is named."""

from upcycle.cli.eval_flags import UnclearEvaluation
from upcycle.cli.output import human
from upcycle.platform import Platform, PlatformNotFound
from upcycle.user_settings.layers import UserSettings

_SHOWN = 5
_MISSING = "nothing to evaluate: MODEL missing"


async def default_model() -> str:
    """The model that the settings have `upcycle up` serve (`up.model`), else the only one of the platform;
    a line says which. Raises UnclearEvaluation where there is none, or no only one."""
    chosen = UserSettings.read().find("up.model")
    if chosen.value:
        return _said(chosen.value, f"up.model of {chosen.place}")
    names = await _registered()
    if len(names) == 1:
        return _said(names[0], "the only model of the platform")
    if not names:
        raise UnclearEvaluation(
            f"{_MISSING}, and the platform has none", "upcycle models import DIR --name NAME"
        )
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise UnclearEvaluation(
        f"{_MISSING}, and the platform has {len(names)} models",
        f"name one: {', '.join(names[:_SHOWN])}{more}",
    )


async def _registered() -> list[str]:
    from upcycle.api.registry.v1.service_pb2 import ListModelsRequest
    from upcycle.external.naming import agents_hint

    try:
        async with Platform() as platform:
            found = await platform.registry.ListModels(ListModelsRequest(), timeout=10)
    except PlatformNotFound as error:
        raise UnclearEvaluation(
            f"{_MISSING}, and {error.message}", f"give TASKS MODEL, or a --config; {agents_hint('')}"
        ) from error
    return [one.model for one in found.models]


def _said(model: str, why: str) -> str:
    human().print(f"{model} plays: {why}", markup=False, soft_wrap=True)
    return model
