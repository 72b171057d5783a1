"""`capture`: attention maps and outputs of heads and neurons of all that runs inside the block, under every kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from headcount.errors import HeadcountError, counted
from headcount.structure import (
    AttentionSite,
    FeedForwardSite,
    Site,
    anatomy,
    has_interface,
    has_view,
    hidden_of,
    kernel_below,
    kernel_of,
    pop_view,
    push_view,
    refuse_exported,
)

CAPTURE = "headcount_capture"  # the name of our kernel, and of the view that puts it at a module


class SiteTensors:
    """What each site produced, found by the site or by its name (`"encoder.3"`)."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Tensor]] = {}

    def __getitem__(self, site: Site | str) -> Tensor:
        name = site if isinstance(site, str) else site.name
        calls = self.calls.get(name, [])
        if not calls:
            recorded = ", ".join(self.calls) or "nothing"
            raise HeadcountError(f"{name} did not run inside capture, or has nothing left; recorded: {recorded}")
        if len(calls) > 1:
            raise HeadcountError(
                f"{name} ran {len(calls)} times inside capture", advice=f"read the list .calls[{name!r}] instead"
            )
        return calls[0]

    def __repr__(self) -> str:
        return f"<{counted(len(self.calls), 'site')}: {', '.join(self.calls)}>" if self.calls else "<nothing>"

    def add(self, site: Site, tensor: Tensor) -> None:
        self.calls.setdefault(site.name, []).append(tensor)


class Captured:
    """`attention[site]` is (B, heads, T, S), `contexts[site]` (B, T, units, width), of the units that are left."""

    def __init__(self) -> None:
        self.attention = SiteTensors()
        self.contexts = SiteTensors()

    def __repr__(self) -> str:
        return f"<captured attention {self.attention}, contexts {self.contexts}>"


@contextmanager
def capture(
    model: nn.Module, attention: bool = True, contexts: bool = True, *, units: str | Iterable[str] = "heads"
) -> Iterator[Captured]:
    """Record attention weights and the outputs of heads or neurons; the model's own outputs stay what they are.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)).eval()
    >>> with capture(model) as seen:
    ...     output = model(torch.tensor([[5, 6, 7]]))
    >>> seen.attention["encoder.0"].shape, seen.contexts["encoder.1"].shape
    (torch.Size([1, 4, 3, 3]), torch.Size([1, 3, 4, 8]))
    >>> with capture(model, units="neurons") as seen:
    ...     output = model(torch.tensor([[5, 6, 7]]))
    >>> seen.contexts["encoder_ffn.1"].shape
    torch.Size([1, 3, 3072, 1])

    units: of which sites, as for `anatomy`: "heads", "neurons", or "sublayers" for both.

    Contexts are what enters the output projection: a mask set outside the block has been applied to them. A site that
    runs several times inside the block (generation, ALBERT's shared layers) keeps every call in `.calls[name]`.
    """
    refuse_exported(model)
    seen = Captured()
    with ExitStack() as stack:
        for site in anatomy(model, units).sites:
            if not site.kept:
                continue
            if contexts:
                _keep_contexts(site, seen, stack)
            if attention and isinstance(site, AttentionSite):
                _watch_attention(site, seen, stack)
        yield seen


def is_captured(site: Site) -> bool:
    """Whether a `capture` block watches the attention of a site at this moment."""
    return has_view(site.module, CAPTURE)


def _keep_contexts(site: Site, seen: Captured, stack: ExitStack) -> None:
    shape: list[int] = []  # (B, T), as the layer sees it

    def enter(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shape[:] = hidden_of(args, kwargs).shape[:-1]

    def keep(projection: nn.Module, args: tuple[Tensor, ...]) -> None:
        context = args[0]
        if shape and context.ndim == 2:  # OPT's feed-forward layers get (B * T, units)
            context = context.unflatten(0, shape)
        seen.contexts.add(site, context.unflatten(-1, (len(site.kept), site.width)))

    if isinstance(site, FeedForwardSite):
        stack.callback(site.block.register_forward_pre_hook(enter, with_kwargs=True).remove)
    stack.callback(site.output.register_forward_pre_hook(keep).remove)


def _watch_attention(site: AttentionSite, seen: Captured, stack: ExitStack) -> None:
    module: Any = site.module
    if site.family.returns_weights:
        stack.callback(module.register_forward_pre_hook(_ask_for_weights(module), with_kwargs=True).remove)
    elif not has_interface(module):
        raise HeadcountError(f"{site.name} ({type(module).__name__}) gives no access to its attention weights")
    elif kernel_of(module) != "eager":
        _watch_kernel(module, partial(seen.attention.add, site), stack)
        return
    stack.callback(module.register_forward_hook(lambda m, args, output: seen.attention.add(site, output[-1])).remove)


def _ask_for_weights(module: nn.Module) -> Any:
    """For modules without the attention interface: they return their weights when asked; nobody else reads them."""
    signature = inspect.signature(type(module).forward)

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = signature.bind(module, *args, **kwargs)
        if "output_attentions" in signature.parameters:
            bound.arguments["output_attentions"] = True
        else:
            bound.arguments.setdefault("kwargs", {})["output_attentions"] = True
        return bound.args[1:], bound.kwargs

    return hook


def _watch_kernel(module: Any, watcher: Callable[[Tensor], None], stack: ExitStack) -> None:
    """Run our kernel at a module; blocks that overlap share it, and the last one to end takes it away."""
    if not has_view(module, CAPTURE):
        push_view(module, CAPTURE, kernel=CAPTURE, headcount_watchers=[])
    module.config.headcount_watchers.append(watcher)
    stack.callback(_stop_watching, module, watcher)


def _stop_watching(module: Any, watcher: Callable[[Tensor], None]) -> None:
    module.config.headcount_watchers.remove(watcher)
    if not module.config.headcount_watchers:
        pop_view(module, CAPTURE)


def _watching(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> Any:
    """Run the user's kernel, and once more on the identity: what attention makes of it are its weights."""
    kernel = kernel_below(module, CAPTURE)
    output = kernel(module, query, key, value, attention_mask, **kwargs)
    weights = _on_identity(kernel, module, query, key, value, attention_mask, {**kwargs, "dropout": 0.0})
    for watcher in module.config.headcount_watchers:
        watcher(weights)
    return output


def _on_identity(
    kernel: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, kwargs: dict[str, Any]
) -> Tensor:
    """softmax(QK) I = softmax(QK): (B, heads, T, S), by as many columns at a time as a value has."""
    length, size = key.shape[-2], value.shape[-1]
    columns = []
    for start in range(0, length, size):
        identity = value.new_zeros(length, size)
        identity[start : start + size, : length - start] = torch.eye(size, dtype=value.dtype, device=value.device)[
            : length - start, : length - start
        ]
        columns.append(kernel(module, query, key, identity.expand_as(value), mask, **kwargs)[0])  # (B, T, heads, size)
    return torch.cat(columns, dim=-1)[..., :length].transpose(1, 2)


AttentionInterface.register(CAPTURE, _watching)
