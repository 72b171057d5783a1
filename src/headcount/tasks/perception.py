"""Images and sounds: read from files or data sets, made into inputs by the model's own processor, and their tasks."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.errors import BadData, HeadcountError, first_line
from headcount.structure import output_rows, without_cache
from headcount.tasks.classification import SingleLabel, class_ids
from headcount.tasks.columns import IMAGES as IMAGE_COLUMNS
from headcount.tasks.columns import SOUNDS, TRANSCRIPTS, Column, find_column, find_label, is_text
from headcount.tasks.metrics import IMAGES, SPEECH, pick
from headcount.tasks.rows import Rows, StoredFile
from headcount.tasks.statistics import TASKS_EXTRA
from headcount.tasks.task import Batch, digest, padded
from headcount.tasks.text import texts_of
from headcount.tasks.translation import EndAtLimit, Generation, generator

REMEMBERED = 512 * 2**20  # bytes of inputs that are kept instead of made again


class PerceivedInputs:
    """The model's inputs for each example: (…) made from its file when they are asked for, and kept if there is room.

    files: per example a path or a `StoredFile`. make: its inputs from its content and a name for errors.
    """

    def __init__(self, rows: Rows, column: str, make: Callable[[bytes, str], Tensor]) -> None:
        self.make, self.folder = make, rows.folder
        self.files = rows.table[column]
        self.places = [rows.place(i, column) for i in range(len(rows))]
        self.made: dict[int, Tensor] = {}
        self.hashes = [digest(self.content(i).hex()) for i in range(len(rows))]

    def __getitem__(self, index: int) -> Tensor:
        if index in self.made:
            return self.made[index]
        made = self.make(self.content(index), self.places[index])
        if made.nbytes * (len(self.made) + 1) <= REMEMBERED:
            self.made[index] = made
        return made

    def content(self, index: int) -> bytes:
        """The bytes of the example's file."""
        file, content = self.files[index], None
        if isinstance(file, StoredFile):
            content, file = file.read()
        if content is not None:
            return content
        if not isinstance(file, str) or not file:
            raise BadData(f"{self.places[index]}: expected the path of a file, not {file!r}")
        try:
            return (self.folder / Path(file).expanduser()).read_bytes()
        except OSError as error:
            why = f"{self.places[index]}: there is no file {file!r:.80} in {self.folder}"
            if not isinstance(error, FileNotFoundError):
                why = f"{self.places[index]}: cannot read {file!r:.80}: {error.strerror}"
            raise BadData(why, advice="name the column of files with {source}") from error


class ImageClassification(SingleLabel):
    """A class for each image.

    data: a folder with a subfolder of images for each class, a folder with a metadata.csv, a file with a column of
        paths (relative to the file) and one of labels, or a `datasets.Dataset` with images.
    processor: the model's image processor. source, label: the columns; guessed if left out.
    label2id, num_labels: as of `Classification`.
    metric: accuracy, top5, f1, f1_macro, matthews or loss.
    labels: False if the images have no classes.
    """

    kind = "images"
    per_example = ("numbers",)

    def __init__(
        self, data: Any, processor: Any, *, source: Column = None, label: Column = None,
        label2id: Mapping[str, int] | None = None, num_labels: int | None = None, metric: str = "accuracy",
        split: str | None = None, labels: bool = True,
    ) -> None:  # fmt: skip
        rows = Rows.of(data, split, layout="images")
        source, remarks = find_column(rows, source, "source", IMAGE_COLUMNS, _is_file)
        classes = [0] * len(rows)
        if labels:
            others = Rows({n: v for n, v in rows.table.items() if n != source} or rows.table, rows.source,
                          classes=rows.classes)  # fmt: skip
            on_label: list[str] = []
            if label is None and len(others.names) == 1:
                label = others.names[0]
            if label is None:
                label, on_label = find_label(others, None)
            label = rows.name(label)
            classes, _, on_classes = class_ids(rows, label, label2id, num_labels)
            remarks += [*on_label, *on_classes]
        self.inputs, self.numbers = PerceivedInputs(rows, source, image_reader(processor)), list(range(len(rows)))
        self.processor = processor
        super().__init__(
            {},
            classes,
            metric=pick(IMAGES, metric),
            rows=rows,
            content=self.inputs.hashes,
            remarks=remarks,
            settings={"processor": digest(processor.to_dict())},
            lengths=[_tokens(self.inputs[0])] * len(rows),
        )

    def batch(self, indices: Sequence[int]) -> Batch:
        assert self.labels is not None
        pixels = torch.stack([self.inputs[self.numbers[i]] for i in indices])  # (B, 3, height, width)
        return Batch({"pixel_values": pixels}, torch.tensor([self.labels[i] for i in indices]), tuple(indices))

    def check(self, model: Any) -> list[str]:
        assert self.labels is not None
        top, classes = max(self.labels), model.config.num_labels
        if top >= classes:
            raise BadData(f"{self.places[self.labels.index(top)]}: label {top}, but the model has {classes} classes")
        return super().check(model)


