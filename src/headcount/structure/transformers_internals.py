"""Attention kernels of single modules: a view of the configuration that differs for one module only.

transformers chooses the kernel by `module.config._attn_implementation`, for the whole model at once. A `ConfigView`
in place of one module's `config` names one of our functions there; that function does its part and passes the rest to
the kernel that the user chose, whichever it is at that moment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

UNGROUPED = "headcount_ungrouped"
ALIGNMENT = 64  # bytes, as torch allocates


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


def bias_only(projection: Any, hidden: Tensor) -> Tensor:
    """What an output projection without inputs puts out: its bias, or zero.  (B, T, hidden)"""
    bias = projection.bias
    if bias is None:
        return hidden.new_zeros(*hidden.shape[:-1], projection.weight.shape[0])
    return bias.to(hidden.dtype).expand(*hidden.shape[:-1], -1)


class Emptied:
    """Stands in front of an attention class whose heads have all been removed."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]  # (B, T, hidden)
        projected = bias_only(self.headcount_output(), hidden)  # type: ignore[attr-defined]
        output = self.finish(projected, hidden, args, kwargs)
        self.keep_cache_length(hidden, kwargs)
        return output

    def finish(self, projected: Tensor, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the attention class returns, given what the output projection has put out."""
        return projected, None

    def keep_cache_length(self, hidden: Tensor, kwargs: dict[str, Any]) -> None:
        """Tell the cache how many tokens have passed: it reads that from the first layer's keys.

        A tensor without heads would count as an empty cache, so one number per token is kept instead.
        """
        cache = kwargs.get("past_key_values", kwargs.get("layer_past"))
        layer, kind = getattr(self, "layer_idx", None), self.headcount_kind  # type: ignore[attr-defined]
        if cache is None or kind not in ("decoder", "cross"):
            return
        placeholder = hidden.new_zeros(hidden.shape[0], 1, hidden.shape[1], 1)  # (B, 1, T, 1)
        if kind == "decoder":
            getattr(cache, "self_attention_cache", cache).update(placeholder, placeholder, layer)
        elif hasattr(cache, "cross_attention_cache") and not cache.is_updated.get(layer):
            cache.cross_attention_cache.update(placeholder, placeholder, layer)  # Whisper reads it after generation
            cache.is_updated[layer] = True


class EmptiedContext(Emptied):
    """For attention classes that return the heads' outputs and leave the projection to their parent."""

    def finish(self, projected: Tensor, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return hidden.new_zeros(*hidden.shape[:-1], 0), None


def device_of(model: Any) -> torch.device:
    """The device that inputs go to.

    >>> device_of(torch.nn.Linear(2, 2))
    device(type='cpu')

    Weights that accelerate keeps elsewhere until they are needed are on no device at all; its hook in front of the
    model knows where they will be used.
    """
    for weight in model.parameters():
        if weight.device.type != "meta":
            return weight.device
    for module in model.modules():
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    return torch.device("cpu")


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
