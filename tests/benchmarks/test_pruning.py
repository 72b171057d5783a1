"""The table of benchmarks/pruning on a tiny model: resumed part by part, paired with the baselines, pooled honestly."""

import doctest
import importlib
import json

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

import tiny_models
import toy_jobs
from headcount import anatomy, evaluate, remove

UNITS = ("heads", "neurons")


@pytest.fixture
def benchmark(monkeypatch, tmp_path):
    """The benchmark with a tiny model in place of every data set, and the work that it did."""
    from benchmarks.pruning import __main__ as main
    from benchmarks.pruning.data import Data

    model = tiny_models.bert(pad_token_id=0, initializer_range=0.3)
    train, test = toy_jobs.classification(0, 40), toy_jobs.classification(3, 40)
    order = sorted(range(len(train)))

    def read(key, models, **options):
        return Data(key, key.upper(), tmp_path, model, train.subset(order[8:]), train.subset(order[:8]), test)

    made = []
    maker = main.maker

    def makes(method, data, results):
        make = maker(method, data, results) if method != "ours" else lambda ratio: remove(model, ["encoder.0.0"])

        def noting(ratio):
            made.append((data.key, method, ratio))
            return make(ratio)

        return noting

    monkeypatch.setattr(main, "read", read)
    monkeypatch.setattr(main, "where", lambda key, models: tmp_path if key != "mrpc" else None)
    monkeypatch.setattr(main, "maker", makes)
    main.made, main.data = made, read("sst2", None)
    return main


def run(benchmark, out, *more):
    benchmark.main(["--out", str(out), "--rounds", "2", "--speedups", "1.2,1.5", *more])
    return json.loads((out / "table.json").read_text())


def test_other_ways_to_choose_units_meet_the_flops(benchmark, tmp_path):
    results = run(benchmark, tmp_path, "--data", "sst2", "--methods", "surgeon,reconstruction")
    (one,) = results["data"]
    assert [row["method"] for row in one["rows"]] == ["surgeon", "reconstruction"] * 2
    assert all(row["flops"] >= row["asked"] for row in one["rows"])
    assert one["rows"][2]["left"] != one["rows"][3]["left"]


def test_choices_are_judged_on_other_training_examples(benchmark, tmp_path, capsys, monkeypatch):
    from benchmarks.pruning import choices

    data = benchmark.data
    others = toy_jobs.classification(0, 60)
    monkeypatch.setattr(choices, "read", lambda key, models, **options: data)
    monkeypatch.setattr(choices, "load_task", lambda *args, **options: others)
    judged = choices.others(data, 1000)
    assert 0 < len(judged) < len(others)  # some are scored
    assert not {*judged.keys()} & {*data.score.keys(), *data.select.keys()}

    asked = ["--out", str(tmp_path), "--data", "sst2", "--speedups", "1.2", "--methods", "ours,surgeon"]
    asked += ["--steps", "0.2", "--scored", "8,24"]
    choices.main(asked)
    first = capsys.readouterr().out
    rows = [line.split(" | ") for line in first.splitlines() if line.startswith("| SST2")]
    assert [(row[2], row[4]) for row in rows] == [("ours", "8"), ("ours", "24"), ("surgeon", "8"), ("surgeon", "24")]
    assert not rows[0][6].strip()
    assert all("[" in row[6] for row in rows[1:])
    assert "surgeon, step 0.2, 24 scored, 1.2 times: pooled z" in first
    monkeypatch.setattr(choices, "maker", lambda *args, **knobs: pytest.fail("searched again"))
    choices.main(asked)
    assert capsys.readouterr().out == first


