"""Subjects: how names become tokens of an address on the bus, and back.

up.<tenant>.task.<kind>.<pool>.<model>         commands
up.<tenant>.evt.<entity>.<verb>.<model>        facts
up.<tenant>.decision.<kind>.<model>.<about>.<author>   facts of which the first wins, where they are decided
up.<tenant>.dlq.<the subject it had>           dead letters
up.<tenant>.dlq.gap.<reader>.<stream>          messages that were gone before their reader had read them
up.<tenant>.handled.<number>                   dead letters that were replayed or accepted
up.<tenant>.again.<stream>.<reader>.<subject>  a replayed message, for the one reader that gave it up
up.<tenant>.attempt.<durable>.<stream>.<seq>   how often a handler tried a message
up.request.<service>.<what>                    what a service asks provisioning for
"""

from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from identities.errors import InvalidIdentity
from identities.tenants import OWN_TENANT

MAX_TOKEN_LENGTH: Final = 200
_ROOT: Final = "up"
_TASK, _EVENT, _DECISION, _DEAD, _ATTEMPT = "task", "evt", "decision", "dlq", "attempt"
_HANDLED, _AGAIN, _GAP, _REQUEST = "handled", "again", "gap", "request"
ANY: Final = "*"
"""One token, whatever it is, in a filter."""


class Address(NamedTuple):
    """What the subject of a fact or a command says."""

    tenant: str
    kind: str
    """`entity.verb` of a fact, the kind of a command."""
    pool: str
    """Of a command; empty for a fact."""
    model: str


def token(name: str) -> str:
    """`name` as one token: letters, digits, `_`, `-`, `~` stay, everything else becomes %XX of its UTF-8.

    Raises InvalidIdentity for no name, and for one of more than MAX_TOKEN_LENGTH characters as a token.
    """
    if not name:
        raise InvalidIdentity("a subject token must not be empty: give the model slug or the pool")
    encoded = quote(name, safe="").replace(".", "%2E")
    if len(encoded) > MAX_TOKEN_LENGTH:
        raise InvalidIdentity(
            f"subject token {name[:40]!r}... is {len(encoded)} characters long, "
            f"limit {MAX_TOKEN_LENGTH}: use a shorter slug"
        )
    return encoded


def name_of(encoded: str) -> str:
    """The name that `token` made into `encoded`."""
    return unquote(encoded)


def _token_or_any(name: str | None) -> str:
    return ANY if name is None else token(name)


def fact(verb: str, model: str | None, tenant: str | None = OWN_TENANT) -> str:
    """Subject of a fact. verb: `entity.verb`; model, tenant: None for a filter over all."""
    return f"{_ROOT}.{_token_or_any(tenant)}.{_EVENT}.{verb}.{_token_or_any(model)}"


def command(kind: str, pool: str, model: str | None, tenant: str | None = OWN_TENANT) -> str:
    """Subject of a command. model, tenant: None for a filter over all."""
    return f"{_ROOT}.{_token_or_any(tenant)}.{_TASK}.{kind}.{token(pool)}.{_token_or_any(model)}"


def decision(kind: str, model: str | None, about: str | None, author: str | None, tenant: str | None) -> str:
    """Subject on which `author` decides something, once. kind: outcome, settled, step; about: the episode,
    group or step. None for a filter over all."""
    names = (_token_or_any(model), _token_or_any(about), _token_or_any(author))
    return ".".join((_ROOT, _token_or_any(tenant), _DECISION, kind, *names))


def of_any_author(decided: str) -> str:
    """Filter of all decisions about what the subject `decided` is about."""
    return f"{decided.rpartition('.')[0]}.{ANY}"


def author_of(decided: str) -> str:
    """Who decides on a subject that `decision` made."""
    return name_of(decided.rpartition(".")[2])


def kind_of_decision(decided: str) -> str:
    """What is decided on a subject that `decision` made."""
    return decided.split(".")[3]


