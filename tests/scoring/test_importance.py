"""`importance` and `Scores`: methods, order, intervals, convergence, and what is refused."""

import json

import numpy as np
import pytest

from headcount import Head, evaluate, importance, remove
from headcount.engine import Local, using
from headcount.errors import BadData, HeadcountError
from headcount.scoring import METHODS, Scores, unit_moments
from headcount.scoring.scores import convergence
from headcount.structure import anatomy
from toy_jobs import JOBS, classification, translation


@pytest.fixture(scope="module")
def model():
    return JOBS["classifier"][0]()


def test_every_method_scores_every_head(model):
    task = classification(n=8)
    for name in ("gradient", "fisher", "oracle", "random"):
        scores = importance(model, task, name)
        assert scores.heads == anatomy(model).heads
        assert sorted(scores.order()) == sorted(scores.heads)
        assert scores.signature["method"] == name
        assert scores.normalize == METHODS[name].normalized


def test_normalised_per_layer_and_kind():
    build, make = JOBS["translator"]
    scores = importance(build(), make(n=6))
    shares = scores.normalized()
    sites = {head.site for head in shares}
    assert len(sites) == 6
    for site in sites:
        np.testing.assert_allclose(sum(v**2 for head, v in shares.items() if head.site == site), 1.0)
    assert scores.order() == sorted(shares, key=lambda head: (shares[head], scores.heads.index(head)))


def test_the_order_can_be_that_of_raw_or_normalised_scores():
    build, make = JOBS["translator"]
    model, task = build(), make(n=6)
    raw, own = importance(model, task, normalize=False), importance(model, task)
    assert (raw.raw == own.raw).all()
    assert raw.order() == sorted(raw.heads, key=lambda head: (raw[head], raw.heads.index(head)))
    assert raw.order() != own.order()
    assert importance(model, task, "fisher", normalize=True).normalize


def test_oracle_is_the_drop_of_single_ablation(model):
    task = classification(n=16)
    outcomes = evaluate(model, task, [(), *([head] for head in anatomy(model).heads)])
    scores = importance(model, task, "oracle")
    for head in scores.heads:
        assert scores[head] == pytest.approx(outcomes.score() - outcomes.score({head}), abs=1e-6)
    base, masked = outcomes.of(), outcomes.of({scores.heads[0]})
    np.testing.assert_allclose(scores.values[:, 0], base[:, 1] - masked[:, 1], atol=1e-5)


def test_oracle_of_a_metric_that_is_no_mean_and_of_one_that_grows_worse_upwards():
    model, task = JOBS["translator"][0](), translation(n=6)
    scores = importance(model, task, "oracle")
    head = scores.heads[5]
    assert scores[head] == pytest.approx(evaluate(model, task).score() - evaluate(model, task, [[head]]).score({head}))
    build, make = JOBS["causal"]
    model, task = build(), make(n=6)
    scores, outcomes = importance(model, task, "oracle"), evaluate(model, task, [(), [scores_head(model)]])
    rise = outcomes.score({scores_head(model)}) - outcomes.score()
    assert scores[scores_head(model)] == pytest.approx(rise, rel=1e-4)


def scores_head(model):
    return anatomy(model).heads[2]


def test_random_is_seeded_and_reads_no_data(model):
    one, same, other = (importance(model, classification(n=2), "random", seed=seed) for seed in (1, 1, 2))
    assert one.order() == same.order() != other.order()
    assert one.keys == ()


def test_a_pruned_model_has_scores_of_the_heads_that_are_left(model):
    smaller = remove(model, ["encoder.0.1"])
    assert Head("encoder", 0, 1) not in importance(smaller, classification(n=4)).heads


def test_raw_values_are_kept_and_survive_json(model, tmp_path):
    task = classification(n=9)
    scores = importance(model, task)
    assert scores.values.shape == (9, 8)
    assert scores["encoder.1.2"] == pytest.approx(scores.values[:, 6].mean())
    again = Scores.load(scores.save(tmp_path / "scores.json"))
    np.testing.assert_array_equal(again.values, scores.values)
    assert (again.heads, again.order(), again.keys) == (scores.heads, scores.order(), tuple(task.keys()))
    assert again.signature == json.loads(json.dumps(scores.signature))


EVERY = ("heads", "neurons", "sublayers")


