"""Gates on tiny models: heads that do not matter close, targets are met exactly, and nothing else moves."""

import itertools
import json
import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tiny_models
from headcount import Head, anatomy, evaluate, load, remove, save, train_gates
from headcount.bench import count_flops, unit_flops
from headcount.errors import BadData, HeadcountError, RunConflict
from headcount.gates import GateStage, Gating, gate_training
from headcount.gates.gate_training import GateTraining
from headcount.gates.hard_concrete import GatedUnits, HardConcrete
from headcount.intervene import masked
from headcount.reporting.runs import read
from headcount.tasks import LanguageModeling
from headcount.tasks.text import word_tokenizer
from headcount.training import fresh_copy
from toy_jobs import JOBS, WORDS, classification

QUICK = Gating(epochs=2, lr=1e-3, gate_lr=0.3, tokens=48)


@pytest.mark.parametrize("job", JOBS)
def test_every_kind_of_model_gets_as_many_heads_as_asked_for(job, tmp_path):
    build, make = JOBS[job]
    model = build()
    total = len(anatomy(model).heads)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gated = train_gates(model, make(0, 12), make(1, 8), target_heads=total // 4, settings=QUICK)
    assert gated.left == total // 4 == total - len(gated.removed) == gated.stages[-1].left
    assert gated.before == evaluate(model, make(1, 8)).score()
    again = load(save(gated.model, tmp_path / "small"))
    assert evaluate(again, make(1, 8)).score() == pytest.approx(gated.after)
    assert gated.stages[-1].change == pytest.approx(gated.after - gated.before)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    pairs = zip(model.parameters(), gated.model.parameters(), strict=True)
    assert all(one.requires_grad == other.requires_grad for one, other in pairs)


def test_the_loss_is_the_formula():
    build, make = JOBS["classifier"]
    model, task, gates = build().eval(), make(0, 6), HardConcrete(8)
    training = GateTraining(model, task, gates, GatedUnits.find(model), Gating(), price=0.25)
    batch = task.batch(range(6))
    model.eval()
    got = training.loss(3, batch).item()
    xi = gates.sample(torch.Generator().manual_seed(3)).detach()
    with masked(model, xi=xi):
        plain = task.losses(task.outputs(model, batch), batch).mean().item()
    penalty = sum(1 / (1 + math.exp(-(3.0 - 0.33 * math.log(0.1 / 1.1)))) for _ in range(8))
    assert got == pytest.approx(plain + 0.25 * penalty, rel=1e-5)


@pytest.mark.parametrize("units", ["heads,neurons", "neurons", "heads,neurons,sublayers", "sublayers"])
@pytest.mark.parametrize("job", JOBS)
def test_every_kind_of_model_gets_the_share_of_flops_asked_for(job, units, tmp_path):
    build, make = JOBS[job]
    model, task, test = build(), make(0, 12), make(1, 8)
    gated = train_gates(model, task, test, units=units, target_flops=0.7, settings=QUICK)
    (stage,) = gated.stages
    sites = {site.name: site for site in anatomy(model, ["heads", "neurons"]).sites}
    left = {site.name: len(site.kept) for site in anatomy(gated.model, ["heads", "neurons"]).sites}
    length = round(sum(task.lengths) / len(task.lengths))
    each = {name: unit_flops(site, length) for name, site in sites.items()}
    whole = sum(each[name] * len(site.kept) for name, site in sites.items())
    share = sum(each[name] * count for name, count in left.items()) / whole
    assert share == pytest.approx(stage.flops_left)
    closed = [name for name in sites if left[name] < len(sites[name].kept)]
    cheapest = min(each[name] * (len(sites[name].kept) if units == "sublayers" else 1) for name in closed)
    assert 0.7 - cheapest / whole < share <= 0.7 + 1e-9
    if units == "sublayers":
        assert all(count in (0, len(sites[name].kept)) for name, count in left.items())
    assert stage.of - stage.left == len(gated.removed) == sum(len(s.kept) for s in sites.values()) - sum(left.values())
    again = load(save(gated.model, tmp_path / "small"))
    assert evaluate(again, test).score() == pytest.approx(gated.after)
    named = anatomy(model, ["heads", "neurons"]).check(gated.to_json()["removed"])
    assert set(named) == set(gated.removed)
    assert min(gated.saved.values()) >= 0 < max(gated.saved.values())
    run = read(gated)  # as the report does
    heads, neurons = (sum(head.is_neuron == kind for head in gated.removed) for kind in (False, True))
    assert (len(run.listed("removed")), run.removed_neurons) == (heads, neurons)
    assert run.total_neurons == sum(len(site.kept) for site in anatomy(model, "neurons").sites)
    assert set(gated.to_json()["left_by_site"]) == {site.name for site in anatomy(model).sites}


def shared_keys():
    """Six query heads in each layer, three to a key-value head, and sublayers of different sizes."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4}
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 20, "vocab_size": 30}
    return LlamaForCausalLM(LlamaConfig(**heads, **sizes, initializer_range=0.5, tie_word_embeddings=True)).eval()


@pytest.mark.parametrize("units", ["heads", "heads,neurons", "heads,neurons,sublayers", "sublayers"])
def test_query_heads_that_share_keys_end_within_the_flops_that_torch_counts(units):
    model, task = shared_keys(), LanguageModeling([{"text": "a dog runs fine"}] * 8, word_tokenizer(WORDS, "gpt"))
    batch = task.batch(range(3))

    def flops(smaller):
        return count_flops(lambda: task.outputs(smaller, batch))

    rest = flops(remove(model, anatomy(model, ["heads", "neurons"]).units))
    whole = flops(model) - rest
    for target in (0.8, 0.6):
        test = LanguageModeling([{"text": "the cat sleeps"}] * 4, word_tokenizer(WORDS, "gpt"))
        gated = train_gates(model, task, test, units=units, target_flops=target, settings=QUICK)
        share = (flops(gated.model) - rest) / whole
        assert gated.stages[-1].flops_left == pytest.approx(share, abs=1e-9)
        assert share <= target + 1e-9
        closed = [[head] for head in gated.removed]
        if units == "sublayers":
            sites = anatomy(model, ["heads", "neurons"]).sites
            closed = [site.heads for site in sites if site.heads[0] in gated.removed]
        for one in closed:  # the budget is used up: none of them would have fitted
            more = remove(model, [head for head in gated.removed if head not in one])
            assert (flops(more) - rest) / whole > target


def test_the_expected_cost_of_shared_keys_is_the_mean_over_all_gates_open_and_closed():
    units = GatedUnits.find(shared_keys(), "heads,sublayers", kinds=["decoder"], length=5)
    gates = HardConcrete(units.count)
    with torch.no_grad():
        gates.log_alpha.copy_(torch.linspace(-2, 2, units.count))
    chances, expected = gates.chances().tolist(), 0.0
    for number in range(2):  # every layer by itself: 6 heads, then 2 sublayers at the end
        heads, numbers = units.heads[6 * number : 6 * number + 6], [*range(6 * number, 6 * number + 6), 12 + number]
        for opened in itertools.product([False, True], repeat=7):
            pairs = zip(numbers, opened, strict=True)
            chance = math.prod(chances[n] if is_open else 1 - chances[n] for n, is_open in pairs)
            left = [head for head, is_open in zip(heads, opened[:6], strict=True) if is_open and opened[6]]
            expected += chance * (units.cost(left) - units.fixed)
    assert units.expected(gates).item() == pytest.approx(expected, rel=1e-5)


def test_a_unit_is_open_if_its_own_gate_and_its_sublayers_are():
    build, _ = JOBS["classifier"]
    model = build()
    units = GatedUnits.find(model, "heads,sublayers", length=7)
    found = anatomy(model, ["heads", "neurons"])
    heads = [head for head in found.heads if not head.is_neuron]
    gates = torch.arange(1, units.count + 1, dtype=torch.float)
    xi = units.xi(gates)
    assert len(xi) == len(found.heads)
    for place, head in enumerate(found.heads):
        own = 1 if head.is_neuron else heads.index(head) + 1
        sublayer = len(heads) + 1 + [site.name for site in found.sites].index(head.site)
        assert xi[place] == own * sublayer
    whole = HardConcrete(units.count)
    chance = whole.chances()[0].item()
    share = sum(c for head, c in zip(units.heads, units.costs.tolist(), strict=True) if head.is_neuron)
    expected = share * chance + (1 - share) * chance**2
    assert units.expected(whole).item() == pytest.approx(expected, rel=1e-5)


def test_a_closed_sublayer_takes_its_open_heads_along():
    build, _ = JOBS["classifier"]
    units = GatedUnits.find(build(), "heads,sublayers", kinds=["encoder"], length=7)
    gates = HardConcrete(units.count)
    with torch.no_grad():
        gates.log_alpha[:4] += 1  # all heads of layer 0, whose sublayer closes
        gates.log_alpha[8] = -5
    kept = units.best(gates, budget=float(units.costs[:4].sum()))
    assert {str(head) for head in kept} == {f"encoder.1.{index}" for index in range(4)}
    assert units.cost(kept) == pytest.approx(1 - float(units.costs[:4].sum()))


def interrupt_and_resume(undisturbed, model, tasks, options, run, at):
    """Stop a training at this share of it; resumed, it must end as the undisturbed one did."""

    def interrupt(what, share):
        if share > at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_gates(model, *tasks, **options, run=run, progress=interrupt)
    assert_same(train_gates(model, *tasks, **options, run=run), undisturbed)


def assert_same(one, other):
    """Both trainings removed the same, on the same way, and ended with the same weights."""
    assert one.removed == other.removed
    assert one.stages == other.stages
    weights = other.model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in one.model.state_dict().items())


def test_a_path_over_flops_resumes_to_the_same_weights(tmp_path):
    build, make = JOBS["classifier"]
    model, tasks = build(), (make(0, 16), make(1, 8))
    options = {"units": "heads,neurons,sublayers", "target_flops": [0.8, 0.5], "settings": QUICK}
    undisturbed = train_gates(model, *tasks, **options)
    assert [stage.name for stage in undisturbed.stages] == ["flops-0.8", "flops-0.5"]
    assert f"{undisturbed.stages[1].flops_left:.2%} of the FLOPs" in undisturbed.report()

    interrupt_and_resume(undisturbed, model, tasks, options, tmp_path / "run", at=0.7)
    with pytest.raises(RunConflict, match="units"):
        train_gates(model, *tasks, **{**options, "units": "heads,neurons"}, run=tmp_path / "run")


def test_a_head_that_carries_everything_stays_open():
    """All heads but one are silent: the price closes them, and the loss keeps the one that speaks."""
    build, _ = JOBS["classifier"]
    model, task, test = build(), classification(0, 24), classification(1, 16)
    loud = Head("encoder", 1, 2)
    for site in anatomy(model).sites:
        size = site.head_dim
        with torch.no_grad():
            for head in site.heads:
                if head != loud:
                    site.output.weight[:, head.index * size : (head.index + 1) * size] = 0
                else:
                    site.output.weight[:, head.index * size : (head.index + 1) * size] *= 30
    model = _fitted(model, task)
    settings = Gating(epochs=40, lr=1e-5, gate_lr=0.2, tokens=96, weights="none")
    gated = train_gates(model, task, test, lam=0.01, settings=settings)
    assert [head for head in anatomy(model).heads if head not in gated.removed] == [loud]
    assert gated.stages[-1].decided > 0.8


def _fitted(model, task):
    """Only the classifier on top learns."""
    optimizer = torch.optim.Adam(model.classifier.parameters(), lr=0.05)
    batch = task.batch(range(len(task)))
    for _ in range(150):
        task.losses(task.outputs(model, batch), batch).mean().backward()
        optimizer.step()
        model.zero_grad()
    return model.eval()


def test_with_gates_on_the_encoder_alone_the_decoder_is_frozen():
    build, make = JOBS["translator"]
    model = build()
    gated = train_gates(model, make(0, 12), make(1, 6), target_heads=3, kinds=["encoder"], settings=QUICK)
    assert {head.kind for head in gated.removed} == {"encoder"}
    before, after = model.state_dict(), gated.model.state_dict()
    frozen = [name for name in after if "encoder.layers" not in name]
    assert all(torch.equal(before[name], after[name]) for name in frozen)
    assert not torch.equal(before["model.encoder.layers.0.fc1.weight"], after["model.encoder.layers.0.fc1.weight"])


def test_gates_alone_leave_every_weight(tmp_path):
    build, make = JOBS["classifier"]
    model = build()
    gated = train_gates(model, make(0, 12), make(1, 6), target_heads=5, settings=Gating(gate_lr=0.3, weights="none"))
    plain = remove(model, gated.removed).state_dict()
    assert all(torch.equal(tensor, plain[name]) for name, tensor in gated.model.state_dict().items())


def test_a_path_goes_on_from_stage_to_stage_and_tells_what_is_left():
    build, make = JOBS["translator"]
    model = build()
    roles = {head: ("positional" if head.index else "rare") for head in anatomy(model).heads}
    seen = []
    gated = train_gates(
        model, make(0, 12), make(1, 6), target_heads=[16, 8], settings=QUICK, roles=roles,
        on_stage=lambda stage, smaller: seen.append((stage.name, len(anatomy(smaller).heads))),
    )  # fmt: skip
    assert seen == [("heads-16", 16), ("heads-8", 8)]
    assert [stage.left for stage in gated.stages] == [16, 8]
    assert all(sum(stage.left_by_site.values()) == stage.left for stage in gated.stages)
    assert all(sum(stage.roles.values()) == stage.left for stage in gated.stages)
    assert gated.stages[0].notes[-1]["open"] > gated.stages[1].notes[-1]["open"]
    assert "heads-8: 8 of 24 gated heads left" in gated.report("there")


@pytest.mark.parametrize("gate_lr", [0.02, 0.1, 1.0])
def test_as_many_gates_are_expected_to_be_open_as_asked_for_whatever_the_learning_rate(gate_lr):
    """24 heads in few steps, in which a price alone comes too late or overshoots; each stage from where it begins."""
    model = tiny_models.bert(pad_token_id=0, num_hidden_layers=6)
    settings = Gating(epochs=2, lr=1e-3, gate_lr=gate_lr, tokens=48)
    gated = train_gates(model, classification(0, 60), classification(1, 6), target_heads=[12, 6], settings=settings)
    assert [stage.left for stage in gated.stages] == [12, 6]
    assert [stage.open_before for stage in gated.stages] == pytest.approx([12, 6], abs=0.01)
    first, second = ([note["open"] for note in stage.notes] for stage in gated.stages)
    assert 22 < first[0] < 24
    assert all(later < sooner + 1e-4 for sooner, later in itertools.pairwise(first))  # a ramp
    assert 11 < second[0] < 12
    assert "6.0 gates were expected to be open before the cut to 6" in gated.report()


def test_gates_move_along_the_penalty_and_decided_ones_stay():
    gates = HardConcrete(4)
    with torch.no_grad():
        gates.log_alpha.copy_(torch.tensor([8.0, 0.5, 0.5, -9.0]))
    before = gates.log_alpha.detach().clone()
    for wanted in (1.4, 2.6):
        gates.move_to(wanted)
        assert gates.penalty().item() == pytest.approx(wanted, abs=1e-4)
    assert (gates.log_alpha - before).abs()[[0, 3]].max() < 0.1
    assert gates.log_alpha[1] == gates.log_alpha[2]


@pytest.mark.parametrize(("opened", "advice"), [(11.0, "higher"), (1.2, "lower"), (4.3, None)])
def test_a_missed_target_is_said_with_the_rate_that_would_reach_it(opened, advice):
    counts = {"left": 4, "of": 12, "left_by_site": {"encoder.0": 4}}
    stage = GateStage(0.1, 4, (), **counts, score=1, change=0, low=0, high=0, decided=1, open_before=opened)
    if advice is None:
        assert stage.remark == ""
    else:
        assert f"{opened:.1f} gates" in stage.remark
        assert f"{advice} learning rate" in stage.remark


@pytest.mark.parametrize("notes", [50, 2])
def test_an_interrupted_training_resumes_to_the_same_weights(tmp_path, monkeypatch, notes):
    monkeypatch.setattr(gate_training, "NOTES", notes)  # 2: a note spans the end of an epoch
    build, make = JOBS["classifier"]
    model, tasks = build(), (make(0, 16), make(1, 8))
    settings = Gating(epochs=3, lr=1e-3, gate_lr=0.3, tokens=48)
    options = {"target_heads": [6, 3], "settings": settings}
    undisturbed = train_gates(model, *tasks, **options)
    reached = []
    for moment in (0.25, 0.4, 0.7):

        def interrupt(what, share, moment=moment):
            reached.append(share)
            if share > moment:
                raise KeyboardInterrupt

        reached.clear()
        with pytest.raises(KeyboardInterrupt):
            train_gates(model, *tasks, **options, run=tmp_path / "run", progress=interrupt)
    assert reached[0] > 1 / 3  # two epochs of six were not trained again
    for _ in range(2):  # once to the end, and once when everything is done already
        resumed = train_gates(model, *tasks, **options, run=tmp_path / "run")
        assert_same(resumed, undisturbed)
    with pytest.raises(RunConflict, match="target_heads"):
        train_gates(model, *tasks, target_heads=5, settings=settings, run=tmp_path / "run")


def test_a_resumed_stage_still_knows_its_last_open_model(tmp_path, monkeypatch):
    """Every gate closes, and the process ends epochs later: what it resumes to still is the last open model."""
    build, make = JOBS["classifier"]
    model, tasks = build(), (make(0, 24), make(1, 8))
    options = {"lam": 50.0, "settings": Gating(epochs=12, gate_lr=0.15, tokens=48)}
    undisturbed = train_gates(model, *tasks, **options)
    last_open, steps = undisturbed.stages[0].went_back_to, undisturbed.stages[0].notes[-1]["step"]
    assert last_open + 2 * steps / 12 < steps  # a whole epoch without an open gate is kept
    interrupt_and_resume(undisturbed, model, tasks, options, tmp_path / "run", at=0.99)


def test_a_lambda_that_closes_every_gate_keeps_the_last_useful_model(tmp_path):
    build, make = JOBS["classifier"]
    model, tasks = build(), (make(0, 24), make(1, 8))
    settings = Gating(epochs=12, gate_lr=0.15, tokens=48)
    gated = train_gates(model, *tasks, lam=[50.0, 90.0], settings=settings, run=tmp_path / "run")
    assert gated.left > 0
    assert len(gated.stages) == 1
    assert f"lambda-50 closed every gate; the model of step {gated.stages[0].went_back_to} " in gated.remarks[-1]
    again = train_gates(model, *tasks, lam=[50.0, 90.0], settings=settings, run=tmp_path / "run")
    assert again.stages == gated.stages
    assert again.removed == gated.removed


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_model(tmp_path, monkeypatch):
    build, make = JOBS["classifier"]
    model, tasks = build(), (make(0, 24), make(1, 8))
    plain = GateTraining.loss
    monkeypatch.setattr(
        GateTraining, "loss", lambda self, step, batch: plain(self, step, batch) * (math.nan if step == 7 else 1.0)
    )
    with pytest.raises(HeadcountError, match=r"not finite at step 8 .* step \d .*last-good; .* lr=…"):
        train_gates(model, *tasks, lam=0.01, settings=Gating(epochs=4, tokens=48), run=tmp_path / "run")
    assert len(anatomy(load(tmp_path / "run" / "last-good")).heads) == 8


def test_without_test_data_a_tenth_is_held_out():
    build, make = JOBS["classifier"]
    gated = train_gates(build(), make(0, 20), target_heads=4, settings=QUICK)
    assert gated.test_n == 2
    remark = gated.remarks[0]
    assert "2 examples held out" in remark
    assert "probably trained" in remark
    assert "18 " in remark


def test_rows_in_both_data_are_refused_dropped_or_allowed():
    build, make = JOBS["classifier"]
    model, task = build(), make(0, 12)
    with pytest.raises(BadData, match="12 of 12"):
        train_gates(model, task, task, target_heads=3, settings=QUICK)
    assert train_gates(model, task, task, target_heads=3, settings=QUICK, overlap="allow").test_n == 12

    dropped = train_gates(model, task.subset(range(6)), task, target_heads=3, settings=QUICK, overlap="drop")
    assert dropped.test_n == 6
    assert "6 of 12" in dropped.remarks[0]
    with pytest.raises(BadData, match="12"):
        train_gates(model, task, task, target_heads=3, settings=QUICK, overlap="drop")
    with pytest.raises(HeadcountError, match=r"'dorp'.*'drop'"):
        train_gates(model, task, task, target_heads=3, settings=QUICK, overlap="dorp")


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({}, "got 0; .* lam=….* target_heads=….* target_flops=…"),
        ({"lam": 0.1, "target_heads": 3}, "got 2"),
        ({"lam": 0.1, "target_flops": 0.5}, "got 2"),
        ({"lam": -1.0}, r"-1.0.* lam=…"),
        ({"target_heads": 8}, r"1 to 7 .* got \[8\]"),
        ({"target_heads": [3, 5]}, r"3, 5"),
        ({"target_heads": 3, "kinds": ["cross"]}, "cross"),
        ({"target_heads": 3, "units": "heads,neurons"}, "gates on heads, neurons .* target_flops=…"),
        ({"lam": 0.1, "units": "sublayers"}, "gates on sublayers .* target_flops=…"),
        ({"target_flops": 0.5, "units": "layers"}, "'layers'"),
        ({"target_flops": 1.0}, r"^1.0 is not a share.* target_flops=…"),
        ({"target_flops": 50}, r"^50 is not a share.* target_flops=…"),
        ({"target_flops": [0.5, 0.7]}, r"FLOPs .*0.5, 0.7"),
        ({"target_flops": 0.1}, r"10.0% .* heads: at least \d\d\.\d% .* target_flops=….* units=…"),
        ({"target_flops": 0.00001, "units": "heads,neurons"}, "0.0% .* heads, neurons"),
    ],
)
def test_bad_arguments_are_refused(given, fact):
    build, make = JOBS["classifier"]
    with pytest.raises(HeadcountError, match=fact):
        train_gates(build(), make(0, 12), make(1, 6), **given)


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"lr": 0.0}, {"gate_lr": -0.1}, {"tokens": 0}, {"weights": "some"}])
def test_bad_settings_are_refused_by_name(bad):
    with pytest.raises(HeadcountError, match=next(iter(bad))):
        Gating(**bad)


def test_too_few_examples_to_hold_some_out():
    build, make = JOBS["classifier"]
    with pytest.raises(HeadcountError, match=r"4 examples.* test_task=…"):
        train_gates(build(), make(0, 4), target_heads=3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"file": "../secret.safetensors"}, {"file": "/secret.safetensors"}, {"file": "gates-1\0"}, {"file": 3},
        {"file": "gates-7.safetensors"}, {"epoch": 9}, {"stages": [{}]}, {"course": {"price": "much", "notes": []}},
        {"copies": 3}, {"stages": 3},
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_refused(tmp_path, wrong):
    build, make = JOBS["classifier"]
    model, tasks, options = build(), (make(0, 16), make(1, 8)), {"target_heads": 3, "settings": QUICK}

    def interrupt(what, share):
        if share > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_gates(model, *tasks, **options, run=tmp_path / "run", progress=interrupt)
    file = tmp_path / "run" / "gates" / "gates.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **wrong}))
    with pytest.raises(RunConflict, match=r"gates\.json|gates-7"):
        train_gates(model, *tasks, **options, run=tmp_path / "run")


@pytest.mark.parametrize("job", JOBS)
def test_fresh_weights_have_the_same_layout_and_other_values(job):
    model = JOBS[job][0]()
    smaller = remove(model, [head for head in anatomy(model).heads if head.index % 2])
    fresh = fresh_copy(smaller, seed=1)
    assert {n: t.shape for n, t in fresh.state_dict().items()} == {n: t.shape for n, t in smaller.state_dict().items()}
    site, other = anatomy(fresh).sites[0], anatomy(smaller).sites[0]
    assert not torch.equal(site.output.weight, other.output.weight)
    stock = anatomy(type(model)(model.config)).sites[0]
    assert site.output.weight.std().item() == pytest.approx(stock.output.weight.std().item(), rel=0.3)
    assert torch.equal(fresh_copy(smaller, seed=1).state_dict()[next(iter(fresh.state_dict()))],
                       next(iter(fresh.state_dict().values())))  # fmt: skip
