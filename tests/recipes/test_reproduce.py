"""`python -m recipes.reproduce` on toy models and toy data, end to end; and its rules on made-up numbers."""

import json
import re
from xml.dom import minidom

import numpy as np
import pytest

import tiny_models
from headcount import HeadcountError, save
from headcount.tasks.text import word_tokenizer
from toy_jobs import WORDS, sentences

SMALL = {"encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 8}  # short outputs


def tree(text):
    """A sentence of CoNLL-U in which every word but the first is the object of the first."""
    words = text.split()
    rows = [
        f"{i}\t{word}\t_\t_\t_\t_\t{int(i > 1)}\t{'obj' if i > 1 else 'root'}\t_\t_" for i, word in enumerate(words, 1)
    ]
    return f"# text = {text}\n" + "\n".join(rows) + "\n\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory like the shared one, with a toy classifier, a toy translator of two checkpoints, and their data."""
    root = tmp_path_factory.mktemp("shared")
    save(tiny_models.bert(pad_token_id=0), root / "models" / "classifier", tokenizer=word_tokenizer(WORDS))
    for number, spread in ((1, 0.2), (2, 0.4)):
        model = tiny_models.marian(init_std=spread, **SMALL)
        save(model, root / "models" / "epochs" / f"epoch-{number}", tokenizer=word_tokenizer(WORDS, "marian"))
    model = tiny_models.marian(**SMALL)
    save(model, root / "models" / "translator", tokenizer=word_tokenizer(WORDS, "marian"))
    (root / "data").mkdir()
    for name, start in (("train", 0), ("dev", 1), ("other", 2)):
        texts = sentences(start, 12)
        rows = [f"{text}\t{int('fine' in text or 'bien' in text)}\n" for text in texts]
        (root / "data" / f"{name}.tsv").write_text("".join(rows))
        (root / "data" / f"{name}.en").write_text("".join(f"{text}\n" for text in texts))
        (root / "data" / f"{name}.fr").write_text("".join(f"{text} le\n" for text in texts))
    (root / "data" / "trees.conllu").write_text("".join(tree(text) for text in sentences(3, 12)))
    toys = [
        {"name": "Toy", "model": "classifier", "data": "dev.tsv", "score": "train.tsv", "other": "other.tsv"},
        {
            "name": "Toy en-fr", "model": "translator", "data": "dev.en", "score": "train.en",
            "targets": ["dev.fr", "train.fr"], "checkpoints": "../epochs/epoch-*", "options": ["--metric", "chrf"],
            "treebank": "trees.conllu",
        },
        {"name": "Absent", "model": "absent", "data": "dev.tsv", "score": "train.tsv", "recipe": "make absent"},
    ]  # fmt: skip
    (root / "experiments.json").write_text(json.dumps(toys))
    return root


@pytest.fixture(scope="module")
def written(place, tmp_path_factory):
    from recipes.reproduce.__main__ import main

    out = tmp_path_factory.mktemp("results")
    files = ["--shared", str(place), "--experiments", str(place / "experiments.json"), "--out", str(out / "runs")]
    sizes = ["--limit", "6", "--sentences", "3", "--batch", "1", "--rounds", "6", "--bench-layers", "1"]
    gates = ["--prices", "0.01", "--gate-sentences", "12", "--gate-epochs", "1", "--role-sentences", "12"]
    asked = [*files, *sizes, *gates, "--relevance-sentences", "4", "--no-forecast", "--docs", str(out / "docs")]
    main(asked)
    return out, asked


def test_every_section_is_there_with_numbers_of_the_runs(written):
    out, _ = written
    page = (out / "docs" / "results.md").read_text()
    assert page.count("\n## ") == 15
    assert page.count("Not computed here") == 1  # from scratch
    runs = {path.parent.name: json.loads(path.read_text()) for path in (out / "runs").glob("*/run.json")}
    kinds = {
        "toy-ablate",
        "toy-other",
        "toy-curve",
        "toy-best",
        "toy-alone",
        "toy-en-fr-kinds",
        "toy-en-fr-track",
        "toy-en-fr-track-loss",
        "toy-en-fr-beam",
        "toy-scored-200",
        "toy-scored-5000",
        "toy-en-fr-relevance",
        "toy-en-fr-gates-encoder-0.01",
        "toy-en-fr-gates-all-0.01-roles",
        "speed",
    }
    assert kinds <= {name.rpartition("-")[0] for name in runs}
    gated = next(run for name, run in runs.items() if name.startswith("toy-en-fr-gates-all-0.01-") and "stages" in run)
    assert f"| Toy en-fr | all | 0.01 | {gated['left']} of {gated['stages'][0]['of']} |" in page
    trained = next(run for name, run in runs.items() if name.startswith("toy-en-fr-control-all"))
    assert [key.rpartition("-")[0] for key in trained["against"]] == ["toy-en-fr-gates-all-0.01"]
    assert f"control: no gates |  | {trained['score']:.2f} |" in page
    ablated = next(run for name, run in runs.items() if name.startswith("toy-ablate"))
    assert f"| Toy | 6 | accuracy {ablated['base']:.3f} | 8 |" in page
    tracked = next(run for name, run in runs.items() if name.startswith("toy-en-fr-track-") and run["metric"] == "chrf")
    assert [one["name"] for one in tracked["checkpoints"]] == ["epoch-1", "epoch-2", "translator"]
    assert tracked["in_words"] in page
    forced = next(run for name, run in runs.items() if name.startswith("toy-en-fr-track-loss"))
    assert forced["metric"] == "loss"
    assert f"| epoch-1 | loss {forced['checkpoints'][0]['base']:.3f} |" in page
    other = next(run for name, run in runs.items() if name.startswith("toy-other"))
    for row in ("Toy", "Toy, by the loss"):  # an interval of r, and reliabilities
        assert re.search(rf"\| {row} \| 6 / {other['n']} \|.* to .*\|.* / .*\|", page)
    beam = next(run for name, run in runs.items() if name.startswith("toy-en-fr-beam"))
    assert f"| Toy en-fr | beam search | 3 | chrf {beam['curves'][0]['points'][0]['score']:.2f} |" in page
    for number in (*(f"C{n}" for n in range(1, 7)), "V1", "V2", "V3"):
        assert f"**{number}. " in page


def test_how_long_it_takes_is_said_before_anything_is_computed(written, tmp_path, capsys):
    from recipes.reproduce.__main__ import main

    files = written[1][:6]
    assert "--out" in files
    asked = [*files[: files.index("--out")], "--out", str(tmp_path / "runs"), "--only", "ablate", "--limit", "6"]
    main([*asked, "--forecast", "--experiment", "Toy"])
    said = capsys.readouterr().out
    assert "Toy, one head off: about " in said
    assert "Together about " in said
    assert not list(tmp_path.glob("runs/*"))


def test_what_is_missing_is_said_by_name(written):
    out, _ = written
    page = (out / "docs" / "results.md").read_text()
    assert "Absent: no model absent (made by `make absent`)" in page
    assert "| Absent" not in page


def test_figures_are_drawings_that_the_page_shows(written):
    out, _ = written
    page = (out / "docs" / "results.md").read_text()
    files = list((out / "docs" / "figures").iterdir())
    assert len(files) == 9
    for file in files:
        assert f"(figures/{file.name})" in page
        assert minidom.parse(str(file)).documentElement.tagName == "svg"


def test_nothing_finished_is_computed_again(written, monkeypatch):
    from recipes.reproduce import running
    from recipes.reproduce.__main__ import main

    out, asked = written
    before = (out / "docs" / "results.md").read_bytes()
    (out / "docs" / "results.md").unlink()
    monkeypatch.setattr(running, "call", None)
    main(asked)
    assert (out / "docs" / "results.md").read_bytes() == before


def test_records_stand_in_for_the_runs_and_the_models_behind_them(written, place, tmp_path, monkeypatch):
    """The page is the same to the digits that it shows, from small files that name no place on this machine."""
    from recipes.reproduce import running
    from recipes.reproduce.__main__ import main

    out, asked = written
    records = ["--records", str(tmp_path / "records")]
    main([*asked, "--write", *records])
    monkeypatch.setattr(running, "call", None)
    bare = tmp_path / "shared"
    (bare / "data").mkdir(parents=True)
    elsewhere = ["--shared", str(bare), "--out", str(tmp_path / "runs"), "--docs", str(tmp_path / "docs")]
    main([*asked, *elsewhere, *records])
    page, again = ((folder / "docs" / "results.md").read_text() for folder in (out, tmp_path))
    assert again == page
    files = list((tmp_path / "records").iterdir())
    assert len(files) > 20
    assert not any(str(root) in file.read_text() for file in files for root in (out, place, tmp_path))
    main([*asked, *elsewhere, *records, "--sentences", "4", "--write"])  # another command has no record
    assert "| Toy en-fr | 3 |" in page
    assert "| Toy en-fr | 3 |" not in (tmp_path / "docs" / "results.md").read_text()


def test_a_record_of_other_weights_is_not_taken(written, place, tmp_path):
    from recipes.reproduce.experiments import PARTS, Experiment
    from recipes.reproduce.records import Records

    records, one = Records(tmp_path), Experiment("Toy", str(place / "models" / "classifier"), "dev.tsv", "train.tsv")
    (run,) = (json.loads(file.read_text()) for file in (written[0] / "runs").glob("toy-ablate-*/run.json"))
    records.keep(one, PARTS[0], 6, run)
    assert records.read(one, PARTS[0], 6, one)["heads"]
    assert records.read(one, PARTS[0], 7, one) is None
    run["signature"]["model"]["fingerprint"] = "other"
    records.keep(one, PARTS[0], 6, run)
    assert records.read(one, PARTS[0], 6, one) is None
    assert records.read(one, PARTS[0], 6, None)["heads"]  # the model is elsewhere


@pytest.mark.parametrize("out", ["runs", "/elsewhere/runs"])
def test_a_record_does_not_depend_on_where_runs_are(out, tmp_path):
    """Some parts read a model that another part has left among the runs."""
    from recipes.reproduce.experiments import Experiment, Part
    from recipes.reproduce.records import Records

    def part(out: str) -> Part:
        left = f"{out}/toy-gates-1234/model"
        return Part("again", "roles", lambda one: ["roles", left, "--data", one.data], model=lambda one: left)

    records, one = Records(tmp_path), Experiment("Toy", "toy", "ud/dev.conllu", "train.tsv")
    records.keep(one, part("reproduce"), 6, {"heads": 3})
    assert records.read(one, part(out), 6, None) == {"heads": 3}


def test_a_page_with_something_missing_does_not_replace_the_published_one(written, monkeypatch):
    from recipes.reproduce import __main__ as reproduce

    out, asked = written
    monkeypatch.setattr(reproduce, "ROOT", out / "repository")
    reproduce.main([*asked[: asked.index("--docs")], "--write"])
    assert (out / "runs" / "docs" / "results.md").exists()
    assert not (out / "repository").exists()


def test_unknown_parts_and_experiments_are_refused(written):
    from recipes.reproduce.__main__ import main

    with pytest.raises(HeadcountError, match=r"'curves'.*'curve'"):
        main([*written[1], "--only", "curves"])
    with pytest.raises(HeadcountError, match=r"'Tox'.*'Toy'"):
        main([*written[1], "--experiment", "Tox"])


ACCURACY = {"metric": "accuracy", "higher_is_better": True, "points": 0.01, "relative": False}
PERPLEXITY = {"metric": "surprise", "higher_is_better": False, "points": 0.01, "relative": True, "base": 4.0}


def test_prunable_and_height():
    from recipes.reproduce.pruning import height, prunable

    shares = ((0, 1.0), (0.25, 0.97), (0.5, 0.9), (0.75, 0.99), (1, 0.1))
    for run in (ACCURACY, PERPLEXITY):  # a perplexity that is kept to 97% is 1 / 0.97 of the whole model's
        relative = [(x, y if run is ACCURACY else 1 / y) for x, y in shares]
        curve = {"points": [{"pruned": x, "relative": y} for x, y in relative]}
        assert prunable(curve, run) == 0.25
        assert height(curve, run) == pytest.approx((0.97 + 0.9 + 0.99) / 3)


def test_better_and_points_are_those_of_the_runs_metric():
    from recipes.reproduce.ablation import counted, lost
    from recipes.reproduce.figures import points, score

    run = {**heads((-0.1, 0.001), (0.1, 0.001), (0.2, 0.009), (0.1, 0.2)), **PERPLEXITY}
    assert [row["change"] for row in lost(run)] == [0.1, 0.2]
    assert counted(run)["better"] == 1
    assert (points(0.1, run), points(0.1, ACCURACY)) == ("+2.50", "+10.00")
    assert (score(4.0, run), score(34.056, {**ACCURACY, "points": 1.0})) == ("4.000", "34.06")


def shot(name, low, high, best_random):
    """A checkpoint with 60% of its heads pruned: by importance (an interval), and in random orders (the highest)."""
    points = [("gradient", low, high), ("random", 0.0, best_random)]
    steps = [{"method": method, "pruned": 0.6, "low": a, "high": b} for method, a, b in points]
    return {"name": name, "points": steps, "importance": {"h": name}}


DISTINCT, NOT, OPEN = (0.7, 0.9, 0.6), (0.2, 0.5, 0.6), (0.5, 0.8, 0.6)


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([NOT, DISTINCT, DISTINCT], "holds.** T: 0 not, 1 distinct, 2 distinct"),
        ([DISTINCT, DISTINCT, DISTINCT], "refuted"),
        ([NOT, NOT, DISTINCT], "refuted"),
        ([OPEN, DISTINCT, DISTINCT], "undecided"),
        ([NOT, OPEN, DISTINCT], "undecided"),
        ([], "not measured"),
    ],
)
def test_the_distinction_in_training_is_decided_by_intervals_and_all_random_orders(states, said):
    from recipes.reproduce.claims import claims
    from recipes.reproduce.running import Results

    shots = [shot(str(place), *state) for place, state in enumerate(states)]
    runs = {"T": {"track": {**ACCURACY, "checkpoints": shots}}} if states else {}
    assert f"C5. The distinction emerges early in training: {said}" in claims(Results(runs=runs))


