"""Which rows a statement may see. Names that owners choose (of models, tasksets, requests) mean something
only within a tenant, so every query by such a name goes through `owned`.
"""

from typing import Any, Final

from sqlalchemy import BindParameter, ColumnElement, String, Table, and_, bindparam

from identities.tenants import DEFAULT_TENANT


def current_tenant() -> str:
    """Whose rows the running transaction works with: the default tenant, until callers have keys."""
    return DEFAULT_TENANT


_TENANT: Final[BindParameter[str]] = bindparam("of_tenant", callable_=current_tenant, type_=String)
"""Looked up each time that a statement runs, also one that was built before."""


def owned(table: Table, **equal: Any) -> ColumnElement[bool]:
    """Rows of the current tenant whose columns equal these values."""
    return and_(table.c.tenant == _TENANT, *(table.c[name] == value for name, value in equal.items()))
