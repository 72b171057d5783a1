"""V19's relevance: how much of the top-1 logit each head receives when it is propagated back, layer by layer (LRP).

`relevance_rules` replaces operations so that the network is linear in whatever carries relevance. Gradient times input
is then relevance, and one backward pass propagates it. `traced` records where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headcount.errors import HeadcountError
from headcount.scoring.per_example import PassOptions, collect, needs_task_head
from headcount.structure import AttentionSite, anatomy, device_of
from headcount.tasks import Batch, Task

if TYPE_CHECKING:
    from typing_extensions import Unpack

STEPS = 16
TOLERANCE = 0.01  # of the relevance that went in


def relevance(model: nn.Module, task: Task, *, steps: int | None = STEPS, **how: Unpack[PassOptions]) -> np.ndarray:
    """Each head's share of its layer's relevance for the top-1 logit (V19 section 4.2), (examples, heads).

    >>> from headcount.tasks.classification import toy_classifier
    >>> relevance(*toy_classifier()).sum(1).round(4).tolist()  # each of the two layers sums to 1
    [2.0, 2.0]

    At every step, a head's relevance is the sum over its neurons. Its share is the absolute value, divided by the sum
    over the heads of its layer. Shares are averaged over steps. A step is a token to predict from the reference's
    tokens before it; a classifier has one step.

    steps: at most this many of an example, spread evenly over it; None takes all. Each costs one backward pass.
    how: the options of the pass.
    """
    if steps is not None and steps < 1:
        raise HeadcountError(f"expected at least one step of each example, not {steps}", advice="raise {steps}")

    def shares(model: Any, task: Task, batch: Batch) -> Tensor:
        total: Any = 0.0
        count = torch.zeros(len(batch), 1, device=device_of(model))
        for values, there in step_relevances(model, task, batch, steps):
            total, count = total + _shares(model, values) * there[:, None], count + there[:, None]
        return total / count.clamp(min=1)

    return collect(model, task, shares, what="relevance", **how)


def step_relevances(model: Any, task: Task, batch: Batch, steps: int | None = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    """For each step, the signed relevance of every head, (B, heads), and which examples have this step, (B,).

    Relevance is conserved: all of the logit must arrive at the streams that enter the first layers, and at the biases.
    If more than 1% is missing, the model computes something that has no rule, and is refused.
    """
    with traced(model) as trace, relevance_rules() as rules:
        logits = _logits(model, task, batch)
    rows, there = _steps(logits, batch, steps)  # (B, S)
    flat = logits.reshape(len(batch), -1, logits.shape[-1])  # (B, positions, V)
    top = flat.amax(-1).gather(1, rows)  # (B, S)
    for step in range(top.shape[1]):
        total = (top[:, step] * there[:, step]).sum()
        *gradients, bias = torch.autograd.grad(
            total, [*trace.tensors, rules.bias], retain_graph=step + 1 < top.shape[1], allow_unused=True
        )
        received = trace.times(gradients)
        _check_conservation(model, total, received, bias, len(trace.starts))
        yield trace.by_head(received), there[:, step]


class Trace:
    """Where relevance is read: at the heads' outputs, and at the streams that enter the first layers."""

    def __init__(self, sites: tuple[AttentionSite, ...]) -> None:
        self.sites = [site for site in sites if site.kept]
        self.contexts: dict[str, list[Tensor]] = {site.name: [] for site in self.sites}  # (B, T, heads * head_dim)
        self.starts: list[Tensor] = []  # (B, T, hidden)

    @property
    def tensors(self) -> list[Tensor]:
        """The streams, then every site's outputs (several if layers share it)."""
        return [*self.starts, *(context for site in self.sites for context in self.contexts[site.name])]

    def times(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Gradient times input."""
        pairs = zip(self.tensors, gradients, strict=True)
        return [torch.zeros_like(x) if g is None else (x * g).detach() for x, g in pairs]

    def by_head(self, received: list[Tensor]) -> Tensor:
        """(B, heads)"""
        rest = iter(received[len(self.starts) :])
        batch = len(received[0])
        columns = []
        for site in self.sites:
            column = received[0].new_zeros(batch, len(site.kept))
            for _ in self.contexts[site.name]:
                column += next(rest).reshape(batch, -1, len(site.kept), site.head_dim).sum((1, 3))
            columns.append(column)
        return torch.cat(columns, dim=1)


@contextmanager
def traced(model: nn.Module) -> Iterator[Trace]:
    """Record a pass through the model; its parameters must be frozen, so that relevance starts at the first layers."""
    sites = anatomy(model).sites
    trace = Trace(sites)
    with ExitStack() as stack:
        for module in model.modules():
            if is_activation(module):
                stack.callback(module.register_forward_hook(pass_through_modules).remove)
        for block in {id(site.block): site.block for site in sites}.values():
            stack.callback(block.register_forward_pre_hook(_start(trace), with_kwargs=True).remove)
        for site in trace.sites:
            stack.callback(site.output.register_forward_pre_hook(_keep(trace.contexts[site.name])).remove)
        yield trace


def _start(trace: Trace) -> Any:
    def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        if hidden.requires_grad:
            return None
        hidden = hidden.detach().requires_grad_()
        trace.starts.append(hidden)
        return ((hidden, *args[1:]), kwargs) if args else ((), {**kwargs, "hidden_states": hidden})

    return hook


def _keep(contexts: list[Tensor]) -> Any:
    def hook(projection: nn.Module, args: tuple[Tensor, ...]) -> None:
        contexts.append(args[0])

    return hook


def _logits(model: Any, task: Task, batch: Batch) -> Tensor:
    with needs_task_head(model, "logit to propagate back"):
        return task.outputs(model, batch)


def _steps(logits: Tensor, batch: Batch, steps: int | None) -> tuple[Tensor, Tensor]:
    """(B, S) positions of each example's steps, and (B, S) which of them exist."""
    if logits.dim() < 3:
        ones = torch.ones(len(batch), 1, dtype=torch.long, device=logits.device)
        return ones - 1, ones.bool()
    real = torch.ones(logits.shape[:2], dtype=torch.bool)
    mask = batch.inputs.get("attention_mask")
    if batch.labels is not None and batch.labels.shape == real.shape:
        real = (batch.labels != -100).cpu()
    elif mask is not None and mask.shape == real.shape:
        real = mask.bool().cpu()
    chosen = []
    for row in real:
        places = row.nonzero().flatten()  # (tokens to predict,)
        keep = len(places) if steps is None else min(steps, len(places))
        chosen.append(places[torch.linspace(0, max(len(places) - 1, 0), keep).round().long()])
    padded = nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=-1).to(logits.device)
    return padded.clamp(min=0), padded >= 0


