"""Mutations of valid files: bytes, words of a dictionary, JSON by its structure, safetensors by their header.

Everything is drawn from one `random.Random`, so that an input can be made again from its number alone.
"""

from __future__ import annotations

import hashlib
import json
from random import Random
from typing import Any

SECRET = "secret"  # the files that must never be opened are called so, with every suffix
HUGE = "@huge@"  # stands for a number of 5,000 digits, which json.dumps refuses to write
FILE = "file" + "://"
NUMBERS = (0, 1, -1, 2, 3, 7, 255, 65536, 10**6, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63))
FLOATS = (0.0, -0.0, 0.5, 1e308, -1e308, 1e-320, float("nan"), float("inf"), float("-inf"))
WORDS = (
    *("", " ", "\x00", "\n", "\r", "\t", '"', "'", ",", "\ufeff", "\u2028", "\u202e", "\ud800", "\udfff", "é" * 40),
    *("²", "--1", "1_000", "٣", "nan", "-inf", "1e999", "None", "true", "<script>alert(1)</script>", "\x1b[31m"),
    *("__class__", "auto_map", "../x", "..", ".", "/", "//", "con", "~", "$HOME", "%s%n", "{0}", "x" * 3000),
    *("http://127.0.0.1:9/x", "hf://datasets/x", FILE + "/x", "bert", "gpt2", "t5", "marian", "llama", "roberta"),
    *("encoder.0.1", "encoder.999999.999999", "decoder.0.0", "float16", "float33", "sdpa", "someone/kernel"),
)
LENIENT = ("utf-8", "surrogatepass")
BYTES = (
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3", b"\xed\xa0\x80", b"\r\n", b"\n\n", b"\t\t", b'"', b'""', b",,"),
    *(b"[" * 100_000, b'{"a":' * 5000, b"9" * 5000, b"NaN", b"-Infinity", b"1e999", b"\\ud800", b"null", b"{}", b"[]"),
    *(b"1-999999999\t", b"1-2\t", b"0.1\t", b"-1\t", b"# text = \n", b"a" * 200_000, b"PAR1", b"\x80\x04", b"\x1b[31m"),
)


def mutated(name: str, content: bytes, rng: Random, outside: str) -> bytes:
    """The content of a file, changed once or a few times in ways that its kind of file invites."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind = name.rpartition(".")[2] if rng.random() < 0.7 else "bytes"
        if kind in ("json", "jsonl"):
            content = _json(content, rng, outside, name)
        elif kind == "md":
            content = content.replace(b"train.jsonl", rng.choice((paths(outside, name, rng), *WORDS)).encode(*LENIENT))
        elif kind == "safetensors":
            content = _safetensors(content, rng, outside)
        elif kind == "shard":
            content = _safetensors(content[32:], rng, outside)
            content = hashlib.sha256(content).digest() + content
        else:
            content = _bytes(content, rng, outside, name)
    return content


def paths(outside: str, name: str, rng: Random) -> str:
    """A way to a file that is none of the reader's business."""
    suffix = name.rpartition(".")[2]
    climb = rng.choice(("../outside", "../../outside", outside, FILE + outside, "x/../../outside"))
    return f"{climb}/{SECRET}.{rng.choice((suffix, 'safetensors', 'json', 'csv', 'arrow', 'jsonl'))}"


def _bytes(content: bytes, rng: Random, outside: str, name: str) -> bytes:
    start, end = sorted((rng.randrange(len(content) + 1), rng.randrange(len(content) + 1)))
    end = min(end, start + rng.choice((1, 8, 64, 4096)))
    return rng.choice(
        (
            lambda: content[:start],
            lambda: content[:start] + content[end:],
            lambda: content[:start] + rng.randbytes(rng.choice((1, 2, 8))) + content[start:],
            lambda: content[:start] + bytes(byte ^ (1 << rng.randrange(8)) for byte in content[start:end][:1])
            + content[start + 1 :],
            lambda: content[:start] + rng.randbytes(end - start) + content[end:],
            lambda: content[:start] + rng.choice(BYTES) + content[end if rng.random() < 0.5 else start :],
            lambda: content[:start] + content[start:end] * rng.choice((2, 3, 50)) + content[end:],
            lambda: content[:start] + rng.choice(WORDS).encode(*LENIENT) + content[end:],
            lambda: content[:start] + paths(outside, name, rng).encode() + content[end:],
            lambda: content[end:] + content[:start],
        )
    )()  # fmt: skip