def curve(*kept, width=0.01, **more):
    """A curve of ten heads whose points keep these shares of a score of 0.5, with intervals of this half-width."""
    points = [
        {
            "pruned": i / 10, "relative": left, "score": 0.5 * left, "removed": list(range(i)),
            "change_low": 0.5 * (left - 1 - width), "change_high": 0.5 * (left - 1 + width),
        }
        for i, left in enumerate(kept)
    ]  # fmt: skip
    return {"points": points, **more}


def test_cross_attention_is_judged_by_its_own_interval():
    from recipes.reproduce.claims import claims
    from recipes.reproduce.running import Results

    def kinds(cross):
        levels = (("encoder", 0.5), ("decoder", 0.6), ("cross", cross))
        return {**ACCURACY, "curves": [curve(1, *[left] * 10, kind=kind) for kind, left in levels]}

    runs = {name: {"kinds": kinds(cross)} for name, cross in (("A", 0.4), ("B", 0.7), ("C", 0.49))}
    page = claims(Results(runs=runs))
    assert "C4. Cross-attention is the most sensitive: holds for A; refuted for B; undecided for C.**" in page


def heads(*pairs):
    """Rows of an ablation: (change, p)."""
    rows = [
        {
            "head": f"encoder.0.{i}",
            "change": change,
            "low": change - 0.01,
            "high": change + 0.01,
            "p": p,
            "p_holm": 2 * p,
        }
        for i, (change, p) in enumerate(pairs)
    ]
    return {**ACCURACY, "heads": rows}


