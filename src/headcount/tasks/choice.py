"""Multiple choice: one of several continuations, by a model made for it or by the likelihood of a language model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headcount.errors import BadData, counted, unknown
from headcount.structure import is_any_of, without_cache
from headcount.tasks.classification import SingleLabel
from headcount.tasks.columns import CHOICE as CHOICE_COLUMN
from headcount.tasks.columns import CHOICES, RIGHT, STEMS, Column, find_column, is_text
from headcount.tasks.language import LANGUAGE_MODELS
from headcount.tasks.metrics import CHOICE, pick
from headcount.tasks.rows import Rows
from headcount.tasks.task import Batch, digest, padded
from headcount.tasks.text import length_limit, texts_of, tokenized

LENGTHS: dict[str, Callable[[str], int]] = {
    "choice": lambda choice: 1,
    "character": len,
    "byte": lambda choice: len(choice.encode()),
}
NEVER = -1e4  # the logit of a choice that an example does not have


class MultipleChoice(SingleLabel):
    """A beginning and several choices, of which one is right, for a …ForMultipleChoice.

    >>> from headcount.tasks.text import word_tokenizer
    >>> rows = [{"question": "a dog", "choices": ["ran", "sang"], "label": 0}]
    >>> task = MultipleChoice(rows, word_tokenizer("a dog ran sang"))
    >>> task.batch([0]).inputs["input_ids"].shape, task.labels  # examples, choices, tokens
    (torch.Size([1, 2, 6]), [0])

    data: whatever `Rows.of` reads. text: the column of the beginning. choices: a column of lists; by default also a
        column for each choice (ending0, ending1, …). label: the number of the right choice from 0, its letter, or its
        text.
    pair: a column of the beginning of every choice, as SWAG's "sent2" is.
    metric: accuracy, loss or logit_difference (of the right choice and the best other one).
    max_length: longer texts are truncated to this many tokens, with a remark.
    labels: False if the data does not say which choice is right.
    """

    kind = "choice"
    per_example = ("options",)

    def __init__(
        self, data: Any, tokenizer: Any, *, text: Column = None, pair: Column = None, choices: Column = None,
        label: Column = None, metric: str = "accuracy", max_length: int | None = None, split: str | None = None,
        labels: bool = True,
    ) -> None:  # fmt: skip
        rows = Rows.of(data, split)
        options, used, remarks = _choices(rows, choices)
        right = [0] * len(rows)
        if labels:
            label, on_label = find_column(rows, label, "label", RIGHT, lambda value: not isinstance(value, list))
            used, remarks = [*used, label], [*remarks, *on_label]
            right = [_right(rows, i, label, options[i]) for i in range(len(rows))]
        free = Rows({n: rows.table[n] for n in rows.names if n not in used} or rows.table, rows.source)
        text, on_text = find_column(free, text, "text", STEMS, is_text)
        stems = texts_of(rows, text)
        if pair is not None:
            starts = texts_of(rows, rows.name(pair))
            options = [[f"{start} {one}" for one in several] for start, several in zip(starts, options, strict=True)]
        self.tokenizer = tokenizer
        self.options, on_length = self.read(rows, stems, options, max_length)
        super().__init__(
            {},
            right,
            metric=pick(CHOICE, metric),
            rows=rows,
            columns={"text": text, "label": label},
            tokenizer=tokenizer,
            content=list(zip(stems, options, strict=True)),
            remarks=[*on_text, *remarks, *on_length],
            lengths=[len(one) * max(len(option["input_ids"]) for option in one) for one in self.options],
        )

    def read(
        self, rows: Rows, stems: list[str], options: list[list[str]], limit: int | None
    ) -> tuple[list[list[dict[str, list[int]]]], list[str]]:
        """What the model reads for each choice of each example, and remarks."""
        flat = [(stem, one) for stem, several in zip(stems, options, strict=True) for one in several]
        origin = [i for i, several in enumerate(options) for _ in several]
        numbers = origin if rows.numbers is None else [rows.numbers[i] for i in origin]
        one_each = Rows({"text": [stem for stem, _ in flat]}, rows.source, rows.split, rows.unit, numbers)
        pairs = [[stem for stem, _ in flat], [one for _, one in flat]]
        features, remarks = tokenized(one_each, self.tokenizer, pairs, limit)
        left = iter(range(len(flat)))
        read = [[{name: values[i] for name, values in features.items()} for i in (next(left) for _ in several)]
                for several in options]  # fmt: skip
        return read, remarks

    def batch(self, indices: Sequence[int]) -> Batch:
        """An example with fewer choices than others repeats its first; `outputs` takes that back."""
        most = max(len(self.options[i]) for i in indices)
        flat = [option for i in indices for option in self._padded(i, most)]
        names = [name for name in flat[0] if name != "ending"]
        inputs = {name: padded([option[name] for option in flat], self.pad if name == "input_ids" else 0)
                  .unflatten(0, (len(indices), most)) for name in names}  # fmt: skip
        assert self.labels is not None
        return Batch(inputs, torch.tensor([self.labels[i] for i in indices]), tuple(indices))

    def _padded(self, index: int, most: int) -> list[dict[str, list[int]]]:
        options = self.options[index]
        return [*options, *[options[0]] * (most - len(options))]

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        """(B, choices)"""
        return self.existing(model(**batch.inputs).logits, batch)

    def existing(self, scores: Tensor, batch: Batch) -> Tensor:
        """The scores of the choices that an example has."""
        counts = torch.tensor([len(self.options[i]) for i in batch.indices], device=scores.device)
        return scores.masked_fill(torch.arange(scores.shape[1], device=scores.device) >= counts[:, None], NEVER)

    def signature(self) -> dict[str, Any]:
        return {**super().signature(), "inputs": digest(self.options)}


class LikeliestEnding(MultipleChoice):
    """The same by a causal language model, without training: which choice is the likeliest continuation?

    >>> from headcount.tasks.text import word_tokenizer
    >>> rows = [{"text": "a dog", "endings": ["ran", "sang loud"], "label": 0}]
    >>> task = LikeliestEnding(rows, word_tokenizer("a dog ran sang loud", "gpt"))
    >>> task.options[0][1]["ending"]  # tokens of the second ending
    [0, 0, 1, 1]

    The score of a choice is the sum of its tokens' log likelihoods after the beginning and a blank, as in
    lm-evaluation-harness ("acc"). With choices of one token each, `logit_difference` is the difference of their logits.
    per: "character" divides it by the length of the choice ("acc_norm"), "byte" by that in bytes ("acc_bytes").
    Beginnings that are too long lose their first tokens, choices never.
    """

    kind = "endings"

    def __init__(self, data: Any, tokenizer: Any, *, per: str = "choice", **options: Any) -> None:
        if per not in LENGTHS:
            raise BadData(unknown("per", str(per), LENGTHS))
        self.per = per
        super().__init__(data, tokenizer, **options)
        self.settings["per"] = per

    def read(
        self, rows: Rows, stems: list[str], options: list[list[str]], limit: int | None
    ) -> tuple[list[list[dict[str, list[int]]]], list[str]]:
        limit, cut = length_limit(self.tokenizer, limit), 0
        read = []
        for i, (stem, several) in enumerate(zip(stems, options, strict=True)):
            examples = []
            for choice in several:
                before, whole = self._tokens(stem), self._tokens(f"{stem} {choice}")
                ending = whole[len(before) :]
                if not before or not ending:
                    raise BadData(f"{rows.place(i)}: {'the beginning' if not before else repr(choice)} has no tokens")
                if limit is not None and len(whole) > limit:
                    cut += 1
                    if len(ending) >= limit:
                        raise BadData(f"{rows.place(i)}: {choice!r} has more than {limit} tokens")
                kept = whole if limit is None else whole[-limit:]
                marks = [0] * (len(kept) - len(ending)) + [1] * len(ending)
                length = [LENGTHS[self.per](choice)]
                examples.append(
                    {"input_ids": kept, "attention_mask": [1] * len(kept), "ending": marks, "length": length}
                )
            read.append(examples)
        return read, [f"{counted(cut, 'beginning')} of choices cut to {limit} tokens"] if cut else []

    def _tokens(self, text: str) -> list[int]:
        return self.tokenizer(text, verbose=False)["input_ids"]

    def batch(self, indices: Sequence[int]) -> Batch:
        """The choices of an example lie together: (B * choices, T)"""
        batch = super().batch(indices)
        return Batch({name: batch.inputs[name].flatten(0, 1) for name in ("input_ids", "attention_mask")},
                     batch.labels, batch.indices)  # fmt: skip

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        """(B, choices) log likelihoods"""
        logits = model(**batch.inputs, **without_cache(model)).logits  # (B * C, T, V)
        most = len(logits) // len(batch)
        flat = [option for i in batch.indices for option in self._padded(i, most)]
        ending = padded([option["ending"] for option in flat], 0).to(logits.device)[:, 1:]
        after = batch.inputs["input_ids"].to(logits.device)[:, 1:]
        each = -F.cross_entropy(logits[:, :-1].float().transpose(1, 2), after, reduction="none")  # (B * C, T - 1)
        total = (each * ending).sum(1) / torch.tensor([option["length"][0] for option in flat], device=logits.device)
        return self.existing(total.unflatten(0, (len(batch), most)), batch)

    def check(self, model: Any) -> list[str]:
        if not is_any_of(model, LANGUAGE_MODELS["causal"]):
            raise BadData(f"{type(model).__name__} is not a causal language model")
        return super().check(model)


def _choices(rows: Rows, column: Column) -> tuple[list[list[str]], list[str], list[str]]:
    """The choices of each example, the columns that hold them, and remarks."""
    many = sorted(name for name in rows.names if re.fullmatch(CHOICE_COLUMN, name.strip().lower()))
    if column is None and many and not any(name.strip().lower() in CHOICES for name in rows.names):
        columns = [texts_of(rows, name) for name in many]
        return [list(one) for one in zip(*columns, strict=True)], many, [f"choices: columns {', '.join(many)}"]
    name, remarks = find_column(rows, column, "choices", (*CHOICES, "text"), lambda value: isinstance(value, list))
    for i, value in enumerate(rows.table[name]):
        if not isinstance(value, list) or len(value) < 2 or not all(isinstance(one, str) and one for one in value):
            raise BadData(
                f"{rows.place(i, name)}: expected a list of at least two choices, not {value!r}",
                "name their column with {choices}",
            )
    return [list(value) for value in rows.table[name]], [name], remarks


def _right(rows: Rows, row: int, column: str, options: list[str]) -> int:
    """The number of the right choice, from a number counted from 0, a letter or the choice itself."""
    value = rows.table[column][row]
    word = str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
    number = int(word) if word.isdecimal() else -1
    marks = rows.table.get("label", [None] * len(rows))[row]  # ARC names its choices A, B, C or 1, 2, 3
    if isinstance(marks, list) and word in marks:
        number = marks.index(word)
    elif len(word) == 1 and word.isalpha() and word not in options:
        number = ord(word.upper()) - ord("A")
    elif word in options:
        number = options.index(word)
    if not 0 <= number < len(options):
        raise BadData(f"{rows.place(row, column)}: {value!r} is none of the {len(options)} choices, counted from 0")
    return number