def copy_of_decision(verb: str) -> str:
    """Where the server copies a decision as a fact. $1 and $2 stand for the first two `*` in the filter of
    the decisions, which are tenant and model."""
    return f"{_ROOT}.$1.{_EVENT}.{verb}.$2"


def copied(decided: str, verb: str) -> str:
    """Where the server copies what is decided on a subject that `decision` made."""
    _, tenant, _, _, model, _, _ = decided.split(".")
    return f"{_ROOT}.{tenant}.{_EVENT}.{verb}.{model}"


def dead_letter(subject: str) -> str:
    """Where a message that had `subject` is parked; the tenant stays in its place."""
    tenant, _, rest = subject.removeprefix(f"{_ROOT}.").partition(".")
    if not subject.startswith(f"{_ROOT}.") or not rest:
        return f"{_ROOT}.{OWN_TENANT}.{_DEAD}.{subject}"
    return f"{_ROOT}.{tenant}.{_DEAD}.{_ROOT}.{tenant}.{rest}"


def is_dead_letter(subject: str) -> bool:
    """Whether `dead_letter` made it."""
    parts = subject.split(".", 3)
    return len(parts) == 4 and parts[0] == _ROOT and parts[2] == _DEAD


def original(dead: str) -> str:
    """The subject that a dead letter had."""
    return dead.split(".", 3)[3]


def gap(reader: str | None, stream: str | None, tenant: str | None = OWN_TENANT) -> str:
    """The dead letter that says that a reader lost messages. None for a filter over all."""
    names = (_token_or_any(reader), _token_or_any(stream))
    return ".".join((_ROOT, _token_or_any(tenant), _DEAD, _GAP, *names))


def all_gaps() -> str:
    """Everything that `gap` makes."""
    return gap(None, None, tenant=None)


def is_gap(subject: str) -> bool:
    """Whether `gap` made it."""
    return is_dead_letter(subject) and original(subject).split(".")[0] == _GAP


def stream_of_gap(subject: str) -> str:
    """The stream that a reader lost messages of."""
    return name_of(subject.rpartition(".")[2])


def handled(number: int | None, tenant: str | None = OWN_TENANT) -> str:
    """Where it is noted that a dead letter was replayed or accepted. number, tenant: None for a filter over
    all.
    """
    return f"{_ROOT}.{_token_or_any(tenant)}.{_HANDLED}.{ANY if number is None else number}"


def handled_number(subject: str) -> int | None:
    """The dead letter that `handled` is about; None where the subject names none."""
    last = subject.rpartition(".")[2]
    return int(last) if last.isascii() and last.isdigit() else None


def again(stream: str, reader: str, subject: str) -> str:
    """Where a message that had `subject` comes to one reader of a stream again; also of a filter."""
    root, _, rest = subject.partition(".")
    tenant = rest.partition(".")[0] if root == _ROOT and rest else OWN_TENANT
    return f"{_ROOT}.{tenant}.{_AGAIN}.{stream}.{token(reader)}.{subject}"


def all_again(stream: str, reader: str | None = None) -> str:
    """Everything that comes again in a stream: to one reader, or to any."""
    whose = ">" if reader is None else f"{token(reader)}.>"
    return f"{_ROOT}.{ANY}.{_AGAIN}.{stream}.{whose}"


def is_again(subject: str) -> bool:
    """Whether `again` made it."""
    parts = subject.split(".", 5)
    return len(parts) == 6 and parts[0] == _ROOT and parts[2] == _AGAIN


def first_time(subject: str) -> str:
    """The subject that a message had when it was published first."""
    return subject.split(".", 5)[5] if is_again(subject) else subject


def attempt(durable: str, stream: str, sequence: int, tenant: str = OWN_TENANT) -> str:
    """Where the attempts of one message by one durable are counted. durable: its name, which is one token."""
    return f"{_ROOT}.{token(tenant)}.{_ATTEMPT}.{durable}.{stream}.{sequence}"


