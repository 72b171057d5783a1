"""Every metric is the number that its field's own library reports, to the last digit; every loss is the model's own."""

import jiwer
import numpy as np
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer
from scipy import stats as scipy_stats
from seqeval.metrics import accuracy_score, f1_score
from sklearn.metrics import accuracy_score as plain_accuracy
from sklearn.metrics import top_k_accuracy_score

import every_task
from headcount import load_task
from headcount.cli.model_loading import load_model
from headcount.tasks.answering import exact_match, word_f1
from headcount.tasks.metrics import IMAGES, REGRESSION, TAGS, pick, recall_at, spearman
from headcount.tasks.statistics import TextScorer
from headcount.tasks.tagging import TokenClassification, entities
from headcount.tasks.text import word_tokenizer

WORDS = ["a", "the", "fine", "dull", "film", "dog", "cat", "runs"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A model and a task of a kind, with 20 examples."""
    made = {}

    def load(kind, **options):
        if kind not in made:
            path, data = every_task.every_task(kind, tmp_path_factory.mktemp(kind), size=20)
            made[kind] = (*load_model(str(path)), data)
        model, reader, data = made[kind]
        return model, load_task(None, data, reader, model, **options)

    return load


def outputs_of(model, task):
    batch = task.batch(range(len(task)))
    with torch.no_grad():
        outputs = task.outputs(model, batch)
    return batch, outputs, task.statistics(outputs, batch).numpy()


@pytest.mark.parametrize("scheme", [("B-a", "I-a", "B-b", "I-b", "O"), ("B-a", "I-a", "E-a", "S-a", "S-b", "O")])
def test_entity_f1_is_seqevals(scheme):
    rng = np.random.default_rng(0)
    gold, found = ([[str(rng.choice(scheme)) for _ in range(1 + i % 9)] for i in range(200)] for _ in range(2))
    mixed = [
        [a if rng.random() < 0.7 else b for a, b in zip(x, y, strict=True)] for x, y in zip(gold, found, strict=True)
    ]
    rows = []
    for x, y in zip(gold, mixed, strict=True):
        true, predicted = entities(tuple(x)), entities(tuple(y))
        right = sum(a == b for a, b in zip(x, y, strict=True))
        rows.append([len(x), right, 0.0, len(true), len(predicted), len(true & predicted)])
    assert float(TAGS["f1"].of(np.array(rows, float))) == pytest.approx(f1_score(gold, mixed), rel=1e-15)
    assert float(TAGS["accuracy"].of(np.array(rows, float))) == pytest.approx(accuracy_score(gold, mixed), rel=1e-15)


def test_tagging_end_to_end_is_seqevals_and_its_loss_the_models(loaded):
    model, task = loaded("tagging")
    _, outputs, statistics = outputs_of(model, task)
    gold = [[task.tags[tag] for tag in tags] for tags in task.gold]
    found = [[task.tags[outputs[i, start].argmax()] for start in starts] for i, starts in enumerate(task.starts)]
    assert 0 < float(task.metric.of(statistics)) == pytest.approx(f1_score(gold, found), rel=1e-15)
    one = task.batch([3])
    own = model(**one.inputs, labels=one.labels).loss
    assert torch.allclose(task.losses(task.outputs(model, one), one)[0], own)


def test_words_beyond_the_limit_count_as_not_found():
    rows = [{"tokens": ["a", "dog", "runs", "cat"], "tags": ["O", "B-x", "O", "B-x"]}]
    task = TokenClassification(rows, word_tokenizer("a dog runs cat"), max_length=4)
    assert "1 of 1 sentences truncated: the words beyond count as not found" in task.remarks
    perfect = torch.zeros(1, 4, 2)
    perfect[0, 1, task.tags.index("O")] = perfect[0, 2, task.tags.index("B-x")] = 9.0
    counts = task.statistics(perfect, task.batch([0]))[0].tolist()
    assert counts[:2] == [4, 3]  # the third word is O, as guessed; the fourth is missed
    assert counts[3:] == [2, 1, 1]


def test_answers_are_scored_as_squad_does():
    from torchmetrics.functional.text import squad

    rng = np.random.default_rng(1)
    pairs = [(" ".join(rng.choice([*WORDS, "The", "dog,"], 4)), [" ".join(rng.choice(WORDS, 3)) for _ in range(3)])
             for _ in range(60)]  # fmt: skip
    predictions = [{"prediction_text": text, "id": str(i)} for i, (text, _) in enumerate(pairs)]
    references = [
        {"answers": {"answer_start": [0] * 3, "text": golds}, "id": str(i)} for i, (_, golds) in enumerate(pairs)
    ]
    theirs = squad(predictions, references)
    for name, metric in (("exact_match", exact_match), ("f1", word_f1)):
        ours = np.mean([max(metric(text, gold) for gold in golds) for text, golds in pairs])
        assert 100 * ours == pytest.approx(float(theirs[name]), abs=1e-4)  # theirs is a float32
    assert word_f1("", "") == exact_match("", "") == 1.0  # SQuAD 2.0: rightly no answer
    assert word_f1("dog", "") == exact_match("dog", "") == 0.0


def test_the_best_span_is_the_best_of_all_spans(loaded):
    """Every pair of context tokens of a window, tried one by one; with no answer if that scores higher."""
    for no_answer in (False, True):
        model, task = loaded("answering", no_answer=no_answer)
        assert any(len(one) > 1 for one in task.windows)
        batch, outputs, _ = outputs_of(model, task)
        found = task.predictions(outputs, batch)[:, 0].tolist()
        for i, windows in enumerate(task.windows):
            start, end = outputs[i].tolist()
            best, offset, nothing = (-np.inf, None), 0, []
            for window in windows:
                nothing.append(start[offset] + end[offset])
                inside = [t for t, (first, last) in enumerate(window.places) if first < last]
                for a in inside:
                    for b in inside:
                        if a <= b < a + task.longest:
                            best = max(best, (start[offset + a] + end[offset + b], (offset + a, offset + b)))
                offset += len(window.ids)
            expected = (0, 0) if no_answer and min(nothing) > best[0] else best[1]
            assert divmod(found[i], 1 << 20) == expected


def test_answering_loss_is_the_models_own_in_one_window(loaded):
    model, task = loaded("answering", max_length=16)
    index = next(i for i, windows in enumerate(task.windows) if len(windows) == 1)
    one = task.batch([index])
    start, end = one.labels[0]
    own = model(**one.inputs, start_positions=start[None], end_positions=end[None]).loss
    assert torch.allclose(task.losses(task.outputs(model, one), one)[0], own)


@pytest.mark.parametrize("kind", ["choice", "endings"])
def test_choices_are_scored_as_scikit_learn_does(loaded, kind):
    model, task = loaded(kind)
    _, outputs, statistics = outputs_of(model, task)
    assert float(task.metric.of(statistics)) == plain_accuracy(task.labels, outputs.argmax(1))


def test_multiple_choice_loss_is_the_models_own(loaded):
    model, task = loaded("choice")
    one = task.batch([3])
    assert torch.allclose(
        task.losses(task.outputs(model, one), one)[0], model(**one.inputs, labels=one.labels).loss, atol=1e-6
    )


def test_the_likelihood_of_an_ending_token_by_token(loaded):
    model, task = loaded("endings")
    batch = task.batch([0, 1])
    outputs = task.outputs(model, batch)
    for place, index in enumerate((0, 1)):
        for choice, option in enumerate(task.options[index]):
            ids, total = option["input_ids"], 0.0
            for t in range(len(ids) - sum(option["ending"]), len(ids)):
                logits = model(torch.tensor([ids[:t]])).logits[0, -1]
                total += logits.log_softmax(0)[ids[t]].item()
            assert outputs[place, choice].item() == pytest.approx(total, abs=1e-4)


def test_spearman_of_resamples_is_scipys():
    rng = np.random.default_rng(0)
    rows = np.stack([rng.integers(0, 9, 50), rng.integers(0, 9, 50) + rng.random(50)], axis=1).astype(float)
    counts = np.concatenate([np.ones((1, 50), int), rng.multinomial(50, np.full(50, 1 / 50), size=20)])
    ours = spearman(rows, counts)
    for row, found in zip(counts, ours, strict=True):
        theirs = scipy_stats.spearmanr(*np.repeat(rows, row, axis=0).T).statistic
        assert found == pytest.approx(theirs, rel=1e-12)


def test_regression_is_scipys(loaded):
    for name in REGRESSION:
        model, task = loaded("regression", metric=name)
        _, outputs, statistics = outputs_of(model, task)
        x, y = outputs[:, 0].double().numpy(), np.array(task.labels)
        expected = {
            "pearson": scipy_stats.pearsonr(x, y).statistic,
            "spearman": scipy_stats.spearmanr(x, y).statistic,
            "mse": np.mean((x - y) ** 2),
        }[name]
        assert float(task.metric.of(statistics)) == pytest.approx(expected, rel=1e-9)
    one = task.batch([2])
    own = model(**one.inputs, labels=torch.tensor([task.labels[2]])).loss
    assert torch.allclose(task.losses(task.outputs(model, one), one)[0], own)


def test_embeddings_are_sentence_transformers(loaded, tmp_path):
    """The model as a sentence-transformers directory: their evaluators, on their own embeddings."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import (
        EmbeddingSimilarityEvaluator,
        InformationRetrievalEvaluator,
    )
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    for mode in ("mean", "cls", "max", "weightedmean", "lasttoken"):
        model, task = loaded("embedding")
        path = tmp_path / mode
        model.save_pretrained(path / "bare")
        task.tokenizer.save_pretrained(path / "bare")
        inner = Transformer(str(path / "bare"), max_seq_length=14)
        theirs = SentenceTransformer(modules=[inner, Pooling(16, mode), Normalize()], device="cpu")
        theirs.save(str(path / "whole"))
        ours, reader = load_model(str(path / "whole"))
        rows = [
            {"sentence1": a, "sentence2": b, "score": s} for (a, b), s in zip(task.content, task.labels, strict=True)
        ]
        again = load_task(None, rows, reader, ours)
        assert again.how.mode == mode
        _, outputs, statistics = outputs_of(ours, again)
        first, second, scores = zip(*((row["sentence1"], row["sentence2"], row["score"]) for row in rows), strict=True)
        assert np.allclose(outputs[:, 0].numpy(), theirs.encode(list(first)), atol=1e-5)
        found = EmbeddingSimilarityEvaluator(list(first), list(second), list(scores), write_csv=False)(theirs)
        assert float(again.metric.of(statistics)) == pytest.approx(found["spearman_cosine"], rel=1e-9)
    rows = [{"query": a, "document": b} for a, b in zip(first, second, strict=True)]
    pairs = load_task("embedding", rows, reader, ours, metric="recall@5")
    _, _, statistics = outputs_of(ours, pairs)
    ids = [str(i) for i in range(20)]
    evaluator = InformationRetrievalEvaluator(
        dict(zip(ids, first, strict=True)), dict(zip(ids, second, strict=True)), {i: {i} for i in ids},
        precision_recall_at_k=[5], write_csv=False,
    )  # fmt: skip
    assert float(pairs.metric.of(statistics)) == evaluator(theirs)["cosine_recall@5"] > 0
    assert pairs.metric.name == "recall@5"


