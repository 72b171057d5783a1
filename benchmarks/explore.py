"""How long the page of `headcount explore` waits: a click, a look at a head, every head's effect on a text.

    python -m benchmarks.explore                 # MiniLM from the shared models, and a 135-million-parameter layout
    python -m benchmarks.explore --threads 1     # on a machine with other users, where threads wait for each other

Times are of whole questions over HTTP on the loopback, as the page asks them: by the clock, and by the processor time
that they take, which other users of the machine do not change. The large language model has random weights in the
layout of SmolLM2-135M: 30 layers of 9 heads, 3 key-value heads.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from headcount import load
from headcount.explore import Answers, ExploreServer, Inspector
from headcount.tasks.text import word_tokenizer

SENTENCE = "the plot is thin and the jokes are old but the two leads are so good together here"
PROMISED = {"MiniLM, 20 tokens": 0.1, "SmolLM2-135M layout, 20 tokens and 10 new ones": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="clicks to time; each on another head")
    parser.add_argument("--threads", type=int, help="threads of torch; by default one for each core")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads or torch.get_num_threads())
    models = dict(zip(PROMISED, (minilm, smollm), strict=True))
    print(f"{torch.get_num_threads()} threads, load average {os.getloadavg()[0]:.1f}")
    for name, build in models.items():
        made = build()
        if made is None:
            print(f"{name}: no shared models; point HEADCOUNT_SHARED to them")
            continue
        report(name, Inspector(*made), asked.repeats)


def minilm() -> tuple[Any, Any] | None:
    shared = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    directory = shared / "models" / "minilm-sst2"
    if not directory.is_dir():
        return None
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    return load(directory, dtype=torch.float32), tokenizer


def smollm() -> tuple[Any, Any]:
    torch.manual_seed(0)
    size = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "tie_word_embeddings": True}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=49152, **size, **heads, eos_token_id=None))
    return model.eval(), word_tokenizer(" ".join([*SENTENCE.split(), "and", "more"]), "gpt")


def report(name: str, inspector: Inspector, repeats: int) -> None:
    words = itertools.cycle(SENTENCE.split())
    wanted = 20 if inspector.tokenizer.bos_token is None and inspector.tokenizer.cls_token is None else 18
    text = " ".join(itertools.islice(words, wanted))
    asked = {"text": text, "pair": None}
    content = {"live": True, "model": name}
    with ExploreServer(Answers(inspector), content) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        heads = itertools.cycle(map(str, reversed(inspector.heads)))
        parameters = sum(weight.numel() for weight in inspector.model.parameters())
        print(f"\n{name} ({parameters / 1e6:.0f} million parameters, {len(inspector.heads)} heads)")
        first = [timed(server, {"what": "read", **asked})]
        clicks = [timed(server, {"what": "answer", "off": [next(heads)], **asked}) for _ in range(repeats)]
        rows = [site.name for site in inspector.found.sites if site.layer % 2][:8]  # so that another text is written
        far = [timed(server, {"what": "answer", "off": rows[: 1 + place % 8], **asked}) for place in range(repeats)]
        looks = [timed(server, {"what": "attention", "head": next(heads), **asked}) for _ in range(repeats)]
        started = time.perf_counter()
        while not json.loads(post(server, {"what": "effects", **asked}))["done"]:
            pass
        sweep = time.perf_counter() - started
        server.shutdown()
    asks = {"a new text": first, "a head off": clicks, "rows off": far}
    for what, times in {**asks, "the first look": looks[:1], "a look": looks[1:]}.items():
        wall, processor = (1000 * statistics.median(one[place] for one in times) for place in (0, 1))
        least, most = (1000 * end(one[0] for one in times) for end in (min, max))
        print(f"  {what:15} {wall:7.0f} ms ({least:.0f} to {most:.0f}), {processor:.0f} ms of processor time")
    within = statistics.median(one[0] for one in (*clicks, *far)) <= PROMISED[name]
    print(f"  a click within {1000 * PROMISED[name]:.0f} ms: {'yes' if within else 'no'}")
    print(f"  every head's effect: {sweep:.1f} s, shown as it is measured")


def timed(server: ExploreServer, asked: dict[str, Any]) -> tuple[float, float]:
    """Seconds by the clock, and of processor time in this process, which is the server's too."""
    wall, processor = time.perf_counter(), time.process_time()
    post(server, asked)
    return time.perf_counter() - wall, time.process_time() - processor


def post(server: ExploreServer, asked: dict[str, Any]) -> bytes:
    connection = http.client.HTTPConnection(server.host, server.server_port)
    connection.request("POST", f"/{server.token}/ask", json.dumps(asked), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    told = answer.read()
    connection.close()
    if answer.status == 429:
        time.sleep(0.1)
        return post(server, asked)
    assert answer.status == 200, told
    return told


if __name__ == "__main__":
    main()
