"""`python -m recipes.reproduce` on toy models and toy data, end to end; and its rules on made-up numbers."""

import json
from xml.dom import minidom

import pytest

import tiny_models
from headcount import HeadcountError, save
from headcount.tasks.text import word_tokenizer
from toy_jobs import WORDS, sentences

SMALL = {"encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 8}  # short outputs


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
    toys = [
        {"name": "Toy", "model": "classifier", "data": "dev.tsv", "score": "train.tsv", "other": "other.tsv"},
        {
            "name": "Toy en-fr", "model": "translator", "data": "dev.en", "score": "train.en",
            "targets": ["dev.fr", "train.fr"], "checkpoints": "../epochs/epoch-*", "options": ["--metric", "chrf"],
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
    asked = [*files, *sizes, "--docs", str(out / "docs")]
    main(asked)
    return out, asked


def test_every_section_is_there_with_numbers_of_the_runs(written):
    out, _ = written
    page = (out / "docs" / "results.md").read_text()
    assert page.count("\n## ") == 10
    assert "Not computed" not in page
    runs = {path.parent.name: json.loads(path.read_text()) for path in (out / "runs").glob("*/run.json")}
    kinds = {
        "toy-ablate",
        "toy-other",
        "toy-curve",
        "toy-best",
        "toy-alone",
        "toy-en-fr-kinds",
        "toy-en-fr-track",
        "speed",
    }
    assert kinds <= {name.rpartition("-")[0] for name in runs}
    ablated = next(run for name, run in runs.items() if name.startswith("toy-ablate"))
    assert f"| Toy | 6 | accuracy {ablated['base']:.3f} | 8 |" in page
    tracked = next(run for name, run in runs.items() if name.startswith("toy-en-fr-track"))
    assert [one["name"] for one in tracked["checkpoints"]] == ["epoch-1", "epoch-2", "translator"]
    assert tracked["in_words"] in page
    for number in range(1, 7):
        assert f"**C{number}. " in page


def test_what_is_missing_is_said_by_name(written):
    out, _ = written
    page = (out / "docs" / "results.md").read_text()
    assert "Absent: no model absent (made by `make absent`)" in page
    assert "| Absent" not in page


def test_figures_are_drawings_that_the_page_shows(written):
    out, _ = written
    page = (out / "docs" / "results.md").read_text()
    files = list((out / "docs" / "figures").iterdir())
    assert len(files) == 7
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


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([0.0, 0.1, 0.1], "C5. The distinction emerges early in training: holds.** T: first distinct at 1"),
        ([0.2, 0.1, 0.1], "C5. The distinction emerges early in training: does not hold"),
        ([0.0, 0.0, 0.1], "C5. The distinction emerges early in training: does not hold"),
        ([], "C5. The distinction emerges early in training: not measured"),
    ],
)
def test_claims_follow_their_rules(gains, said):
    from recipes.reproduce.claims import claims
    from recipes.reproduce.running import Results

    shots = [{"name": str(place), "advantage": gain, "importance": {"h": place}} for place, gain in enumerate(gains)]
    runs = {"T": {"track": {"checkpoints": shots}}} if gains else {}
    assert said in claims(Results(runs=runs))


def test_cross_attention_is_judged_by_its_own_curve():
    from recipes.reproduce.claims import claims
    from recipes.reproduce.running import Results

    def kinds(cross):
        return {
            **ACCURACY,
            "curves": [
                {"kind": kind, "points": [{"pruned": 0.5, "relative": left}]}
                for kind, left in (("encoder", 0.5), ("decoder", 0.6), ("cross", cross))
            ],
        }

    page = claims(Results(runs={"A": {"kinds": kinds(0.4)}, "B": {"kinds": kinds(0.7)}}))
    assert "C4. Cross-attention is the most sensitive: holds for A; not for B.**" in page


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


def test_one_by_one_is_judged_by_significant_losses_alone():
    from recipes.reproduce.ablation import counted
    from recipes.reproduce.claims import claims
    from recipes.reproduce.running import Results

    good = heads((-0.1, 0.001), (0.1, 0.001), (0.2, 0.009), (-0.1, 0.2))  # gains are no losses
    bad = heads((-0.1, 0.001), (-0.1, 0.002), (-0.2, 0.009), (0.1, 0.2))
    page = claims(Results(runs={"A": {"ablate": good}, "B": {"ablate": bad}}))
    assert "C1. Most heads can be removed one by one: holds for A; not for B.**" in page
    assert "A: 75% of 4 heads, ± 1.00 points; B: 25% of 4 heads" in page
    assert counted(good) == {"heads": 4, "significant": 3, "better": 2, "holm": 2}


def test_layers_are_judged_by_significant_losses_alone():
    from recipes.reproduce.ablation import lost
    from recipes.reproduce.claims import claims
    from recipes.reproduce.running import Results

    def layers(*pairs):
        rows = heads(*pairs)["heads"]
        return {**ACCURACY, "layers": rows}

    good, bad = layers((-0.1, 0.001), (0.1, 0.001)), layers((-0.1, 0.001), (-0.1, 0.002), (0.1, 0.5))
    page = claims(Results(runs={"A": {"alone": good}, "B": {"alone": bad}}))
    assert "C2. Layers can be reduced to one head: holds for A; not for B.**" in page
    assert [row["change"] for row in lost(bad, "layers")] == [-0.1, -0.1]


def test_a_fifth_of_the_heads_and_the_whole_interval_of_the_speed():
    from recipes.reproduce.claims import claims
    from recipes.reproduce.running import Results

    def curve(*kept):
        points = [{"pruned": i / 10, "relative": left, "removed": list(range(i))} for i, left in enumerate(kept)]
        return {**ACCURACY, "curves": [{"method": "gradient", "points": points}]}

    enough, short = curve(1, 0.96, 0.95, *[0.5] * 8), curve(1, 0.96, 0.94, *[0.5] * 8)
    speed = {"rows": [{"batch": 1, "speedup": 1.2, "low": 0.99}, {"batch": 4, "speedup": 1.1, "low": 1.01}]}
    page = claims(Results(runs={"A": {"curve": enough}, "B": {"curve": short}}, speed=speed))
    assert "C3. 20-60% of the heads can be pruned: holds for A; not for B.** A: 20.0% (2 of 10 heads); B: 10.0%" in page
    assert "C6. Pruned models are faster: holds for batch 4; not for batch 1.** batch 1: +20.0%; batch 4" in page


def test_the_last_checkpoint_counts_once_and_the_largest_head_can_be_left_out():
    from recipes.reproduce.ablation import without_largest
    from recipes.reproduce.pruning import distinct_shots

    shots = [{"importance": {"h": 1}}, {"importance": {"h": 2}}, {"importance": {"h": 2}}]
    assert distinct_shots({"checkpoints": shots}) == shots[:2]
    assert distinct_shots({"checkpoints": shots[:2]}) == shots[:2]
    here, other = heads((-9, 1), (1, 1), (2, 1), (3, 1)), heads((-9, 1), (3, 1), (2, 1), (1, 1))
    assert without_largest(here, other) == pytest.approx(-1)


def test_a_run_of_other_weights_is_refused(written, place):
    from recipes.reproduce import running
    from recipes.reproduce.__main__ import main

    _, asked = written
    running._weights.cache_clear()
    classifier = place / "models" / "classifier"
    model = tiny_models.bert(pad_token_id=0)
    model.classifier.weight.data += 1
    save(model, classifier, tokenizer=word_tokenizer(WORDS))
    with pytest.raises(HeadcountError, match=r"toy-\w+-\w+ .*weights .*classifier"):
        main([*asked, "--write"])