def test_recall_of_resamples_keeps_all_documents():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((30, 2, 6))
    rows = (vectors / np.linalg.norm(vectors, axis=2, keepdims=True)).reshape(30, 12)
    hits = [(rows[:, 6:] @ rows[i, :6] > rows[i, 6:] @ rows[i, :6] + 1e-6).sum() < 5 for i in range(30)]
    counts = rng.multinomial(30, np.full(30, 1 / 30), size=4)
    assert recall_at(5, rows, counts) == pytest.approx(counts @ np.array(hits) / 30)


def test_rouge_is_rouge_scores():
    rng = np.random.default_rng(0)
    texts, targets = (
        [" ".join(rng.choice([*WORDS, "running", "films"], rng.integers(1, 9))) for _ in range(30)] for _ in "ab"
    )
    rows = np.array(TextScorer("rougeL").count(texts, targets))
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for column, name in enumerate(("rouge1", "rouge2", "rougeL"), start=1):
        theirs = np.mean([scorer.score(b, a)[name].fmeasure for a, b in zip(texts, targets, strict=True)])
        assert rows[:, column].mean() == pytest.approx(theirs, rel=1e-14)


@pytest.mark.parametrize(("name", "whole"), [("wer", jiwer.wer), ("cer", jiwer.cer)])
def test_error_rates_are_jiwers(name, whole):
    rng = np.random.default_rng(0)
    texts, targets = ([" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(40)] for _ in "ab")
    rows = np.array(TextScorer(name).count(["", *texts], ["dog", *targets]), float)
    errors, length = rows[:, 1].sum(), rows[:, 0].sum()
    assert errors / length == pytest.approx(whole(["dog", *targets], ["", *texts]), rel=1e-15)


def test_whisper_writes_the_likeliest_token_each_time(loaded):
    model, task = loaded("speech")
    batch = task.batch(range(4))
    found = task.decode(model, batch)
    for row in range(4):
        written = list(task.start)
        while len(written) < len(task.start) + found.shape[1] and task.tokenizer.eos_token_id not in written:
            sound = batch.inputs["input_features"][row : row + 1]
            with torch.no_grad():
                logits = model(input_features=sound, decoder_input_ids=torch.tensor([written])).logits[0, -1]
            written.append(int(logits.argmax()))
        expected = written[len(task.start) :]
        assert found[row, : len(expected)].tolist() == expected
        assert (found[row, len(expected) :] == task.pad).all()


def test_the_loss_of_a_transcript_is_whispers(loaded):
    model, task = loaded("speech")
    one = task.batch([2])
    labels = torch.cat([torch.tensor([task.start[1:]]), one.labels], dim=1)
    own = model(**one.inputs, labels=labels).logits[:, len(task.start) - 1 :]  # it shifts the labels as we do
    assert torch.allclose(task.outputs(model, one), own, atol=1e-5)


@pytest.mark.slow
def test_the_real_whisper_writes_what_its_own_generate_does(shared):
    model, processor = load_model(str(shared / "models/whisper-tiny-en"))
    task = load_task(None, shared / "data/speech/transcripts.tsv", processor, model, limit=2)
    batch = task.batch(range(2))
    ours, theirs = task.decode(model, batch), model.generate(batch.inputs["input_features"])
    texts = [processor.tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (ours, theirs)]
    assert texts[0] == texts[1]
    assert float(task.metric.of(task.statistics(ours, batch).numpy())) < 0.5


def test_images_are_scored_as_scikit_learn_does(loaded):
    model, task = loaded("images")
    _, outputs, statistics = outputs_of(model, task)
    assert float(task.metric.of(statistics)) == plain_accuracy(task.labels, outputs.argmax(1))
    one = task.batch([1])
    assert torch.allclose(task.losses(task.outputs(model, one), one)[0], model(**one.inputs, labels=one.labels).loss)


def test_top5_is_scikit_learns(loaded):
    _, task = loaded("images", metric="top5")
    rng = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(20, 9, generator=rng), torch.randint(9, (20,), generator=rng)
    batch = task.batch(range(20))
    object.__setattr__(batch, "labels", labels)
    found = float(pick(IMAGES, "top5").of(task.statistics(logits, batch).numpy()))
    assert found == top_k_accuracy_score(labels, logits, k=5, labels=range(9))
