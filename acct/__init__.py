"""Asymmetric cross-LLM context transfer (ACCT): the three modules, their training and their evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acct.transfer import ContextTransfer

__all__ = ["ContextTransfer"]


def __getattr__(name: str) -> Any:
    """`ContextTransfer`, imported when it is first asked for: importing the package stays cheap and changes nothing."""
    if name == "ContextTransfer":
        from acct.transfer import ContextTransfer

        return ContextTransfer
    raise AttributeError(f"module 'acct' has no attribute {name!r}")
