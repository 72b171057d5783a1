"""Recovery on tiny models: the loss is the formula, hidden states come closer, and every family and unit works."""

import pytest
import torch
import torch.nn.functional as F

import tiny_models
import zoo
from headcount import anatomy, remove
from headcount.errors import HeadcountError, RunConflict
from headcount.tasks import BaseTask, Batch
from headcount.training import Recovery, recover, recovery
from headcount.training.recovery import Recovering, distance, hidden_states, varied
from toy_jobs import JOBS, classification


def every_other(model):
    """Half of the heads and neurons, and the whole of the last sublayer."""
    found = anatomy(model, ["heads", "neurons"])
    return [head for head in found.heads if head.index % 2 or head.site == found.sites[-1].name]


@pytest.mark.parametrize("job", JOBS)
def test_hidden_states_come_closer_in_every_kind_of_task(job):
    build, make = JOBS[job]
    whole, task = build().eval(), make(0, 12)
    smaller = remove(whole, every_other(whole)).eval()
    batch = task.batch(range(len(task)))

    def apart():
        with torch.no_grad(), hidden_states(whole) as wanted, hidden_states(smaller) as found:
            task.outputs(whole, batch), task.outputs(smaller, batch)
        return distance(found, wanted, batch).item()

    before = apart()
    settings = Recovery(epochs=30, lr=1e-2, tokens=96, distill=0.5, hidden=1.0)
    Recovering(smaller, task, settings, whole).run(0, lambda epoch: None)
    assert apart() < 0.8 * before


def test_the_loss_is_the_formula():
    whole, task = tiny_models.bert().eval(), classification(0, 6)
    smaller = remove(whole, ["encoder.0.1", "encoder_ffn.1"]).eval()
    batch = task.batch(range(6))
    settings = Recovery(1, distill=0.3, temperature=3.0, hidden=0.7)
    got = Recovering(smaller, task, settings, whole).loss(0, batch).item()
    with torch.no_grad():
        ours, theirs = (m(**batch.inputs, output_hidden_states=True) for m in (smaller, whole))
    there = batch.inputs["attention_mask"].bool()
    errors = [
        ((a - b)[there].square().sum(-1) / b[there].square().sum(-1)).mean()
        for a, b in zip(ours.hidden_states[1:-1], theirs.hidden_states[1:-1], strict=True)
    ]
    p, q = (F.softmax(one.logits / 3.0, -1) for one in (theirs, ours))
    divergence = 9.0 * (p * (p / q).log()).sum(-1).mean()
    expected = 0.7 * task.losses(ours.logits, batch).mean() + 0.3 * divergence + 0.7 * torch.stack(errors).mean()
    assert got == pytest.approx(expected.item(), rel=1e-4)


def test_every_other_batch_has_other_words_and_the_whole_models_labels():
    whole, task = tiny_models.bert().eval(), classification(0, 6)
    smaller = remove(whole, ["encoder.0.1", "encoder_ffn.1"])
    training = Recovering(smaller, task, Recovery(1, distill=0.3, augment=0.3, temperature=1.0, seed=4), whole)
    seen = []
    training.step = lambda number, batch: seen.append(batch)
    training.epoch(0)
    training.model.train()  # as within an epoch; there is no dropout nevertheless
    batch = task.batch(range(6))
    other = varied(task, 0.3, [4, 0]).batch(range(6))
    assert not torch.equal(batch.inputs["input_ids"], other.inputs["input_ids"])
    for step, words, share in ((0, other, 1.0), (1, batch, 0.3)):
        with torch.no_grad():
            ours, theirs = (m.eval()(**words.inputs).logits for m in (smaller, whole))
        p, q = F.softmax(theirs, -1), F.softmax(ours, -1)
        expected = (1 - share) * task.losses(ours, batch).mean() + share * (p * (p / q).log()).sum(-1).mean()
        assert training.loss(step, batch).item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("job", JOBS)
def test_varied_texts_have_the_same_lengths_special_tokens_and_words(job):
    task = JOBS[job][1](0, 12)
    other = varied(task, 0.2, [1])
    special, words = set(task.tokenizer.all_special_ids), {t for ids in task.features["input_ids"] for t in ids}
    changed = 0
    for before, after in zip(task.features["input_ids"], other.features["input_ids"], strict=True):
        assert len(before) == len(after)
        assert set(after) <= words | {task.tokenizer.mask_token_id}
        assert [a for a in before if a in special] == [b for a, b in zip(before, after, strict=True) if a in special]
        changed += sum(a != b for a, b in zip(before, after, strict=True))
    assert changed > 0
    assert other.features == varied(task, 0.2, [1]).features != varied(task, 0.2, [2]).features
    assert varied(task, 0.0, [1]).lengths == task.lengths


