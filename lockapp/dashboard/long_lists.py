"""Lists of millions of rows in the admin: counted up to a limit, filtered by what an index knows.

Invariant: no page of such a list costs more the more rows there are.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib.admin import SimpleListFilter
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from lockapp.handler import locks
from lockapp.querysets import first_values

if TYPE_CHECKING:
    Pages = Paginator[Any]
else:
    Pages = Paginator

MOST_ROWS = 10_000
"""Rows of a list that can be paged through; the filters and the search lead to others."""
MOST_VALUES = 50
"""Families that the filter offers; the search finds others."""


class CappedPaginator(Pages):
    """Pages of the first rows; counts no further than that."""

    @cached_property
    def capped(self) -> bool:
        """Whether there are more rows than are shown."""
        return self._counted > MOST_ROWS

    @cached_property
    def count(self) -> int:
        """How many rows there are to page through."""
        return min(self._counted, MOST_ROWS)

    @cached_property
    def _counted(self) -> int:
        # Unordered: the limit is reached by whichever index serves the filter.
        rows: Any = self.object_list
        return int(rows.order_by()[: MOST_ROWS + 1].count())


class FamilyFilter(SimpleListFilter):
    """Filters by the family; the model needs an index that starts with it."""

    title = _("family")
    parameter_name = "family"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the first of those that are there, without reading every row."""
        found = first_values(model_admin.get_queryset(request), self.parameter_name, MOST_VALUES)
        return [(value, value) for value in found if value]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the rows with the chosen value, also one that was not offered."""
        chosen = self.value()
        return queryset if chosen is None else queryset.filter(**{self.parameter_name: chosen})


class EngineFilter(FamilyFilter):
    """Filters by the engine; offers those of the settings."""

    title = _("engine")
    parameter_name = "alias"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the aliases of the settings; asks no database."""
        return [(alias, alias) for alias in locks]