@pytest.mark.parametrize("units", [*EVERY, EVERY])
def test_scores_of_any_units_are_the_moments_of_their_gradients(model, units):
    task = classification(n=9)
    moments = unit_moments(model, task, units)
    absolute, squares = (importance(model, task, name, units=units) for name in ("gradient", "fisher"))
    assert absolute.units == squares.units == moments.units
    np.testing.assert_allclose(absolute.raw, moments.absolute, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(squares.raw, moments.squares, rtol=1e-5, atol=1e-8)
    assert len(absolute.values) == (1 if "neurons" in units else 9)  # with neurons, sums only
    assert squares.order() == [squares.units[place] for place in np.argsort(squares.raw, kind="stable")]


def test_shares_of_neurons_are_within_a_site_and_of_sublayers_within_a_kind(model):
    shares = importance(model, classification(n=6), units=["neurons", "sublayers"]).normalized()
    neurons = [value for unit, value in shares.items() if isinstance(unit, Head) and unit.site == "encoder_ffn.1"]
    assert len(neurons) == 32
    assert np.square(neurons).sum() == pytest.approx(1)
    assert shares["encoder.0"] ** 2 + shares["encoder.1"] ** 2 == pytest.approx(1)
    assert shares["encoder_ffn.0"] ** 2 + shares["encoder_ffn.1"] ** 2 == pytest.approx(1)


@pytest.mark.parametrize("job", ["classifier", "translator"])
def test_oracle_of_sublayers_is_the_drop_of_ablating_each(job):
    build, make = JOBS[job]
    model, task = build(), make(n=8)
    scores = importance(model, task, "oracle", units="sublayers")
    assert scores.units == anatomy(model, "sublayers").units
    for unit in scores.units:
        without = evaluate(model, task, [[unit]], fast=False).scores()[0]
        assert scores[unit] == pytest.approx(evaluate(model, task).score() - without, abs=1e-5)


def test_oracle_of_neurons_ablates_neighbours_by_importance_together(model):
    task = classification(n=16, metric="loss")
    scores = importance(model, task, "oracle", units=EVERY, group=12)
    squares = importance(model, task, "fisher", units="neurons")
    whole = evaluate(model, task).score()
    for site in ("encoder_ffn.0", "encoder_ffn.1"):
        ranked = [unit for unit in squares.order() if unit.site == site]
        for group in (ranked[:12], ranked[12:24], ranked[24:]):
            rise = evaluate(model, task, [group], fast=False).scores()[0] - whole
            assert {round(scores[unit], 5) for unit in group} == {round(rise / len(group), 5)}
    alone = evaluate(model, task, [["encoder.1.2"], ["encoder_ffn.1"]], fast=False).scores() - whole
    assert (scores["encoder.1.2"], scores["encoder_ffn.1"]) == pytest.approx(tuple(alone), abs=1e-5)


@pytest.mark.parametrize("units", [*EVERY, EVERY])
def test_scores_of_any_units_survive_json(model, tmp_path, units):
    scores = importance(remove(model, ["encoder_ffn.0.3-5"]), classification(n=4), "fisher", units=units)
    content = scores.to_json()
    assert len(content["heads"]) == (8 if "heads" in units else 0)
    assert len(content.get("units", ())) == 2 * ("neurons" in units) + 4 * ("sublayers" in units)
    again = Scores.load(scores.save(tmp_path / "scores.json"))
    assert set(again.units) == set(scores.units)
    assert [again[unit] for unit in scores.units] == [scores[unit] for unit in scores.units]


@pytest.mark.parametrize(
    "entry",
    [
        {"sublayer": "encoder.0.1"},
        {"site": "encoder.0", "neurons": "0-1"},
        {"site": "encoder_ffn.0", "neurons": "0-99999999"},
        {"site": "encoder_ffn.0", "neurons": 3},
        {"site": "encoder_ffn.0"},
        "encoder.0",
    ],
)
def test_damaged_units_are_refused(model, entry):
    content = importance(model, classification(n=4), "random", units="sublayers").to_json()
    with pytest.raises(HeadcountError):
        Scores.from_json({**content, "units": [*content["units"][1:], entry]})
    with pytest.raises(BadData, match="twice"):
        Scores.from_json({**content, "units": [*content["units"][1:], content["units"][1]]})


@pytest.mark.parametrize("units", ["neurons", "sublayers"])
@pytest.mark.parametrize(("method", "options"), [("gradient", {"tokens": 24}), ("oracle", {})])
def test_units_are_scored_in_shards_and_resumed(model, tmp_path, monkeypatch, units, method, options):
    task, asked = classification(n=20), {"method": method, "units": units, **options}
    expected = importance(model, task, **asked).values
    monkeypatch.setattr("headcount.engine.shards.WORK", 1)  # a shard for every batch
    with using(Local()):
        np.testing.assert_allclose(importance(model, task, **asked).values, expected, atol=1e-6)
    first = importance(model, task, **asked, run=tmp_path / "run")
    np.testing.assert_allclose(first.values, expected, atol=1e-6)
    shards = [path.name for path in (tmp_path / "run").rglob("*.shard")]
    assert len(shards) > (3 if method == "gradient" else 0)
    monkeypatch.setattr("headcount.scoring.gradient._loss", None)  # a pass would fail: everything is there already
    again = importance(model, task, **asked, run=tmp_path / "run")
    np.testing.assert_array_equal(again.values, first.values)
    with pytest.raises(HeadcountError, match="units"):
        importance(model, task, method, units="heads", run=tmp_path / "run")


def test_units_that_a_method_cannot_score_are_refused(model):
    task = classification(n=4)
    for method in ("confidence", "relevance"):
        with pytest.raises(HeadcountError, match=rf"{method}.* sublayers.*units"):
            importance(model, task, method, units=["heads", "sublayers"])
    with pytest.raises(HeadcountError, match=r"'token'.* neurons"):
        importance(model, task, units="neurons", per="token")
    with pytest.raises(HeadcountError, match=r"group.* 0\b"):
        importance(model, task, "oracle", units="neurons", group=0)
    with pytest.raises(HeadcountError, match=r"'neuron'.*'neurons'"):
        importance(model, task, units="neuron")
    with pytest.raises(HeadcountError, match=r"encoder_ffn\.7\.0.*encoder_ffn\.0\.0-31"):
        importance(model, task, "random", units="neurons")["encoder_ffn.7.0"]
    gone = remove(model, ["encoder_ffn.0", "encoder_ffn.1"])
    with pytest.raises(HeadcountError, match="no neurons"):
        importance(gone, task, units="neurons")


def test_damaged_scores_are_refused(tmp_path):
    (tmp_path / "bad.json").write_text('{"heads": [{"head": "encoder.0.0"}], "method": "gradient"}')
    with pytest.raises(BadData, match="values"):
        Scores.load(tmp_path / "bad.json")
    with pytest.raises(BadData, match=r"missing\.json"):
        Scores.load(tmp_path / "missing.json")


def test_a_unit_that_turns_no_answer_has_an_interval_with_width():
    """The oracle's rows: 0 where the answer stays, 1 where it is lost, -1 where it is won."""
    rows = np.zeros((24, 2))
    rows[3, 1] = 1
    low, high = Scores(("encoder.0", "encoder.1"), rows, "oracle").intervals()
    assert low[0] < 0 < high[0] == pytest.approx(-low[0])
    assert low[1] < 1 / 24 < high[1]
    assert high[0] > 0.05  # the rule of three: about 3 / 24


def test_intervals_hold_the_mean_and_shrink_with_more_rows():
    rng = np.random.default_rng(0)
    heads = (Head("encoder", 0, 0), Head("encoder", 0, 1))
    few, many = (Scores(heads, rng.exponential(size=(n, 2)), "gradient") for n in (40, 4000))
    for scores in (few, many):
        low, high = scores.intervals()
        assert ((low < scores.raw) & (scores.raw < high)).all()
    assert np.subtract(*few.intervals()[::-1]).min() > 5 * np.subtract(*many.intervals()[::-1]).max()


def test_convergence_needs_more_rows_when_heads_are_close():
    rng = np.random.default_rng(0)
    apart, close = (np.arange(12.0) * gap + rng.normal(size=(2000, 12)) for gap in (1.0, 0.1))
    easy, hard = (convergence(values, lambda raw: raw) for values in (apart, close))
    assert easy.stable_at < hard.stable_at
    assert convergence(rng.normal(size=(64, 12)), lambda raw: raw).stable_at is None
    assert convergence(rng.normal(size=(2, 12)), lambda raw: raw).sizes == ()


def test_bad_requests_are_refused_in_one_sentence(model):
    with pytest.raises(HeadcountError, match=r"'gradeint'.*'gradient'"):
        importance(model, classification(n=2), "gradeint")
    with pytest.raises(HeadcountError, match=r"fisher 'per'.* tokens$"):
        importance(model, classification(n=2), "fisher", per="token")
    one_class = classification(n=24)
    one_class = one_class.subset([i for i, label in enumerate(one_class.labels) if label == 1])
    with pytest.raises(BadData, match=rf"\b{len(one_class)} examples\b.*label 1\b"):
        importance(model, one_class)
    with pytest.raises(HeadcountError, match=r"\bheads\b"):
        importance(remove(model, anatomy(model).heads), classification(n=4))
    with pytest.raises(HeadcountError, match=r"encoder\.7\.0"):
        importance(model, classification(n=4), "random")["encoder.7.0"]


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(BadData, match=r"gradient .*encoder\.0\.1\b"):
        Scores((Head("encoder", 0, 0), Head("encoder", 0, 1)), np.array([[1.0, np.nan]]), "gradient")
    with pytest.raises(HeadcountError, match=r"\(0, 1\).*\(rows, 1\)"):
        Scores((Head("encoder", 0, 0),), np.zeros((0, 1)), "gradient")
