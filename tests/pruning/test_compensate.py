"""Compensation: exact where it can be, better everywhere, and nothing but the output projections changed."""

import copy
from collections import Counter

import numpy as np
import pytest
import torch

import tiny_models
import zoo
from headcount.errors import HeadcountError
from headcount.heads import Head
from headcount.pruning import calibration, compensate
from headcount.pruning.calibration import Calibration, LayerwiseForward
from headcount.pruning.compensation import (
    BLOCK,
    DIRECTIONS,
    PENALTIES,
    REPRODUCED,
    WELL_CONDITIONED,
    NormalEquations,
    OutputSums,
    _left_over,
    _over_own_block,
    gram_matrix,
    ridge_change,
    unexplained,
)
from headcount.pruning.search_methods import Candidate, Elimination, cheapest_by_cost
from headcount.pruning.unit_costs import CostTable
from headcount.scoring import unit_moments
from headcount.structure import anatomy, whole_anatomy
from headcount.surgery import remove
from toy_jobs import JOBS, classification, translation
from zoo_tasks import ZooTask


def distance(one, other, task):
    batch = task.batch(range(len(task)))
    with torch.no_grad():
        return float((task.outputs(one, batch) - task.outputs(other, batch)).pow(2).mean())


def third(model):
    """A third of the heads and of the neurons."""
    return [head for place, head in enumerate(whole_anatomy(model).heads) if place % 3 == 1]


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_refit_brings_every_family_closer_to_the_whole_model(name):
    model = ZooTask.model(name)
    task = ZooTask(name, model, n=12)
    plain = remove(model, third(model))
    adjusted = compensate(copy.deepcopy(plain), model, task, "refit")
    assert distance(adjusted, model, task) < 0.75 * distance(plain, model, task)
    outputs = {id(parameter) for site in whole_anatomy(adjusted).sites for parameter in site.output.parameters()}
    for (name, before), after in zip(plain.named_parameters(), adjusted.parameters(), strict=True):
        assert torch.equal(before, after) or id(after) in outputs, name


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_sites_that_were_passed_are_not_computed_again(name, monkeypatch):
    """One pass per layer gives what running every layer again for each of its sites gives."""
    model = ZooTask.model(name)
    task = ZooTask(name, model, n=12)
    plain = remove(model, third(model))
    seen = Calibration(model, task)
    once = compensate(copy.deepcopy(plain), model, task, "refit", calibration=seen)
    monkeypatch.setattr(calibration, "answer_at", lambda stubs, site, projected: None)
    again = compensate(copy.deepcopy(plain), model, task, "refit", calibration=seen)
    for site, other in zip(whole_anatomy(once).sites, whole_anatomy(again).sites, strict=True):
        assert torch.allclose(site.output.weight, other.output.weight, rtol=1e-3, atol=1e-4), site.name


def test_each_projection_runs_once_per_batch_of_a_refit(monkeypatch):
    model = tiny_models.marian()
    task = translation(n=12)
    smaller, seen = remove(model, anatomy(model).heads[::3]), Calibration(model, task)
    calls, linear = Counter(), torch.nn.Linear.forward
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: calls.update([self]) or linear(self, x))
    compensate(smaller, model, task, "refit", calibration=seen)
    inputs = [projection for site in whole_anatomy(smaller).sites for _, projection in site.inputs]
    assert {calls[projection] for projection in inputs} == {len(seen.batches)}


def test_refit_restores_a_head_that_others_can_stand_in_for():
    model = tiny_models.bert(pad_token_id=0)
    attention = model.bert.encoder.layer[0].attention.self
    with torch.no_grad():  # heads 0 and 1 of the first layer do the same
        for projection in (attention.query, attention.key, attention.value):
            projection.weight[4:8] = projection.weight[:4]
            projection.bias[4:8] = projection.bias[:4]
    task = classification(n=24)
    smaller = remove(model, ["encoder.0.1"])
    before = distance(smaller, model, task)
    compensate(smaller, model, task, "refit")
    assert before > 1e-3
    assert distance(smaller, model, task) < 1e-3 * before


