"""What recipes refuse: each in one sentence, before anything is trained or written."""

import importlib
import json

import pytest

import tiny_models
from headcount import save
from headcount.tasks.toy import word_tokenizer
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
        ("finetune_classifier", f"{CLASSIFIER} --epochs 0", "a whole number of at least 1, not 0"),
        ("finetune_classifier", f"{CLASSIFIER} --labels 1", "a whole number of at least 2, not 1"),
        ("finetune_classifier", f"{CLASSIFIER} --lr nan", "a number above 0, not nan"),
        ("finetune_classifier", f"{CLASSIFIER} --metric foo", "unknown metric 'foo'"),
        ("finetune_classifier", f"{CLASSIFIER} --text 9", "has no column 9"),
        ("finetune_classifier", f"{CLASSIFIER} --train nowhere.tsv", "there is no file nowhere.tsv"),
        ("finetune_classifier", f"{CLASSIFIER} --out data.tsv", "data.tsv is a file"),
        ("finetune_classifier", f"{CLASSIFIER} --out strange", "strange is not empty and holds no model"),
        ("finetune_classifier", f"{CLASSIFIER} --encoder marian", "marian cannot be loaded as a classifier"),
        ("finetune_classifier", f"{CLASSIFIER} --encoder no_such_package", "neither a directory nor"),
        ("train_translator", f"{TRANSLATOR} --heads 3 --width 16", "--width 16 cannot be divided among --heads 3"),
        ("train_translator", f"{TRANSLATOR} --dropout 2", "a number from 0 and below 1, not 2"),
        ("train_translator", f"{TRANSLATOR} --warmup -1", "a number above 0, not -1"),
        ("train_translator", f"{TRANSLATOR} --train two.en nowhere.fr", "there is no file nowhere.fr"),
        ("train_translator", f"{TRANSLATOR} --train two.en one.fr", "they do not belong together line by line"),
        ("train_translator", f"{TRANSLATOR} --out strange", "strange holds 'diary.txt'"),
        ("train_translator", f"{TRANSLATOR} --out data.tsv/below", "data.tsv is a file"),
        ("reproduce.__main__", f"{REPRODUCE} --batch a", "a whole number of at least 1, not a"),
        ("reproduce.__main__", f"{REPRODUCE} --rounds 0", "a whole number of at least 2, not 0"),
        ("reproduce.__main__", f"{REPRODUCE} --experiments nowhere.json", "nowhere.json holds no experiments"),
        ("reproduce.__main__", f"{REPRODUCE} --experiments odd.json", "Their fields are name, model, data"),
        ("reproduce.__main__", f"{REPRODUCE} --experiments empty.json", "it is no list of objects"),
        ("reproduce.__main__", f"{REPRODUCE} --shared nowhere", "say where with --shared"),
        ("reproduce.__main__", f"{REPRODUCE} --out data.tsv", "data.tsv is a file"),
    ],
)
def test_in_one_sentence(place, capsys, recipe, given, words):
    from recipes.asking import in_one_sentence

    main = importlib.import_module(f"recipes.{recipe}").main
    with pytest.raises(SystemExit) as stopped:
        in_one_sentence(lambda: main(given.split()))
    said = stopped.value.code if isinstance(stopped.value.code, str) else capsys.readouterr().err.splitlines()[-1]
    assert words in said
    assert "\n" not in said
    assert not (place / "new" / "model").exists()
