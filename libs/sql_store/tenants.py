"""Whose rows a statement sees, and whose tables a database has.

Names that owners choose (of models, tasksets, requests) mean something only within a tenant, so every query
by such a name goes through `owned`. A database belongs to one tenant: a process of another one refuses it.
"""

from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    String,
    Table,
    and_,
    bindparam,
    column,
    inspect,
    select,
    table,
    update,
)

from identities.tenants import ONLY_TENANT, OWN_TENANT, VARIABLE
from sql_store.errors import OtherTenant


def current_tenant() -> str:
    """Whose rows the running transaction works with: those of the tenant of this process."""
    return OWN_TENANT


_TENANT: Final[BindParameter[str]] = bindparam("of_tenant", callable_=current_tenant, type_=String)
"""Looked up each time that a statement runs, also one that was built before."""


def owned(table: Table, **equal: Any) -> ColumnElement[bool]:
    """Rows of the current tenant whose columns equal these values."""
    return and_(table.c.tenant == _TENANT, *(table.c[name] == value for name, value in equal.items()))


def take_for_tenant(connection: Connection, versions: str, *, is_new: bool) -> None:
    """Note whose the tables are where it is not noted yet, beside their version; tables of before belong to
    the only tenant that there was. versions: the table with their version. Raises OtherTenant."""
    noted = table(versions, column("tenant"))
    if "tenant" not in {one["name"] for one in inspect(connection).get_columns(versions)}:
        kind = f"VARCHAR(64) NOT NULL DEFAULT '{ONLY_TENANT}'"
        connection.exec_driver_sql(f"ALTER TABLE {versions} ADD COLUMN tenant {kind}")
        if is_new:
            connection.execute(update(noted).values(tenant=current_tenant()))
    owner = connection.execute(select(noted.c.tenant)).scalar_one()
    if owner != current_tenant():
        raise OtherTenant(
            f"the tables of {versions.removesuffix('_version')} belong to tenant {owner!r}, and this process "
            f"works for {current_tenant()!r}: give it a database of its own, or set {VARIABLE}={owner}"
        )