def test_heads_and_layers_are_counted_where_the_interval_shows_something():
    """Intervals of `heads` are 1 point to either side: a change of 0 is within a point, of -1 is not shown to be."""
    from recipes.reproduce.ablation import counted, lost
    from recipes.reproduce.claims import claims
    from recipes.reproduce.running import Results

    good = heads((0.0, 0.5), (0.1, 0.001), (0.2, 0.009), (-0.1, 0.2))
    bad = heads((-0.1, 0.001), (-0.1, 0.002), (-0.2, 0.009), (0.1, 0.2))
    unclear = heads((-0.01, 0.3), (-0.01, 0.3), (0.1, 0.2))
    runs = {"A": good, "B": bad, "C": unclear}
    page = claims(Results(runs={name: {"ablate": run} for name, run in runs.items()}))
    assert "C1. Most heads can be removed one by one: holds for A; refuted for B; undecided for C.**" in page
    assert "A: 3 of 4 heads shown within 1 point, 1 shown to lose more; B: 1 of 4" in page
    layers = {name: {"alone": {**ACCURACY, "layers": run["heads"]}} for name, run in runs.items()}
    assert "C2. Layers can be reduced to one head: holds for A; refuted for B; undecided" in claims(
        Results(runs=layers)
    )
    assert counted(good) == {"heads": 4, "significant": 2, "better": 2, "holm": 1}
    assert [row["change"] for row in lost(layers["B"]["alone"], "layers")] == [-0.1, -0.1, -0.2]
    inverse = {**heads((0.1, 0.001), (0.1, 0.2)), **PERPLEXITY}  # a rise of 0.1 of 4 is 2.5 points for the worse
    assert "C1. Most heads can be removed one by one: refuted" in claims(Results(runs={"P": {"ablate": inverse}}))


