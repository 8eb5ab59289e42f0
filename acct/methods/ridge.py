"""A closed-form linear map of the whole context as a row: every position mapped and mounted, nothing selected (spec 11)."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from acct.errors import ArtifactError
from acct.methods.base import SparseMethod
from acct.methods.prepared import Prepared
from acct.types import SparseKV


class RidgeRow(SparseMethod):
    """The fitted map of the row's name; N slots in every unit at their own positions, whatever the budget is."""

    on_request: ClassVar[bool] = True

    def states(self, prepared: Prepared) -> SparseKV:
        linear = prepared.interface.linear_maps.get(self.name)
        if linear is None:
            raise ArtifactError(
                f"{self.name} has no fitted map here. Fit it with acct train stage=ridge, then load it with acct.training.ridge.with_ridge."
            )
        return prepared.mapped_by(linear)


@cache
def ridge_row(name: str) -> type[RidgeRow]:
    """The row of one map, a final leaf: the name says from how many layers it reads (`ridge_map.parse_ridge`)."""
    return type(f"RidgeRow_{name}", (RidgeRow,), {"name": name, "__doc__": RidgeRow.__doc__})