def all_attempts_of(durable: str, stream: str) -> str:
    """Everything that `attempt` makes of one durable, and its place. durable: ANY for each of a stream."""
    return f"{_ROOT}.{ANY}.{_ATTEMPT}.{durable}.{stream}.{ANY}"


def place(reader: str, stream: str, tenant: str = OWN_TENANT) -> str:
    """Where it is noted how far a reader has read a stream."""
    return f"{_ROOT}.{token(tenant)}.{_ATTEMPT}.{token(reader)}.{stream}.place"


def all_places() -> str:
    """Everything that `place` makes."""
    return f"{_ROOT}.{ANY}.{_ATTEMPT}.{ANY}.{ANY}.place"


def all_places_of(reader: str) -> str:
    """Everything that `place` makes of one reader."""
    return f"{_ROOT}.{ANY}.{_ATTEMPT}.{token(reader)}.{ANY}.place"


def stream_of_place(subject: str) -> str:
    """The stream that the note is about."""
    return subject.split(".")[-2]


def request(service: str | None, what: str | None) -> str:
    """Where a service asks provisioning for what only provisioning may do. None for a filter over all."""
    return f"{_ROOT}.{_REQUEST}.{_token_or_any(service)}.{_token_or_any(what)}"


def service_of_request(subject: str) -> str:
    """Who asks."""
    return name_of(subject.split(".")[2])


def everything() -> str:
    """All subjects of ours."""
    return f"{_ROOT}.>"


def all_tasks() -> str:
    """Everything that the stream of commands takes."""
    return f"{_ROOT}.{ANY}.{_TASK}.>"


def all_facts() -> str:
    """Everything that the stream of facts takes."""
    return f"{_ROOT}.{ANY}.{_EVENT}.>"


def all_decisions() -> str:
    """Everything that the stream of decisions takes."""
    return f"{_ROOT}.{ANY}.{_DECISION}.>"


def all_dead_letters() -> str:
    """Everything that the stream of dead letters takes."""
    return f"{_ROOT}.{ANY}.{_DEAD}.>"


def all_attempts() -> str:
    """Everything that the stream of attempt counts takes."""
    return f"{_ROOT}.{ANY}.{_ATTEMPT}.>"


def parse(subject: str) -> Address:
    """What `fact` or `command` made. Raises InvalidIdentity."""
    parts = first_time(subject).split(".")
    match parts:
        case [root, tenant, marker, entity, verb, model] if root == _ROOT and marker == _EVENT:
            return Address(name_of(tenant), f"{entity}.{verb}", "", name_of(model))
        case [root, tenant, marker, kind, pool, model] if root == _ROOT and marker == _TASK:
            return Address(name_of(tenant), kind, name_of(pool), name_of(model))
    raise InvalidIdentity(f"{subject!r} is no subject of a fact or a command")


def tenant_of(subject: str) -> str:
    """The tenant in any of our subjects; the default tenant for a subject that is not ours."""
    root, _, rest = subject.partition(".")
    return name_of(rest.partition(".")[0]) if root == _ROOT and rest else OWN_TENANT


def template_of(subject: str) -> str:
    """The low-cardinality name of a subject, for spans and metrics: tenant and model are placeholders."""
    subject = first_time(subject)
    if subject.startswith(f"{_ROOT}.") and f".{_DEAD}.{_ROOT}." in subject:
        return f"{_ROOT}.{{tenant}}.{_DEAD}.{template_of(original(subject))}"
    parts = subject.split(".")
    if parts[0] == _ROOT and len(parts) == 7 and parts[2] == _DECISION:
        return ".".join([_ROOT, "{tenant}", *parts[2:4], "{model}", "{about}", parts[6]])
    if len(parts) != 6 or parts[0] != _ROOT or parts[2] not in (_EVENT, _TASK):
        return subject
    return ".".join([_ROOT, "{tenant}", *parts[2:-1], "{model}"])
