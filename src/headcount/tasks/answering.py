"""Question answering: the span of a context that answers a question, as SQuAD 1.1 and 2.0 define and score it.

A context that is too long is read in overlapping windows. An example's output is one row of logits for the start and
one for the end, over all tokens of all of its windows, so that its loss and its answer do not depend on its batch.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headcount.errors import BadData, first_line
from headcount.structure import position_limit
from headcount.tasks.columns import ANSWERS as ANSWER_COLUMNS
from headcount.tasks.columns import CONTEXTS, QUESTIONS, Column, find_column, is_text
from headcount.tasks.metrics import ANSWERS, pick
from headcount.tasks.rows import Rows
from headcount.tasks.task import BaseTask, Batch, digest, padded
from headcount.tasks.text import length_limit, texts_of

NEVER = -1e4  # the logit of a place that does not exist
SPAN = 1 << 20  # a prediction is start * SPAN + end


class QuestionAnswering(BaseTask):
    """Questions about contexts, answered by a span of the context, or by nothing (SQuAD 2.0).

    >>> from headcount.tasks.text import word_tokenizer
    >>> row = {"question": "who ran", "context": "a dog ran", "answers": ["a dog"], "answer_start": [0]}
    >>> task = QuestionAnswering([row], word_tokenizer("who ran a dog"))
    >>> task.labels, task.answer(0, 4, 5)  # <s> who ran </s> a dog ran </s>
    ([[4, 5]], 'a dog')

    data: SQuAD's JSON, or rows of questions, contexts and answers (a text, a list of texts, or SQuAD's "text" and
        "answer_start"). text, pair, label: the columns of question, context and answers; guessed if left out.
    metric: f1, exact_match or loss.
    max_length, stride: longer contexts are read in windows of so many tokens, question included, that overlap by
        `stride` tokens. longest: tokens of an answer at most.
    no_answer: whether a question can have no answer, as in SQuAD 2.0; by default if one in the data has none. The
        answer is then empty where the first token's logits are larger than those of the best span.
    labels: False if the data has no answers.
    """

    kind = "answering"
    per_example = ("windows", "answers")

    def __init__(
        self, data: Any, tokenizer: Any, *, text: Column = None, pair: Column = None, label: Column = None,
        metric: str = "f1", max_length: int | None = 384, stride: int = 128, longest: int = 30,
        no_answer: bool | None = None, split: str | None = None, labels: bool = True,
    ) -> None:  # fmt: skip
        rows = Rows.of(data, split)
        text, on_question = find_column(rows, text, "text", QUESTIONS, is_text)
        pair, on_context = find_column(rows, pair, "pair", CONTEXTS, lambda value: is_text(value) and value, [text])
        remarks = [*on_question, *on_context]
        self.answers, starts = [[""]] * len(rows), [[0]] * len(rows)
        if labels:
            label, on_answers = find_column(rows, label, "label", ANSWER_COLUMNS, apart=[text, pair])
            remarks += on_answers
            self.answers, starts = _answers(rows, label, texts_of(rows, pair))
        some_have_none = labels and any(answers == [""] for answers in self.answers)
        self.no_answer = some_have_none if no_answer is None else no_answer
        self.longest, limit = longest, length_limit(tokenizer, max_length)
        self.windows, cut = _windows(rows, tokenizer, texts_of(rows, text), texts_of(rows, pair), limit, stride)
        if cut:
            remarks.append(f"{cut} of {len(rows)} contexts are read in windows of {limit} tokens")
        spans = zip(self.windows, self.answers, starts, strict=True)
        golden = [_span(windows, answers[0], start[0]) for windows, answers, start in spans]
        lost = sum(span is None for span in golden)
        if lost:
            remarks.append(f"{lost} of {len(rows)} answers are not made of whole tokens, or longer than a window")
        super().__init__(
            {},
            [[0, 0] if span is None else span for span in golden],
            metric=pick(ANSWERS, metric),
            rows=rows,
            tokenizer=tokenizer,
            content=list(zip(rows.table[text], rows.table[pair], strict=True)),
            remarks=remarks,
            settings={"windows": [limit, stride], "longest": longest, "no_answer": self.no_answer},
            lengths=[len(one) * max(len(window.ids) for window in one) for one in self.windows],
        )

    def batch(self, indices: Sequence[int]) -> Batch:
        """All windows of all examples, as many for each: an example with fewer repeats its first."""
        examples = [self.windows[i] for i in indices]
        most = max(map(len, examples))
        flat = [window for one in examples for window in (*one, *[one[0]] * (most - len(one)))]
        inputs = {name: padded([one.features[name] for one in flat], self.pad if name == "input_ids" else 0)
                  for name in flat[0].features}  # fmt: skip
        assert self.labels is not None
        return Batch(inputs, torch.tensor([self.labels[i] for i in indices]), tuple(indices))

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        """(B, 2, K) logits of start and end at all K tokens of an example's windows, `NEVER` beyond its last."""
        found = model(**batch.inputs)
        logits = torch.stack([found.start_logits, found.end_logits], dim=1)  # (B * W, 2, T)
        width = logits.shape[-1]
        logits = logits.unflatten(0, (len(batch), -1)).transpose(1, 2).flatten(2)  # (B, 2, W * T)
        places = [[w * width + t for w, one in enumerate(self.windows[i]) for t in range(len(one.ids))]
                  for i in batch.indices]  # fmt: skip
        there = padded(places, -1).to(logits.device)[:, None].expand(-1, 2, -1)  # (B, 2, K)
        return logits.gather(2, there.clamp(min=0)).masked_fill(there < 0, NEVER)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) mean of the cross-entropies of start and end."""
        assert batch.labels is not None
        return F.cross_entropy(outputs.float().transpose(1, 2), batch.labels.to(outputs.device), reduction="none").mean(
            1
        )

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B, 1) the best span of each example, as start * SPAN + end; 0 is no answer."""
        start, end = outputs.detach().float().unbind(1)  # (B, K)
        window = padded([[number for w, one in enumerate(self.windows[i]) for number in one.numbers(w)]
                         for i in batch.indices], -1).to(start.device)  # fmt: skip
        reach = min(self.longest, start.shape[1])

        def ahead(values: Tensor, fill: float) -> Tensor:  # (B, K) to (B, K, reach): a token and those after it
            return F.pad(values, (0, reach - 1), value=fill).unfold(1, reach, 1)

        allowed = (window[:, :, None] >= 0) & (ahead(window, -1) == window[:, :, None])
        scores = (start[:, :, None] + ahead(end, NEVER)).masked_fill(~allowed, 4 * NEVER).flatten(1)
        best = scores.argmax(1)
        spans = best // reach * SPAN + best // reach + best % reach
        if self.no_answer:
            spans = torch.where(self._nothing(start + end, batch) > scores.amax(1), 0, spans)
        return spans[:, None]

    def _nothing(self, both: Tensor, batch: Batch) -> Tensor:
        """(B,) the score of no answer, at the first token of the window that has most of an answer."""
        firsts = []
        for i in batch.indices:
            lengths = [len(one.ids) for one in self.windows[i]]
            firsts.append([sum(lengths[:w]) for w in range(len(lengths))])
        there = padded(firsts, -1).to(both.device)
        return both.gather(1, there.clamp(min=0)).masked_fill(there < 0, -NEVER).amin(1)

    def answer(self, example: int, start: int, end: int) -> str:
        """The text between two of an example's tokens."""
        if start == end == 0:
            return ""
        flat = [(one.context, *place) for one in self.windows[example] for place in one.places]
        context, first, _ = flat[start]
        return context[first : flat[end][2]]

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        scores = []
        for i, (span,) in zip(batch.indices, self.predictions(outputs, batch).tolist(), strict=True):
            answer = self.answer(i, *divmod(span, SPAN))
            scores.append([max(metric(answer, gold) for gold in self.answers[i]) for metric in (exact_match, word_f1)])
        counted = torch.tensor(scores, dtype=torch.float64)
        return self.columns(batch, torch.ones(len(batch)), counted, self.losses(outputs, batch))

    def relabeled(self, labels: Any) -> QuestionAnswering:
        spans = [divmod(int(span), SPAN) for (span,) in labels]
        part = super().relabeled([list(span) for span in spans])
        assert isinstance(part, QuestionAnswering)
        part.answers = [[self.answer(i, *span)] for i, span in enumerate(spans)]
        return part

    def check(self, model: Any) -> list[str]:
        remarks, limit = super().check(model), position_limit(model)
        longest = max(len(one.ids) for windows in self.windows for one in windows)
        if limit is not None and longest > limit:
            raise BadData(
                f"windows have up to {longest} tokens, but the model has {limit} positions",
                advice=f"set {{max_length}} to {limit}",
            )
        if not hasattr(model, "qa_outputs"):
            raise BadData(f"{type(model).__name__} does not mark answers; expected a …ForQuestionAnswering")
        return remarks

    def signature(self) -> dict[str, Any]:
        windows = [[one.features for one in windows] for windows in self.windows]
        return {**super().signature(), "inputs": digest(windows), "answers": digest(self.answers)}


