"""Heads, neurons and sublayers in one search: by what they cost, exactly as far as asked, the same after a stop."""

from collections import Counter

import numpy as np
import pytest
import torch

import tiny_models
import zoo
from headcount import anatomy, load, prune, remove, save
from headcount.errors import HeadcountError
from headcount.heads import Head
from headcount.pruning import Pruning
from headcount.pruning.compensation import unexplained
from headcount.pruning.search import CutSearch
from headcount.pruning.search_methods import Candidate, candidates_of, cheapest_by_cost
from headcount.pruning.unit_costs import CostTable, cost_table, flops_of
from headcount.scoring import head_gradients, unit_moments
from headcount.settings import SEARCHES
from headcount.surgery import as_stock
from toy_jobs import JOBS, classification, language
from zoo_tasks import ZooTask


@pytest.fixture
def model():
    return tiny_models.bert(pad_token_id=0, intermediate_size=96)


@pytest.fixture
def tasks():
    return [classification(start, 12) for start in (0, 1, 2)]


def widths(model):
    return {site.name: len(site.kept) for site in anatomy(model, ["heads", "neurons"]).sites}


@pytest.mark.parametrize("units", ["heads,neurons", "neurons", "heads,neurons,sublayers", "sublayers"])
def test_a_share_of_the_flops_is_saved(model, tasks, units):
    pruned = prune(model, *tasks, flops="45%", units=units)
    assert pruned.flops_after <= 0.55 * pruned.flops_before
    assert pruned.flops_after == flops_of(pruned.model, tasks[2])
    kinds = {head.is_neuron for head in pruned.removed}
    assert kinds == {"neurons": {True}}.get(units, kinds)
    if units == "sublayers":
        before = widths(model)
        assert all(width in (0, before[name]) for name, width in widths(pruned.model).items())


def test_the_surgeon_keeps_one_of_two_that_can_stand_in_for_each_other(model, tasks):
    """All pairs of neurons are twins: by one inverse, both of a pair look as if nothing were lost with them."""
    for layer in model.bert.encoder.layer:
        dense = layer.intermediate.dense
        with torch.no_grad():
            dense.weight[1::2], dense.bias[1::2] = dense.weight[::2], dense.bias[::2]
    task = classification(0, 60)
    pairs = {}
    for method in ("search", "surgeon"):
        search = CutSearch(model, task, Pruning(flops=0.5, units="neurons", method=method, step=0.4))
        removed = set(next(search.cuts([400])).removed)
        twins = [(head, Head(head.kind, head.layer, head.index + 1)) for head in anatomy(model, "neurons").heads[::2]]
        pairs[method] = sum(one in removed and other in removed for one, other in twins)
    assert pairs["surgeon"] < pairs["search"] / 2


@pytest.mark.parametrize(("method", "compensated"), [("joint", True), ("interactions", False)])
def test_interactions_inside_a_site_are_those_of_the_definition(method, compensated):
    """Chosen one by one by a loop over the definition: what the loss rises by with the next unit, per cost."""
    model, task = tiny_models.bert(pad_token_id=0, initializer_range=0.3), classification(0, 24)
    search = CutSearch(model, task, Pruning(flops=0.9, units="heads,neurons", method=method))
    (cut,) = search.cuts([300])
    units = list(anatomy(model, ["heads", "neurons"]).heads)
    residuals = unexplained(model, search.calibration) if compensated else None
    gradients = head_gradients(model, task, units=["heads", "neurons"], residuals=residuals).astype(float)
    chosen: list[int] = []

    def rise(u):
        alike = [v for v in chosen if units[v].site == units[u].site]
        joint = sum((gradients[:, u] * gradients[:, v]).mean() for v in alike)
        cost = search.costs.per_unit(units[u].site, len(search.costs.curves[units[u].site]) - 1)
        return (0.5 * (gradients[:, u] ** 2).mean() + joint) / cost

    while search.costs.saved(Counter(units[u].site for u in range(len(units)) if u not in chosen)) < cut_goal(search):
        chosen.append(min((u for u in range(len(units)) if u not in chosen), key=rise))
    assert search.costs.rounded([units[u] for u in chosen]) == list(cut.removed)
    assert len({unit.site for unit in cut.removed}) > 1


