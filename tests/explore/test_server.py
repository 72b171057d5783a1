"""The server answers its own page and refuses everyone else: token, host, origin, size, number, place, kind."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.parse
from contextlib import contextmanager

import pytest

from explored_models import TEXT, build
from headcount import HeadcountError
from headcount.explore import Answers, ExploreServer, Findings, Inspector
from headcount.explore import server as rules

NASTY = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>"


@contextmanager
def serving(examples=(), host="127.0.0.1"):
    model, tokenizer, _ = build("classifier")
    inspector = Inspector(model, tokenizer, name=NASTY)
    content = {"live": True, **inspector.facts(), "findings": Findings(model, []).to_json(), "examples": len(examples)}
    content |= {"text": TEXT[0], "pair": None}
    with ExploreServer(Answers(inspector, examples), content, host) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server():
    with serving([{"text": "a dog", "pair": None, "label": "fine"}]) as one:
        yield one


@pytest.fixture(autouse=True)
def rested(request):
    """Each test has the whole allowance of questions."""
    if "server" in request.fixturenames:
        request.getfixturevalue("server")._tokens = rules.BURST


def ask(server, content=None, method="POST", path=None, body=None, **headers):
    """Status, headers and content of an answer; a header that is None is left out."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    body = json.dumps(content).encode() if body is None and content is not None else body
    own = {"Host": f"127.0.0.1:{server.server_port}", "Content-Type": "application/json"}
    own["Content-Length"] = str(len(body or b""))
    own |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path or f"/{server.token}/ask", skip_host=True, skip_accept_encoding=True)
    for name, value in own.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    told = answer.read()
    connection.close()
    return answer.status, answer.headers, told


def question(what="answer", **more):
    return {"what": what, "text": TEXT[0], "pair": None, **more}


