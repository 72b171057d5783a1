"""Ablations: effects, their tests and corrections, against slow versions written from the definitions."""

import math

import numpy as np
import pytest

from headcount import Classification, Translation, ablate_all_but_one, ablate_each, anatomy, compare, evaluate
from headcount.errors import HeadcountError, RunConflict
from headcount.evaluation import adaptive, sweep
from headcount.stats import corrected
from headcount.tasks import Metric
from headcount.tasks.text import word_tokenizer
from tiny_models import bert, marian

WORDS = "a fine dull film was seen by all of us"


def classification(seed=0, size=40, metric="accuracy"):
    rng = np.random.default_rng(seed)
    words = WORDS.split()
    rows = [
        {"text": " ".join(rng.choice(words, size=rng.integers(1, 9))), "label": int(rng.integers(2))}
        for _ in range(size)
    ]
    return Classification(rows, word_tokenizer(WORDS), metric=metric)


@pytest.fixture(scope="module")
def ablation():
    return ablate_each(bert(), classification())


def test_changes_are_masked_minus_whole(ablation):
    model, task = bert(), classification()
    base = evaluate(model, task, fast=False).score()
    assert ablation.base == pytest.approx(base)
    for place in (0, 3, 7):
        off = evaluate(model, task, [[ablation.heads[place]]], fast=False).scores()[0]
        assert ablation.effects.change[place] == pytest.approx(off - base)
        assert ablation.effects.score[place] == pytest.approx(off)


def test_accuracy_is_tested_by_mcnemar_from_its_definition(ablation):
    base = ablation.outcomes.of()[:, 1]
    for place, head in enumerate(ablation.heads):
        right = ablation.outcomes.of([head])[:, 1]
        lost, won = int(((base == 1) & (right == 0)).sum()), int(((base == 0) & (right == 1)).sum())
        flipped, fewer = lost + won, min(lost, won)
        tail = sum(math.comb(flipped, k) for k in range(fewer + 1)) / 2**flipped
        assert ablation.effects.p[place] == pytest.approx(min(1.0, 2 * tail))
    assert ablation.effects.test == "exact McNemar"
    assert ablation.effects.p_t is not None


def test_corrections_are_over_all_heads(ablation):
    order = np.argsort(ablation.effects.p)
    holm = np.empty(len(order))
    running = 0.0
    for rank, place in enumerate(order):  # Holm (1979), step down
        running = max(running, min(1.0, (len(order) - rank) * ablation.effects.p[place]))
        holm[place] = running
    assert np.allclose(ablation.effects.p_holm, holm)
    assert np.allclose(ablation.effects.p_bh, corrected(ablation.effects.p, "bh"))


def test_intervals_hold_the_change_and_resamples_suffice(ablation):
    effects = ablation.effects
    assert (effects.low <= effects.change + 1e-9).all()
    assert (effects.change <= effects.high + 1e-9).all()
    assert effects.resamples >= len(ablation.heads) / 0.05


def test_significant_heads_and_unknown_corrections(ablation):
    assert set(ablation.significant(1.1, "none")) == set(ablation.heads)
    assert ablation.significant(0.0) == []
    with pytest.raises(HeadcountError, match=r"'hulm'.*'holm'"):
        ablation.significant(correction="hulm")


def test_other_metrics_take_the_bootstrap():
    effects = ablate_each(bert(), classification(metric="matthews"), layers=[1], resamples=200).effects
    assert effects.test == "paired bootstrap"
    assert effects.p_t is None
    assert effects.resamples == 200
    assert len(effects.p) == 4


def test_kinds_and_layers_choose_the_heads():
    model = marian()
    tokenizer = word_tokenizer(WORDS, "marian")
    rows = [{"s": "a fine film", "t": "a dull film"}, {"s": "seen by us", "t": "all of us"}]
    task = Translation(rows, tokenizer, source="s", target="t", metric="loss")
    chosen = ablate_each(model, task, kinds=["cross"], layers=[1], resamples=50)
    assert chosen.heads == anatomy(model).site("cross.1").heads
    with pytest.raises(HeadcountError, match=r"'crosss'.*'cross'"):
        ablate_each(model, task, kinds=["crosss"])
    with pytest.raises(HeadcountError, match=r"layer 9\b.*0-1"):
        ablate_each(model, task, layers=[9])
    with pytest.raises(HeadcountError, match="kinds=… or layers=…"):
        ablate_each(model, task, layers=[])
    with pytest.raises(HeadcountError, match=r"\b0\.0\b.*alpha="):
        ablate_each(model, task, alpha=0.0)


def test_all_but_one_keeps_the_best_head_of_each_layer():
    model, task = bert(), classification()
    result = ablate_all_but_one(model, task)
    assert not result.chosen_apart
    for layer in result.layers:
        site = anatomy(model).site(f"{layer.kind}.{layer.layer}")
        scores = {
            head: evaluate(model, task, [[other for other in site.heads if other != head]], fast=False).scores()[0]
            for head in site.heads
        }
        assert layer.score == pytest.approx(max(scores.values()))
        assert layer.change == pytest.approx(max(scores.values()) - result.base)
        assert scores[layer.best] == pytest.approx(max(scores.values()))
        for head, change in layer.changes.items():
            assert change == pytest.approx(scores[head] - result.base)


def test_all_but_one_with_lower_is_better_keeps_the_smallest_loss():
    result = ablate_all_but_one(bert(), classification(metric="loss"), resamples=50)
    for layer in result.layers:
        assert layer.change == pytest.approx(min(layer.changes.values()))