def test_a_fifth_of_the_heads_and_the_whole_interval_of_the_speed():
    from recipes.reproduce.claims import claims
    from recipes.reproduce.running import Results

    levels = {"A": 0.97, "B": 0.9, "C": 0.955}
    runs = {
        name: {"curve": {**ACCURACY, "curves": [curve(1, 0.98, left, *[0.5] * 8, method="gradient")]}}
        for name, left in levels.items()
    }
    rows = [(1, 1.2, 0.99, 1.4), (4, 1.1, 1.01, 1.2), (16, 0.9, 0.8, 0.95)]
    speed = {"rows": [dict(zip(("batch", "speedup", "low", "high"), row, strict=True)) for row in rows]}
    page = claims(Results(runs=runs, speed=speed))
    assert "C3. 20-60% of the heads can be pruned: holds for A; refuted for B; undecided for C.** A: with 20%" in page
    assert "holds for batch 4; refuted for batch 16; undecided for batch 1.** batch 1: +20.0% (-1.0% to +40.0%)" in page


def test_random_orders_are_averaged_and_their_band_is_told():
    from recipes.reproduce.experiments import Experiment
    from recipes.reproduce.pruning import mean_curve, orders
    from recipes.reproduce.running import Results

    randoms = [curve(1, *[left] * 10, method="random", normalized=False) for left in (0.5, 0.7)]
    assert mean_curve(randoms)["points"][3]["score"] == pytest.approx(0.3)
    levels = ((0.9, "gradient", True), (0.95, "gradient", False), (0.8, "oracle", False))
    several = [curve(1, *[left] * 10, method=method, normalized=way) for left, method, way in levels]
    run = {**ACCURACY, "n": 9, "curves": [*several, *randoms]}
    results = Results(runs={"A": {"curve": run}}, experiments={"A": Experiment("A", "m", "d", "s")})
    page = orders(results, figures := {})
    assert "| A | 9 | 0% (0.90) | 100% (0.95) | 0% (0.80) | 0.60 (0.50 to 0.70, 2 orders) |" in page
    assert "raw gradient" in figures["a-curve.svg"]
    alone = Results(runs={"A": {"curve": {**run, "curves": several}}}, experiments=results.experiments)
    assert "| A | 9 | 0% (0.90) | 100% (0.95) | 0% (0.80) |  |" in orders(alone, figures)
    assert "random" not in figures["a-curve.svg"]


