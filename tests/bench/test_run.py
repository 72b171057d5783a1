"""What a benchmark returns: its shape, its limits, its sizes; never how fast this machine is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny_models
import zoo
from headcount import HeadcountError, anatomy, benchmark, remove, save
from headcount.bench import interleaved
from headcount.bench.comparison import is_cut_of, rows_of
from headcount.bench.cost import peak_memory, size_of
from headcount.bench.timing import TorchRunner, fixed_threads, repeated


def halved(model):
    return remove(model, [head for head in anatomy(model).heads if head.index % 2])


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_every_family_can_be_measured(name):
    model = zoo.build_generator(name) if zoo.generates(name) else zoo.build(name)
    result = benchmark([model, halved(model)], batches=[2], lengths=[6], rounds=1, warmup=1, tokens=2)
    assert len(result.rows) == 1
    (row,) = result.rows
    assert row.batch == 2
    assert row.original == pytest.approx(2 / row.latency_original)
    assert row.pruned == pytest.approx(2 / row.latency_pruned)
    assert row.speedup == row.low == row.high == pytest.approx(row.latency_original / row.latency_pruned)
    assert 1 < row.limit < 4
    assert len(result.decoding) == zoo.generates(name)
    for decoded in result.decoding:
        assert decoded.original == pytest.approx(2 * 2 / decoded.latency_original)
        assert 1 < decoded.limit < 4
        assert 0 < decoded.cache_pruned <= decoded.cache_original
        if all(site.group == 1 for site in anatomy(model).sites):  # keys and values that are shared stay longer
            assert 2 * decoded.cache_pruned == decoded.cache_original
    before, after = result.sizes["original"], result.sizes["pruned"]
    assert after.parameters < before.parameters
    assert after.disk < before.disk
    assert after.memory < before.memory


def test_rows_of_all_places():
    model = tiny_models.bert()
    result = benchmark([model, halved(model)], batches=[4, 1], lengths=[8, 3], rounds=6)
    assert [(row.length, row.batch) for row in result.rows] == [(3, 4), (3, 1), (8, 4), (8, 1)]
    assert all(0 < row.low <= row.speedup <= row.high for row in result.rows)
    assert result.rows[0].limit == result.rows[1].limit  # FLOPs grow with the batch, their ratio does not
    facts = result.to_dict()
    assert set(facts["rows"][0]) >= {"batch", "length", "original", "pruned", "speedup", "low", "high", "limit"}
    assert facts["verdict"] == result.verdict
    assert "batch 1" in result.verdict


def test_a_model_alone_and_three_of_them():
    model = tiny_models.gpt()
    alone = benchmark(model, batches=[1], lengths=[4], rounds=1, tokens=2)
    assert (alone.rows[0].pruned, alone.rows[0].speedup, alone.verdict) == (None, None, "")
    three = benchmark([model, halved(model), model], batches=[1], lengths=[4], rounds=1, tokens=2)
    assert [row.model for row in three.rows] == ["pruned", "model 3"]
    assert three.rows[1].limit == 1
    assert "model 3: decoding: " in three.verdict


def test_the_cache_is_counted():
    model = tiny_models.marian()
    runner = TorchRunner(model)
    inputs = {"input_ids": torch.full((2, 5), 7), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    state = runner.decode(runner.prefill(inputs), 3)
    size = 2 * 4 * 16 * 2  # keys and values, four bytes, all heads, two examples
    assert runner.cache_bytes(state) == 2 * size * (5 + 4)  # two layers: the source, and four decoded tokens


def test_decoding_writes_what_generate_writes():
    for model, inputs in (
        (tiny_models.gpt(), {"input_ids": torch.tensor([[5, 6, 7]])}),
        (tiny_models.marian(), {"input_ids": torch.tensor([[5, 6, 7, 2]])}),
    ):
        runner = TorchRunner(model)
        state, written = runner.prefill(inputs), []
        for _ in range(4):
            written.append(state[1].item())
            state = runner.decode(state, 1)
        settings = {"do_sample": False, "num_beams": 1, "max_new_tokens": 4, "max_length": None}
        expected = model.generate(**inputs, **settings, eos_token_id=None, pad_token_id=0)[0, -4:]
        assert written == expected.tolist()


def test_lengths_come_from_the_data():
    class Texts:
        lengths = [3] * 50 + [5] * 40 + [9] * 10

    model = tiny_models.bert()
    result = benchmark(model, batches=[1], task=Texts(), rounds=1)
    assert [row.length for row in result.rows] == [4, 9]
    Texts.lengths = [200, 300]
    assert [row.length for row in benchmark(model, batches=[1], task=Texts(), rounds=1).rows] == [16]  # all it reads


def test_speedups_are_of_the_same_round():
    drift = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    seconds = np.stack([drift, drift / 1.5])
    (row,) = rows_of(["original", "pruned"], seconds, {"input_ids": torch.zeros(4, 8)}, {"original": 30, "pruned": 20})
    assert (row.speedup, row.low, row.high, row.limit) == (1.5, 1.5, 1.5, 1.5)
    assert row.original == 4 / 6


def test_rounds_go_back_and_forth():
    order = []
    runs = [lambda name=name: order.append(name) or 1.0 for name in "abc"]
    ticks = []
    assert interleaved(runs, 3, lambda: ticks.append(1)).shape == (3, 3)
    assert "".join(order) == "abccbaabc"
    assert len(ticks) == 9


def test_short_work_is_repeated():
    calls = []
    run = repeated(lambda: calls.append(1), "cpu", lambda: None, warmup=3)
    assert len(calls) == 3
    run()
    assert len(calls) == 1003


def test_everything_is_put_back():
    model = tiny_models.bert().train()
    before = torch.get_num_threads()
    with fixed_threads(before + 1) as threads:
        assert threads == torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    result = benchmark(model, batches=[1], lengths=[4], rounds=1, threads=before + 1)
    assert result.threads == before + 1
    assert torch.get_num_threads() == before
    assert model.training


def test_memory_and_disk(tmp_path):
    model = tiny_models.bert(hidden_size=64, vocab_size=500)
    save(model, tmp_path / "model")
    written = (tmp_path / "model/model.safetensors").stat().st_size
    size = size_of(model, lambda: torch.zeros(1000))
    header = 150 * len(model.state_dict())
    assert written - header < size.disk < written
    assert size.memory == size.disk + 4000
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())
    x = torch.ones(1000)

    def work():
        y = x + 1  # 4,000 bytes
        z = y.view(10, 100).double()  # 8,000 more
        del y
        return (z * 2).sum()  # 4,000 gone, 8,000 come, and a number

    assert 16_000 <= peak_memory(work) < 16_100
    assert peak_memory(lambda: x.view(10, 100)) == 0


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"batches": [0]}, "batch size .* got 0"),
        ({"batches": []}, "batch size .* got none"),
        ({"rounds": 0}, "rounds .* got 0"),
        ({"tokens": 0}, "tokens .* got 0"),
        ({"lengths": [17]}, "length 17 .* 1 to 16"),
        ({"clock": "wal"}, "'wal'.*'wall'"),
    ],
)
def test_bad_settings(settings, fact):
    with pytest.raises(HeadcountError, match=fact):
        benchmark(tiny_models.bert(), **settings)


def test_bad_models():
    model = tiny_models.bert()
    for models, fact in (([], "models=…"), (["model.onnx", model], "got str"), ([model, "model.bin"], r"model\.bin")):
        with pytest.raises(HeadcountError, match=fact):
            benchmark(models)
    with pytest.raises(HeadcountError, match=r"original .*input_ids \[2, 4\]"):
        benchmark(tiny_models.gpt_classifier(), batches=[2], lengths=[4])
    with pytest.raises(HeadcountError, match=r"length 16 .* 1 to 12 .* 4 "):
        benchmark(tiny_models.gpt(), lengths=[16], tokens=4)


@pytest.mark.parametrize("name", ["bert", "llama", pytest.param("t5", marks=pytest.mark.slow)])
def test_compiling_needs_no_break(name):
    """Ragged layers, uneven groups and emptied sites are one graph for `torch.compile`."""
    model = zoo.build(name)
    pruned = remove(model, [head for head in anatomy(model).heads if head.index in (0, 3) or head.layer == 1])
    batch = zoo.inputs(name)
    compiled = torch.compile(pruned, backend="eager", fullgraph=True)
    try:
        with torch.no_grad():
            assert torch.allclose(zoo.main_output(compiled(**batch)), zoo.main_output(pruned(**batch)), atol=1e-6)
    finally:
        torch._dynamo.reset()


@pytest.mark.slow
def test_compiled_models_are_measured():
    model = tiny_models.bert()
    result = benchmark([model, halved(model)], batches=[1], lengths=[8], rounds=2, compile=True)
    assert result.compiled
    assert result.rows[0].limit > 1


def test_a_model_that_was_not_cut_from_the_first_is_not_called_pruned_and_has_no_limit():
    model = tiny_models.bert()
    others = {"wider": tiny_models.bert(hidden_size=32), "another class": tiny_models.masked_bert()}
    assert is_cut_of(model, halved(model))
    for other in others.values():
        assert not is_cut_of(model, other)
        result = benchmark([model, other], batches=[1], lengths=[4], rounds=1)
        assert [(row.model, row.limit) for row in result.rows] == [("model 2", None)]
        assert "limit" not in result.verdict
