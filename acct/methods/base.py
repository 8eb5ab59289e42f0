"""What a method is: for a batch, which model answers, what is mounted in it, and which tokens it reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from acct.methods.prepared import Prepared
from acct.models.adapter import ModelAdapter
from acct.models.pair import Pair
from acct.types import SparseKV


@dataclass(frozen=True)
class Mount:
    """What the harness runs.

    Attributes:
        adapter: the model that answers. context: rotated keys and values to mount, or None for nothing.
        query_ids: int64 [batch, query], read after what is mounted. query_lengths: int64 [batch].
    """

    adapter: ModelAdapter
    context: SparseKV | None
    query_ids: Tensor
    query_lengths: Tensor


class Method(ABC):
    """One row of a table. A new one is one class, one line in the registry and one test.

    Attributes:
        name: registry name, also in the records. control: must be clearly worse than ACCT, or the run is invalid.
        on_request: left out unless `evaluation.methods` names it. compiles: reads the Compiler, or may do so.
    """

    name: ClassVar[str]
    control: ClassVar[bool] = False
    on_request: ClassVar[bool] = False
    compiles: ClassVar[bool] = False

    def applicable(self, pair: Pair) -> str | None:
        """Why this method cannot run on a pair, or None if it can."""
        return None

    @abstractmethod
    def mount(self, prepared: Prepared) -> Mount:
        """What to mount and to read for a prepared batch. Nothing in `prepared` is changed."""


class SparseMethod(Method):
    """Methods in which the target reads the query only, over mounted keys and values."""

    compiles: ClassVar[bool] = True

    def mount(self, prepared: Prepared) -> Mount:
        target = prepared.pair.target
        batch = prepared.on(target)
        return Mount(target, self.states(prepared), batch.query_ids, batch.query_lengths)

    @abstractmethod
    def states(self, prepared: Prepared) -> SparseKV:
        """The rotated keys and values."""
