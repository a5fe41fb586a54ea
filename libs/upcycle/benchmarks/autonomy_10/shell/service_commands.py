"""Commands over services, processes, packages and timed jobs."""

from typing import Final

from ..errors import CommandFailed
from ..machine import packages, services
from ..machine.paths import read
from ..machine.state import Computer
from .command import Command
from .parsing import options

_SYSTEMCTL: Final = "systemctl list-units | status|start|stop|restart|enable|disable NAME"


def ps(machine: Computer, args: list[str], given: str) -> str:
    lines = ["PID USER PORT COMMAND"]
    for pid, one in sorted(machine.processes.items(), key=lambda pair: int(pair[0])):
        lines.append(f"{pid} {one.user} {one.port or '-'} {one.command}")
    return "".join(f"{line}\n" for line in lines)


def kill(machine: Computer, args: list[str], given: str) -> str:
    pids = [one for one in args if not one.startswith("-")]
    if not pids:
        raise CommandFailed("usage: kill PID...")
    for pid in pids:
        services.kill(machine, pid)
    return ""


def systemctl(machine: Computer, args: list[str], given: str) -> str:
    if not args or args[0] == "list-units":
        return "".join(_unit(machine, name) for name in sorted(machine.services))
    if len(args) != 2:
        raise CommandFailed(f"usage: {_SYSTEMCTL}")
    verb, name = args[0], args[1].removesuffix(".service")
    service = services.service_named(machine, name)
    match verb:
        case "status":
            return (
                _unit(machine, name)
                + f"  config {service.config}, needs {', '.join(service.needs) or 'nothing'}\n"
            )
        case "start":
            services.start(machine, name)
        case "stop":
            services.stop(machine, name)
        case "restart":
            services.stop(machine, name)
            services.start(machine, name)
        case "enable" | "disable":
            service.is_enabled = verb == "enable"
        case _:
            raise CommandFailed(f"usage: {_SYSTEMCTL}")
    return ""


def _unit(machine: Computer, name: str) -> str:
    service = machine.services[name]
    return f"{name} {service.state} {'enabled' if service.is_enabled else 'disabled'}\n"


def crontab(machine: Computer, args: list[str], given: str) -> str:
    found, rest = options(args, "lr", "u")
    user = found.get("u", "ana")
    if user not in machine.users and user not in machine.cron:
        raise CommandFailed(f"{user[:40]!r}: no such user")
    if "l" in found:
        return "".join(f"{line}\n" for line in machine.cron.get(user, []))
    if "r" in found:
        machine.cron.pop(user, None)
        return ""
    if len(rest) != 1:
        raise CommandFailed("usage: crontab [-u USER] -l | -r | FILE | -")
    text = given if rest[0] == "-" else read(machine, rest[0])
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in lines:
        if len(line.split()) < 6:
            raise CommandFailed(f"{line[:60]!r}: five fields of time, then a command")
    machine.cron[user] = lines
    return ""


def pkg(machine: Computer, args: list[str], given: str) -> str:
    verb = args[0] if args else ""
    if verb == "list":
        return "".join(_package(machine, name) for name in sorted(machine.packages))
    if len(args) != 2 or verb not in ("info", "build", "publish", "hold", "unhold"):
        raise CommandFailed("usage: pkg list | info|build|publish|hold|unhold NAME")
    name = args[1]
    package = packages.package_named(machine, name)
    match verb:
        case "build":
            return f"built {name} {packages.build(machine, name)}\n"
        case "publish":
            return f"published {name} {packages.publish(machine, name)}\n"
        case "hold" | "unhold":
            package.is_held = verb == "hold"
    needs = ", ".join(f"{one} >= {least}" for one, least in packages.needs_of(machine, package).items())
    return _package(machine, name) + f"  folder {package.folder}, needs {needs or 'nothing'}\n"


def _package(machine: Computer, name: str) -> str:
    one = machine.packages[name]
    held = " held" if one.is_held else ""
    return f"{name} published {one.published or 'never'}, built {one.built or 'never'}{held}\n"


SERVICE_COMMANDS: Final[dict[str, Command]] = {
    "ps": ps, "kill": kill, "systemctl": systemctl, "crontab": crontab, "pkg": pkg,
}  # fmt: skip
