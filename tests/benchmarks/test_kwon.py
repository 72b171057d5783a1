"""The baseline of Kwon et al., each stage against a slow version that follows the paper's formula word by word."""

import itertools

import numpy as np
import pytest
import torch

import tiny_models
import toy_jobs
from headcount import HeadcountError, anatomy, masked

UNITS = ("heads", "neurons")


@pytest.fixture(scope="module")
def kwon():
    from benchmarks.pruning import kwon

    return kwon


@pytest.fixture(params=["classifier", "translator"])
def job(request):
    if request.param == "classifier":
        model = tiny_models.bert(pad_token_id=0, initializer_range=0.3)
        return model, toy_jobs.classification(n=24)
    return tiny_models.marian(init_std=0.3), toy_jobs.translation(n=12)


def test_gradients_of_masks_one_example_at_a_time(kwon, job):
    model, task = job
    found = kwon.mask_gradients(model, task)
    sites = anatomy(model, UNITS).sites
    for example in (0, len(task) - 1):
        batch = task.batch([example])
        xi = torch.ones(sum(len(site.kept) for site in sites), requires_grad=True)
        with masked(model, xi=xi, units=UNITS):
            task.losses(task.outputs(model, batch), batch).sum().backward()
        expected = xi.grad.split([len(site.kept) for site in sites])
        for site, gradient in zip(sites, expected, strict=True):
            assert np.allclose(found[site.name][example], gradient, atol=1e-5)


def test_search_is_the_best_of_all_subsets(kwon):
    rng = np.random.default_rng(0)
    costs = {"encoder.0": 3, "encoder.1": 3, "encoder_ffn.0": 1, "encoder_ffn.1": 1}
    sizes = {"encoder.0": 2, "encoder.1": 2, "encoder_ffn.0": 4, "encoder_ffn.1": 3}
    for budget in (0, 4, 9.5, 13, 19):
        importance = {name: rng.exponential(size=size) for name, size in sizes.items()}
        values = np.concatenate(list(importance.values()))
        cost = np.concatenate([np.full(size, costs[name]) for name, size in sizes.items()])
        subsets = np.array(list(itertools.product([0, 1], repeat=len(values))))
        least = ((1 - subsets) @ values)[subsets @ cost <= budget].min()
        kept = np.concatenate(list(kwon.search(importance, costs, budget).values()))
        assert kept @ cost <= budget
        assert (~kept) @ values == pytest.approx(least)
    with pytest.raises(HeadcountError, match="FLOPs"):
        kwon.search(importance, costs, -1)


def test_rearrangement_swap_by_swap(kwon):
    rng = np.random.default_rng(1)
    moved = 0
    for _ in range(20):
        gradients = rng.normal(size=(6, 9))
        fisher = kwon.fisher_block(gradients)
        assert np.allclose(fisher, np.mean([np.outer(g, g) for g in gradients], axis=0))

        def lost(kept, fisher=fisher):
            return (1 - kept) @ fisher @ (1 - kept)

        start = rng.permutation(9) < 5
        expected = start.copy()
        for unit in np.argsort(fisher.diagonal()):
            if not start[unit]:
                continue
            swaps = []
            for other in np.flatnonzero(~expected):
                swapped = expected.copy()
                swapped[[unit, other]] = swapped[[other, unit]]
                swaps.append(swapped)
            expected = min([expected, *swaps], key=lost)
        found = kwon.rearrange(start, fisher)
        assert (found == expected).all()
        assert found.sum() == start.sum()
        moved += lost(found) < lost(start) - 1e-9
    assert moved > 10


def test_targets_are_what_the_whole_model_normalises(kwon, job):
    model, task = job
    found = kwon.Targets(model, task)
    entered = []
    norms = [
        module for name, module in model.named_modules() if "layer" in name and "LayerNorm" in type(module).__name__
    ]
    hooks = [norm.register_forward_pre_hook(lambda _, args: entered.append(args[0].detach())) for norm in norms]
    task.outputs(model, found.batches[0])
    for hook in hooks:
        hook.remove()
    assert len(entered) - len(found.order) in (0, 1)  # the embeddings of some models are normalised, too
    for name, states in zip(found.order, entered[-len(found.order) :], strict=True):
        assert torch.allclose(found.rows[0][name], states[kwon._used(name, found.batches[0])], atol=1e-5)


