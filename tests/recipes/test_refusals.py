"""What recipes refuse: each in one sentence, before anything is trained or written."""

import importlib
import json
import re

import pytest

import tiny_models
from headcount import save
from headcount.tasks.text import word_tokenizer
from toy_jobs import WORDS


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.tsv").write_text("fine film\t1\ndull film\t0\n")
    (tmp_path / "two.en").write_text("one\ntwo\n")
    (tmp_path / "one.fr").write_text("un\n")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "diary.txt").write_text("mine")
    (tmp_path / "shared" / "data").mkdir(parents=True)
    (tmp_path / "odd.json").write_text(json.dumps([{"nome": "x"}]))
    (tmp_path / "empty.json").write_text("{}")
    save(tiny_models.marian(), tmp_path / "marian", tokenizer=word_tokenizer(WORDS, "marian"))
    save(tiny_models.bert(pad_token_id=0), tmp_path / "bert", tokenizer=word_tokenizer(WORDS))
    return tmp_path


CLASSIFIER = "--encoder bert --train data.tsv --dev data.tsv --out new"
TRANSLATOR = "--train two.en two.en --val two.en two.en --out new"
REPRODUCE = "--shared shared --out runs"


@pytest.mark.parametrize(
    ("recipe", "given", "words"),
    [
        ("finetune", f"{CLASSIFIER} --epochs 0", r"--epochs: .*\b1\b.*\b0$"),
        ("finetune", f"{CLASSIFIER} --labels 1", r"--labels: .*\b2\b.*\b1$"),
        ("finetune", f"{CLASSIFIER} --lr nan", r"--lr: .*\b0\b.*\bnan$"),
        ("finetune", f"{CLASSIFIER} --metric foo", "'foo'"),
        ("finetune", f"{CLASSIFIER} --text 9", r"data\.tsv .*column 9\b"),
        ("finetune", f"{CLASSIFIER} --train nowhere.tsv", r"nowhere\.tsv"),
        ("finetune", f"{CLASSIFIER} --out data.tsv", r"data\.tsv is a file"),
        ("finetune", f"{CLASSIFIER} --out strange", r"^error: strange "),
        ("finetune", f"{CLASSIFIER} --encoder marian", r"marian .*classifier"),
        ("finetune", f"{CLASSIFIER} --encoder no_such_package", "no_such_package"),
        ("train_translator", f"{TRANSLATOR} --heads 3 --width 16", r"--width 16 .*--heads 3"),
        ("train_translator", f"{TRANSLATOR} --dropout 2", r"--dropout: .*\b0\b.*\b1\b.*\b2$"),
        ("train_translator", f"{TRANSLATOR} --warmup -1", r"--warmup: .*\b0\b.*-1$"),
        ("train_translator", f"{TRANSLATOR} --train two.en nowhere.fr", r"nowhere\.fr"),
        ("train_translator", f"{TRANSLATOR} --train two.en one.fr", r"two\.en has 2 .*one\.fr has 1\b"),
        ("train_translator", f"{TRANSLATOR} --out strange", r"strange .*'diary\.txt'"),
        ("train_translator", f"{TRANSLATOR} --out data.tsv/below", r"data\.tsv is a file"),
        ("reproduce.__main__", f"{REPRODUCE} --batch a", r"--batch: .*\b1\b.*\ba$"),
        ("reproduce.__main__", f"{REPRODUCE} --rounds 0", r"--rounds: .*\b2\b.*\b0$"),
        ("reproduce.__main__", f"{REPRODUCE} --experiments nowhere.json", r"nowhere\.json .*name, model, data"),
        (
            "reproduce.__main__",
            f"{REPRODUCE} --experiments odd.json",
            r"odd\.json .*name, model, data.*nome",
        ),
        ("reproduce.__main__", f"{REPRODUCE} --experiments empty.json", r"empty\.json .*name, model, data"),
        ("reproduce.__main__", f"{REPRODUCE} --shared nowhere", r"nowhere.data.*--shared"),
        ("reproduce.__main__", f"{REPRODUCE} --out data.tsv", r"data\.tsv is a file"),
    ],
)
def test_in_one_sentence(place, capsys, recipe, given, words):
    from recipes.asking import in_one_sentence

    main = importlib.import_module(f"recipes.{recipe}").main
    with pytest.raises(SystemExit) as stopped:
        in_one_sentence(lambda: main(given.split()))
    said = stopped.value.code if isinstance(stopped.value.code, str) else capsys.readouterr().err.splitlines()[-1]
    assert re.search(words, said), said
    assert "\n" not in said
    assert not (place / "new" / "model").exists()


def test_a_stopped_recipe_exits_with_130(capsys):
    from recipes.asking import in_one_sentence

    def stopped():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        in_one_sentence(stopped)
    assert ended.value.code == 130
    assert "resumes" in capsys.readouterr().err
