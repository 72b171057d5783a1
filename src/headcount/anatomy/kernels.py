"""Attention kernels of single modules: a view of the configuration that differs for one module only.

transformers chooses the kernel by `module.config._attn_implementation`, for the whole model at once. A `ConfigView`
in place of one module's `config` names one of our functions there; that function does its part and passes the rest to
the kernel that the user chose, whichever it is at that moment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

UNGROUPED = "headcount_ungrouped"


class ConfigView:
    """A configuration as one module shall see it: some values replaced, all others live from the original.

    >>> from types import SimpleNamespace
    >>> view = ConfigView(SimpleNamespace(heads=8, size=4), heads=3)
    >>> view.heads, view.size
    (3, 4)
    """

    def __init__(self, base: Any, **replaced: Any) -> None:
        self.__dict__.update(_base=base, _replaced=replaced)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_replaced" not in self.__dict__:
            raise AttributeError(name)
        return self._replaced[name] if name in self._replaced else getattr(self._base, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._base, name, value)


def kernel_below(module: Any, own_name: str) -> Callable[..., Any]:
    """The attention function that one of ours stands in front of."""
    config = module.config
    while isinstance(config, ConfigView) and config._replaced.get("_attn_implementation") != own_name:
        config = config._base
    name = getattr(config, "_base", config)._attn_implementation
    namespace = _namespace(module.__class__)
    return namespace["ALL_ATTENTION_FUNCTIONS"].get_interface(name, namespace["eager_attention_forward"])


def _namespace(cls: type) -> dict[str, Any]:
    """What the module that defines an attention class calls by name."""
    return next(
        sys.modules[base.__module__].__dict__
        for base in cls.__mro__
        if "ALL_ATTENTION_FUNCTIONS" in sys.modules[base.__module__].__dict__
    )


def select_heads(tensor: Tensor, heads: Sequence[int]) -> Tensor:
    """Some heads of a tensor (B, heads, …), in that order and as often as named.

    >>> select_heads(torch.arange(3.0).view(1, 3, 1), (0, 0, 2)).flatten().tolist()
    [0.0, 0.0, 2.0]

    The same as `tensor[:, heads]`, and several times faster: PyTorch has a kernel of its own for it, and the index is
    made once. A graph that is being traced makes its own: a traced tensor must not outlive it.
    """
    if type(tensor) is not Tensor or torch.compiler.is_compiling():
        return tensor.index_select(1, torch.tensor(heads, dtype=torch.long, device=tensor.device))
    return tensor.index_select(1, _index(tuple(heads), tensor.device))


@cache
def _index(positions: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # it may be needed where gradients are, too
        return torch.tensor(positions, dtype=torch.long, device=device)


def has_interface(module: nn.Module) -> bool:
    """Whether the module's attention goes through transformers' interface, so that we can stand in front of it."""
    return hasattr(module, "config") and any(
        "ALL_ATTENTION_FUNCTIONS" in sys.modules[cls.__module__].__dict__ for cls in type(module).__mro__
    )


def ungrouped(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> Any:
    """Attention where query heads share key-value heads unevenly: give each query head its own view of one."""
    index = module.headcount_kv_index
    key, value = select_heads(key, index), select_heads(value, index)
    return kernel_below(module, UNGROUPED)(module, query, key, value, attention_mask, **kwargs)


AttentionInterface.register(UNGROUPED, ungrouped)