class Window:
    """One part of a context with the question before it, and where its tokens are in the context.

    features: what the model reads. places: (first, last + 1) character of each token; (0, 0) outside of the context.
    """

    def __init__(self, features: dict[str, list[int]], places: list[tuple[int, int]], context: str) -> None:
        self.features, self.places, self.context = features, places, context
        self.ids = features["input_ids"]

    def numbers(self, window: int) -> list[int]:
        """This window's number at each token of the context, -1 at others."""
        return [window if first < last else -1 for first, last in self.places]


def exact_match(answer: str, gold: str) -> float:
    """SQuAD's exact match.

    >>> exact_match("The Normans!", "normans")
    1.0
    """
    return float(normalized(answer) == normalized(gold))


def word_f1(answer: str, gold: str) -> float:
    """SQuAD's F1 of the words of two answers; without words on one side, whether both have none.

    >>> word_f1("the big dog", "a dog")
    0.6666666666666666
    """
    ours, theirs = normalized(answer).split(), normalized(gold).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall) if shared else 0.0


def normalized(answer: str) -> str:
    """Lower case, without punctuation, articles and superfluous blanks, as SQuAD compares answers.

    >>> normalized("An  Apple, the pear")
    'apple pear'
    """
    plain = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def _answers(rows: Rows, column: str, contexts: list[str]) -> tuple[list[list[str]], list[list[int]]]:
    """The answers to each question and where they start; no answer is the empty text at 0."""
    answers, starts = [], []
    told = rows.table.get("answer_start")
    for i, value in enumerate(rows.table[column]):
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
            raise BadData(f"{rows.place(i, column)}: expected an answer or a list of answers, not {value!r}")
        places = [contexts[i].find(one) for one in texts] if told is None else told[i]
        places = places if isinstance(places, list) else [places]
        for one, place in zip(texts, places, strict=False):
            if one and not 0 <= place <= len(contexts[i]) - len(one):
                raise BadData(f"{rows.place(i, column)}: the answer {one!r} is not in the context")
        answers.append([one for one in texts if one] or [""])
        starts.append([int(place) for place in places] or [0])
    return answers, starts


