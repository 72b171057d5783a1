"""Relevance: every rule, every layer and the whole model conserve it; toy networks have a closed form."""

from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import zoo
from headcount import importance, remove
from headcount.errors import BadData, HeadcountError
from headcount.scoring import frozen
from headcount.scoring.relevance import RULES, pass_through_modules, relevance, relevance_rules, step_relevances, traced
from headcount.structure import anatomy
from toy_jobs import JOBS, classification
from zoo_tasks import ZooTask

torch.manual_seed(0)
W, B, C = torch.randn(5, 4), torch.randn(5), torch.randn(3, 4)
KEYS = torch.randn(2, 1, 3, 4)


def eager_attention(x):
    scores = (x @ KEYS[0].mT) / 2 + torch.tensor([0.0, -1.0, -torch.inf])
    return F.softmax(scores, dim=-1) @ (x @ W.T)


def rms_norm(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + W[0])


RULED = {
    "linear": lambda x: F.linear(x, W, B),
    "linear of GPT-2": lambda x: torch.addmm(B, x[0], W.T),
    "residual": lambda x: x + F.linear(x, W[:4], B[:4]),
    "a constant added": lambda x: (1 - x) + C,
    "a constant added in place": lambda x: (2 * x).add_(C),
    "attention, eager": eager_attention,
    "attention, fused": lambda x: F.scaled_dot_product_attention(x, x * 2, x @ W.T),
    "layer norm": lambda x: F.layer_norm(x, (4,), W[0], W[1]),
    "layer norm, bare": lambda x: F.layer_norm(x, (4,)),
    "RMS norm": rms_norm,
    "RMS norm, fused": lambda x: F.rms_norm(x, (4,), W[0]),
    "length": lambda x: x / x.norm(dim=-1, keepdim=True),
    "activation": lambda x: F.gelu(x) + torch.tanh(x) + F.silu(x) + torch.relu(x),
    "gate": lambda x: F.silu(x @ W.T) * (x @ W.T + B),
    "product": lambda x: x @ x.mT,
}


@pytest.mark.parametrize("rule", RULED)
def test_every_rule_conserves_relevance_and_changes_no_output(rule):
    x = torch.randn(1, 3, 4).requires_grad_()
    with relevance_rules() as rules:
        y = RULED[rule](x)
    torch.testing.assert_close(y, RULED[rule](x.detach()), atol=1e-5, rtol=1e-5)
    share = torch.randn(y.shape)  # relevance of the outputs, divided by the outputs
    (y * share).sum().backward()
    bias = 0.0 if rules.bias.grad is None else rules.bias.grad
    torch.testing.assert_close((x * x.grad).sum() + bias, (y * share).sum().detach(), atol=1e-4, rtol=1e-4)


def test_plain_gradients_do_not_conserve():
    """Without the rules, gradient times input loses or invents relevance: the tests above can fail."""
    for rule in ("layer norm", "attention, eager", "gate", "activation"):
        x = torch.randn(1, 3, 4).requires_grad_()
        y = RULED[rule](x)
        share = torch.randn(y.shape)
        (y * share).sum().backward()
        assert abs((x * x.grad).sum() - (y * share).sum()) > 0.05


def test_a_linear_network_has_the_closed_form():
    """V19 appendix A, one neuron at a time: R_u = sum_v R_v w_uv u / v, biases like any other summand."""
    x = torch.randn(4).requires_grad_()
    second = torch.randn(1, 5)
    with relevance_rules() as rules:
        hidden = F.linear(x, W, B)
        y = F.linear(hidden + 0.5, second)
    y.backward()
    by_hand, to_bias = torch.zeros(4), torch.zeros(())
    for v in range(5):
        reached = second[0, v] * (hidden[v] + 0.5)  # of y = sum_v, so this is R_v
        to_bias += reached * 0.5 / (hidden[v] + 0.5)
        passed = reached * hidden[v] / (hidden[v] + 0.5)
        to_bias += passed * B[v] / hidden[v]
        for u in range(4):
            by_hand[u] += passed.detach() * W[v, u] * x[u].detach() / hidden[v].detach()
    torch.testing.assert_close(x.detach() * x.grad, by_hand)
    torch.testing.assert_close(rules.bias.grad, to_bias.detach())