def test_the_last_checkpoint_counts_once_and_the_largest_head_can_be_left_out():
    from recipes.reproduce.ablation import without_largest
    from recipes.reproduce.pruning import distinct_shots

    shots = [{"importance": {"h": 1}}, {"importance": {"h": 2}}, {"importance": {"h": 2}}]
    assert distinct_shots({"checkpoints": shots}) == shots[:2]
    assert distinct_shots({"checkpoints": shots[:2]}) == shots[:2]
    assert without_largest([-9, 1, 2, 3], [-9, 3, 2, 1]) == pytest.approx(-1)


def made_up_effects(n, noise, seed=0):
    """Effects of 40 heads on accuracy: head k is wrong on a share of k / 80 of the sentences, or by chance alone."""
    from recipes.reproduce.resampling import Effects

    from headcount.tasks.metrics import CLASSIFICATION

    rng = np.random.default_rng(seed)
    right = rng.random((40, n)) >= (0.2 if noise else np.arange(40)[:, None] / 80)
    rows = np.stack([np.ones((41, n)), np.concatenate([np.ones((1, n)), right])], axis=-1)
    return Effects(rows[0], rows[1:], CLASSIFICATION["accuracy"])


def test_effects_on_the_loss_are_read_from_the_same_sentences(monkeypatch):
    """Here every sentence's loss moves with the head, and its answer does not."""
    from recipes.reproduce import resampling

    from headcount.tasks.metrics import CLASSIFICATION

    rng = np.random.default_rng(0)
    effect = np.append(0, np.arange(40) / 10)[:, None]  # the whole model first
    sides = []
    for n in (90, 110):
        losses = effect + rng.random((41, n))
        rows = np.stack([np.ones((41, n)), np.ones((41, n)), losses], axis=-1)
        sides.append(resampling.Effects(rows[0], rows[1:], CLASSIFICATION["accuracy"]))
    runs = {"ablate": {}, "other": {}}
    monkeypatch.setattr(resampling, "effects", lambda run, translates: sides[run is runs["other"]])
    resampling.resample(runs, translates=False)
    found = runs["other"]["losses"]
    expected = (sides[0].masked[..., 2].mean(1) - sides[0].base[:, 2].mean()).tolist()
    assert found["here"] == pytest.approx(expected)
    assert min(found["reliability"]) > 0.9 < found["r_interval"][0]


