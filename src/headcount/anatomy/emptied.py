"""Attention with no heads left: nothing is attended to, only the output projection's bias is added."""

from __future__ import annotations

from typing import Any

from torch import Tensor


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
