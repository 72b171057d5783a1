"""The public names as somebody meets them in Python: short reprs, and sentences for arguments of a wrong type."""

import inspect
import re
from pathlib import Path

import pytest

import headcount
import tiny_models
from headcount import HeadcountError
from headcount.tasks.classification import toy_classifier
from headcount.tasks.text import word_tokenizer

DOCS = Path(__file__).resolve().parent.parent / "docs"
ELSEWHERE = {"push_to_hub", "export_gguf"}  # they need a network, or another program
SHORT = 300  # characters of a repr that nobody scrolls past


@pytest.fixture(scope="module")
def toy():
    return toy_classifier()


def test_reprs_are_short_and_say_what_it_is(toy):
    model, task = toy
    scores = headcount.importance(model, task)
    ablation = headcount.ablate_each(model, task)
    pruned = headcount.prune(model, task, task, heads=2, overlap="allow")
    with headcount.capture(model) as seen:
        task.outputs(model, task.batch([0]))
    shown = {
        "examples": [task, ablation, ablation.outcomes, task.batch([0, 1]), headcount.unlabeled(task, model)],
        "heads": [headcount.anatomy(model), scores, ablation, pruned],
        task.metric.name: [task, ablation.outcomes, pruned, headcount.compare_models(model, pruned.model, task)],
        "point": [headcount.pruning_curve(model, task, scores, step=0.5, overlap="allow")],
        "encoder.0": [seen, seen.attention, seen.contexts],
        "Pearson": [headcount.compare(model, task, task)],
        "layer": [headcount.ablate_all_but_one(model, task)],
        "role": [headcount.find_roles(model, [{"text": "a fine film"}], task.tokenizer, parser=False)],
        "original": [headcount.benchmark(model, batches=[1], lengths=[4], rounds=1)],
    }
    for fact, objects in shown.items():
        for one in objects:
            assert fact in repr(one)
            assert len(repr(one)) < SHORT, repr(one)
            assert "\n" not in repr(one)
    assert "non-inferior" in repr(pruned)


def test_plurals_of_one(toy):
    model, task = toy
    assert "1 example" in repr(task.subset([0]))
    assert "1 examples" not in repr(task.subset([0]))
    assert "1 mask," in repr(headcount.evaluate(model, task))


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (lambda model, task: headcount.pruning_curve(model, task, task), "scores="),
        (lambda model, task: headcount.pruning_curve(model, "dev.tsv", headcount.importance(model, task)), "task="),
        (lambda model, task: headcount.pruning_curve(model, task, 3), "scores="),
        (lambda model, task: headcount.evaluate(model, "dev.tsv"), "task="),
        (lambda model, task: headcount.evaluate(task, model), "task="),
        (lambda model, task: headcount.evaluate("model", task), "model"),
        (lambda model, task: headcount.evaluate(model, task, 3), "masks"),
        (lambda model, task: headcount.importance(model, [1, 2]), "task="),
        (lambda model, task: headcount.importance(model, task, 3), "method"),
        (lambda model, task: headcount.ablate_each(model, None), "task="),
        (lambda model, task: headcount.ablate_all_but_one(model, task, "x"), "select_task="),
        (lambda model, task: headcount.compare(model, task, "other.tsv"), "against="),
        (lambda model, task: headcount.compare_models(model, model, "dev.tsv"), "task="),
        (lambda model, task: headcount.compare_models(model, 3, task), "other="),
        (lambda model, task: headcount.prune(model, "train.tsv", task, max_drop=1), "score_task="),
        (lambda model, task: headcount.prune("model", task, task, max_drop=1), "model"),
        (lambda model, task: headcount.train_gates(model, "train.tsv", lam=0.1), "task="),
        (lambda model, task: headcount.track(["a"], "dev.tsv", task), "task="),
        (lambda model, task: headcount.track(3, task, task), "checkpoints="),
        (lambda model, task: headcount.anatomy("bert"), "model"),
        (lambda model, task: headcount.anatomy(model, 3), "units="),
        (lambda model, task: headcount.remove(model, 3), "heads"),
        (lambda model, task: headcount.remove("model", ["encoder.0.0"]), "model"),
        (lambda model, task: headcount.masked("model", off=["encoder.0.0"]).__enter__(), "model"),
        (lambda model, task: headcount.capture("model").__enter__(), "model"),
        (lambda model, task: headcount.save("model", "here"), "model"),
        (lambda model, task: headcount.save(model, 3), "directory="),
        (lambda model, task: headcount.save(model, "here", "tokenizer"), "tokenizer="),
        (lambda model, task: headcount.load(3), "directory="),
        (lambda model, task: headcount.export_onnx("model", "m.onnx"), "model"),
        (lambda model, task: headcount.export_onnx(model, 3), "file="),
        (lambda model, task: headcount.benchmark(3), "model"),
        (lambda model, task: headcount.report(3, "x.html"), "run"),
        (lambda model, task: headcount.find_roles(model, 3, task.tokenizer, parser=False), "rows"),
        (lambda model, task: headcount.find_roles(model, [{"text": "a"}], "tokenizer", parser=False), "tokenizer="),
        (lambda model, task: headcount.load_task(3, [], None), "kind="),
        (lambda model, task: headcount.load_task("classification", 3, task.tokenizer), "int"),
        (lambda model, task: headcount.load_task("classification", [{"text": "a", "label": 1}], "x"), "tokenizer="),
        (lambda model, task: headcount.Head.parse(3), "head"),
    ],
)
def test_a_wrong_type_gets_a_sentence(toy, tmp_path, monkeypatch, call, fact):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadcountError) as refused:
        call(*toy)
    assert fact in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_is_saved_by_position(toy, tmp_path):
    headcount.save(toy[0], tmp_path / "saved", word_tokenizer("a fine film"))
    assert (tmp_path / "saved" / "tokenizer.json").is_file()


@pytest.mark.parametrize("name", headcount.__all__)
def test_every_public_function_has_an_example_that_runs(name):
    """A doctest beside it, and, for functions, a use in the Python code of README or docs."""
    thing = getattr(headcount, name)
    if not inspect.isfunction(thing):
        pytest.skip("not a function")
    assert ">>> " in (thing.__doc__ or "") or name in ELSEWHERE
    pages = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    assert any(re.search(rf"\b{name}\(", block) for block in blocks)


def test_the_script_of_the_documentation_runs(tmp_path, monkeypatch):
    texts = [f"{mood} {thing}" for mood in ("fine", "dull", "a fine", "a dull") for thing in ("film", "play", "book")]
    for place, name in enumerate(("train", "dev", "test")):
        lines = [f"{text}{' indeed' * place}\t{int('fine' in text)}\n" for text in texts]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    model = tiny_models.bert(pad_token_id=0)
    headcount.save(model, tmp_path / "my-classifier", word_tokenizer("a fine dull film play book indeed"))
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), re.DOTALL):
        if not any(name in block for name in ELSEWHERE):
            exec(block, names)
    assert names["both"].n == len(texts)
    assert [point.pruned for point in names["curve"].points] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert len(names["pruned"].removed) == 2
    assert names["classify"]("a fine film")[0]["label"] in model.config.label2id
    assert names["result"].verdict