def test_unexplained_is_the_residual_of_a_regression_on_the_other_units():
    """Against one ridge regression per unit, written out; heads have several columns, neurons one."""
    model, task = tiny_models.bert(pad_token_id=0, intermediate_size=12), classification(n=40)
    seen = Calibration(model, task)
    residuals = unexplained(model, seen)
    for site in whole_anatomy(model).sites:
        name, width = site.name, site.width
        rows = [
            seen.contexts(model, batch, [site])[name][used[name]]
            for batch, used in zip(seen.batches, seen.used, strict=True)
        ]
        context = torch.cat(rows).double()
        centred = context - context.mean(0)
        scale = float((centred**2).sum(0).mean())
        found, errors = residuals[name](context.float()), []
        for penalty in REPRODUCED:
            expected = torch.empty_like(centred)
            for start in range(0, centred.shape[1], width):
                own = torch.zeros(centred.shape[1], dtype=torch.bool)
                own[start : start + width] = True
                others = centred[:, ~own]
                ridge = others.T @ others + penalty * scale * torch.eye(others.shape[1])
                expected[:, own] = centred[:, own] - others @ torch.linalg.solve(ridge, others.T @ centred[:, own])
            errors.append(float((found - expected).abs().max()))
        assert min(*errors, float((found - centred).abs().max())) < 1e-4


