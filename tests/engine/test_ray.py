"""Ray: the same bits as in this process, whoever does the work, and whatever happens to the workers."""

import os
import signal
import sys

import numpy as np
import pytest
import torch

from headcount import Classification, HeadcountError, Translation, anatomy, find_roles, importance, prune
from headcount.ablation import ablate_each
from headcount.engine import Local, over_shards, shards, using
from headcount.engine.work import collected_warnings
from headcount.errors import BadData
from headcount.evaluation import evaluate
from headcount.tasks.text import word_tokenizer
from tiny_models import bert, marian

WORDS = "a fine dull film was seen by all of us"
ray_engine = pytest.importorskip("headcount.engine.ray", exc_type=HeadcountError)


@pytest.fixture(scope="module")
def engine():
    from ray.cloudpickle import register_pickle_by_value

    register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
    with ray_engine.Ray(workers=2) as opened:
        yield opened


@pytest.fixture(autouse=True)
def many_small_shards(monkeypatch):
    monkeypatch.setattr(shards, "WORK", 2e6)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rows(count):
    return [{"text": " ".join(WORDS.split()[: 1 + place % 9]), "label": place % 2} for place in range(count)]


@pytest.fixture
def task():
    return Classification(rows(40), word_tokenizer(WORDS))


def translation(count=12):
    pairs = [{"source": row["text"], "target": " ".join(row["text"].split()[::-1])} for row in rows(count)]
    return Translation(pairs, word_tokenizer(WORDS), source="source", target="target")


def masks(model):
    return [(), *([head] for head in anatomy(model).heads)]


def both(engine, do):
    """What this process makes of the shards, and what the workers make of them."""
    with using(Local()):
        here = do()
    with using(engine):
        return here, do()


@pytest.mark.parametrize("fill", ["zero", "mean"])
def test_a_sweep_is_the_same_bit_for_bit(engine, task, fill):
    model = bert()
    here, there = both(engine, lambda: evaluate(model, task, masks(model), fill=fill, tokens=32))
    assert len(shards.cut_shards(task.lengths, len(masks(model)), 32, model)) > 2
    assert np.array_equal(here.values, there.values)
    assert here.near_ties == there.near_ties
    assert here.signature == there.signature


def test_translations_are_the_same_bit_for_bit(engine):
    model, task = marian(), translation()
    here, there = both(engine, lambda: evaluate(model, task, masks(model)[:6], tokens=32))
    assert np.array_equal(here.values, there.values)


@pytest.mark.parametrize("method", ["gradient", "fisher", "oracle", "confidence", "relevance"])
def test_scores_are_the_same_bit_for_bit(engine, task, method):
    model = bert()
    here, there = both(engine, lambda: importance(model, task, method))
    assert np.array_equal(here.values, there.values)


@pytest.mark.parametrize("units", ["heads", "heads,neurons"])
def test_pruning_is_the_same_bit_for_bit(engine, task, units, monkeypatch):
    """Workers take the gradients of the search and evaluate its cuts."""
    model, works, run = bert(pad_token_id=0), set(), engine.run
    monkeypatch.setattr(engine, "run", lambda work, *args: works.add(type(work).__name__) or run(work, *args))
    dev = Classification([{**row, "text": f"us {row['text']}"} for row in rows(30)], word_tokenizer(WORDS))
    here, there = both(engine, lambda: prune(model, task, dev, max_drop=60, units=units, step=0.25))
    assert works == {"Evaluation", "ExamplePass" if units == "heads" else "SumPass"}
    assert here.removed == there.removed
    assert all(np.array_equal(a.statistics, b.statistics) for a, b in zip(here.path, there.path, strict=True))
    assert all(map(torch.equal, here.model.parameters(), there.model.parameters()))


def test_roles_are_the_same_bit_for_bit(engine):
    model, data = bert(pad_token_id=0), rows(40)
    here, there = both(engine, lambda: find_roles(model, data, word_tokenizer(WORDS), parser=False))
    assert here == there
    assert here.best


@pytest.mark.parametrize("kind", ["classification", "translation"])
def test_an_adaptive_sweep_resumes_on_ray_to_the_same_bits(engine, tmp_path, kind):
    """Here, on workers, and on workers after an interruption: the same decisions on the same examples."""
    if kind == "classification":
        model, task, how = bert(), Classification(rows(300), word_tokenizer(WORDS)), {"margin": 20}
    else:
        model, task, how = marian(), translation(110), {"margin": 0.5, "kinds": ["cross"]}

    def sweep(**kept):
        found = ablate_each(model, task, adaptive=True, **how, **kept)
        numbers = [getattr(found.effects, name).tolist() for name in ("score", "change", "low", "high", "p")]
        return found.adaptive.decisions, found.adaptive.examples.tolist(), numbers, found.outcomes.values.tolist()

    def interrupt(share):
        if share > 0.5:
            raise KeyboardInterrupt

    here, there = both(engine, sweep)
    assert here == there
    assert len(set(here[1])) > 1  # some heads were decided earlier than others
    with using(engine):
        with pytest.raises(KeyboardInterrupt):
            sweep(run=tmp_path, progress=interrupt)
        kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "outcomes").iterdir()}
        assert sweep(run=tmp_path) == here
    assert kept
    assert all(file.stat().st_mtime_ns == when for file, when in kept.items())
    assert len(list((tmp_path / "outcomes").iterdir())) > len(kept)


