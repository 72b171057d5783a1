"""The live page's server: one page and one question to ask, on this machine only, for whoever knows the address.

It is the standard library's, so `headcount explore` needs no extra package. A request is refused unless it names this
server as its host, carries the random token of the address and, where a browser says so, comes from the page itself.
Nothing is read from disk to answer one.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headcount.errors import HeadcountError
from headcount.explore.inspector import Inspector, Text
from headcount.reporting import explorer_page, explorer_policy

LOOPBACK, EVERYWHERE = "127.0.0.1", ("0.0.0.0", "::")
LONGEST_BODY, LONGEST_TEXT, MOST_UNITS = 64 * 1024, 20_000, 4096  # bytes, characters, units turned off at once
RATE, BURST, CONNECTIONS = 40, 80, 24  # questions a second, at once, and open connections
SLICE = 0.15  # seconds of a sweep before others get their turn


class Refused(HeadcountError):
    """A request that is not answered, with its HTTP status."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Answers:
    """What can be asked: a text read, units off, the pruned model, a head looked at, every head's effect, an example.

    examples: texts to step through.
    """

    def __init__(self, inspector: Inspector, examples: Sequence[Mapping[str, Any]] = ()) -> None:
        self.inspector, self.examples, self.closed = inspector, examples, False

    def __call__(self, asked: Any) -> dict[str, Any]:
        if not isinstance(asked, dict):
            raise Refused(HTTPStatus.BAD_REQUEST, "expected a JSON object")
        with self.inspector.lock:
            if self.closed:
                raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the server is ending")
            return self._answer(asked)

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        what = asked.get("what")
        if what == "example":
            return self._example(asked.get("index"))
        text, off = _text(asked), _units(asked.get("off", []))
        if what == "read":
            return self.inspector.read(text)
        if what == "answer":
            return self.inspector.answer(text, off)
        if what == "pruned":
            return self.inspector.pruned(text)
        if what == "attention":
            return self.inspector.attention(text, _string(asked.get("head"), "head", 64), off)
        if what == "effects":
            return self.inspector.effects(text, SLICE)
        raise Refused(HTTPStatus.BAD_REQUEST, "what is not one of answer, attention, effects, example, pruned, read")

    def _example(self, index: Any) -> dict[str, Any]:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(self.examples):
            raise Refused(HTTPStatus.BAD_REQUEST, f"index is not one of {len(self.examples)} examples")
        return dict(self.examples[index])


def _text(asked: Mapping[str, Any]) -> Text:
    pair = asked.get("pair")
    text = _string(asked.get("text"), "text", LONGEST_TEXT)
    return text, None if pair is None else _string(pair, "pair", LONGEST_TEXT)