def test_the_table_and_its_parts(benchmark, tmp_path, capsys):
    methods = ("--data", "sst2,mrpc,cola", "--methods", "ours,kwon")
    results = run(benchmark, tmp_path, *methods)
    assert len(benchmark.made) == 8
    assert [one["name"] for one in results["data"]] == ["SST2", "COLA"]  # mrpc has no model
    rows = results["data"][0]["rows"]
    assert [(row["asked"], row["method"]) for row in rows] == [
        (1.2, "ours"),
        (1.2, "kwon"),
        (1.5, "ours"),
        (1.5, "kwon"),
    ]
    data = benchmark.data
    by_method = {row["method"]: row for row in rows if row["asked"] == 1.5}
    ours = remove(data.model, ["encoder.0.0"])
    assert by_method["ours"]["score"] == pytest.approx(evaluate(ours, data.test).score())
    with torch.no_grad():
        batch = data.test.batch(range(len(data.test)))
        logs = [data.test.outputs(model, batch).double().log_softmax(-1) for model in (data.model, ours)]
    divergences = (logs[0].exp() * (logs[0] - logs[1])).sum(-1)
    assert by_method["ours"]["divergence"] == pytest.approx(divergences.mean().item(), rel=1e-4)
    nearer = next(one for one in results["versus"] if one["by"] == "divergence")["data"]["SST2"]["1.5"]["change"]
    assert nearer == pytest.approx(100 * (by_method["kwon"]["divergence"] - divergences.mean().item()), rel=1e-4)
    assert by_method["ours"]["left"]["encoder.0"] == 3
    assert by_method["kwon"]["flops"] == pytest.approx(1.5, abs=0.1)
    assert set(by_method["kwon"]["speed"]) == {"1", "16"}
    printed = capsys.readouterr().out
    assert (tmp_path / "table.md").read_text() in printed
    assert "| fewer FLOPs | **headcount** | Kwon et al. |" in printed
    assert "| 1.5 | .525, " in printed

    benchmark.made.clear()
    results = run(benchmark, tmp_path, *methods, "--retime")
    again = results["data"][0]["rows"]
    assert not benchmark.made  # only the speed is new
    assert all(new["speed"] != old["speed"] for new, old in zip(again, rows, strict=True))
    assert [{**new, "speed": 0} for new in again] == [{**old, "speed": 0} for old in rows]
    (tmp_path / "cola" / "kwon-1.5.json").unlink()
    assert run(benchmark, tmp_path, *methods)["data"][0] == results["data"][0]
    assert benchmark.made == [("cola", "kwon", 1.5)]


def test_a_part_of_another_model_is_measured_again(benchmark, tmp_path):
    methods = ("--data", "sst2", "--methods", "ours")
    run(benchmark, tmp_path, *methods)
    benchmark.made.clear()
    with torch.no_grad():
        benchmark.data.model.classifier.bias += 1
    run(benchmark, tmp_path, *methods)
    assert [method for _, method, _ in benchmark.made] == ["ours", "ours"]


def test_what_a_method_cannot_reach_is_said(benchmark, tmp_path, capsys):
    results = run(benchmark, tmp_path, "--data", "sst2", "--methods", "kwon", "--speedups", "1.2,1000")
    reached, missed = results["data"][0]["rows"]
    assert "score" in reached
    assert "FLOPs" in missed["remark"]
    assert "| 1000 | out of reach |" in capsys.readouterr().out


def test_textpruner_is_read_from_what_it_wrote(benchmark, tmp_path, capsys):
    from benchmarks.pruning import textpruner

    data = benchmark.data
    masks = {"heads": [[1, 0, 1, 1], [1, 1, 1, 1]], "neurons": [[0] * 8 + [1] * 24, [1] * 32]}
    smaller = remove(data.model, ["encoder.0.1", "encoder_ffn.0.0-7"])
    with torch.no_grad():
        predictions = data.test.outputs(smaller, data.test.batch(range(len(data.test)))).argmax(1).tolist()
    written = {**masks, "predictions": predictions, "fingerprint": {"test": data.test.signature()["inputs"]}}
    place = tmp_path / "textpruner" / "sst2"
    place.mkdir(parents=True)
    (place / "1.5.json").write_text(json.dumps(written))
    results = run(benchmark, tmp_path, "--data", "sst2", "--methods", "ours,textpruner")
    row = next(row for row in results["data"][0]["rows"] if row["method"] == "textpruner")
    assert row["score"] == pytest.approx(evaluate(smaller, data.test).score())
    assert row["agreement"] == 1
    assert row["left"] == {site.name: len(site.kept) for site in anatomy(smaller, UNITS).sites}
    assert "TextPruner has not been run on sst2 at 1.2" in capsys.readouterr().out
    assert results["versus"][0]["data"]["SST2"].keys() == {"1.5", "mean"}

    benchmark.made.clear()
    written["fingerprint"]["score"] = "more examples"
    (place / "1.5.json").write_text(json.dumps(written))
    run(benchmark, tmp_path, "--data", "sst2", "--methods", "ours,textpruner")
    assert benchmark.made == [("sst2", "textpruner", 1.5)]  # TextPruner was run again

    written["fingerprint"]["test"] = "other"
    (place / "1.5.json").write_text(json.dumps(written))
    with pytest.raises(textpruner.HeadcountError, match=r"1\.5\.json"):
        textpruner.written(data, tmp_path, 1.5)


def test_sizes_for_textpruner_have_the_flops_asked_for(benchmark):
    from benchmarks.pruning import textpruner
    from benchmarks.pruning.data import typical
    from benchmarks.pruning.kwon import flops_by_unit

    data = benchmark.data
    before, costs = flops_by_unit(data.model, data.score, typical(data.score))
    for ratio in (1.2, 1.5, 2):
        heads, neurons = textpruner.targets(data, ratio)
        off = [f"encoder.{layer}.{i}" for layer in range(2) for i in range(heads, 4)]
        off += [f"encoder_ffn.{layer}.{i}" for layer in range(2) for i in range(neurons, 32)]
        after, _ = flops_by_unit(remove(data.model, off), data.score, typical(data.score))
        assert 0 <= before / ratio - after <= 2 * costs["encoder_ffn.0"]
        assert abs(heads / 4 - neurons / 32) < 0.5
    with pytest.raises(textpruner.HeadcountError, match="1000"):
        textpruner.targets(data, 1000)


