"""A closed-form linear map as a row: every position mapped and mounted, nothing selected, or those that ACCT keeps (spec 11)."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from acct.errors import ArtifactError
from acct.methods.base import SparseMethod
from acct.methods.prepared import Prepared
from acct.methods.ridge_map import KEPT, map_of_row
from acct.types import SparseKV


class RidgeRow(SparseMethod):
    """The fitted map of the row's name; N slots in every unit at their own positions, whatever the budget is.

    `ridge_<m>_kept` mounts the same vectors at ACCT's selection, so that the map and the Compiler answer from the same positions.
    """

    on_request: ClassVar[bool] = True
    compiles: ClassVar[bool] = False

    def states(self, prepared: Prepared) -> SparseKV:
        fitted = map_of_row(self.name) or self.name
        linear = prepared.interface.linear_maps.get(fitted)
        if linear is None:
            raise ArtifactError(
                f"{fitted} has no fitted map here. Fit it with acct train stage=ridge, then load it with acct.training.ridge.with_ridge."
            )
        return prepared.mapped_by(linear, prepared.selection if self.name.endswith(KEPT) else None)


@cache
def ridge_row(name: str) -> type[RidgeRow]:
    """The row of one map, a final leaf: the name says from how many layers it reads, and at which positions (`ridge_map.map_of_row`)."""
    return type(f"RidgeRow_{name}", (RidgeRow,), {"name": name, "__doc__": RidgeRow.__doc__})