def test_effects_that_are_there_are_reliable_and_those_of_chance_are_not():
    from recipes.reproduce.resampling import r_interval, reliability

    there, chance = made_up_effects(200, noise=False), made_up_effects(200, noise=True)
    assert reliability(there) > 0.9
    assert abs(reliability(chance)) < 0.5
    low, high = r_interval(there, made_up_effects(300, noise=False, seed=1))
    assert 0.8 < low < high < 1
    low, high = r_interval(there, chance)
    assert low < 0.2 < 0.8 > high


def test_compare_mts_p_is_one_sided_and_from_half_of_the_sentences():
    """By its definition: how often the worse system wins or ties in 1,000 samples of n / 2."""
    from recipes.reproduce.resampling import compare_mt_p

    one = made_up_effects(100, noise=False)
    p = compare_mt_p(one)
    wrong = 100 - one.masked[..., 1].sum(1)  # in a sample of 50, none of them is drawn with probability (1 - w / n)^50
    assert p == pytest.approx((1 - wrong / 100) ** 50, abs=0.06)
    assert p[0] == 1  # nothing changes: never a winner
    assert (p[20:] < 0.01).all()


def test_seeds_are_said_side_by_side_and_every_experiment_has_its_own_name():
    from recipes.reproduce.experiments import EXPERIMENTS, PARTS, Experiment
    from recipes.reproduce.pruning import orders
    from recipes.reproduce.running import Results

    levels = {"CoLA": 0.97, "CoLA seed 1": 0.9, "CoLA base": 0.5}
    ways = (("gradient", True), ("gradient", False), ("oracle", False), ("random", False))
    runs = {
        name: {"curve": {**ACCURACY, "n": 9, "curves": [
            curve(1, left, *[0.5] * 9, method=method, normalized=way) for method, way in ways
        ]}}
        for name, left in levels.items()
    }  # fmt: skip
    found = orders(Results(runs=runs, experiments={name: Experiment(name, "m", "d", "s") for name in levels}), {})
    assert "over seeds of the training: CoLA 10%, 0%." in found
    names = [one.name for one in EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert not any("," in name for name in names)  # --experiment takes several, with commas
    known = {part.name for part in PARTS}
    assert all(set(one.only) <= known for one in EXPERIMENTS)
    assert {one.name for one in EXPERIMENTS if one.base} == {"SST-2 base", "SNLI base", "MultiNLI base"}


def test_a_run_of_other_weights_is_refused(written, place):
    from recipes.reproduce import running
    from recipes.reproduce.__main__ import main

    _, asked = written
    running.weights_of.cache_clear()
    classifier = place / "models" / "classifier"
    model = tiny_models.bert(pad_token_id=0)
    model.classifier.weight.data += 1
    save(model, classifier, tokenizer=word_tokenizer(WORDS))
    with pytest.raises(HeadcountError, match=r"toy-\w+-\w+ .*weights .*classifier"):
        main([*asked, "--write"])


def gates_run(left, low, high):
    stage = {"left": left, "of": 48, "score": 0.5, "change": (low + high) / 2, "low": low, "high": high}
    return {**ACCURACY, "before": 0.5, "stages": [stage]}


@pytest.mark.parametrize(
    ("cut", "against", "said"),
    [
        ((10, -0.005, 0.01), None, "holds.** T: 10 of 48 heads left, -0.50 to +1.00 points, against the whole model"),
        (
            (10, -0.005, 0.01),
            (-0.03, -0.02),
            "refuted.** T: 10 of 48 heads left, -3.00 to -2.00 points, against the con",
        ),
        ((10, -0.02, 0.01), None, "undecided"),
        ((11, -0.005, 0.01), None, "not measured"),
    ],
)
def test_gates_are_judged_beside_a_model_that_was_trained_as_long(cut, against, said):
    from recipes.reproduce.claims import claims
    from recipes.reproduce.running import Results

    runs = {"gates-encoder-0.01": gates_run(*cut)}
    if against is not None:
        low, high = against
        runs["control-encoder"] = {"against": {"t-gates-encoder-0.01-abc": {"change": low, "low": low, "high": high}}}
    assert f"V3. Most encoder heads can be pruned by gates: {said}" in claims(Results(runs={"T": runs}))


@pytest.mark.parametrize(
    ("ends", "said"), [((0.95, 0.99), "holds"), ((0.2, 0.3), "refuted"), ((0.88, 0.93), "undecided")]
)
def test_roles_and_relevance_are_judged_by_intervals(ends, said):
    from recipes.reproduce.claims import claims
    from recipes.reproduce.running import Results

    low, high = ends
    best = {"head": "encoder.0.1", "role": "positional", "detail": "-1", "score": low, "low": low, "high": high}
    names = [f"encoder.{layer}.{index}" for layer in range(2) for index in range(8)]
    sides = [
        {"heads": [{"head": head, "score": way * i} for i, head in enumerate(names)]}
        for way in (1, 1 - 2 * (low < 0.5))
    ]
    runs = {"roles": {"heads": [], "best": [{**best, "baseline": 0.1}]}, "relevance": sides[0], "confidence": sides[1]}
    page = claims(Results(runs={"T": runs}))
    assert f"V2. The encoder has positional and syntactic heads: {said}.**" in page
    assert f"V1. Relevant heads are confident: {'refuted' if said == 'refuted' else 'holds'}.**" in page