def _check_conservation(model: Any, total: Tensor, received: list[Tensor], bias: Tensor | None, starts: int) -> None:
    sent, streams = total.item(), received[:starts]
    arrived = sum(part.double().sum().item() for part in streams) + (0.0 if bias is None else bias.item())
    rounding = 100 * torch.finfo(total.dtype).eps * sum(part.double().abs().sum().item() for part in streams)
    if np.isfinite(arrived) and abs(arrived - sent) > TOLERANCE * abs(sent) + rounding:
        raise HeadcountError(
            f"relevance is not conserved in {type(model).__name__} ({arrived:.4g} of {sent:.4g} arrived): "
            "it computes something that has no rule",
            advice="choose another {method}, such as gradient",
        )


def _shares(model: Any, values: Tensor) -> Tensor:
    """Absolute relevance (B, heads), divided by the sum over each layer's heads."""
    sizes = [len(site.kept) for site in anatomy(model).sites if site.kept]
    parts = [part / part.sum(1, keepdim=True).clamp(min=1e-30) for part in values.abs().split(sizes, dim=1)]
    return torch.cat(parts, dim=1)


class relevance_rules(TorchFunctionMode):  # noqa: N801  (it is used as a context manager)
    """Inside the block, gradient times input is relevance.

    >>> x, weight = torch.tensor([2.0, 1.0], requires_grad=True), torch.tensor([[1.0, 3.0]])
    >>> with relevance_rules() as rules:
    ...     y = torch.relu(F.linear(x, weight, torch.tensor([5.0])))
    >>> y.backward()
    >>> (x * x.grad).tolist(), rules.bias.grad.item(), y.item()  # 2 + 3 + 5 = 10
    ([2.0, 3.0], 5.0, 10.0)

    bias: a leaf of 1 that multiplies every bias, so that its gradient is what all biases receive.
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
    """y = f(x), elementwise, written as x times a coefficient; where x is 0, y is a constant."""
    zero = x == 0
    ratio = (y / torch.where(zero, 1, x)).detach()
    return torch.where(zero, y.detach(), x * ratio)


def pass_through_modules(module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor | None:
    """A forward hook for activations that are modules, since these can consist of many operations (GPT-2's GELU)."""
    x: Any = args[0] if args else None
    same = _active(x) and isinstance(output, Tensor) and x.shape == output.shape
    return passed_through(x, output) if same else None


def is_activation(module: nn.Module) -> bool:
    """Whether a module has no parts, parameters or buffers, and yet computes something.

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
    """A summand that carries no relevance is a bias."""
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
    """If both factors carry relevance, each gets half."""
    if _active(x) and _active(y):
        return (func(x, y.detach()) + func(x.detach(), y)) / 2
    return func(x, y)


def _everywhere(names: str, rule: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    """The rule for the functions and the tensor methods of these names."""
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
