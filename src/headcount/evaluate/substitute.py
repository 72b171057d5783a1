"""Let modules answer something else for a while."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn


class Substitutes(ExitStack):
    """Replaces the `forward` of single modules, and gives every one back its own at the end."""

    def put(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        own = module.__dict__.get("forward")
        module.__dict__["forward"] = forward
        self.callback(self._restore, module, own)

    @staticmethod
    def _restore(module: nn.Module, own: Any) -> None:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own


def hidden_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The hidden states that a layer or attention module is called with."""
    return args[0] if args else kwargs["hidden_states"]


def with_hidden(args: tuple[Any, ...], kwargs: dict[str, Any], hidden: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with other hidden states."""
    return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})


def blank_context(site: Any, hidden: Any) -> Any:
    """Stands where heads' outputs are expected but not used: of the right shape, without memory of its own."""
    return hidden.new_zeros(()).expand(*hidden.shape[:-1], len(site.kept) * site.head_dim)
