"""`Pruning` and `Recovery`: every setting of a pruning job, documented and checked in one place.

A new setting is a field here, with its check, and an option of the same name in cli/prune.py: the whole object is
handed to the search, the choice of the cut's size, the forecast, and the signature of the run. Nothing heavy is
imported, so that a wrong setting is refused at once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from headcount.errors import HeadcountError, counted, unknown
from headcount.heads import asked_units, counts

Method = Literal[
    "search", "surgeon", "joint", "reconstruction", "refitted", "michel", "reestimated", "fisher", "interactions"
]
Compensation = Literal["refit", "mean", "none"]
Cost = Literal["flops", "params", "time"]
Overlap = Literal["refuse", "drop", "allow"]
Groups = Literal["any", "whole"]
Weights = Literal["all", "gated", "none"]
COMPENSATIONS, COSTS, OVERLAPS, GROUPS, WEIGHTS = map(get_args, (Compensation, Cost, Overlap, Groups, Weights))
SIZES = ("heads", "params", "flops", "speedup")  # ways to ask for a cut of a certain size
# What units are compared by, and which are cut, where a cut of a certain size is asked for and nothing else is said.
COST_OF = {"params": "params", "flops": "flops", "speedup": "time"}


@dataclass(frozen=True)
class SearchMethod:
    """A way to choose heads.

    pick: how, one of `PICKERS` in pruning/search_methods.py.
    loss: what stands for the expected loss where units are compared by cost: a moment of the gradients, or
        "reconstruction", without gradients: what a refit loses of a site's output. That always compares by cost.
    reestimated: the gradients are taken again after each step, in the pruned model.
    compensated: … in the pruned and compensated model, which is the one that will be used.
    about: one line for the documentation.
    unexplained: where units are compared by cost and refitted, only what the others cannot reproduce counts.
    within: … how units that a step has chosen already change the losses of the others, if at all.
    """

    pick: str
    loss: str
    reestimated: bool
    compensated: bool
    about: str
    unexplained: bool = False
    within: str = ""


_SEARCH = ("interactions", "squares", True, True)
SEARCHES: dict[str, SearchMethod] = {
    "michel": SearchMethod("importance", "absolute", False, False, "M19: importance once, in one order"),
    "reestimated": SearchMethod("importance", "absolute", True, False, "M19's importance, estimated again each step"),
    "fisher": SearchMethod("fisher", "squares", False, False, "squared gradients once, in one order"),
    "interactions": SearchMethod(
        "interactions", "squares", True, False, "Fisher interactions, estimated again", within="interactions"
    ),
    "refitted": SearchMethod(*_SEARCH, "squared gradients in the compensated model"),
    "search": SearchMethod(*_SEARCH, "by cost, of what others cannot reproduce", True),
    "surgeon": SearchMethod(*_SEARCH, "and within a step, one by one", True, "elimination"),
    "joint": SearchMethod(*_SEARCH, "and with Fisher interactions inside a site", True, "interactions"),
    "reconstruction": SearchMethod("", "reconstruction", True, True, "ZipLM's, without gradients", True, "elimination"),
}


@dataclass(frozen=True)
class Recovery:
    """How to fine-tune.

    epochs: at most this many. lr: the peak; it rises over the first tenth of the steps and then falls to 0.
    tokens: per batch, with padding. distill: share of the loss that asks for the whole model's own predictions
    instead of the labels.
    temperature: of both models' predictions. hidden: weight of the distance from the whole model's hidden states.
    Dropout is off while the whole model teaches: it has none either.
    augment: in every other batch, this share of the words is replaced by others (see `varied`), and the whole model's
    predictions replace the labels.
    seed: of the order of batches, of dropout and of the words.
    """

    epochs: int
    lr: float = 5e-5
    tokens: int = 1024
    distill: float = 0.0
    temperature: float = 2.0
    hidden: float = 0.0
    augment: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        wanted = {
            "epochs": (self.epochs >= 1, "of at least 1"),
            "lr": (self.lr > 0, "above 0"),
            "tokens": (self.tokens >= 1, "of at least 1"),
            "distill": (0 <= self.distill <= 1, "from 0 to 1"),
            "temperature": (self.temperature > 0, "above 0"),
            "hidden": (self.hidden >= 0, "of at least 0"),
            "augment": (0 <= self.augment <= 0.5, "from 0 to 0.5"),
        }
        refuse_settings(self, wanted)

    @property
    def distills(self) -> bool:
        """Whether the whole model is needed as a teacher."""
        return self.distill > 0 or self.hidden > 0 or self.augment > 0


@dataclass(frozen=True)
class Pruning:
    """How far to cut a model, and how.

    >>> Pruning(max_drop=0.5).method
    'search'
    >>> Pruning(heads="50%", kinds="encoder,cross")  # as text, too
    Pruning(heads=0.5, kinds=('encoder', 'cross'))
    >>> Pruning(heads=36, speedup=1.2)
    Traceback (most recent call last):
    headcount.errors.HeadcountError: the size of the cut is given twice; give heads=… or speedup=…, not both

    max_drop: the largest drop, in points: hundredths of accuracy, F1 and Matthews, points of BLEU and chrF, percent of
        perplexity and loss. The largest cut within it is searched for; beside a size, it is for the verdict alone.
    heads: instead, how many heads to remove: a share (0.5 or "50%") or a number (36).
    params: instead, the share of all parameters to save (0.1 or "10%").
    flops: instead, the share of all floating-point operations to save (0.5 or "50%").
    speedup: instead, how many times as fast the model should become, as measured here.
    units: what can be removed: ("heads", "neurons") by default where params, flops or speedup is given, and otherwise
        ("heads",); "sublayers" are whole attention or feed-forward layers.
    cost: what the expected loss of a unit is weighed against, "flops", "params" or "time" as measured here; by default
        what is to be saved, or FLOPs. Heads alone are not weighed unless it is given.
    method: how units are chosen, one of `SEARCHES`.
    compensation: how the remaining units are adjusted, one of `COMPENSATIONS`.
    uniform: remove the same number of units in every layer.
    groups: "whole" removes query heads only together with their key-value head, so that the cache shrinks and groups
        stay even; "any" leaves a key-value head until its last query head goes.
    kinds: only units of these kinds, such as ("encoder", "encoder_ffn"); by default all.
    keep_at_least: units to keep in every site.
    step: how much each step of the search removes: a share below 1 of the heads or of the cost, or a number of heads.
    confidence: that the drop is within `max_drop` on other data, too, when the size of the cut is chosen on the
        selection data; 0.5 goes by the measured drop.
    early: stop measuring a cut once a part of the selection data leaves no doubt about its test on all of it. The
        chosen cut is always measured on all of it.
    recovery: fine-tune afterwards.
    score_examples: score units on at most this many examples, drawn at random; on more, their order changes little.
    seed: of everything random.
    overlap: what to do with rows that two data sets share: refuse them, drop them from the later one, or allow them.
    """

    max_drop: float | None = None
    heads: float | int | None = None
    params: float | None = None
    flops: float | None = None
    speedup: float | None = None
    units: tuple[str, ...] | None = None
    cost: str | None = None
    method: str = "search"
    compensation: str = "refit"
    uniform: bool = False
    groups: str = "any"
    kinds: tuple[str, ...] | None = None
    keep_at_least: int = 0
    step: float = 0.05
    confidence: float = 0.95
    early: bool = True
    recovery: Recovery | None = None
    score_examples: int = 1024
    seed: int = 0
    overlap: str = "refuse"

    def __post_init__(self) -> None:
        self._set(kinds=_names(self.kinds), units=_names(self.units))
        self._set(**{name: _number(name, getattr(self, name)) for name in ("heads", "params", "flops")})
        self._check_size()
        if self.method not in SEARCHES:
            raise HeadcountError(unknown("pruning method", self.method, SEARCHES))
        self._check_units()
        if self.compensation not in COMPENSATIONS:
            raise HeadcountError(unknown("compensation", self.compensation, COMPENSATIONS))
        if self.groups not in GROUPS:
            raise HeadcountError(unknown("groups", self.groups, GROUPS))
        if self.overlap not in OVERLAPS:
            raise HeadcountError(unknown("overlap", self.overlap, OVERLAPS))
        for name, least in (("keep_at_least", 0), ("score_examples", 1)):
            value = getattr(self, name)
            if not value >= least:
                raise HeadcountError(f"{value:g} is too small", advice=f"give {{{name}}} a number, {least} or more")
        if not 0.5 <= self.confidence < 1:
            raise HeadcountError(
                f"{self.confidence:g} is not a confidence", advice="give {confidence} from 0.5 to below 1"
            )
        counts(1, self.step)  # refuses what is not a step
        if self.kinds == ():
            raise HeadcountError("no kind of head is named", advice="give {kinds} a name, or leave it out for all")
        if self.recovery is not None and not isinstance(self.recovery, Recovery):
            raise HeadcountError(f"{self.recovery!r} is not a Recovery", advice="give {recovery} a Recovery(epochs)")

    def _check_size(self) -> None:
        given = [name for name in SIZES if getattr(self, name) is not None]
        if len(given) > 1:
            raise HeadcountError(
                "the size of the cut is given twice", advice=f"give {{{given[0]}}} or {{{given[1]}}}, not both"
            )
        if not given and self.max_drop is None:
            raise HeadcountError(
                "the size of the cut is missing",
                advice="give {max_drop} in points, or {heads}, {params}, {flops} or {speedup}",
            )
        if self.max_drop is not None and not self.max_drop >= 0:
            raise HeadcountError(
                f"the largest drop is {self.max_drop:g}", advice="give {max_drop} in points, 0 or more"
            )
        if self.heads is not None and (not self.heads > 0 or (isinstance(self.heads, float) and self.heads > 1)):
            raise HeadcountError(
                f"{_share_or_number(self.heads)} is neither a share of the heads nor a number of them",
                advice="give {heads} as 50% or as 36",
            )
        for name, what in (("params", "parameters"), ("flops", "FLOPs")):
            share = getattr(self, name)
            if share is not None and not 0 < share < 1:
                raise HeadcountError(
                    f"{share:g} is not a share of the {what}", advice=f"give {{{name}}} between 0 and 1, as 10%"
                )
        if self.speedup is not None and not self.speedup > 1:
            raise HeadcountError(f"a speedup must be above 1, not {self.speedup:g}", advice="give {speedup} as 2")

    def _check_units(self) -> None:
        size = next((name for name in COST_OF if getattr(self, name) is not None), None)
        if self.units is None:
            self._set(units=("heads",) if size is None else ("heads", "neurons"))
        units = asked_units(self.units or ())
        self._set(units=units)
        reconstructs = SEARCHES[self.method].loss == "reconstruction"
        if self.cost is None and (units != ("heads",) or reconstructs):
            self._set(cost=COST_OF.get(size or "", "flops"))
        if self.cost is None:
            return
        if self.cost not in COSTS:
            raise HeadcountError(unknown("cost", self.cost, COSTS))
        if self.heads is not None:
            others = "choose another {method}" if reconstructs else "leave {units} and {cost} out"
            raise HeadcountError(
                "a number of heads says nothing about other units or their cost",
                advice="give {params}, {flops} or {speedup} instead, or " + others,
            )
        if reconstructs and self.compensation != "refit":
            raise HeadcountError(
                f"{self.method} measures what a refit loses",
                advice="leave {compensation} out, or choose {method} search",
            )
        if self.uniform and "sublayers" in units:
            raise HeadcountError("a model without some of its sublayers is not uniform", advice="leave {uniform} out")
        if self.step >= 1:
            raise HeadcountError(f"{self.step:g} is not a share of the cost", advice="give {step} as 0.05")

    @classmethod
    def of(cls, settings: Pruning | None = None, **knobs: Any) -> Pruning:
        """Settings by their names, or given settings with some of them changed.

        >>> Pruning.of(Pruning(max_drop=0.5), confidence=0.8)
        Pruning(max_drop=0.5, confidence=0.8)
        >>> Pruning.of(max_drop=0.5, keep_atleast=1)
        Traceback (most recent call last):
        headcount.errors.HeadcountError: unknown setting of prune 'keep_atleast'; did you mean 'keep_at_least'? ...
        """
        names = [one.name for one in fields(cls)]
        for name in knobs:
            if name not in names:
                raise HeadcountError(unknown("setting of prune", name, names))
        return cls(**knobs) if settings is None else replace(settings, **knobs)

    @property
    def is_sized(self) -> bool:
        """Whether the size of the cut is given, and not searched for within a drop."""
        return any(getattr(self, name) is not None for name in SIZES)

    @property
    def reestimates(self) -> bool:
        """Whether heads are scored again after each step of the search."""
        return SEARCHES[self.method].reestimated

    @property
    def goal(self) -> str:
        """How far to cut, in words.

        >>> Pruning(heads=0.5).goal, Pruning(max_drop=0.5).goal
        ('remove 50% of the heads', 'drop at most 0.5 points')
        """
        if self.heads is not None:
            return (
                f"remove {counted(self.heads, 'head')}"
                if isinstance(self.heads, int)
                else f"remove {self.heads:.0%} of the heads"
            )
        if self.params is not None:
            return f"save {self.params:.0%} of the parameters"
        if self.flops is not None:
            return f"save {self.flops:.0%} of the FLOPs"
        if self.speedup is not None:
            return f"run {self.speedup:g} times as fast"
        return f"drop at most {counted(self.max_drop or 0.0, 'point')}"

    @property
    def by_cost(self) -> bool:
        """Whether units are compared by their cost, and the size of a cut is a share of that."""
        return self.cost is not None

    def head_count(self, total: int) -> int:
        """How many of `total` removable heads to remove, where `heads` is given."""
        assert self.heads is not None
        number = self.heads if isinstance(self.heads, int) else round(self.heads * total)
        if number > total:
            raise HeadcountError(f"{counted(number, 'head')} cannot be removed: only {total} are removable")
        if number < 1:
            raise HeadcountError(f"{self.heads:.2%} of {total} heads is less than one head")
        return number

    def signature(self) -> dict[str, Any]:
        """Every setting as plain data, for signatures and run directories."""
        return asdict(self)

    def __repr__(self) -> str:
        said = {"units": ("heads",)}  # what is not given is filled in
        changed = [one.name for one in fields(self) if getattr(self, one.name) not in (one.default, said.get(one.name))]
        return f"Pruning({', '.join(f'{name}={getattr(self, name)!r}' for name in changed)})"

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _share_or_number(value: float) -> str:
    """A share as both are written, and a whole number as it is: 2.0 is 200%, not two."""
    return f"{value:g} ({100 * value:g}%)" if isinstance(value, float) else f"{value}"


def _number(name: str, value: Any) -> Any:
    """`50%`, `0.5` or `36` as a number; what is a number already, or None, stays."""
    if not isinstance(value, str):
        return value
    try:
        if name == "heads" and value.isdigit():
            return int(value)
        return float(value.removesuffix("%")) / 100 if value.endswith("%") else float(value)
    except ValueError:
        raise HeadcountError(f"{value!r} is not a number", advice=f"give {{{name}}} as a share such as 50%") from None


def _names(kinds: Any) -> tuple[str, ...] | None:
    """Names in a text with commas between them, or in a sequence."""
    if kinds is None:
        return None
    return tuple(name.strip() for name in kinds.split(",") if name.strip()) if isinstance(kinds, str) else tuple(kinds)


@dataclass(frozen=True)
class Gating:
    """Settings of `train_gates`.

    epochs: of each stage. lr: of the weights, the peak; it rises over the first tenth of the steps and then falls to 0.
    gate_lr: of the gates, steady. tokens: per batch, with padding.
    weights: which weights are trained with the gates: "all"; "gated", only those of layers that have gates, so that
    functions cannot move elsewhere (V19 freezes the decoder when it prunes the encoder); "none".
    By default "gated" if only some kinds have gates, else "all".
    """

    epochs: int = 1
    lr: float = 5e-5
    gate_lr: float = 0.1
    tokens: int = 1024
    weights: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        wanted = {
            "epochs": (self.epochs >= 1, "of at least 1"),
            "lr": (self.lr > 0, "above 0"),
            "gate_lr": (self.gate_lr > 0, "above 0"),
            "tokens": (self.tokens >= 1, "of at least 1"),
        }
        refuse_settings(self, wanted)
        if self.weights is not None and self.weights not in WEIGHTS:
            raise HeadcountError(unknown("choice of weights", self.weights, WEIGHTS))


def refuse_settings(settings: Any, wanted: dict[str, tuple[bool, str]]) -> None:
    """Refuse the first setting that is out of its range: {field: (whether it is right, the range in words)}."""
    for name, (right, words) in wanted.items():
        if not right:
            value = getattr(settings, name)
            raise HeadcountError(f"{value!r} is out of range", advice=f"give {{{name}}} a value {words}")
