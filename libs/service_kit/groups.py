"""Settings that several services share, each group under its own environment prefix.

Equal names mean equal things in every process of a stack, so one exported variable reaches all of them.
"""

from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from service_kit.settings_group import SettingsGroup as SettingsGroup
from service_kit.sql_settings import SERVICE_IN_URL as SERVICE_IN_URL
from service_kit.sql_settings import SqlSettings as SqlSettings

MIN_KEY_CHARS: Final = 16
_ROLES: Final = ("operator", "service", "unauthenticated")
"""Of a key that a service accepts."""
_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")


class BusSettings(SettingsGroup):
    """How to reach NATS."""

    model_config = SettingsConfigDict(env_prefix="UPCYCLE_BUS_")

    url: str = "nats://127.0.0.1:4222"
    """NATS address, or several separated by commas; without credentials in it."""
    user: str | None = None
    """User name, when the server asks for one."""
    password: SecretStr | None = None
    """Password of the user."""
    nkey: Path | None = None
    """File with the seed of this process's own key (`upcycle bus keys`), instead of user and password."""
    ca: Path | None = None
    """Certificates, in PEM form, that sign the one of the server. Set: connections begin in TLS, which the
    server must expect (`tls { handshake_first: auto }`)."""
    certificate: Path | None = None
    """Certificate of this process, where the server asks for one."""
    key: Path | None = None
    """Private key of the certificate."""
    episodes_kept: int = Field(0, ge=0)
    """For provisioning: episodes that the facts have room for, at 4,500 bytes each; 0: 1.2 million."""

    @field_validator("url")
    @classmethod
    def _is_nats(cls, url: str) -> str:
        for one in url.split(","):
            if not one.strip().startswith(("nats://", "tls://")):
                raise ValueError(f"must start with nats:// or tls://, got {one.strip()!r}")
            if "@" in one:
                raise ValueError("must not carry credentials; set UPCYCLE_BUS_USER and UPCYCLE_BUS_PASSWORD")
        return url

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if self.nkey is not None and self.user is not None:
            raise ValueError(
                "UPCYCLE_BUS_NKEY and UPCYCLE_BUS_USER are two logins: a process has its own key or shares a "
                "user; unset one"
            )
        return self

    @model_validator(mode="after")
    def _has_whole_certificates(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("UPCYCLE_BUS_CERTIFICATE and UPCYCLE_BUS_KEY go together: set both or neither")
        if self.ca is None and (self.certificate is not None or "tls://" in self.url):
            raise ValueError("TLS to NATS needs UPCYCLE_BUS_CA, the certificates that sign the server's")
        return self

    @property
    def servers(self) -> list[str]:
        """The addresses of `url`, one by one."""
        return [one.strip() for one in self.url.split(",")]


class S3Settings(SettingsGroup):
    """How to reach the object store, any S3 that passes the contract suite of blob_store."""

    model_config = SettingsConfigDict(env_prefix="UPCYCLE_S3_")

    endpoint: str = "127.0.0.1:8333"
    """host:port, without a scheme."""
    access_key: SecretStr = SecretStr("upcycle")
    """Access key id."""
    secret_key: SecretStr = SecretStr("upcycle-secret")
    """Secret key; the default is what `upcycle up` gives its own loopback-only store."""
    key_file: Path | None = None
    """JSON file with `access_key` and `secret_key`, in their place; only its user may open it.
    `upcycle store keys` makes one for each service."""
    bucket: str = Field("upcycle", min_length=3, max_length=63)
    """Bucket that holds everything this deployment stores."""
    secure: bool = False
    """Speak https."""
    ca: Path | None = None
    """Certificates, in PEM form, that sign the one of the store, with SECURE; unset: those of
    the system."""
    region: str = "us-east-1"
    """Region that requests are signed for."""
    part_bytes: int = Field(16 << 20, ge=5 << 20, le=5 << 30)
    """Larger files are uploaded in parts of so many bytes; a store takes at most 10,000 parts of a file."""

    @field_validator("endpoint")
    @classmethod
    def _is_host_and_port(cls, endpoint: str) -> str:
        if "://" in endpoint or "/" in endpoint:
            raise ValueError(
                f"must be host:port without a scheme, got {endpoint!r}; use UPCYCLE_S3_SECURE for https"
            )
        return endpoint

    @field_validator("key_file", mode="before")
    @classmethod
    def _names_a_file(cls, path: object) -> object:
        """An empty variable is how a container of a list of containers goes without."""
        return None if path == "" else path

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        named = self.model_fields_set & {"access_key", "secret_key"}
        if self.key_file is not None and any(getattr(self, name).get_secret_value() for name in named):
            raise ValueError(
                "UPCYCLE_S3_KEY_FILE and UPCYCLE_S3_ACCESS_KEY are two keys: name the file or give the key; "
                "unset one"
            )
        return self

    @model_validator(mode="after")
    def _uses_its_ca(self) -> Self:
        if self.ca is not None and not self.secure:
            raise ValueError("UPCYCLE_S3_CA without UPCYCLE_S3_SECURE=true: requests would go in the clear")
        return self


class SigningSettings(SettingsGroup):
    """Signatures of manifests and training states in the object store. Files of keys are read at the start;
    `upcycle signing keys` makes them."""

    model_config = SettingsConfigDict(env_prefix="UPCYCLE_SIGNING_")

    key: Path | None = None
    """Private key, in PEM form, with which this process signs what it writes; only its user may open it."""
    trusted: Path | None = None
    """Public keys whose signatures count, each a line as OpenSSH writes it. Set: manifests and states are
    proven before they are used. Unset: what lies in the store is believed."""
    unsigned: Literal["refuse", "accept"] = "refuse"
    """What no key of TRUSTED has signed: `accept` uses it, with a warning in the log, while some processes do
    not sign yet. A false signature of a trusted key is refused either way."""

    @model_validator(mode="after")
    def _proves_what_it_accepts(self) -> Self:
        if self.trusted is None and self.unsigned == "accept":
            raise ValueError("UPCYCLE_SIGNING_UNSIGNED=accept without UPCYCLE_SIGNING_TRUSTED says nothing")
        return self


class WriterSigningSettings(SigningSettings):
    """The same for a process that writes manifests or states."""

    @model_validator(mode="after")
    def _signs_what_it_reads_again(self) -> Self:
        if self.trusted is not None and self.key is None and self.unsigned == "refuse":
            raise ValueError(
                "UPCYCLE_SIGNING_TRUSTED without UPCYCLE_SIGNING_KEY: this process would refuse what it "
                "wrote itself; name its key"
            )
        return self


class PeerSettings(SettingsGroup):
    """Where the gRPC services (and the gateway) of this deployment listen, each host:port."""

    model_config = SettingsConfigDict(env_prefix="UPCYCLE_PEERS_")

    tasksets: str = "127.0.0.1:7101"
    """TasksetService of scenario_runner."""
    environments: str = "127.0.0.1:7101"
    """EnvironmentService of scenario_runner."""
    trajectories: str = "127.0.0.1:7105"
    """TrajectoryService of trajectory_store."""
    training: str = "127.0.0.1:7106"
    """TrainingService of grpo_trainer."""
    registry: str = "127.0.0.1:7107"
    """RegistryService of checkpoint_registry."""
    grading: str = "127.0.0.1:7108"
    """GradingService of reward_grader."""
    gateway: str = "127.0.0.1:7180"
    """Public HTTP address of model_gateway."""


class AccessSettings(SettingsGroup):
    """Keys of the gRPC calls. Several of one kind are separated by commas: all of them are accepted, and the
    first is the one that is sent, so a key is replaced in two restarts."""

    model_config = SettingsConfigDict(env_prefix="UPCYCLE_ACCESS_")

    service_key: SecretStr = SecretStr("")
    """Key that the services of one deployment send each other; at least 16 characters."""
    operator_key: SecretStr = SecretStr("")
    """Key of the operator, for `upcycle` commands: what users may, and imports, heads, deployed code and
    removal. At least 16 characters; only services that serve gRPC need it."""
    user_keys: SecretStr = SecretStr("")
    """Keys of users, each as NAME:KEY, separated by commas; at least 16 characters a key."""
    open: bool = False
    """Serve callers without keys: all who reach a port may do everything. For tests of one machine."""
    oidc_issuer: str = ""
    """Issuer of tokens of people (OpenID Connect), as their `iss` names it. Set: gRPC servers and the gateway
    take its tokens beside keys."""
    oidc_audience: str = ""
    """What `aud` of such a token must hold: the name of this platform at the issuer."""
    oidc_jwks_url: str = ""
    """Where the issuer's public keys are, as its /.well-known/openid-configuration says (`jwks_uri`)."""
    oidc_role_claim: str = "roles"
    """Claim with a person's roles at the issuer, a text or a list; dots lead into objects, as in
    realm_access.roles."""
    oidc_operator_roles: tuple[str, ...] = ()
    """Values of that claim that make a person an operator, as JSON list."""
    oidc_user_roles: tuple[str, ...] = ()
    """The same that make a user. A person with none of either is refused."""
    oidc_name_claim: str = "sub"
    """Claim that names a person in records, as oidc:NAME; one that a person cannot change."""
    oidc_tenant_claim: str = ""
    """Claim that must hold the tenant of this platform (UPCYCLE_TENANT), a text or a list; dots lead into
    objects. Empty: the issuer is of one tenant."""

    @field_validator("service_key", "operator_key", "user_keys")
    @classmethod
    def _has_good_keys(cls, keys: SecretStr, info: ValidationInfo) -> SecretStr:
        for key in _listed(keys):
            name, _, secret = key.rpartition(":") if info.field_name == "user_keys" else ("all", "", key)
            if not name:
                raise ValueError("must be NAME:KEY pairs, separated by commas")
            if name in _ROLES:
                raise ValueError(f"a user cannot be called {name!r}: records name callers of other roles so")
            if len(secret) < MIN_KEY_CHARS:
                raise ValueError(f"a key has {len(secret)} characters, needs at least {MIN_KEY_CHARS}")
        return keys

    @model_validator(mode="after")
    def _gives_each_key_one_role(self) -> Self:
        users = [key.rpartition(":")[2] for key in _listed(self.user_keys)]
        keys = [*self.service_keys, *self.operator_keys, *users]
        if len(set(keys)) < len(keys):
            raise ValueError("one key stands for two callers; make one for each: openssl rand -hex 24")
        return self

    @model_validator(mode="after")
    def _names_an_issuer_whole(self) -> Self:
        given = (self.oidc_issuer, self.oidc_audience, self.oidc_jwks_url)
        if not any(given):
            return self
        if not all(given):
            raise ValueError(
                "UPCYCLE_ACCESS_OIDC_ISSUER, _AUDIENCE and _JWKS_URL go together: set all three or none"
            )
        if not self.oidc_operator_roles and not self.oidc_user_roles:
            raise ValueError(
                "UPCYCLE_ACCESS_OIDC_USER_ROLES and _OPERATOR_ROLES are empty: no person has a role"
            )
        url = urlsplit(self.oidc_jwks_url)
        if url.scheme != "https" and url.hostname not in _THIS_MACHINE:
            raise ValueError(
                "UPCYCLE_ACCESS_OIDC_JWKS_URL: others could answer with keys of theirs; use https"
            )
        return self

    @property
    def service_keys(self) -> tuple[str, ...]:
        """The keys of `service_key`, the one to send first."""
        return _listed(self.service_key)

    @property
    def operator_keys(self) -> tuple[str, ...]:
        """The keys of `operator_key`."""
        return _listed(self.operator_key)

    @property
    def users(self) -> dict[str, str]:
        """Key -> name of its user, who may have several."""
        pairs = (pair.rpartition(":") for pair in _listed(self.user_keys))
        return {key: name for name, _, key in pairs}

    @property
    def sent(self) -> str | None:
        """The key to send to other services; None: none is set."""
        return next(iter(self.service_keys), None)


class TlsSettings(SettingsGroup):
    """Certificates of gRPC and engines, files in PEM form; replaced files hold for the next connection."""

    model_config = SettingsConfigDict(env_prefix="UPCYCLE_TLS_")

    ca: Path | None = None
    """Certificates that sign those of the deployment. Set: gRPC calls of this process are encrypted, and go
    only to servers that these vouch for."""
    certificate: Path | None = None
    """Certificate of this process, followed by those between it and its CA. Set: its gRPC port speaks TLS
    only, and servers that ask for a certificate get this one."""
    key: Path | None = None
    """Private key of the certificate."""
    clients: bool = False
    """Admit only callers that show a certificate which one of CA signed (mutual TLS)."""
    engines: bool = False
    """Engines speak https: supervisors start them with the above, sampler and gateway call no others."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("UPCYCLE_TLS_CERTIFICATE and UPCYCLE_TLS_KEY go together: set both or neither")
        if self.clients and (self.ca is None or self.certificate is None):
            raise ValueError("UPCYCLE_TLS_CLIENTS needs UPCYCLE_TLS_CA, _CERTIFICATE and _KEY")
        if self.engines and self.ca is None:
            raise ValueError("UPCYCLE_TLS_ENGINES needs UPCYCLE_TLS_CA: which engines are trusted")
        if self.certificate is not None and self.ca is None:
            what = "this process would listen in TLS and call others in the clear; name the CA"
            raise ValueError(f"UPCYCLE_TLS_CERTIFICATE without UPCYCLE_TLS_CA: {what}")
        return self


class EdgeSettings(SettingsGroup):
    """What callers may hold of the ports of a process, and how long they may keep it waiting. A caller beyond
    a limit is told which one it is."""

    model_config = SettingsConfigDict(env_prefix="UPCYCLE_EDGE_")

    connections: int = Field(8192, ge=1)
    """Open connections of one port. Where descriptors of files allow fewer, those are the limit."""
    connections_per_peer: int = Field(4096, ge=1)
    """Those of one address, HTTP. The one that was silent longest makes room for a new one."""
    front: str = ""
    """Addresses, separated by commas, that speak for many callers, such as a proxy in front: the limits of
    one peer are not theirs."""
    header_s: float = Field(10.0, gt=0)
    """Longest that a TLS handshake, or the head of a request, may take to arrive."""
    body_s: float = Field(120.0, gt=0)
    """Longest that the body of a request, or a gRPC request, may take to arrive."""
    stall_s: float = Field(60.0, gt=0)
    """How long a client may leave what is sent to it unread; then its connection, or its gRPC stream, is
    ended."""
    idle_s: float = Field(75.0, gt=0)
    """How long an HTTP connection may wait for its next request. Longer than a proxy in front keeps
    its own connections."""
    rpcs: int = Field(4096, ge=1)
    """gRPC calls at once, streams among them."""
    rpcs_per_peer: int = Field(2048, ge=1)
    """Those of one address."""
    keyless_rpcs: int = Field(256, ge=1)
    """gRPC calls at once without a valid key: health, each of whose watchers is one, reflection, and those
    that are being refused."""
    keyless_rpcs_per_peer: int = Field(64, ge=1)
    """Those of one address."""

    @property
    def fronts(self) -> frozenset[str]:
        """The addresses of `front`, one by one."""
        return frozenset(filter(None, (one.strip() for one in self.front.split(","))))


class ServerAccessSettings(AccessSettings):
    """The same for a process that serves gRPC: it does not start without keys."""

    @model_validator(mode="after")
    def _knows_callers(self) -> Self:
        if not self.open and not self.service_keys:
            raise ValueError(
                "set UPCYCLE_ACCESS_SERVICE_KEY (`upcycle up` makes its own), or serve every caller without "
                "a key: UPCYCLE_ACCESS_OPEN=true"
            )
        return self


def _listed(keys: SecretStr) -> tuple[str, ...]:
    return tuple(filter(None, (key.strip() for key in keys.get_secret_value().split(","))))
