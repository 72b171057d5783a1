"""Valid files to begin with: tiny models, data of every kind, runs, scores, and what interrupted trainings keep."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

from benchmarks.fuzz.worker import Files
from headcount import importance, remove, save
from headcount.tasks import Classification
from headcount.tasks.text import word_tokenizer

WORDS = "a the fine dull film dog cat runs sleeps"
ROWS = [{"text": f"a {a} {b}", "label": int(a == "fine")} for a in ("fine", "dull") for b in ("film", "dog", "cat")]
CONLLU = """# sent_id = one
# text = Don't run, dog.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\t_\tMood=Imp\t3\taux\t_\t_
2\tn't\tnot\tPART\t_\t_\t3\tadvmod\t_\t_
3\trun\trun\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No
4\t,\t,\tPUNCT\t_\t_\t3\tpunct\t_\t_
5\tdog\tdog\tNOUN\t_\t_\t3\tvocative\t3:vocative\tSpaceAfter=No
5.1\tran\t_\t_\t_\t_\t_\t_\t_\t_
6\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_

1\tIt\tit\tPRON\t_\t_\t2\tnsubj\t_\t_
2\tworks\twork\tVERB\t_\t_\t0\troot\t_\t_

"""


def written(write: Callable[[Path], Any]) -> Files:
    """The files that a function writes into a directory."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
        }


def tokenizer() -> Any:
    return word_tokenizer(WORDS)


def task() -> Classification:
    return Classification(ROWS, tokenizer())


def classifier() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    return BertForSequenceClassification(BertConfig(**sizes, vocab_size=20, max_position_embeddings=16)).eval()


def models() -> list[Files]:
    """Whole, pruned and split checkpoints of several families."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    marian = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    marian |= {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "pad_token_id": 0, "eos_token_id": 2}
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    others = (
        GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=4, vocab_size=20, n_positions=16, **ids)),
        LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=20, max_position_embeddings=16)),
        T5ForConditionalGeneration(T5Config(d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4, vocab_size=20)),
        MarianMTModel(MarianConfig(**marian, vocab_size=20, max_position_embeddings=16, decoder_start_token_id=0)),
    )
    bert, cut = classifier(), ["encoder.0.1", *(f"encoder.1.{index}" for index in range(4))]
    every = [
        written(lambda folder: save(bert, folder, tokenizer=tokenizer())),
        written(lambda folder: save(remove(bert, cut), folder)),
        written(lambda folder: save(remove(bert, cut), folder, max_shard_size="5KB")),
        written(lambda folder: save(remove(others[1], ["decoder.0.0", "decoder.0.1"]), folder)),
    ]
    return every + [written(lambda folder, one=one: save(one, folder)) for one in others]  # type: ignore[misc]


def tables() -> dict[str, list[Files]]:
    """Data files of every kind, by their suffix; each directory holds one."""
    import pyarrow
    import pyarrow.parquet

    def rows(sign: str) -> bytes:
        return "".join(sign.join((row["text"], str(row["label"]))) + "\n" for row in ROWS).encode()  # type: ignore

    def parquet(table: Any) -> Files:
        return written(lambda folder: pyarrow.parquet.write_table(pyarrow.table(table), folder / "data.parquet"))

    text = [str(row["text"]) for row in ROWS]
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    pairs = "".join(json.dumps({"translation": {"en": one, "fr": one}}) + "\n" for one in text).encode()
    nested = {"translation": [{"en": one, "fr": one} for one in text]}
    return {
        "csv": [{"data.csv": b"text,label\n" + rows(",")}, {"data.csv": rows(",").replace(b"a ", b'"a ""x"", ')}],
        "tsv": [{"data.tsv": b"sentence\tlabel\n" + rows("\t")}, {"data.tsv": rows("\t")}],
        "jsonl": [{"data.jsonl": lines}, {"data.jsonl": pairs}, {"data.json": lines.replace(b": 1", b': "good"')}],
        "txt": [{"data.txt": "\n".join(text).encode()}, {"data.txt": rows("\t")}],
        "parquet": [parquet({"text": text, "label": [row["label"] for row in ROWS]}), parquet(nested)],
        "conllu": [{"data.conllu": CONLLU.encode()}],
    }


def folders() -> list[Files]:
    """Directories of data as the datasets library keeps them."""
    import datasets

    data = datasets.Dataset.from_list(ROWS)
    card = (
        b"---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train.jsonl\n---\n# Data\n"
    )
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    return [
        written(lambda folder: data.save_to_disk(str(folder))),
        written(lambda folder: datasets.DatasetDict(train=data, test=data).save_to_disk(str(folder))),
        {"README.md": card, "train.jsonl": lines},
    ]


def runs() -> list[Files]:
    """Made-up runs of every command: those that the tests of the report use."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    import made_up_runs

    state = json.dumps({"stages": made_up_runs.gates()["stages"][:1], "course": {"price": 0.1, "notes": []}}).encode()
    half = json.dumps({"signature": {"command": "gates"}, "finished": False}).encode()
    whole = [{"run.json": json.dumps(made_up_runs.run_json(name)).encode()} for name in made_up_runs.RUNS]
    return [*whole, {"run.json": half, "gates/gates.json": state}]


def scores() -> list[Files]:
    found = importance(classifier(), task())
    return [written(lambda folder: found.save(folder / "scores.json"))]


def shards(signature: dict[str, Any]) -> list[Files]:
    """A run directory with the shards of a search."""
    from headcount.runs import RunDirectory

    def write(folder: Path) -> None:
        with RunDirectory(folder, signature).open() as run:
            run.save_shard("choice-00002", {"removed": np.array([0, 5], np.int64)})
            run.save_shard("cut-00000-e3b0c44298fc1c14", {"statistics": np.ones((6, 3))})

    return [written(write)]


def checkpoints(heads: Any, signature: dict[str, Any]) -> list[Files]:
    """A run directory with what is kept of one checkpoint of a training."""
    from headcount.runs import RunDirectory

    point = {"method": "random", "pruned": 0.5, "removed": None, "score": 0.5, "low": 0.4, "high": 0.6, "relative": 1.0}
    content = {"base": 0.5, "importance": {str(head): 0.1 * place for place, head in enumerate(heads)}}
    told = json.dumps({**content, "points": [point, point], "advantage": 0.1}).encode()

    def write(folder: Path) -> None:
        with RunDirectory(folder, signature).open() as run:
            run.save_shard("checkpoint", {"json": np.frombuffer(told, np.uint8)})

    return [written(write)]


def secrets() -> Files:
    """What must never be read, valid of its kind, by suffix."""
    table, model = tables(), models()[0]
    arrow = folders()[0]["data-00000-of-00001.arrow"]
    return {
        "json": model["config.json"], "safetensors": model["model.safetensors"], "csv": table["csv"][0]["data.csv"],
        "jsonl": table["jsonl"][0]["data.jsonl"], "arrow": arrow, "txt": b"secret\n", "tsv": b"secret\t1\n",
        "parquet": table["parquet"][0]["data.parquet"], "conllu": CONLLU.encode(), "shard": b"secret",
    }  # fmt: skip