def test_halves_of_a_gate_and_values_of_attention():
    gate, up = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    with relevance_rules():
        (gate * up).backward()
    assert (gate * gate.grad).item() == (up * up.grad).item() == 3.0
    q, k, v = (torch.randn(1, 1, 3, 4).requires_grad_() for _ in range(3))
    with relevance_rules():
        F.scaled_dot_product_attention(q, k, v).sum().backward()
    assert q.grad is None
    assert k.grad is None
    assert v.grad is not None


def logits(model, task, batch):
    with traced(model) as trace, relevance_rules() as rules:
        output = task.outputs(model, batch)
    return output.reshape(len(batch), -1, output.shape[-1]).amax(-1), trace, rules


EAGER = [(name, "eager") for name in ("bert", "gpt2", "llama", "marian", "t5", "vit")]


@pytest.mark.parametrize(("name", "kernel"), [*((name, zoo.kernels(name)[-1]) for name in zoo.FAMILIES), *EAGER])
def test_the_whole_model_conserves_relevance(name, kernel):
    model = ZooTask.model(name)
    model.set_attn_implementation(kernel)
    task = ZooTask(name, model, n=1)
    batch = task.batch([0])
    with torch.no_grad():
        plain = task.outputs(model, batch)
    with frozen(model):
        top, trace, rules = logits(model, task, batch)
        torch.testing.assert_close(top, plain.reshape(1, -1, plain.shape[-1]).amax(-1), atol=1e-4, rtol=1e-4)
        came = top[0, 0]
        *gradients, bias = torch.autograd.grad(came, [*trace.starts, rules.bias], allow_unused=True)
    received = sum((x * g).sum() for x, g in zip(trace.starts, gradients, strict=True))
    received = received + (0.0 if bias is None else bias)
    assert abs(received - came) < 0.01 * abs(came)


def block_calls(model, stack):
    """Each block's first call, with its output: [block, args, kwargs, output]"""
    calls = []
    for block in dict.fromkeys(site.block for site in anatomy(model).sites):

        def keep(block, args, kwargs, output):
            if block not in [call[0] for call in calls]:
                calls.append([block, args, kwargs, output[0] if isinstance(output, tuple) else output])

        stack.callback(block.register_forward_hook(keep, with_kwargs=True).remove)
    return calls


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_every_layer_conserves_relevance(name):
    """What leaves a layer's output equals what its heads, its residual path and its biases receive."""
    model = ZooTask.model(name)
    for module in model.modules():  # a layer that runs again would find its own keys in a cache
        getattr(module, "config", model.config).use_cache = False
    task = ZooTask(name, model, n=2)
    with frozen(model), ExitStack() as stack:
        calls = block_calls(model, stack)
        top, _, _ = logits(model, task, task.batch([0, 1]))
        gradients = torch.autograd.grad(top.sum(), [call[3] for call in calls])
        stack.close()
        for (block, args, kwargs, output), gradient in zip(calls, gradients, strict=True):
            came = (output * gradient).sum()
            heads, residual, bias = replayed(model, block, args, kwargs, gradient)
            assert abs(heads) > 1e-6 * abs(came)
            assert abs(heads + residual + bias - came) < 0.01 * abs(came) + 1e-5 * (abs(heads) + abs(residual))


def replayed(model, block, args, kwargs, gradient):
    """Run a layer alone, with its heads cut off from its input: relevance of heads, of the residual path, of biases."""
    hidden = (args[0] if args else kwargs["hidden_states"]).detach().requires_grad_()
    given = ((hidden, *args[1:]), kwargs) if args else ((), {**kwargs, "hidden_states": hidden})
    heads = []

    def cut(projection, inputs):
        heads.append(inputs[0].detach().requires_grad_())
        return (heads[-1], *inputs[1:])

    with ExitStack() as stack:
        for site in anatomy(model).sites:
            if site.block is block:
                stack.callback(site.output.register_forward_pre_hook(cut).remove)
        with traced(model), relevance_rules() as rules:
            output = block(*given[0], **given[1])
    output = output[0] if isinstance(output, tuple) else output
    *rest, bias = torch.autograd.grad(output, [*heads, hidden, rules.bias], gradient, allow_unused=True)
    *of_heads, residual = ((x * g).sum() for x, g in zip([*heads, hidden], rest, strict=True))
    return sum(of_heads), residual, 0.0 if bias is None else bias


@pytest.mark.parametrize("job", JOBS)
def test_shares_of_a_layer_add_up_to_one_and_do_not_depend_on_the_batch(job):
    build, make = JOBS[job]
    model, task = build(), make(n=6)
    values = relevance(model, task, steps=3)
    starts = np.cumsum([0, *(len(site.kept) for site in anatomy(model).sites)])
    for first, last in pairwise(starts):
        np.testing.assert_allclose(values[:, first:last].sum(1), 1.0, atol=1e-5)
    np.testing.assert_allclose(values, relevance(model, task, steps=3, tokens=1), atol=1e-4)