def _string(value: Any, name: str, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{name} is not a text of at most {longest} characters")
    return value.encode("utf-8", "replace").decode()  # lone surrogates cannot be encoded


def _units(value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > MOST_UNITS:
        raise Refused(HTTPStatus.BAD_REQUEST, f"off is not a list of at most {MOST_UNITS} units")
    return [_string(unit, "a unit", 64) for unit in value]


class ExploreServer(ThreadingHTTPServer):
    """Serves one page until it is closed; `address` is where, token included.

    host: an address of this machine; anything but the loopback lets others in who know the token.
    port: 0 takes a free one.
    """

    daemon_threads, block_on_close = False, True  # Python must not end while a thread is inside the model
    request_queue_size = 16

    def __init__(self, answers: Answers, content: Mapping[str, Any], host: str = LOOPBACK, port: int = 0) -> None:
        self.answers, self.host = answers, host
        self.token = secrets.token_urlsafe(18)
        self.page, self.policy = explorer_page(content).encode(), explorer_policy(live=True)
        self._open: set[socket.socket] = set()
        self._tokens, self._asked_at, self._counting = float(BURST), time.monotonic(), threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            advice = "choose another {host} or {port}, or leave them out"
            raise HeadcountError(f"cannot listen on {host} port {port}: {error.strerror or error}", advice) from error

    @property
    def address(self) -> str:
        host = _outward_address() if self.host in EVERYWHERE else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/{self.token}/"

    def is_local(self) -> bool:
        return _is_loopback(self.host)

    def is_own_host(self, host: str | None) -> bool:
        """Whether a Host header names this server; another site whose name was pointed here does not."""
        name, _, port = (host or "").rpartition(":")
        if not name or port.endswith("]"):  # browsers leave out the usual port
            name, port = host or "", "80"
        if port != str(self.server_port):
            return False
        name = name.strip("[]").lower()
        if name == self.host.lower() or (self.is_local() and name == "localhost"):
            return True
        return _is_address(name) and (not self.is_local() or _is_loopback(name))

    def has_room(self) -> bool:
        """Take one question from the allowance, which refills at a steady rate."""
        with self._counting:
            now = time.monotonic()
            self._tokens = min(BURST, self._tokens + RATE * (now - self._asked_at))
            self._asked_at = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._open) >= CONNECTIONS:
            self.shutdown_request(request)
        else:
            self._open.add(request)
            super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)

    def serve_until_interrupted(self) -> None:
        """Serve until Ctrl-C. The signal reaches the main thread only, so it never meets a connection half opened."""
        thread = threading.Thread(target=self.serve_forever)
        try:
            thread.start()
            while thread.is_alive():
                thread.join(1)  # with a limit, so that Windows notices Ctrl-C, too
        except KeyboardInterrupt:
            self.shutdown()
            thread.join()

    def server_close(self) -> None:
        """Answer no more, end the connections that browsers keep open, and wait for the pass that is under way."""
        self.answers.closed = True
        for request in list(self._open):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks off is the browser's own business."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: ExploreServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds that a connection may be silent
    error_message_format, error_content_type = "%(code)d %(message)s\n", "text/plain; charset=utf-8"

    def do_GET(self) -> None:
        try:
            self._expect("")
            self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        except Refused as error:
            self._refuse(error)

    def do_POST(self) -> None:
        try:
            self._expect("ask")
            asked = self._question()
            if not self.server.has_room():
                raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "too many questions at once; wait a moment")
            self._send(HTTPStatus.OK, json.dumps(self.server.answers(asked), allow_nan=False).encode())
        except Refused as error:
            self._refuse(error)
        except HeadcountError as error:
            self._refuse(Refused(HTTPStatus.UNPROCESSABLE_ENTITY, error.in_words(lambda name: name)))
        except (RuntimeError, ValueError) as error:  # what a model raises on a text that it cannot take
            told = f"the model failed on this text ({type(error).__name__})"
            self._refuse(Refused(HTTPStatus.INTERNAL_SERVER_ERROR, told))

    def _expect(self, place: str) -> None:
        """Refuse a request that is for another host or place, lacks the token, or comes from another page."""
        server = self.server
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not server.is_own_host(hosts[0]):
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, "this server has another name")
        token, _, rest = self.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), server.token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "the address lacks the token that headcount printed")
        if rest != place:
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        if origin not in (None, f"http://{hosts[0]}") or (place and site not in (None, "same-origin")):
            raise Refused(HTTPStatus.FORBIDDEN, "the request comes from another page")

    def _question(self) -> Any:
        if self.headers.get_content_type() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdecimal()):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        if len(length) > 9 or int(length) > LONGEST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {LONGEST_BODY} bytes")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise Refused(HTTPStatus.BAD_REQUEST, "expected JSON") from None

    def _refuse(self, error: Refused) -> None:
        self.close_connection = True  # what is left of the request is not read
        self._send(error.status, json.dumps({"error": str(error)}).encode())

    def _send(self, status: HTTPStatus, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": f"{self.server.policy}; frame-ancestors 'none'",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "headcount"

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal shows the address, and nothing else."""


def _outward_address() -> str:
    """The address that other machines know this one by; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # kept for documentation: nobody's
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)