def image_reader(processor: Any) -> Callable[[bytes, str], Tensor]:
    """A function from the content of an image file to the model's input, (3, height, width)."""
    try:
        import PIL.Image
    except ImportError as error:
        raise HeadcountError(f"images require the package Pillow: {TASKS_EXTRA}") from error
    process = getattr(processor, "image_processor", processor)

    def read(content: bytes, place: str) -> Tensor:
        try:
            with PIL.Image.open(io.BytesIO(content)) as image:
                picture = image.convert("RGB")
        except Exception as error:  # damaged files make Pillow raise errors of many kinds
            raise BadData(f"{place}: not an image that can be read: {first_line(error)}") from error
        return process(picture, return_tensors="pt")["pixel_values"][0]

    return read


def _tokens(pixels: Tensor) -> int:
    """About how many patches an image has, of 16 x 16 pixels."""
    return max(1, pixels.shape[-1] * pixels.shape[-2] // 256)


def _is_file(value: Any) -> bool:
    return isinstance(value, StoredFile) or is_text(value)


class SpeechRecognition(Generation):
    """A transcript of each recording, by Whisper.

    data: a file with a column of paths (relative to the file) and one of transcripts, a folder with a metadata.csv or
        transcripts.tsv, or a `datasets.Dataset` with sounds. Recordings are wav files at the processor's sampling rate.
    processor: the model's own, with its feature extractor and tokenizer.
    source, target: the columns of recordings and transcripts; guessed if left out.
    metric: wer, cer, exact_match, perplexity or loss.
    normalize: compare without case and punctuation, by Whisper's own normaliser; False compares as written.
    language: of a multilingual model. max_new_tokens: of a transcript.
    labels: False if the recordings have no transcripts.
    """

    kind = "speech"
    per_example = ("targets", "numbers")

    def __init__(
        self, data: Any, processor: Any, *, source: Column = None, target: Column = None, metric: str = "wer",
        normalize: bool = True, beams: int = 1, max_new_tokens: int = 128, language: str | None = None,
        split: str | None = None, labels: bool = True,
    ) -> None:  # fmt: skip
        rows = Rows.of(data, split, layout="sounds")
        source, remarks = find_column(rows, source, "source", SOUNDS, _is_file)
        self.targets = [""] * len(rows)
        if labels:
            target, on_target = find_column(rows, target, "target", TRANSCRIPTS, is_text, [source])
            self.targets, remarks = texts_of(rows, target), [*remarks, *on_target]
        self.inputs, self.numbers = PerceivedInputs(rows, source, sound_reader(processor)), list(range(len(rows)))
        self.processor, self.tokenizer, self.max_new_tokens = processor, processor.tokenizer, max_new_tokens
        normal = _normalizer() if normalize else str
        if labels and metric in ("wer", "cer"):
            for i, text in enumerate(self.targets):
                if not normal(text).strip():
                    raise BadData(f"{rows.place(i, str(target))}: the transcript has no words")
        self.start = _start_tokens(self.tokenizer, language)
        end = self.tokenizer.eos_token_id
        # Whisper begins a transcript with a blank.
        spoken = [self.tokenizer(" " + text.strip(), add_special_tokens=False)["input_ids"] for text in self.targets]
        chosen = self.scored_by(metric, SPEECH, beams, normalize=normal)
        super().__init__(
            {},
            [[*ids, end] for ids in spoken],
            metric=chosen,
            pad=end if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id,
            rows=rows,
            content=self.inputs.hashes,
            remarks=remarks,
            settings={
                "beams": beams, "max_new_tokens": max_new_tokens, "normalize": normalize, "start": self.start,
            },
            lengths=[self.inputs[0].shape[-1] // 2] * len(rows),
        )  # fmt: skip

    def batch(self, indices: Sequence[int]) -> Batch:
        assert self.labels is not None
        labels = padded([self.labels[i] for i in indices], -100)
        features = torch.stack([self.inputs[self.numbers[i]] for i in indices])  # (B, mels, frames)
        return Batch({"input_features": features}, labels, tuple(indices))

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        """(B, T, V) logits of the transcript, each token predicted from those before it."""
        assert batch.labels is not None
        labels = batch.labels.masked_fill(batch.labels == -100, self.pad)
        before = torch.cat([self._started(len(labels)).to(labels.device), labels[:, :-1]], dim=1)
        logits = model(**batch.inputs, decoder_input_ids=before, **without_cache(model)).logits
        return logits[:, len(self.start) - 1 :]

    def decode(self, model: Any, batch: Batch) -> Tensor:
        """(B, T) generated ids without the start tokens, padded."""
        limit = self.limits(model, [0])[0]
        limits = torch.full((len(batch) * self.beams,), len(self.start) - 1 + limit)
        ids = generator(model)(
            **batch.inputs,
            decoder_input_ids=self._started(len(batch)).to(model.device),
            max_new_tokens=limit + 1,
            num_beams=self.beams,
            do_sample=False,
            logits_processor=[EndAtLimit(model, limits)],
        )
        return ids[:, len(self.start) : len(self.start) + limit]

    def _started(self, count: int) -> Tensor:
        return torch.tensor([self.start]).repeat(count, 1)

    def limits(self, model: Any, indices: Sequence[int]) -> list[int]:
        room = model.config.max_target_positions - len(self.start) - 1
        return [min(self.max_new_tokens or room, room)] * len(indices)

    def check(self, model: Any) -> list[str]:
        if not hasattr(model.config, "num_mel_bins") or not model.config.is_encoder_decoder:
            raise BadData(f"{type(model).__name__} does not transcribe speech; expected Whisper")
        mels, wanted = self.inputs[self.numbers[0]].shape[0], model.config.num_mel_bins
        if mels != wanted:
            raise BadData(f"the processor does not fit the model: {mels} mel bins, the model has {wanted}")
        assert self.labels is not None
        top, rows = max(map(max, self.labels)), output_rows(model)
        if rows is not None and top >= rows:
            raise BadData(f"the tokenizer does not fit the model: token {top}, but the model has {rows} outputs")
        room, longest = model.config.max_target_positions - len(self.start), max(map(len, self.labels))
        if longest > room:
            raise BadData(f"transcripts have up to {longest} tokens, but the model has room for {room}")
        return list(self.remarks)


def sound_reader(processor: Any) -> Callable[[bytes, str], Tensor]:
    """A function from the content of a wav file to the model's input, (mels, frames)."""
    from scipy.io import wavfile

    extract = processor.feature_extractor

    def read(content: bytes, place: str) -> Tensor:
        try:
            rate, samples = wavfile.read(io.BytesIO(content))
        except Exception as error:  # damaged files make scipy raise errors of many kinds
            raise BadData(f"{place}: not a wav file that can be read: {first_line(error)}") from error
        if rate != extract.sampling_rate:
            wanted = extract.sampling_rate
            raise BadData(f"{place}: {rate} samples per second; the model hears {wanted}, so resample the file first")
        sound = _between_ones(samples)
        if sound.ndim == 2:
            sound = sound.mean(1)
        if len(sound) > extract.n_samples:
            seconds = extract.n_samples / extract.sampling_rate
            raise BadData(f"{place}: longer than the {seconds:.0f} seconds that the model hears; cut the file first")
        return extract(sound, sampling_rate=rate, return_tensors="pt")["input_features"][0]

    return read


def _between_ones(samples: np.ndarray) -> np.ndarray:
    """Samples as numbers from -1 to 1.

    >>> _between_ones(np.array([0, 16384], dtype=np.int16)).tolist()
    [0.0, 0.5]
    """
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / 128
    return samples.astype(np.float32) / -float(np.iinfo(samples.dtype).min)


def _normalizer() -> Callable[[str], str]:
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer

    return BasicTextNormalizer()


def _start_tokens(tokenizer: Any, language: str | None) -> list[int]:
    """What the decoder is given first: the start, and where the model has several languages, which, and the task."""
    if language is not None:
        tokenizer.set_prefix_tokens(language=language, task="transcribe", predict_timestamps=False)
    return list(tokenizer.prefix_tokens)