def test_statistics_from_predictions(benchmark):
    from benchmarks.pruning.parts import statistics_of

    task = toy_jobs.classification(3, 40, metric="matthews")
    model = benchmark.data.model
    with torch.no_grad():
        predictions = task.outputs(model, task.batch(range(len(task)))).argmax(1).tolist()
    expected, found = evaluate(model, task).of(), statistics_of(predictions, task, 2)
    assert task.metric.of_sums(found.sum(0)) == pytest.approx(evaluate(model, task).score())
    assert (np.delete(found, 2, axis=1) == np.delete(expected, 2, axis=1)).all()  # all but the loss


def test_stouffer_pools_tests_and_not_points():
    from benchmarks.pruning.judge import Difference, pooled

    tests = [Difference(0.5, 0.1, 0.9, p=0.01), Difference(-40.0, -90, 10, p=0.2), Difference(2.0, -1, 5, p=0.3)]
    expected = scipy_stats.combine_pvalues(  # one-sided, in our favour
        [0.005, 1 - 0.1, 0.15], method="stouffer"
    )
    assert pooled(tests).z == pytest.approx(expected.statistic)
    assert pooled(tests).p == pytest.approx(2 * expected.pvalue)


def test_a_mean_over_speeds_is_the_mean_of_the_differences():
    from benchmarks.pruning.judge import difference

    metric = toy_jobs.classification().metric
    rng = np.random.default_rng(0)
    theirs, ours = (
        [np.stack([np.ones(200), rng.random(200) < share, np.zeros(200)], axis=1) for share in shares]
        for shares in ((0.6, 0.5), (0.8, 0.9))
    )
    each = [difference([a], [b], metric, base=0.9, resamples=500) for a, b in zip(theirs, ours, strict=True)]
    mean = difference(theirs, ours, metric, base=0.9, resamples=500)
    assert mean.change == pytest.approx((each[0].change + each[1].change) / 2)
    assert each[0].change == pytest.approx(100 * (ours[0][:, 1].mean() - theirs[0][:, 1].mean()))
    assert mean.low < mean.change < mean.high
    assert mean.p < 0.05


@pytest.mark.parametrize("name", ["judge", "kwon", "show", "textpruner"])
def test_examples(name):
    found = doctest.testmod(importlib.import_module(f"benchmarks.pruning.{name}"))
    assert found.attempted
    assert not found.failed


def test_promises_are_judged_by_the_true_drop_of_the_population():
    from argparse import Namespace

    from benchmarks.pruning.promises import promise, row_of

    from headcount.tasks.metrics import CLASSIFICATION

    rng = np.random.default_rng(0)
    base = np.stack([np.ones(600), rng.random(600) < 0.9, np.zeros(600)], axis=1)

    def worse(share):
        lost = np.where(np.arange(600) < share * 600, 0, base[:, 1])
        return np.stack([base[:, 0], lost, base[:, 2]], axis=1)

    path = {0.0: base, 0.1: base, 0.2: worse(0.002), 0.3: worse(0.2), 0.4: base}
    options = Namespace(draws=20, confidence=0.95, seed=0)
    found = promise(path, CLASSIFICATION["accuracy"], 2.0, options)
    assert (found["cut"], found["kept"]) == (20, 20)
    assert 0.1 <= found["share"] <= 0.2001  # never beyond the cut that loses 20 points
    nothing = promise(path, CLASSIFICATION["accuracy"], 0.1, options)
    assert nothing["cut"] == 0
    assert "600 selection examples cannot show a drop of at most 0.1 points" in row_of(
        {"name": "", "metric": "", **nothing}
    )


def test_promises_measure_the_cuts_of_the_search_and_keep_them(benchmark, monkeypatch, tmp_path):
    from argparse import Namespace

    from benchmarks.pruning import promises

    data = benchmark.data
    monkeypatch.setattr(promises, "read", lambda key, models, **options: data)
    monkeypatch.setattr(promises, "where", lambda key, models: tmp_path)
    asked = {"metric": None, "models": None, "score": 8, "limit": None, "step": 0.25, "most": 0.5}
    options = Namespace(statistics=tmp_path / "statistics", **asked)
    found = promises.path_of("sst2", options)
    assert sorted(found) == [0.0, 0.25, 0.5]
    assert (found[0.0] == evaluate(data.model, data.test).of()).all()
    monkeypatch.setattr(promises, "read", None)  # what is kept is not measured again
    again = promises.path_of("sst2", options)
    assert all((again[share] == found[share]).all() for share in found)