def cut_goal(search):
    return 0.3 * search.costs.total


def test_every_method_removes_all_kinds_of_units(model, tasks):
    found = anatomy(model, ["heads", "neurons", "sublayers"])
    for method, one in SEARCHES.items():
        search = CutSearch(model, tasks[0], Pruning(flops=0.5, units="heads,neurons,sublayers", method=method))
        losses, _ = search.expected_losses(model)
        assert losses.keys() == set(found.units), method
        assert min(losses.values()) >= 0, method
        if one.loss == "reconstruction":
            heads = {site.name: max(losses[head] for head in site.heads) for site in found.sites}
            assert all(losses[name] > most for name, most in heads.items())
        pruned = prune(model, *tasks, flops=0.5, units="heads,neurons", method=method)
        assert pruned.flops_after <= 0.5 * pruned.flops_before, method


def test_no_sublayer_goes_that_need_not(model, tasks):
    for share in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
        pruned = prune(model, *tasks, flops=share, units="sublayers")
        sites = {head.site for head in pruned.removed}
        for site in sites:
            fewer = remove(model, [head for head in pruned.removed if head.site != site])
            assert 1 - flops_of(fewer, tasks[1]) / pruned.flops_before < share, (share, site, sites)


def test_neurons_are_kept_in_multiples_that_kernels_like(model, tasks):
    pruned = prune(model, *tasks, flops=0.3, units="neurons")
    left = [count for name, count in widths(pruned.model).items() if "_ffn" in name]
    assert sum(left) < 2 * 96
    assert all(count % 8 == 0 for count in left)


def test_the_cheapest_by_loss_per_cost_go_first(model, tasks):
    """One step without compensation, checked against sorting by hand."""
    moments = unit_moments(model, tasks[0], ["heads", "neurons"])
    sites = anatomy(model, ["heads", "neurons"]).sites
    table = cost_table(model, sites, "params", tasks[0])
    found = anatomy(model, ["heads", "neurons"])
    losses = dict(zip(moments.units, moments.squares.tolist(), strict=True))
    some = candidates_of(found, losses, table.curves, uniform=False, keep_at_least=0)
    chosen = cheapest_by_cost(some, table, widths(model), 0.25 * table.total)
    cost = {site.name: site.parameters_of(site.kept[:1]) for site in sites}
    ranked = sorted(moments.units, key=lambda unit: losses[unit] / cost[unit.site])
    assert chosen == ranked[: len(chosen)]
    saved = sum(cost[unit.site] for unit in chosen)
    assert saved >= 0.25 * table.total > saved - cost[chosen[-1].site]


def test_a_sublayer_goes_as_one(model):
    found = anatomy(model, ["heads", "neurons", "sublayers"])
    table = CostTable({site.name: np.arange(len(site.kept) + 1.0) for site in found.sites})
    losses = dict.fromkeys(found.units, 1.0) | {"encoder_ffn.1": 0.5}
    some = candidates_of(found, losses, table.curves, uniform=False, keep_at_least=0)
    assert set(cheapest_by_cost(some, table, widths(model), goal=1)) == set(found.site("encoder_ffn.1").heads)
    few = [Candidate(1.0, (Head("encoder", 0, 0),)), Candidate(2.0, found.site("encoder.0").heads)]
    assert len(cheapest_by_cost(few, table, widths(model), goal=3)) == len(found.site("encoder.0").heads)  # none twice


def test_uniform_cuts_are_stock_checkpoints(model, tasks, tmp_path):
    pruned = prune(model, *tasks, flops=0.4, uniform=True)
    for unit in ("heads", "neurons"):
        assert len({len(site.kept) for site in anatomy(pruned.model, unit).sites}) == 1
    assert as_stock(pruned.model)[1] != {}
    save(pruned.model, tmp_path / "stock")
    assert widths(load(tmp_path / "stock")) == widths(pruned.model)


