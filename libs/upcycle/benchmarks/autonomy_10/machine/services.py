"""Services start, stop and fail as their configuration and the machine let them."""

from ..errors import CommandFailed
from .state import Computer, Process, Service

FIRST_OWN_PID = 4_000


def config_of(text: str) -> dict[str, str]:
    """Keys and values of a configuration of lines `key = value`. Raises CommandFailed."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals:
            raise CommandFailed(f"line {number}: {line.strip()[:60]!r} is not of the form key = value")
        found[key] = value
    return found


def start(machine: Computer, name: str) -> None:
    """Start a service. Where it does not start it is failed, and CommandFailed says why."""
    service = service_named(machine, name)
    if service.state == "running":
        return
    try:
        port = _port_to_use(machine, service)
    except CommandFailed as error:
        service.state = "failed"
        raise CommandFailed(f"{name} did not start: {error}") from error
    service.state = "running"
    service.loaded = _text_of_config(machine, service)
    pid = FIRST_OWN_PID
    while str(pid) in machine.processes:
        pid += 1
    machine.processes[str(pid)] = Process(service.user, f"/usr/sbin/{name}", port, name)


def stop(machine: Computer, name: str) -> None:
    """Stop a service."""
    service_named(machine, name).state = "stopped"
    for pid in [pid for pid, one in machine.processes.items() if one.service == name]:
        del machine.processes[pid]


def kill(machine: Computer, pid: str) -> None:
    """End a process; that of a service leaves it failed."""
    if pid not in machine.processes:
        raise CommandFailed(f"({pid}): no such process")
    ended = machine.processes.pop(pid)
    if ended.service:
        machine.services[ended.service].state = "failed"


def service_named(machine: Computer, name: str) -> Service:
    """Raises CommandFailed."""
    short = name.removesuffix(".service")
    if short not in machine.services:
        raise CommandFailed(f"there is no service {name!r}; systemctl list-units names them")
    return machine.services[short]


def _text_of_config(machine: Computer, service: Service) -> str:
    file = machine.files.get(service.config)
    if file is None or file.text is None:
        raise CommandFailed(f"{service.config}: no such file")
    return file.text


def _port_to_use(machine: Computer, service: Service) -> str:
    """The port that it may take. Raises CommandFailed for everything that keeps it from starting."""
    for needed in service.needs:
        if machine.services[needed].state != "running":
            raise CommandFailed(f"it needs {needed}, which is {machine.services[needed].state}")
    config = _checked_config(machine, service)
    data = config.get("data", "")
    if data and data not in machine.files:
        raise CommandFailed(f"{data}: no such file or folder")
    if data and machine.files[data].owner != service.user:
        raise CommandFailed(f"{data}: permission denied for user {service.user}")
    port = config.get("port", "")
    holders = [pid for pid, one in machine.processes.items() if port and one.port == port]
    if holders:
        raise CommandFailed(f"port {port} is in use by process {holders[0]}")
    return port


def _checked_config(machine: Computer, service: Service) -> dict[str, str]:
    """Its configuration, with the keys that it has to have. Raises CommandFailed."""
    config = config_of(_text_of_config(machine, service))
    for key in config:
        if key not in service.keys:
            raise CommandFailed(f"{service.config}: unknown key {key!r}")
    if missing := [key for key in service.keys if key not in config]:
        raise CommandFailed(f"{service.config}: key {missing[0]!r} is missing")
    return config