def test_averaged_over_generation_steps():
    """One token of the reference at a time, by a plain backward pass for each."""
    build, make = JOBS["translator"]
    model, task = build(), make(n=2)
    batch = task.batch([1])
    slow = []
    with frozen(model):
        for step in range(batch.labels.shape[1]):
            top, trace, _ = logits(model, task, batch)
            gradients = torch.autograd.grad(top[0, step], trace.tensors, allow_unused=True)
            by_head = trace.by_head(trace.times(gradients))
            parts = by_head.abs().split(4, dim=1)
            slow.append(torch.cat([part / part.sum() for part in parts], dim=1))
    np.testing.assert_allclose(relevance(model, task, steps=None)[1], torch.cat(slow).mean(0), atol=1e-5)


def test_steps_are_spread_and_counted():
    model, task = JOBS["causal"][0](), JOBS["causal"][1](n=4)
    batch = task.batch([0, 3])
    with frozen(model):
        taken = [there.tolist() for _, there in step_relevances(model, task, batch, steps=None)]
    assert np.sum(taken, axis=0).tolist() == [(row != -100).sum().item() for row in batch.labels]
    with frozen(model):
        assert len(list(step_relevances(model, task, batch, steps=2))) == 2
    with pytest.raises(HeadcountError, match=r"\b0\b.*steps="):
        relevance(model, task, steps=0)


def test_only_what_is_predicted_is_looked_at():
    model, task = JOBS["masked"][0](), JOBS["masked"][1](n=4)
    hidden = [sum(label != -100 for label in labels) for labels in task.labels]
    with frozen(model):
        taken = np.sum([there.tolist() for _, there in step_relevances(model, task, task.batch(range(4)))], axis=0)
    assert taken.tolist() == hidden


class Strange(nn.Module):
    """An activation that looks like a layer: there is no rule for it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.exp(x * self.weight)


def test_a_model_that_does_not_conserve_is_refused():
    model = JOBS["classifier"][0]()
    model.bert.encoder.layer[1].intermediate.intermediate_act_fn = Strange()
    with pytest.raises(HeadcountError, match=r"BertForSequenceClassification .* arrived.*method="):
        relevance(model, classification(n=4))


def test_everything_is_undone_also_after_an_error():
    model = JOBS["classifier"][0]()
    task = classification(n=6)
    before = {
        name: len(module._forward_hooks) + len(module._forward_pre_hooks) for name, module in model.named_modules()
    }
    rules = dict(RULES)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[task.features["input_ids"][3][1]] = float("nan")
    with pytest.raises(BadData, match=r"^data, example \d: .*relevance"):
        relevance(model, task)
    after = {
        name: len(module._forward_hooks) + len(module._forward_pre_hooks) for name, module in model.named_modules()
    }
    assert (after, RULES) == (before, rules)
    assert torch.overrides._get_current_function_mode() is None
    x = torch.randn(3, requires_grad=True)
    assert torch.autograd.grad(F.softmax(x, dim=0)[0], x)[0].abs().sum() > 0  # a coefficient no longer
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_pruned_models_have_scores_of_the_heads_that_are_left():
    model = remove(ZooTask.model("llama"), ["decoder.0.0", "decoder.1.0", "decoder.1.1"])
    scores = importance(model, ZooTask("llama", model, n=3), "relevance", steps=2)
    assert scores.heads == anatomy(model).heads
    emptied = remove(JOBS["classifier"][0](), [f"encoder.0.{index}" for index in range(4)])
    assert importance(emptied, classification(n=4), "relevance").raw.sum() == pytest.approx(1.0, abs=1e-5)


def test_a_model_without_logits_is_refused():
    bare = zoo.build("bert")
    with pytest.raises(HeadcountError, match=r"BertModel .*\blogit\b"):
        relevance(bare, ZooTask("bert", bare, n=2))


def test_modules_that_are_no_activations_are_left_alone():
    x = torch.randn(2, 3, requires_grad=True)
    assert pass_through_modules(nn.Identity(), (x,), (x, x)) is None
    assert pass_through_modules(nn.Identity(), (x.detach(),), x.detach()) is None
    assert pass_through_modules(nn.Flatten(), (x,), x.flatten()) is None