def test_a_search_within_a_drop_weighs_all_units(model, tasks):
    pruned = prune(model, *tasks, max_drop=100, units="heads,neurons", step=0.5)
    assert pruned.settings.cost == "flops"
    assert all(width == 0 for width in widths(pruned.model).values())
    assert [round(point.pruned, 1) for point in pruned.path] == [0.5, 1.0]


def test_keep_at_least_holds_for_every_kind(model, tasks):
    pruned = prune(model, *tasks, max_drop=100, units="heads,neurons,sublayers", step=0.5, keep_at_least=1)
    assert min(widths(pruned.model).values()) >= 1


def test_only_the_kinds_that_are_named_lose_units(model, tasks):
    pruned = prune(model, *tasks, params=0.1, kinds="encoder_ffn")
    assert {head.kind for head in pruned.removed} == {"encoder_ffn"}


def test_time_is_measured_once_and_kept(model, tasks, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "headcount.pruning.unit_costs._share_of_time", lambda *args: calls.append(1) or 0.2 + 0.001 * args[2]
    )
    prune(model, *tasks, flops=0.3, cost="time", run=tmp_path / "run")
    assert calls
    measured = len(calls)
    again = prune(model, *tasks, flops=0.3, cost="time", run=tmp_path / "run")
    assert len(calls) == measured
    assert again.settings.cost == "time"


def test_a_stopped_search_resumes_to_the_same_cut(model, tasks, tmp_path, monkeypatch):
    whole = prune(model, *tasks, flops=0.5)
    steps = []

    def stop(what, share):
        steps.append(share)
        if len([one for one in steps if one]) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(model, *tasks, flops=0.5, run=tmp_path / "run", progress=stop)
    resumed = prune(model, *tasks, flops=0.5, run=tmp_path / "run")
    assert resumed.removed == whole.removed
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_every_family_is_cut_by_cost(name):
    whole = ZooTask.model(name)
    task = ZooTask(name, whole, n=6)
    search = CutSearch(whole, task, Pruning(flops=0.5, keep_at_least=1))
    (cut,) = search.cuts([400])
    before, after = widths(whole), widths(cut.model)
    assert all(1 <= after[name] <= before[name] for name in before)
    assert search.share(cut) >= 0.35  # of the cost, less what rounding puts back
    batch = task.batch(range(len(task)))
    with torch.no_grad():
        plain, refitted, ours = (task.outputs(one, batch) for one in (remove(whole, cut.removed), cut.model, whole))
    assert (refitted - ours).pow(2).mean() < (plain - ours).pow(2).mean()


def test_language_models_too():
    build, _ = JOBS["causal"]
    pruned = prune(build(), *[language(start, 12) for start in (0, 1, 2)], flops=0.2)
    assert pruned.flops_after <= 0.8 * pruned.flops_before


def test_the_result_says_what_is_left_where(model, tasks):
    pruned = prune(model, *tasks, flops=0.4)
    facts = pruned.to_json()
    assert {f"{row['kind']}.{row['layer']}": row["left"] for row in facts["sites"]} == widths(pruned.model)
    assert all(row["of"] == 96 for row in facts["sites"] if row["kind"] == "encoder_ffn")
    assert remove(model, facts["removed"]).num_parameters() == pruned.parameters_after
    assert facts["flops_after"] < facts["flops_before"]
    text = pruned.report()
    neurons = sum(head.is_neuron for head in pruned.removed)
    assert f"{neurons:,} of 192 neurons removed" in text
    assert sum(facts["saved"].values()) == pytest.approx(1 - facts["flops_after"] / facts["flops_before"])
    assert min(facts["saved"].values()) >= 0
    assert f"{facts['flops_before'] / facts['flops_after']:.2f} times fewer" in text


@pytest.mark.parametrize(
    ("given", "facts", "advice"),
    [
        ({"flops": 0.5, "units": "neuron"}, "'neuron'", "neurons"),
        ({"flops": 1.5}, "1.5", "flops"),
        ({"flops": 0.5, "cost": "energy"}, "'energy'", "flops"),
        ({"heads": 2, "units": "heads,neurons"}, "a number of heads", "params"),
        ({"flops": 0.5, "method": "reconstruction", "compensation": "mean"}, "reconstruction", "compensation"),
        ({"heads": 2, "method": "reconstruction"}, "a number of heads", "flops"),
        ({"flops": 0.5, "uniform": True, "units": "heads,sublayers"}, "sublayers", "uniform"),
        ({"flops": 0.5, "step": 3}, "3", "share"),
        ({"flops": 0.5, "units": ""}, "no units", "neurons"),
    ],
)
def test_contradictions_are_one_sentence(given, facts, advice):
    with pytest.raises(HeadcountError) as caught:
        Pruning(**given)
    assert facts in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize("method", SEARCHES)
