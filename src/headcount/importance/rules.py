"""Rules of layer-wise relevance propagation, for the operations of one block of code (V19, appendix A).

Inside `relevance_rules` every operation is linear in what carries relevance, with coefficients fixed at their values;
outputs stay what they are. So relevance is gradient times input: a sum v = sum_u w_uv u passes on w_uv u / v of its
relevance, V19's rule for linear maps and residual sums, and nothing has to be divided. A `TorchFunctionMode` sees the
operations of this block and thread only: no class, no table and no other model is touched.

| operation | rule |
|-|-|
| linear map, sum, residual | by share; a bias, or whatever is added that carries no relevance, takes its own share |
| attention: weights times values | the weights are coefficients: everything goes to the values |
| layer norm, RMS norm, division | the statistics are coefficients |
| activation | passed through: f(u) = u (f(u) / u) |
| other products of two (gated feed-forward layers) | one half each |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class relevance_rules(TorchFunctionMode):  # noqa: N801  (it is used as a context manager)
    """As long as the block lasts, gradient times input is relevance.

    >>> x, weight = torch.tensor([2.0, 1.0], requires_grad=True), torch.tensor([[1.0, 3.0]])
    >>> with relevance_rules() as rules:
    ...     y = torch.relu(F.linear(x, weight, torch.tensor([5.0])))
    >>> y.backward()
    >>> (x * x.grad).tolist(), rules.bias.grad.item(), y.item()  # 2 + 3 + 5 = 10
    ([2.0, 3.0], 5.0, 10.0)

    bias: a leaf that is 1 and multiplies every bias: its gradient is the share of all biases together.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.ones((), requires_grad=True)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(func)
        if rule is None or not any(map(_active, args)) or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        return rule(self.bias, func, *args, **kwargs)


def passed_through(x: Tensor, y: Tensor) -> Tensor:
    """y = f(x), elementwise, as x times a coefficient; where x is 0, y is kept as a constant."""
    zero = x == 0
    ratio = (y / torch.where(zero, 1, x)).detach()
    return torch.where(zero, y.detach(), x * ratio)


def pass_through_modules(module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor | None:
    """A forward hook for activations that are modules, which may be made of many operations (GPT-2's GELU)."""
    x: Any = args[0] if args else None
    same = _active(x) and isinstance(output, Tensor) and x.shape == output.shape
    return passed_through(x, output) if same else None


def is_activation(module: nn.Module) -> bool:
    """A module without parts, parameters or buffers that does something of its own.

    >>> is_activation(nn.GELU()), is_activation(nn.Dropout()), is_activation(nn.Linear(2, 2))
    (True, False, False)
    """
    inside = (*module.children(), *module.parameters(recurse=False), *module.buffers(recurse=False))
    return not inside and not isinstance(module, (nn.Softmax, nn.Dropout, nn.Identity))


def _active(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _linear(share: Tensor, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return func(x, weight) if bias is None else func(x, weight) + bias * share.to(x)


def _addmm(share: Tensor, func: Any, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """GPT-2's linear map."""
    return _linear(share, torch.mm, x, weight, bias)


def _add(share: Tensor, func: Any, x: Any, y: Any, **kwargs: Any) -> Tensor:
    """Of two summands, the one that carries no relevance is a bias."""
    if not _active(x):
        return func(x * share.to(y), y, **kwargs)
    return func(x, y if _active(y) else y * share.to(x), **kwargs)


def _layer_norm(
    share: Tensor, func: Any, x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    axes = tuple(range(-len(shape), 0))
    centred = x - x.mean(axes, keepdim=True)
    spread = centred.detach().float().pow(2).mean(axes, keepdim=True)  # in float32 as the fused kernel has it
    y = centred * (spread + eps).rsqrt().to(x.dtype)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias * share.to(y)


def _multiple(share: Tensor, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return passed_through(x, func(x, *args, **{**kwargs, **({"inplace": False} if "inplace" in kwargs else {})}))


def _attention(
    share: Tensor, func: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    return func(query.detach(), key.detach(), value, *args, **kwargs)


def _coefficient(share: Tensor, func: Any, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs).detach()


def _divide(share: Tensor, func: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    return func(x, y.detach() if isinstance(y, Tensor) else y, **kwargs)


def _product(share: Tensor, func: Any, x: Any, y: Any) -> Any:
    """Both factors carry relevance: one half each."""
    if _active(x) and _active(y):
        return (func(x, y.detach()) + func(x.detach(), y)) / 2
    return func(x, y)


def _everywhere(names: str, rule: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    """The rule for functions of these names, and for methods of tensors."""
    places = [(place, name) for name in names.split() for place in (torch, Tensor, F)]
    return {getattr(place, name): rule for place, name in places if hasattr(place, name)}


RULES: dict[Any, Callable[..., Any]] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    F.layer_norm: _layer_norm,
    F.scaled_dot_product_attention: _attention,
    **_everywhere("add sub add_ sub_ __rsub__", _add),
    **_everywhere("relu gelu silu mish elu leaky_relu softplus tanh sigmoid rms_norm normalize", _multiple),
    **_everywhere("softmax sqrt rsqrt pow __pow__ norm __rdiv__", _coefficient),
    **_everywhere("div true_divide", _divide),
    **_everywhere("mul matmul bmm", _product),
}