def test_all_but_one_chooses_on_other_data(tmp_path):
    model, select, task = bert(), classification(seed=1, metric="loss"), classification(metric="loss")
    select = select.subset([place for place, key in enumerate(select.keys()) if key not in set(task.keys())])
    result = ablate_all_but_one(model, task, select, resamples=50, run=tmp_path)
    there = ablate_all_but_one(model, select, resamples=50)
    assert result.chosen_apart
    assert [layer.best for layer in result.layers] == [layer.best for layer in there.layers]
    for layer in result.layers:
        off = set(anatomy(model).site(f"{layer.kind}.{layer.layer}").heads) - {layer.best}
        assert layer.change == pytest.approx(result.outcomes.score(off) - result.base)
    names = {file.name.split("-")[0] for file in (tmp_path / "outcomes").iterdir()}
    assert names == {"outcomes", "select"}


def test_heads_chosen_on_the_data_they_are_tested_on_are_not_chosen_apart():
    model, task = bert(), classification(metric="loss")
    same = ablate_all_but_one(model, task, task, resamples=50)
    assert (same.chosen_apart, same.shared) == (False, len(task))
    part = ablate_all_but_one(model, task, task.subset([0, 1, 2]), resamples=50)
    assert not part.chosen_apart
    keys = list(task.keys())
    assert part.to_json()["shared"] == sum(key in keys[:3] for key in keys)


def test_no_row_has_an_interval_without_width(ablation):
    assert (ablation.effects.low < ablation.effects.high).all()


def test_compare_correlates_the_two_sweeps(tmp_path):
    model, here, there = bert(), classification(metric="loss"), classification(seed=1, metric="loss")
    both = compare(model, here, there, resamples=50, run=tmp_path)
    expected = np.corrcoef(both.here.effects.change, both.against.effects.change)[0, 1]
    assert both.correlation.pearson == pytest.approx(expected)
    assert np.allclose(both.here.effects.change, ablate_each(model, here, resamples=50).effects.change)


def test_mean_fill_is_passed_on():
    zero, mean = (
        ablate_each(bert(), classification(metric="loss"), fill=fill, resamples=20) for fill in ("zero", "mean")
    )
    assert mean.fill == "mean"
    assert not np.allclose(zero.effects.change, mean.effects.change)


def test_an_adaptive_sweep_decides_on_a_part_of_the_examples(tmp_path, monkeypatch):
    """Statistics are those of the full sweep on the same examples; decided heads drop out of later chunks."""
    model, task = bert(), classification(size=600)
    asked = []
    original = adaptive.evaluate
    monkeypatch.setattr(
        adaptive,
        "evaluate",
        lambda m, t, masks, **how: asked.append((len(t), len(masks))) or original(m, t, masks, **how),
    )
    found = ablate_each(model, task, adaptive=True, margin=20, run=tmp_path / "run")
    full = ablate_each(model, task)
    order = np.random.default_rng(12345).permutation(len(task))
    assert "within" in found.adaptive.decisions
    assert found.adaptive.examples.sum() < 600 * len(found.heads)
    for place, head in enumerate(found.heads):
        rows = order[: found.adaptive.examples[place]]
        change = task.metric.of(full.outcomes.of([head])[rows]) - task.metric.of(full.outcomes.of()[rows])
        assert found.effects.change[place] == pytest.approx(change)
        assert found.effects.low[place] <= change <= found.effects.high[place]
    assert sum(size * (masks - 1) for size, masks in asked) == found.adaptive.examples.sum()
    assert [masks for _, masks in asked] == sorted((masks for _, masks in asked), reverse=True)
    row = found.to_json()["heads"][0]
    assert {"head", "score", "change", "low", "high", "p", "p_holm", "p_bh", "examples", "decision"} <= set(row)


def test_an_interrupted_adaptive_sweep_resumes_to_the_same_decisions(tmp_path, monkeypatch):
    model, task = bert(), classification(size=300, metric="f1")
    how = {"adaptive": True, "margin": 45, "layers": [1], "fill": "mean"}
    undisturbed = ablate_each(model, task, **how)

    def interrupt(share):
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ablate_each(model, task, **how, run=tmp_path / "run", progress=interrupt)
    kept = len(list((tmp_path / "run" / "outcomes").glob("outcomes-0*")))
    done = []
    original = sweep.Evaluation.__call__
    monkeypatch.setattr(sweep.Evaluation, "__call__", lambda *given: done.append(1) or original(*given))
    resumed = ablate_each(model, task, **how, run=tmp_path / "run")
    assert resumed.adaptive.decisions == undisturbed.adaptive.decisions
    assert resumed.effects.low.tolist() == undisturbed.effects.low.tolist()
    total = len(list((tmp_path / "run" / "outcomes").glob("outcomes-0*")))
    assert kept > 0
    assert len(done) == total - kept
    with pytest.raises(RunConflict, match="margin"):
        ablate_each(model, task, **{**how, "margin": 2}, run=tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"adaptive": True, "margin": 0}, "margin"),
        ({"adaptive": True, "margin": -1.5}, "-1.5"),
        ({"adaptive": True, "margin": float("nan")}, "nan"),
        ({"margin": 2}, "adaptive"),
        ({"adaptive": True, "resamples": 500}, "resamples"),
    ],
)
def test_adaptive_settings_that_make_no_sense(settings, fact):
    with pytest.raises(HeadcountError, match=fact):
        ablate_each(bert(), classification(), **settings)


def test_what_an_adaptive_sweep_cannot_do_is_refused():
    model, task = bert(), classification()
    with pytest.raises(HeadcountError, match="adaptive"):
        ablate_all_but_one(model, task, adaptive=True)
    with pytest.raises(HeadcountError, match="adaptive"):
        compare(model, task, task, adaptive=True)
    task.metric = Metric("median", of_rows=lambda rows, counts: counts @ rows[:, 1])
    with pytest.raises(HeadcountError, match="median"):
        ablate_each(model, task, adaptive=True)
