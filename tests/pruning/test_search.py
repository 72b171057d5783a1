"""Which heads go: M19's order, re-estimation, interactions, and the constraints on them."""

import itertools

import numpy as np
import pytest

import zoo
from headcount.errors import HeadcountError
from headcount.pruning.search import CutSearch
from headcount.pruning.search_methods import cheapest_set
from headcount.scoring import head_gradients, importance
from headcount.settings import SEARCHES, Pruning
from headcount.structure import anatomy
from headcount.surgery import as_stock, load, remove, save
from toy_jobs import JOBS, classification
from zoo_tasks import ZooTask


@pytest.fixture(scope="module")
def model():
    return JOBS["classifier"][0]()


def cuts(model, task, numbers, **knobs):
    return CutSearch(model, task, Pruning(heads=max(numbers), **knobs)).cuts(numbers)


def cost(gradients, chosen):
    return float((gradients[:, list(chosen)].sum(1) ** 2).mean())


def test_swaps_come_close_to_the_best_set():
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(20):
        gradients = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 9))  # heads that do similar things
        every = [cost(gradients, chosen) for chosen in itertools.combinations(range(9), 4)]
        found = cheapest_set(gradients, 4)
        assert len(set(found)) == 4
        assert cost(gradients, found) <= cost(gradients, np.argsort((gradients**2).mean(0))[:4]) + 1e-9
        ratios.append((cost(gradients, found) - min(every)) / (np.mean(every) - min(every)))
    assert np.mean(ratios) < 0.1  # 0 is the best set, 1 a random one


def test_only_candidates_are_chosen():
    gradients = np.ones((3, 5))
    assert cheapest_set(gradients, 5, [True, False, True, False, True]) == [0, 2, 4]


def test_michel_is_one_order_however_many_steps():
    build, make = JOBS["translator"]
    translator, task = build(), make(n=8, metric="loss")
    order = importance(translator, task).order()
    for numbers in ([12], [2, 4, 5, 7, 12, 20]):
        for cut in cuts(translator, task, numbers, method="michel", compensation="none"):
            assert set(cut.removed) == set(order[: len(cut.removed)])


def test_reestimated_follows_the_pruned_model(model):
    task = classification(n=12)
    first, second = cuts(model, task, [3, 6], method="reestimated", compensation="none")
    again = importance(remove(model, first.removed), task).order()
    assert set(second.removed) == {*first.removed, *again[:3]}


def test_search_estimates_in_the_compensated_model(model):
    task = classification(n=24)
    first, second = cuts(model, task, [3, 6], method="search", compensation="refit")
    heads = anatomy(first.model).heads
    again = cheapest_set(head_gradients(first.model, task), 3)
    assert set(second.removed) == {*first.removed, *(heads[i] for i in again)}


@pytest.mark.parametrize("method", [name for name, one in SEARCHES.items() if one.loss != "reconstruction"])
def test_every_method_reaches_every_size(model, method):
    sizes = [len(anatomy(cut.model).heads) for cut in cuts(model, classification(n=8), [2, 4, 8], method=method)]
    assert sizes == [6, 4, 0]


def test_kinds_and_keep_at_least():
    build, make = JOBS["translator"]
    translator = build()
    found = list(cuts(translator, make(n=4, metric="loss"), [4, 12], kinds=["cross", "decoder"], keep_at_least=1))
    assert {head.kind for head in found[-1].removed} <= {"cross", "decoder"}
    assert len(found[-1].removed) == 12
    assert min(len(site.kept) for site in anatomy(found[-1].model).sites) == 1


@pytest.mark.parametrize("name", ["llama", "t5", "vit"])
def test_uniform_cuts_can_be_saved_as_stock_checkpoints(name, tmp_path):
    model = ZooTask.model(name)
    if name == "t5":
        model = zoo.build(name, "T5ForConditionalGeneration")
    task = ZooTask(name, model, n=3)
    total = len(anatomy(model).heads)
    *_, cut = cuts(model, task, [total // 2], uniform=True, compensation="none")
    sites = anatomy(cut.model).sites
    assert {len(site.kept) for site in sites} == {len(anatomy(model).sites[0].kept) // 2}
    assert as_stock(cut.model)[1]
    again = type(cut.model).from_pretrained(save(cut.model, tmp_path / "stock"))
    batch = task.batch([0, 1, 2])
    difference = (task.outputs(again.eval(), batch) - task.outputs(cut.model.eval(), batch)).abs().max()
    assert float(difference.detach()) < 1e-5
    assert len(anatomy(load(tmp_path / "stock")).heads) == total // 2


def test_a_model_without_candidates_is_refused(model):
    with pytest.raises(HeadcountError, match=r"\b4; .*keep_at_least="):
        CutSearch(model, classification(n=4), Pruning(heads=1, keep_at_least=4))
    with pytest.raises(HeadcountError, match="unknown attention kind 'cross'"):
        CutSearch(model, classification(n=4), Pruning(heads=1, kinds="cross"))
