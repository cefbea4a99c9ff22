"""The kind of a column, from what the catalog says of its type."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace import spellings
from tailrace.kinds import OTHER, Kind

FIRST_OF_USERS = 16_384
"""The first oid of a type that did not come with PostgreSQL itself."""
ENUM, STRING = "e", "S"
"""How the catalog marks enums, and types that are texts."""


@dataclass(frozen=True)
class BaseType:
    """A type that is no domain, as the catalog has it; `domain`: what was asked for is one over it. `form` and
    `category` are its `typtype` and `typcategory`, `element` the oid of an array's, or 0."""

    oid: int
    modifier: int
    spelled: str
    form: str
    category: str
    element: int
    delimiter: str
    domain: bool = False


def kind_of(found: BaseType, element: BaseType | None) -> Kind:
    """The kind of a column of this type; `element`: of an array. The elements of an array of a domain over an array are
    the database's own text."""
    if element is not None:
        kind = Kind("array", element=OTHER if element.element else kind_of(element, None))
    elif found.form == ENUM:
        kind = Kind("enum")
    elif found.oid < FIRST_OF_USERS:
        kind = spellings.kind_of_scalar(found.spelled) or OTHER
    else:
        kind = Kind("text") if found.category == STRING else OTHER
    return replace(kind, domain=found.domain)