def _windows(
    rows: Rows, tokenizer: Any, questions: list[str], contexts: list[str], limit: int | None, stride: int
) -> tuple[list[list[Window]], int]:
    """The windows of each example, and how many have several."""
    options: dict[str, Any] = {"return_offsets_mapping": True, "verbose": False}
    if limit is not None:
        stride = min(stride, limit // 4)
        options |= {
            "truncation": "only_second", "max_length": limit, "stride": stride, "return_overflowing_tokens": True,
        }  # fmt: skip
    windows: list[list[Window]] = [[] for _ in questions]
    try:
        encoded = tokenizer(questions, contexts, **options)
    except Exception as error:  # tokenizers raise errors of their own kinds
        place = max(range(len(questions)), key=lambda i: len(questions[i]))
        raise BadData(
            f"the questions leave no room for contexts in {limit} tokens, such as {rows.place(place)} "
            f"({first_line(error)})",
            advice="raise {max_length}",
        ) from error
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in encoded]
    origins = encoded.get("overflow_to_sample_mapping", range(len(questions)))
    for row, origin in enumerate(origins):
        sides = encoded.sequence_ids(row)
        places = [place if side == 1 else (0, 0)
                  for place, side in zip(encoded["offset_mapping"][row], sides, strict=True)]  # fmt: skip
        windows[origin].append(Window({name: encoded[name][row] for name in names}, places, contexts[origin]))
    return windows, sum(len(one) > 1 for one in windows)


def _span(windows: list[Window], answer: str, start: int) -> list[int] | None:
    """The tokens of an answer, in the window where most surrounds it; [0, 0] for no answer, None if it is not found."""
    if not answer:
        return [0, 0]
    best, before = None, 0
    for window in windows:
        inside = [i for i, (first, last) in enumerate(window.places) if first < last]
        touched = [i for i in inside if window.places[i][1] > start and window.places[i][0] < start + len(answer)]
        whole = touched and window.places[touched[0]][0] <= start
        if whole and window.places[touched[-1]][1] >= start + len(answer):
            around = min(touched[0] - inside[0], inside[-1] - touched[-1])
            if best is None or around > best[0]:
                best = (around, [before + touched[0], before + touched[-1]])
        before += len(window.ids)
    return None if best is None else best[1]