def test_no_share_and_no_splice_leave_the_texts(monkeypatch):
    monkeypatch.setattr(recovery, "SPLICED", 0.0)
    task = classification(0, 12)
    assert varied(task, 0.0, [1]).features == task.features
    replaced = [varied(task, 0.5, [seed]).features["input_ids"] for seed in range(20)]
    before = [t for ids in task.features["input_ids"] for t in ids[1:-1]]
    shares = [
        sum(a != b for a, b in zip(before, [t for ids in one for t in ids[1:-1]], strict=True)) for one in replaced
    ]
    assert 0.4 < sum(shares) / (20 * len(before)) < 0.55  # half are hit, some by the word that was there


def test_a_task_without_words_cannot_be_varied():
    model = tiny_models.bert()
    wordless = BaseTask({"input_ids": [[5, 6]]}, [0], metric=classification(0, 2).metric)
    with pytest.raises(HeadcountError, match=r"BaseTask.*augment=…"):
        Recovering(model, wordless, Recovery(1, augment=0.1), model)


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_layers_of_every_family_pair_up_after_removal(name):
    whole = zoo.build(name)
    found = anatomy(whole, ["heads", "neurons"])
    smaller = remove(whole, [*found.sites[0].heads, *every_other(whole)[-3:]][: len(found.sites[0].heads)])
    inputs = zoo.inputs(name, model=whole)
    batch = Batch(inputs, None, tuple(range(3)))
    with torch.no_grad():
        with hidden_states(whole) as wanted:
            whole(**inputs)
        with hidden_states(whole) as same:
            whole(**inputs)
        with hidden_states(smaller) as found_there:
            smaller(**inputs)
    sites = [site for site in anatomy(whole).sites if site.kind != "cross"]
    assert len(wanted) == sum(1 + len(site.also_layers) for site in sites)
    assert all(hidden.ndim == 3 for _, hidden in wanted)
    assert distance(same, wanted, batch).item() == 0
    assert distance(found_there, wanted, batch).item() > 0


def test_padding_does_not_count():
    mask = torch.tensor([[1, 1, 0]])
    batch = Batch({"attention_mask": mask}, None, (0,))
    wanted = torch.ones(1, 3, 4)
    found = wanted.clone()
    found[0, 2] = 100.0
    assert distance([("encoder", found)], [("encoder", wanted)], batch).item() == 0
    found[0, 0] = 2.0  # as far away as it is long, one of two tokens
    assert distance([("encoder", found)], [("encoder", wanted)], batch).item() == pytest.approx(0.5)


def test_it_resumes_to_the_same_weights_and_knows_its_teacher(tmp_path):
    whole, tasks = tiny_models.bert(), (classification(0, 24), classification(1, 12))
    settings = Recovery(3, lr=3e-3, tokens=64, distill=0.5, hidden=1.0, augment=0.2)
    units = ["encoder.0", "encoder_ffn.1.0-20"]

    def interrupt(share):
        if share > 0.5:
            raise KeyboardInterrupt

    straight, resumed = remove(whole, units), remove(whole, units)
    scores = recover(straight, *tasks, settings, whole=whole)
    with pytest.raises(KeyboardInterrupt):
        recover(remove(whole, units), *tasks, settings, whole=whole, directory=tmp_path, progress=interrupt)
    assert recover(resumed, *tasks, settings, whole=whole, directory=tmp_path) == scores
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))
    with torch.no_grad():
        whole.classifier.bias.add_(1.0)
    with pytest.raises(RunConflict, match=str(tmp_path)):
        recover(remove(whole, units), *tasks, settings, whole=whole, directory=tmp_path)


def test_hidden_states_need_a_teacher_and_a_weight_of_at_least_0():
    with pytest.raises(HeadcountError, match="hidden"):
        Recovery(1, hidden=-1.0)
    with pytest.raises(HeadcountError, match=r"whole=…"):
        recover(tiny_models.bert(), classification(0, 4), classification(1, 4), Recovery(1, hidden=1.0))