@pytest.mark.parametrize("width", [1, 3])
def test_what_is_left_over_follows_from_the_inverse(width):
    """The squares of the residual itself, M^T G M, multiplied out."""
    outputs = torch.randn(40, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram, penalty = outputs.T @ outputs, 0.7
    inverse = torch.linalg.inv(gram + penalty * torch.eye(12))
    matrix = _over_own_block(inverse, width)
    assert torch.allclose(_left_over(inverse, penalty, width), (matrix.T @ gram @ matrix).diagonal())


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("alike", [True, False])
def test_what_a_projection_loses_is_what_the_ridge_regressions_leave_of_it(width, alike):
    """Against one ridge regression per unit, written out; where nothing predicts anything, the whole output is lost."""
    rows = torch.randn(60, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if alike:
        rows[:, 6:] = rows[:, :6] + 0.2 * rows[:, 6:]
    weight = torch.randn(5, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sums = OutputSums.empty(12, centred=True)
    sums.add(rows)
    found = sums.residual(width)
    assert (found.gram is None) == alike
    centred = rows - rows.mean(0)
    alone, whole = found.lost(weight)
    for unit, lost in enumerate(alone.tolist()):
        own = torch.zeros(12, dtype=torch.bool)
        own[unit * width : (unit + 1) * width] = True
        others = centred[:, ~own]
        ridge = others.T @ others + found.penalty * torch.eye(len(others.T))
        stand_in = others @ torch.linalg.solve(ridge, others.T @ centred[:, own]) if alike else 0.0
        expected = ((centred[:, own] - stand_in) @ weight[:, own].T).square().sum()
        assert lost == pytest.approx(float(expected), rel=1e-3)
    assert whole == pytest.approx(float((centred @ weight.T).square().sum()), rel=1e-4)


@pytest.mark.parametrize("width", [1, 3])
def test_residuals_grow_as_those_who_could_stand_in_go(width):
    """Against one ridge regression per unit on those that are left, written out."""
    rows = torch.randn(60, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[:, :width] = rows[:, width : 2 * width] + 0.1 * rows[:, :width]  # the first two units are nearly twins
    sums = OutputSums.empty(12, centred=False)
    sums.add(rows)
    found, units = sums.residual(width), list(range(5, 5 + 12 // width))  # their names begin at 5
    elimination = Elimination(found, units)

    def columns(unit):
        return range((unit - 5) * width, (unit - 4) * width)

    def squares(unit, gone):
        others = [column for one in units if one not in (unit, *gone) for column in columns(one)]
        own, among = rows[:, list(columns(unit))], rows[:, others]
        ridge = among.T @ among + found.penalty * torch.eye(len(others))
        return float((own - among @ torch.linalg.solve(ridge, among.T @ own)).square().sum())

    for gone in ([], [units[1]], [units[1], units[3]]):
        if gone:
            elimination.remove(gone[-1])
        for unit in (unit for unit in units if unit not in gone):
            assert elimination.growth(unit) == pytest.approx(squares(unit, gone) / squares(unit, []), rel=1e-3)
    grown = {unit: elimination.growth(unit) for unit in units if unit not in gone}
    assert max(grown, key=grown.get) == units[0]  # whose twin is gone


def test_of_twins_one_stays():
    """Without each other they are worth as much as any; with each other, nothing."""
    rows = torch.randn(200, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[:, 1] = rows[:, 0]
    sums = OutputSums.empty(6, centred=False)
    sums.add(rows)
    found, site = sums.residual(1), "encoder_ffn.0"
    worth = [0.01, 0.01, 1.0, 1.1, 1.2, 1.3]
    candidates = [Candidate(loss, (Head("encoder_ffn", 0, index),)) for index, loss in enumerate(worth)]
    table = CostTable({site: np.arange(7.0)})
    for known, expected in (({}, {0, 1}), ({site: Elimination(found, range(6))}, {0, 2})):
        chosen = cheapest_by_cost(candidates, table, {site: 6}, 2.0, known)
        assert {head.index for head in chosen} == expected


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_a_refit_leaves_what_unexplained_needs(name):
    """The sums over the units' outputs, the same as from a pass of the refitted model."""
    model = ZooTask.model(name)
    task = ZooTask(name, model, n=12)
    seen = Calibration(model, task)
    adjusted = compensate(remove(model, third(model)), model, task, "refit", calibration=seen)
    kept = dict(seen.outputs.get(adjusted, {}))
    assert name.startswith("albert") == (not kept)  # its one layer runs again, on what its refit has changed
    for site in (site for site in whole_anatomy(adjusted).sites if site.name in kept):
        context = torch.cat([
            seen.contexts(adjusted, batch, [site])[site.name][used[site.name]]
            for batch, used in zip(seen.batches, seen.used, strict=True)
        ])  # fmt: skip
        sums, gram = kept[site.name], context.T @ context
        assert sums.rows == len(context)
        assert torch.allclose(sums.gram.float(), gram, rtol=1e-4, atol=1e-4 * float(gram.diagonal().max())), site.name
        if sums.centred:
            assert torch.allclose(sums.sum.float(), context.sum(0), rtol=1e-4, atol=1e-3), site.name
    sites = {site.name for site in whole_anatomy(adjusted).sites if site.kept}
    assert unexplained(adjusted, seen).keys() == sites
    assert adjusted not in seen.outputs  # taken


def test_what_others_reproduce_counts_for_nothing():
    model = tiny_models.bert(pad_token_id=0, intermediate_size=12)
    layer = model.bert.encoder.layer[0].intermediate.dense
    with torch.no_grad():
        layer.weight[1], layer.bias[1] = layer.weight[0], layer.bias[0]
    task = classification(n=40)
    plain, left = (
        dict(zip(found.units, found.squares, strict=True))
        for found in (
            unit_moments(model, task, ["heads", "neurons", "sublayers"], residuals=residuals)
            for residuals in (None, unexplained(model, Calibration(model, task)))
        )
    )
    twins = [Head("encoder_ffn", 0, 0), Head("encoder_ffn", 0, 1)]
    assert all(left[twin] < 0.1 * plain[twin] for twin in twins)
    assert left["encoder_ffn.0"] == pytest.approx(plain["encoder_ffn.0"])  # a sublayer leaves nobody to reproduce it


def test_mean_is_exact_for_a_head_that_always_says_the_same():
    model = tiny_models.bert(pad_token_id=0)
    value = model.bert.encoder.layer[1].attention.self.value
    with torch.no_grad():
        value.weight[4:8] = 0
        value.bias[4:8] = torch.tensor([0.5, -1.0, 2.0, 0.1])
    task = classification(n=10)
    smaller = remove(model, ["encoder.1.1"])
    before = distance(smaller, model, task)
    compensate(smaller, model, task, "mean")
    assert before > 1e-4
    assert distance(smaller, model, task) < 1e-9


def test_mean_at_a_site_without_heads():
    model = JOBS["classifier"][0]()
    task = classification(n=10)
    smaller = remove(model, [head for head in anatomy(model).heads if head.layer == 1])
    before = smaller.bert.encoder.layer[1].attention.output.dense.bias.clone()
    compensate(smaller, model, task, "mean")
    assert not torch.equal(before, smaller.bert.encoder.layer[1].attention.output.dense.bias)


def test_mean_is_refused_where_there_is_no_bias_to_add_to():
    model = ZooTask.model("llama")
    with pytest.raises(HeadcountError, match=r"decoder\.0 .* bias"):
        compensate(remove(model, ["decoder.0.0"]), model, ZooTask("llama", model), "mean")


def test_none_and_unpruned_models_stay_as_they_are():
    model = JOBS["classifier"][0]()
    task = classification(n=6)
    for how, heads in (("none", ["encoder.0.1"]), ("refit", [])):
        smaller = remove(model, heads)
        before = copy.deepcopy(smaller.state_dict())
        compensate(smaller, model, task, how)
        assert all(torch.equal(tensor, before[name]) for name, tensor in smaller.state_dict().items())
    with pytest.raises(HeadcountError, match=r"'refitt'.*'refit'"):
        compensate(model, model, task, "refitt")


def test_only_tokens_that_matter_count():
    model = JOBS["classifier"][0]()
    task = classification(n=9)
    seen = Calibration(model, task, tokens=10_000)
    assert seen.order == ["encoder.0", "encoder_ffn.0", "encoder.1", "encoder_ffn.1"]
    lengths = sum(task.lengths)
    assert sum(int(used["encoder.0"].sum()) for used in seen.used) == lengths  # no padding
    assert sum(int(used["encoder.1"].sum()) for used in seen.used) == len(task)  # only the first token is read


@pytest.mark.parametrize("name", ["bert", "marian", "t5", "gpt2"])
def test_a_layerwise_forward_sees_what_a_whole_pass_sees(name):
    model = ZooTask.model(name)
    task = ZooTask(name, model, n=4)
    batches = [task.batch([0, 1]), task.batch([2, 3])]
    sites = {site.name: site for site in whole_anatomy(model).sites}
    order = Calibration(model, task).order
    forward = LayerwiseForward(model, task, batches, [sites[one] for one in order])
    for place in order:
        direct = []
        handle = sites[place].output.register_forward_pre_hook(
            lambda module, args, direct=direct: direct.append(args[0].flatten(0, -2))
        )
        with torch.no_grad():
            for batch in batches:
                task.outputs(model, batch)
        handle.remove()
        for (ours, _), theirs in zip(forward.handed_on(sites[place], None), direct, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert not any("forward" in vars(module) for module in model.modules())


def test_ridge_holds_back_when_rows_are_few_and_finds_the_truth_when_they_are_many():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    errors = []
    for rows, noise in ((2000, 0.1), (24, 5.0)):
        folds = [NormalEquations.empty(20, 3) for _ in range(2)]
        for fold in folds:
            x = torch.randn(rows, 20, generator=generator, dtype=torch.float64)
            fold.add(x, x @ truth + noise * torch.randn(rows, 3, generator=generator, dtype=torch.float64))
        errors.append(float((ridge_change(folds, penalised=20) - truth).norm() / truth.norm()))
    assert errors[0] < 0.02
    assert errors[1] <= 1.05  # hardly worse than leaving everything as it is
    nothing = [NormalEquations.empty(4, 2) for _ in range(2)]
    assert ridge_change(nothing, penalised=4).abs().sum() == 0


@pytest.mark.parametrize("size", [8, 3 * DIRECTIONS])
def test_the_penalty_is_the_one_that_double_precision_finds(size):
    """Penalties are compared in a few directions, large ones in single precision; beside it, by numpy, in all."""
    generator, chosen = np.random.default_rng(0), []
    for noise in (0.5, 20.0, 100.0, 300.0):
        truth = generator.normal(size=(31, size))
        folds, plain = [NormalEquations.empty(31, size) for _ in range(2)], []
        for fold in folds:
            factors = generator.normal(size=(400, 5)) @ generator.normal(size=(5, 30))  # columns that go together
            x = np.column_stack([3 + factors + 0.3 * generator.normal(size=(400, 30)), np.ones(400)])
            y = x @ truth + noise * generator.normal(size=(400, size))
            fold.add(torch.tensor(x), torch.tensor(y))
            plain.append((x, y))

        def fitted(x, y, penalty):
            ridge = np.diag([penalty * (x[:, :30] ** 2).sum(0).mean()] * 30 + [0.0])
            return np.linalg.solve(x.T @ x + ridge, x.T @ y)

        def error(penalty, plain=plain):
            one, other = plain
            return sum(((v @ fitted(x, y, penalty) - w) ** 2).sum() for (x, y), (v, w) in ((one, other), (other, one)))

        chosen.append(min(PENALTIES, key=error))
        x, y = (np.concatenate(parts) for parts in zip(*plain, strict=True))
        found = ridge_change(folds, penalised=30).numpy()
        np.testing.assert_allclose(found, fitted(x, y, chosen[-1]), rtol=1e-6, atol=1e-8)
    assert len(set(chosen)) > 2
    assert max(chosen) >= WELL_CONDITIONED > min(chosen)


@pytest.mark.parametrize("columns", [BLOCK - 1, 2 * BLOCK + 3])
def test_a_gram_matrix_by_blocks_is_that_of_all_columns(columns):
    x = torch.randn(40, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(gram_matrix(x), x.T @ x)