def test_the_page_and_its_answers(server):
    status, headers, page = ask(server, method="GET", path=urllib.parse.urlsplit(server.address).path)
    assert status == 200
    assert page.startswith(b"<!doctype html>")
    assert NASTY.encode() not in page
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
    for part in ("connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "script-src 'sha256-"):
        assert part in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    status, headers, told = ask(server, question(off=["encoder.0.1"]))
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(told) == server.answers.inspector.answer(TEXT, ["encoder.0.1"])
    assert json.loads(ask(server, {"what": "example", "index": 0})[2])["text"] == "a dog"


def test_the_token_is_asked_for(server):
    for path in ("/", "/ask", f"/{server.token[:-1]}/", "/x/ask", f"/{server.token}x/ask"):
        for method in ("GET", "POST"):
            status, _, told = ask(server, question(), method, path)
            assert (status, "token" in json.loads(told)["error"]) == (403, True)
    with serving() as other:
        assert len(other.token) >= 24
        assert other.token != server.token


@pytest.mark.parametrize("place", ["../../etc/passwd", "page.js", "ask/", "%2e%2e/", "ask?x=1", "..%2f", "explorer.js"])
def test_nothing_else_is_served(server, place):
    for method in ("GET", "POST"):
        assert ask(server, question(), method, f"/{server.token}/{place}")[0] == 404
    assert ask(server, question(), "GET", f"/{server.token}/ask")[0] == 404
    assert ask(server, question(), "POST", f"/{server.token}/")[0] == 404
    assert ask(server, None, "PUT")[0] == 501


def test_a_name_that_was_pointed_here_is_refused(server):
    port = server.server_port
    others = ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", f"10.0.0.1:{port}", None)
    for host in others:
        for method, path in (("POST", None), ("GET", f"/{server.token}/")):
            assert ask(server, question(), method, path, Host=host)[0] in (400, 421)
    for host in (f"localhost:{port}", f"[::1]:{port}"):
        assert ask(server, question(), Host=host)[0] == 200


def test_other_origins_are_refused(server):
    port = server.server_port
    for origin in ("http://evil.example", f"https://127.0.0.1:{port}", "http://127.0.0.1", "null"):
        assert ask(server, question(), Origin=origin)[0] == 403
    assert ask(server, question(), Origin=f"http://127.0.0.1:{port}")[0] == 200
    assert ask(server, question(), Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(server, question(), Sec_Fetch_Site="same-origin")[0] == 200


def test_only_json_of_a_known_size_is_read(server):
    assert ask(server, question(), Content_Type="text/plain")[0] == 415  # what a form of another site could send
    assert ask(server, question(), Content_Length=None)[0] == 411
    assert ask(server, question(), Content_Length="-5")[0] == 411
    assert ask(server, question(), Transfer_Encoding="chunked")[0] == 411
    assert ask(server, None, Content_Length=str(rules.LONGEST_BODY + 1))[0] == 413
    assert ask(server, None, Content_Length="9" * 30)[0] == 413
    for body in (b"{", b"[1, 2", b"\xff", b"[" * 5000):
        assert ask(server, body=body)[0] == 400


@pytest.mark.parametrize(
    "asked",
    [
        [],
        {"what": "open", "text": "a"},
        {"what": "answer"},
        {"what": "answer", "text": 5},
        {"what": "answer", "text": "a" * (rules.LONGEST_TEXT + 1)},
        {"what": "answer", "text": "a", "pair": ["b"]},
        {"what": "answer", "text": "a", "off": "encoder.0.1"},
        {"what": "answer", "text": "a", "off": ["x"] * (rules.MOST_UNITS + 1)},
        {"what": "attention", "text": "a", "head": None},
        {"what": "example", "index": 1},
        {"what": "example", "index": -1},
        {"what": "example", "index": True},
    ],
)
def test_malformed_questions_are_refused(server, asked):
    status, _, told = ask(server, asked)
    assert status == 400
    assert json.loads(told)["error"]


def test_what_the_model_refuses_is_said(server):
    for asked, fact in (
        (question(off=["encoder.9.0"]), "encoder.9.0"),
        (question(off=["encoder.0", "encoder.0.1"]), "encoder.0.1"),
        ({**question(), "text": " "}, "empty"),
        (question("attention", head="encoder.0.1; drop"), "drop"),
        (question("pruned"), "pruned"),
    ):
        status, _, told = ask(server, asked)
        assert (status, fact in json.loads(told)["error"]) == (422, True)
    assert ask(server, {**question(), "text": "\ud800 dog"})[0] == 200


def test_too_many_questions_are_refused_and_the_page_recovers(server):
    server._tokens = 3.0
    codes = [ask(server, {"what": "example", "index": 0})[0] for _ in range(3)]
    assert codes == [200] * 3
    server._tokens = 0.0
    server._asked_at += 60
    assert ask(server, {"what": "example", "index": 0})[0] == 429
    server._asked_at -= 61
    assert ask(server, {"what": "example", "index": 0})[0] == 200


def test_too_many_connections_are_closed():
    with serving() as server:
        open_ones = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(rules.CONNECTIONS)]
        for one in open_ones:  # each is taken up before the next
            one.sendall(b"GET / HTTP/1.1\r\n")
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as further:
            assert further.recv(1) == b""
        for one in open_ones:
            one.close()


def test_several_at_once_get_their_own_answers(server):
    units = [f"encoder.{layer}.{index}" for layer in range(2) for index in range(4)]
    expected = {unit: server.answers.inspector.answer(TEXT, [unit]) for unit in units}
    told = {}

    def one(unit):
        told[unit] = json.loads(ask(server, question(off=[unit]))[2])

    threads = [threading.Thread(target=one, args=(unit,)) for unit in units]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == expected


def test_a_port_in_use_is_said(server):
    with pytest.raises(HeadcountError, match=str(server.server_port)):
        ExploreServer(Answers(server.answers.inspector), {"live": True, "model": "m"}, port=server.server_port)


def test_a_named_host_takes_addresses_but_no_other_names():
    with serving(host="0.0.0.0") as server:
        port = server.server_port
        assert not server.is_local()
        assert server.is_own_host(f"192.168.1.5:{port}")
        assert not server.is_own_host(f"evil.example:{port}")
        assert not server.is_own_host("192.168.1.5")
        server.server_port = 80  # which browsers leave out
        assert server.is_own_host("192.168.1.5")
        assert server.is_own_host("[::1]")
        assert not server.is_own_host("evil.example")
        server.server_port = port
        assert "0.0.0.0" not in server.address
        assert server.is_own_host(urllib.parse.urlsplit(server.address).netloc)


def test_findings_colour_and_name_sets():
    model = build("classifier").model
    heads = [f"encoder.{layer}.{index}" for layer in range(2) for index in range(4)]
    named = enumerate([*heads, "encoder.9.9"])  # of which the last is not this model's
    scores = [{"head": head, "score": place / 8, "normalized": place} for place, head in named]
    runs = [
        {"command": "importance", "method": "gradient", "order_by": "normalized", "heads": scores, "order": heads},
        {"command": "roles", "heads": [{"head": heads[1], "role": "rare"}, {"head": "x", "role": "idle"}]},
        {"command": "prune", "removed": [heads[0], "encoder_ffn.0.3-5", "encoder_ffn.7.0"], "left": 7, "before": 1},
        {"command": "ablate", "metric": "loss", "higher_is_better": False, "base": 1.0}
        | {"heads": [{"head": heads[2], "change": 0.5}]},
    ]
    told = Findings(model, runs).to_json()
    assert [one["kind"] for one in told["maps"]] == ["importance", "role", "change"]
    assert told["maps"][0]["values"] == {head: place for place, head in enumerate(heads)}
    assert told["maps"][2]["sign"] == -1
    assert told["sets"] == [
        {"name": "rare heads", "units": [heads[1]]},
        {"name": "what prune removed", "units": [heads[0], "encoder_ffn.0.3-5"]},
    ]
    assert "removed by prune" in told["facts"][heads[0]]
    assert not told["remarks"]
    other = {**runs[0], "signature": {"model": {"fingerprint": "0" * 16}}}
    assert "other weights" in Findings(model, [other]).remarks[0]