def _json(content: bytes, rng: Random, outside: str, name: str) -> bytes:
    """One place of a JSON file (or of one line of many) changed; text that is no JSON any more, by its bytes."""
    lines = content.split(b"\n") if name.endswith("l") else [content]
    place = rng.randrange(len(lines))
    try:
        value = json.loads(lines[place])
    except (ValueError, RecursionError):
        return _bytes(content, rng, outside, name)
    lines[place] = _written(_anywhere(value, rng, outside, name), rng)
    return b"\n".join(lines)


def _written(value: Any, rng: Random) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=rng.random() < 0.7)
    except RecursionError:
        return b"[" * 5000 + b"]" * 5000
    text = text.replace(f'"{HUGE}"', "9" * 5000)
    if rng.random() < 0.05 and '{"' in text:  # the same key twice
        key = text.split('{"', 1)[1].split('"', 1)[0]
        text = text.replace("{", f'{{"{key}": {json.dumps(rng.choice((*WORDS, *NUMBERS)))}, ', 1)
    return text.encode(*LENIENT)


def _anywhere(value: Any, rng: Random, outside: str, name: str) -> Any:
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return _changed(value, rng, outside, name)
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    what = rng.random()
    if what < 0.1:
        del value[key]
    elif what < 0.15 and isinstance(value, dict):
        value[rng.choice(WORDS)] = value.pop(key)
    elif what < 0.2 and isinstance(value, dict):
        value[rng.choice(list(value))] = value[key]
    elif what < 0.3:
        new = _odd(rng, outside, name)
        value.update({rng.choice(WORDS): new}) if isinstance(value, dict) else value.insert(key, new)
    else:
        value[key] = _anywhere(value[key], rng, outside, name)
    return value


def _changed(value: Any, rng: Random, outside: str, name: str) -> Any:
    if isinstance(value, int) and rng.random() < 0.5:
        return rng.choice((value + 1, value - 1, -value, 2 * value, value * 10**6, 0.5, [value]))
    if isinstance(value, str) and rng.random() < 0.3:
        return rng.choice((value.upper(), value + rng.choice(WORDS), value[:-1], value * 50))
    return _odd(rng, outside, name, value)


def _odd(rng: Random, outside: str, name: str, value: Any = None) -> Any:
    kind = rng.randrange(9)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return rng.choice(FLOATS)
    if kind == 2:
        return rng.choice(WORDS)
    if kind == 3:
        return paths(outside, name, rng)
    if kind == 4:
        return rng.choice((None, True, False, [], {}, HUGE))
    if kind == 5:
        return rng.choice(([value], {"a": value}, [value] * 100, {str(n): value for n in range(50)}))
    if kind == 6:
        deep: Any = value
        for _ in range(rng.choice((50, 900, 3000))):
            deep = [deep]
        return deep
    if kind == 7:
        return dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer"), "evil.Evil")
    return [rng.choice(NUMBERS), rng.choice(WORDS), rng.choice(FLOATS)]


def _safetensors(content: bytes, rng: Random, outside: str) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length], content[8 + length :]
    if data[:1] == b"{" and rng.random() < 0.7:  # a table of bytes that is JSON itself
        before, data = str(len(data)).encode(), _json(data, rng, outside, "data.json")
        header = header.replace(before, str(len(data)).encode())
    elif rng.random() < 0.2:
        data = _bytes(data, rng, outside, "safetensors")
    else:
        header = _json(header, rng, outside, "header.json")
    length = len(header) if rng.random() < 0.8 else rng.choice((0, 1, len(header) + 1, 2**31, 2**63, 2**64 - 1))
    return length.to_bytes(8, "little") + header + data