def test_least_squares_written_out(kwon):
    generator = torch.Generator().manual_seed(0)
    units, width, d, rows = 3, 2, 4, 20
    contexts, columns, missing = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((rows, units * width), (d, units * width), (rows, d))
    )
    parts = [contexts[:, i * width : (i + 1) * width] @ columns[:, i * width : (i + 1) * width].T for i in range(units)]
    a = torch.stack([part.flatten() for part in parts], dim=1)  # (rows * d, units)
    damped = torch.cat([a, 0.7 * torch.eye(units, dtype=torch.float64)])
    right = torch.cat([missing.flatten(), torch.zeros(units, dtype=torch.float64)])
    expected = 1 + torch.linalg.lstsq(damped, right[:, None]).solution[:, 0]
    found = kwon.least_squares(contexts.T @ contexts, contexts.T @ missing, columns, width, damping=0.7)
    assert torch.allclose(found, expected)


def test_the_smaller_model_is_the_whole_one_under_the_tuned_masks(kwon, job):
    model, task = job
    batch = task.batch([0, 1, 2, 3])
    method = kwon.Kwon(model, task, batch)
    before, costs = kwon.flops_by_unit(model, task, batch)
    for ratio in (1.2, 1.5):
        smaller, values, stopped = method.cut(ratio)
        assert not stopped
        after, _ = kwon.flops_by_unit(smaller, task, batch)
        assert 0 <= before / ratio - after <= 2 * max(costs.values())
        xi = {head: values.get(head, 0.0) for head in anatomy(model, UNITS).units}
        assert any(abs(value - 1) > 1e-3 for value in values.values())
        with masked(model, xi=xi), torch.no_grad():
            expected = task.outputs(model, batch)
        with torch.no_grad():
            found = task.outputs(smaller, batch)
        used = slice(None) if expected.ndim == 2 else batch.labels != -100
        assert torch.allclose(found[used], expected[used], atol=1e-4)


def test_tuning_brings_sublayers_closer_and_leaves_a_whole_model_alone(kwon, job):
    model, task = job
    method = kwon.Kwon(model, task, task.batch([0, 1]))
    _, values, _ = method.cut(1.0)
    assert max(abs(value - 1) for value in values.values()) < 1e-3

    def distance(smaller):
        last = method.targets.order[-1]
        again = kwon.Targets(smaller, task)
        return sum(
            float((a[last] - b[last]).pow(2).sum()) for a, b in zip(again.rows, method.targets.rows, strict=True)
        )

    assert distance(method.cut(1.4)[0]) < distance(method.cut(1.4, tuned=False)[0])


def test_other_layouts_are_refused(kwon):
    with pytest.raises(HeadcountError, match="gpt2"):
        kwon.Kwon(tiny_models.gpt_classifier(), toy_jobs.classification(), None)


def test_tuning_stops_where_a_value_leaves_the_range(kwon, monkeypatch):
    model, task = tiny_models.bert(pad_token_id=0, initializer_range=0.3), toy_jobs.classification(n=24)
    method = kwon.Kwon(model, task, task.batch([0, 1]))
    _, tuned, _ = method.cut(1.4)
    largest = {site: max(abs(v) for head, v in tuned.items() if head.site == site) for site in method.targets.order}
    order = method.targets.order
    place = max(range(len(order)), key=lambda i: largest[order[i]])
    assert place  # not the first: there is something to tune before it
    monkeypatch.setattr(kwon, "RANGE", max(largest[name] for name in order[:place]) + 1e-6)
    _, values, stopped = method.cut(1.4)
    assert stopped == order[place]
    for head, value in values.items():
        assert value == (pytest.approx(tuned[head]) if order.index(head.site) < place else 1)

    method.beyond = "clip"
    _, values, stopped = method.cut(1.4)
    assert not stopped
    assert max(abs(value) for head, value in values.items() if head.site == order[place]) == pytest.approx(kwon.RANGE)