def test_a_model_that_was_trained_in_between_is_sent_again(engine, task):
    model = bert()
    with using(engine):
        before = evaluate(model, task)
        model.classifier.bias.data[0] += 1
        after = evaluate(model, task)
    assert not np.array_equal(before.values, after.values)


def test_finished_shards_are_kept_as_they_come(engine, task, tmp_path):
    model, seen = bert(), []
    with using(engine):
        there = evaluate(model, task, masks(model), run=tmp_path, tokens=32, progress=seen.append)
        files = sorted((tmp_path / "outcomes").iterdir())
        files[0].unlink()
        again = evaluate(model, task, masks(model), run=tmp_path, tokens=32)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(files) > 2
    assert np.array_equal(there.values, again.values)


class Trouble:
    """Sums the lengths of examples, after whatever trouble its `what` asks for."""

    tokens = 16

    def __init__(self, what, mark=None, room=10**9):
        self.what, self.mark, self.room = what, mark, room

    def summed(self, name):
        return False

    def fits(self, arrays, count):
        return True

    def __call__(self, model, examples, progress=None):
        if len(examples) > self.room or (self.mark is not None and not self.mark.exists()):
            if self.mark is not None:
                self.mark.touch()
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise self.what
        return {"lengths": np.array(examples.lengths)}


def test_a_worker_killed_mid_shard(engine, task, tmp_path):
    with using(engine), collected_warnings() as said:
        arrays = over_shards(Trouble("kill", tmp_path / "mark"), bert(), task, masks=50)
    assert arrays["lengths"].tolist() == task.lengths
    assert any("worker" in message and "died" in message for message in said)


def test_a_worker_killed_from_outside_while_it_works(engine, task):
    import ray

    model = bert()
    with using(engine):
        expected = evaluate(model, task, masks(model), tokens=32)
        first = []

        def strike(share):
            if not first:
                first.append(share)
                ray.kill(engine.workers[0])

        struck = evaluate(model, task, masks(model), tokens=32, progress=strike)
    assert first
    assert np.array_equal(expected.values, struck.values)


def test_shards_that_kill_every_worker_are_split_and_said(engine, task):
    with using(engine), collected_warnings() as said:
        arrays = over_shards(Trouble("kill", room=30), bert(), task, masks=1)
    assert arrays["lengths"].tolist() == task.lengths
    assert any("out of memory" in message and "half" in message for message in said)


def test_out_of_memory_in_a_worker_is_said_here(engine, task):
    with using(engine), collected_warnings() as said:
        arrays = over_shards(Trouble(MemoryError("no room"), room=30), bert(), task, masks=1)
    assert arrays["lengths"].tolist() == task.lengths
    assert any("(no room)" in message for message in said)


def test_an_error_of_ours_arrives_as_it_is(engine, task):
    with using(engine), pytest.raises(BadData, match=r"^line 7 is odd$"):
        over_shards(Trouble(BadData("line 7 is odd"), room=0), bert(), task)


def test_a_cluster_that_is_not_there_is_named():
    with pytest.raises(HeadcountError, match=r"127\.0\.0\.1:1.*ray start --head"):
        ray_engine._connect("127.0.0.1:1")


def test_more_workers_than_fit_are_refused(engine):
    with pytest.raises(HeadcountError, match="10,000 workers of 1 thread"):
        ray_engine.Ray(workers=10_000)
    assert engine.workers is not None


def test_a_missing_ray_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "headcount.engine.ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HeadcountError, match=r"pip install 'headcount\[ray\]'"):
        __import__("headcount.engine.ray")


def test_a_model_is_spread_by_accelerate_where_a_worker_has_several_gpus(monkeypatch):
    import accelerate

    given = {}
    monkeypatch.setattr(accelerate, "dispatch_model", lambda model, device_map: given.update(device_map) or model)
    model = bert()
    assert ray_engine.move_to_gpus(model, 2.0) is model
    assert given  # on a machine without GPUs everything is on the CPU
    assert ray_engine.move_to_gpus(model, 0) is model
