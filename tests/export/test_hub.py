"""`push_to_hub` against a local stand-in for the hub: what arrives, what is refused, and no token in a log."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import zoo
from headcount import HeadcountError, push_to_hub, remove, save

TOKEN = "hf_madeUpForThisTest12345"


class StandIn(BaseHTTPRequestHandler):
    """Just enough of the hub: make a repository or a branch, check metadata, take a commit of small files."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub = self.server
        hub.seen.append((self.path, self.headers.get("Authorization"), body))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" or hub.refuse:
            return self.answer({"error": f"no access with {self.headers.get('Authorization')}"}, hub.refuse or 401)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            return self.answer({"url": f"{hub.address}/{name}", "name": name})
        if "/preupload/" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        if "/commit/" in self.path:
            lines = [json.loads(line) for line in body.splitlines()]
            hub.commits.append(lines)
            return self.answer({"commitUrl": f"{hub.address}/you/small/commit/1", "commitOid": "1", "success": True})
        return self.answer({"errors": [], "warnings": []})  # validate-yaml, branches

    def answer(self, content, code=200):
        data = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    server.seen, server.commits, server.refuse = [], [], None
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def small(tmp_path):
    return save(remove(zoo.build("bert"), ["encoder.0.1"]), tmp_path / "run" / "model")


def test_a_saved_model_arrives_whole(hub, small):
    (small.parent / "run.json").write_text("{}")
    address = push_to_hub(small.parent, "you/small", private=True, message="The small one")  # a run: its model is meant
    assert address == f"{hub.address}/you/small/commit/1"
    header, *files = hub.commits[0]
    assert header["value"]["summary"] == "The small one"
    sent = {file["value"]["path"]: base64.b64decode(file["value"]["content"]) for file in files}
    assert sent == {file.name: file.read_bytes() for file in small.iterdir()}
    assert "model.safetensors" in sent
    made = json.loads(next(body for path, _, body in hub.seen if path == "/api/repos/create"))
    assert (made["organization"], made["name"]) == ("you", "small")
    assert made.get("private") is True or made.get("visibility") == "private"


def test_a_branch(hub, small):
    push_to_hub(small, "you/small", revision="try-2")
    assert any(path.endswith("/commit/try-2") for path, _, _ in hub.seen)


def test_refusals_say_why_and_never_the_token(hub, small, tmp_path, monkeypatch, caplog, capsys):
    with pytest.raises(HeadcountError, match="nothing is not a directory"):
        push_to_hub(tmp_path / "run" / "nothing", "you/small")
    (tmp_path / "words").mkdir()
    with pytest.raises(HeadcountError, match=r"config\.json"):
        push_to_hub(tmp_path / "words", "you/small")
    with pytest.raises(HeadcountError, match=r"you/name"):
        push_to_hub(small, "you//small!")
    assert hub.seen == []
    caplog.set_level("DEBUG")
    hub.refuse = 403
    with pytest.raises(HeadcountError, match=r"403.*hf auth login") as forbidden:
        push_to_hub(small, "you/small")
    assert "***" in str(forbidden.value)  # the stand-in repeats what it was sent
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with pytest.raises(HeadcountError, match="hf auth login"):
        push_to_hub(small, "you/small")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens
    with pytest.raises(HeadcountError, match="you/small"):
        push_to_hub(small, "you/small")
    printed = capsys.readouterr()
    everything = [str(forbidden.value), repr(forbidden.value.__cause__), caplog.text, printed.out, printed.err]
    assert hub.commits == []
    assert TOKEN not in "".join(everything)