@pytest.mark.parametrize("units", ["sublayers", "heads,neurons,sublayers"])
def test_every_method_removes_sublayers(model, tasks, units, method):
    pruned = prune(model, *tasks, flops=0.6, units=units, method=method)
    assert pruned.flops_after <= 0.4 * pruned.flops_before
    emptied = [name for name, width in widths(pruned.model).items() if not width]
    assert f"{len(emptied)} of 4 sublayers whole" in pruned.report()


@pytest.mark.parametrize(
    ("knobs", "advice"),
    [
        ({"flops": 0.7, "units": "sublayers", "kinds": ["encoder"]}, "; leave kinds=… out"),
        ({"flops": 0.8, "units": "heads,neurons", "kinds": ["encoder_ffn"]}, "; leave kinds=… out"),
        ({"flops": 0.8, "units": "neurons"}, "; add heads to units=…"),
        ({"flops": 0.95, "keep_at_least": 2}, "; lower keep_at_least=…"),
        ({"flops": 0.95, "units": "heads", "kinds": ["encoder"]}, "; leave kinds=… out and add neurons to units=…"),
        ({"params": 0.99, "units": "heads"}, "; lower params=…"),
    ],
)
def test_the_option_that_is_named_would_reach_it(model, tasks, knobs, advice):
    with pytest.raises(HeadcountError) as refused:
        prune(model, *tasks, **knobs)
    assert str(refused.value).endswith(advice), str(refused.value)


def test_units_that_kinds_exclude_are_named(model, tasks):
    with pytest.raises(HeadcountError, match="sites of kind encoder have no neurons; choose kinds=… from encoder_ffn"):
        prune(model, *tasks, flops=0.1, units="neurons", kinds=["encoder"])
    with pytest.raises(HeadcountError, match="sites of kind encoder_ffn have no heads"):
        prune(model, *tasks, heads=1, kinds=["encoder_ffn"])


def test_a_speedup_that_was_not_kept_is_said(model, tasks, monkeypatch):
    from headcount.bench import Speed
    from headcount.pruning import cut_size, pipeline

    monkeypatch.setattr(cut_size, "measure_speed", lambda *args: Speed(1, 2, 2.0, 1.9, 2.1))
    monkeypatch.setattr(pipeline, "measure_speed", lambda *args: Speed(1, 1.4, 1.4, 1.3, 1.5))
    said = prune(model, *tasks, speedup=1.8, cost="flops").remarks
    assert any(
        remark.startswith("1.8 times as fast was measured during the search, and not at its end") for remark in said
    )
    assert not any("at its end" in remark for remark in prune(model, *tasks, speedup=1.5, cost="flops").remarks)


def test_what_is_possible_is_said_with_what_would_reach_it(model, tasks):
    with pytest.raises(HeadcountError, match=r"60\.0% of the FLOPs .* heads .* \d+\.\d% .*neurons.*units"):
        prune(model, *tasks, flops=0.6, units="heads")
    with pytest.raises(HeadcountError, match=r"99\.9% of the FLOPs .* 192 neurons"):
        prune(model, *tasks, flops=0.999)


def test_heads_alone_are_searched_as_before(model, tasks):
    assert Pruning(max_drop=1).units == ("heads",)
    assert not Pruning(max_drop=1).by_cost
    assert Pruning(speedup=2).units == ("heads", "neurons")
    assert (Pruning(speedup=2).cost, Pruning(params=0.1).cost, Pruning(flops=0.1).cost) == ("time", "params", "flops")
    said = prune(model, *tasks, heads=2).remarks
    assert any("neurons" in remark and "%" in remark for remark in said)
