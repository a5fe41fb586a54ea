"""The `main()` of every service: settings, logging, telemetry, then the service until it ends."""

import asyncio
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from service_kit.descriptors import raise_descriptor_limit
from service_kit.logs import setup_logging
from service_kit.service import Service
from service_kit.settings import (
    EXIT_SETTINGS,
    ServiceSettings,
    SettingsError,
    is_secret,
    load_settings,
    variables,
)
from service_kit.telemetry import setup_telemetry
from upcycle.tls import ClientTls, use

S = TypeVar("S", bound=ServiceSettings)
PRIVATE_UMASK: Final = 0o077
"""Of every service: what it writes is for its user alone."""


def run_main(
    name: str,
    settings_cls: type[S],
    build_app: Callable[[S], Service],
    *,
    argv: Sequence[str] | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a service as this process; `build_app` constructs, it does not connect, and may raise SettingsError
    for what does not fit the machine. Raises SystemExit.

    What the process writes is readable by its user alone. loop_factory: of another loop than asyncio's own.
    Exit status: 0 stopped by a signal; 1 a component failed to start or stop; 2 settings; 70 one died.
    """
    _answer_arguments(name, settings_cls, list(sys.argv[1:] if argv is None else argv))
    try:
        settings = load_settings(settings_cls, program=name)
    except SettingsError as error:
        print(error, file=sys.stderr)
        raise SystemExit(EXIT_SETTINGS) from None
    os.umask(PRIVATE_UMASK)
    raise_descriptor_limit()
    _use_certificates(settings)
    setup_logging(name, settings.log_level, secrets=_secrets_of(settings))
    telemetry = setup_telemetry(name)
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            code = runner.run(_run(settings, build_app))
    except SettingsError as error:
        print(error, file=sys.stderr)
        code = EXIT_SETTINGS
    finally:
        telemetry.shutdown()
    raise SystemExit(code)


def _use_certificates(settings: ServiceSettings) -> None:
    """For every channel that this process opens."""
    tls = settings.tls
    use(None if tls.ca is None else ClientTls(tls.ca, tls.certificate, tls.key))


async def _run(settings: S, build_app: Callable[[S], Service]) -> int:
    return await build_app(settings).run()


def _answer_arguments(name: str, settings_cls: type[BaseSettings], argv: list[str]) -> None:
    if not argv:
        return
    if argv[0] in ("-h", "--help"):
        print(usage(name, settings_cls))
        raise SystemExit(0)
    if argv[0] == "--version":
        print(f"{name} {importlib.metadata.version('upcycle')}")
        raise SystemExit(0)
    print(
        f"{name}: unknown argument {argv[0]!r}; it is set by environment variables, see --help",
        file=sys.stderr,
    )
    raise SystemExit(EXIT_SETTINGS)


def usage(name: str, settings_cls: type[BaseSettings]) -> str:
    """Purpose of the program (the docstring of its settings class), and one entry per variable."""
    purpose = inspect.cleandoc(settings_cls.__doc__ or "")
    prefix = settings_cls.model_config.get("env_prefix", "")
    lines = [
        name,
        "",
        purpose,
        "",
        f"Set by environment variables, or by a dotenv file that {prefix}SETTINGS_FILE names:",
    ]
    for variable, field in variables(settings_cls).items():
        lines.append(f"  {variable} = {shown_default(field)}")
        if field.description:
            lines.append(f"      {' '.join(field.description.split())}")
    lines.append("Options: --help, --version. SIGTERM drains, a second one exits at once.")
    return "\n".join(lines)


def shown_default(field: FieldInfo) -> str:
    """The default of a setting as `--help` shows it; a secret is never shown."""
    default: Any = field.get_default(call_default_factory=False)
    if default is PydanticUndefined or field.is_required():
        return "(required)" if field.is_required() else "(computed)"
    if is_secret(field):
        return "(secret, unset)" if default is None or not default.get_secret_value() else "(secret)"
    return "(unset)" if default is None else str(default)


def _secrets_of(settings: BaseSettings) -> list[str]:
    found: list[str] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseSettings):
            found += _secrets_of(value)
        elif hasattr(value, "get_secret_value"):
            found.append(value.get_secret_value())
    return found
