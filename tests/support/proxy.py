"""A TCP proxy that loses and delays: single requests, single replies, single messages, or everything.

The proxy understands just enough of the protocol to tell requests and replies apart and to count them. A test arms a
fault for the next request (or message) that matches; the fault strikes once.

With ``RELOCK_TEST_LATE``, a share from 0 to 1, each proxy delays so many of the requests, chosen at random. Masters
then differ for a moment more often, so a test that asks all of them, where a quorum has answered, fails in the end.
"""

import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from attrs import Factory, define

Words = list[bytes]
Match = Callable[[Words], bool]

BULKS = (b"$", b"=", b"!")
PARTS_PER_ENTRY = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}  # an attribute (|) precedes its value
MESSAGES = ([b"message"], [b"pmessage"], [b"smessage"])
SUBSCRIPTIONS = (b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"UNSUBSCRIBE", b"PUNSUBSCRIBE", b"SUNSUBSCRIBE")
HOLDING = ("hold", "late")  # the kinds of fault that keep a request or a reply until `release`
ON_REQUESTS = ("swallow", "forge", "lose", *HOLDING)
JOIN_SECONDS = 5.0
LATE = float(os.environ.get("RELOCK_TEST_LATE", "0"))
LATE_SECONDS = 0.01


def calls_script(*names: str) -> Match:
    """Match EVALSHA and EVAL of these scripts of relock."""
    from relock._scripts import load

    scripts = [load(name) for name in names]
    wanted = {script.sha.encode() for script in scripts} | {script.source for script in scripts}
    return lambda words: words[0].upper() in (b"EVALSHA", b"EVAL") and words[1] in wanted


def replies_to(words: Words) -> int:
    """Return the number of replies to a request: one, or one for each channel of a subscribe or unsubscribe.

    Unsubscribing from *all* channels without naming them gets a reply for each, a number that the proxy doesn't know.
    """
    return max(1, len(words) - 1) if words and words[0].upper() in SUBSCRIPTIONS else 1


class Framer:
    """Splitter of a stream of the protocol (RESP2 or RESP3) into whole values."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the values that are complete now, as bytes."""
        self._buffer += data
        values = []
        while (end := self._end(0)) is not None:
            values.append(self._buffer[:end])
            self._buffer = self._buffer[end:]
        return values

    def _end(self, start: int) -> int | None:
        """Return where the value that begins at `start` ends, or None while the value is incomplete."""
        newline = self._buffer.find(b"\r\n", start)
        if newline < 0:
            return None
        kind, number = self._buffer[start : start + 1], self._buffer[start + 1 : newline]
        position: int | None = newline + 2
        if kind in BULKS:
            position = newline + 2 if number == b"-1" else newline + 4 + int(number)
            return position if position <= len(self._buffer) else None
        if kind in PARTS_PER_ENTRY:
            for _ in range(PARTS_PER_ENTRY[kind] * max(0, int(number)) + (kind == b"|")):
                position = None if position is None or position >= len(self._buffer) else self._end(position)
        return position


def words_of(value: bytes) -> Words:
    """Return the bulk strings of a request or of a message, without the lines around them."""
    lines = value.split(b"\r\n")
    words: Words = []
    if lines[0][:1] not in (b"*", b">"):
        return []
    rest = value[len(lines[0]) + 2 :]
    while rest[:1] == b"$":
        header, _, rest = rest.partition(b"\r\n")
        length = int(header[1:])
        if length < 0:
            break  # a nil: requests and messages have none
        words.append(rest[:length])
        rest = rest[length + 2 :]
    return words


@define(eq=False)
class Fault:
    """One armed fault; `struck` is set once the fault has found its request."""

    match: Match
    kind: str
    close: bool = False
    mute: bool = False
    forge: Callable[[bytes], bytes] = bytes
    struck: threading.Event = Factory(threading.Event)
    go_on: threading.Event = Factory(threading.Event)
    done: threading.Event = Factory(threading.Event)

    @property
    def has_begun(self) -> bool:
        """Return whether the fault has struck; see `support.masters.Faults`."""
        return self.struck.is_set()

    def release(self) -> None:
        """Let the held request go on to the server, or the held reply to the client."""
        self.go_on.set()


class Line:
    """The way to one server, on which tests arm faults. The code that carries requests calls `strike` for each."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []  # the armed ones
        self.lock = threading.Lock()

    def swallow_reply(self, match: Match, *, close: bool = False, mute: bool = False) -> Fault:
        """Lose a reply, though its request reaches the server; `close` then breaks the connection.

        With `mute` all later replies on that connection are lost, too: so a network falls silent under a client that
        sends more than one request before it reads.
        """
        return self._arm(Fault(match, "swallow", close, mute))

    def lose_request(self, match: Match) -> Fault:
        """Lose a request, and break its connection."""
        return self._arm(Fault(match, "lose"))

    def hold_request(self, match: Match, *, close: bool = False) -> Fault:
        """Hold a request, and all that follows on its connection, until `Fault.release`.

        Then the request reaches the server, even if the client is gone: a late script. `done` is set when the server
        has answered it. `close` breaks the client's end as soon as the request is held.
        """
        return self._arm(Fault(match, "hold", close))

    def hold_reply(self, match: Match) -> Fault:
        """Hold a reply, and all that follows on its connection, until `Fault.release`.

        `struck` is set when the server has answered, `done` when the answer is on its way to the client.
        """
        return self._arm(Fault(match, "late"))

    def _arm(self, fault: Fault) -> Fault:
        with self.lock:
            self.faults.append(fault)
        return fault

    def disarm(self, fault: Fault) -> bool:
        """Take a fault back; return False if it has already found its request."""
        with self.lock:
            if fault not in self.faults:
                return False
            self.faults.remove(fault)
            return True

    def strike(self, words: Words, kinds: tuple[str, ...]) -> Fault | None:
        """Return the first armed fault of `kinds` that matches, disarmed."""
        with self.lock:
            for fault in self.faults:
                if fault.kind in kinds and words and fault.match(words):
                    self.faults.remove(fault)
                    return fault
        return None


class Proxy(Line):
    """Proxy that listens on loopback, in front of one server."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._server_port = port
        self._leading = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._held: list[Fault] = []
        self.flows = threading.Event()
        self.flows.set()
        self._pairs: list[_Pair] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def url(self) -> str:
        """Return the URL of the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    def forge_reply(
        self, match: Match, forge: Callable[[bytes], bytes], *, close: bool = False, mute: bool = False
    ) -> Fault:
        """Let `forge` change a reply after its request reached the server; `close` and `mute` as in `swallow_reply`."""
        return self._arm(Fault(match, "forge", close, mute, forge))

    def swallow_message(self, match: Match) -> Fault:
        """Lose one message of Pub/Sub; `match` gets its words: kind, channel, payload."""
        return self._arm(Fault(match, "message"))

    def _arm(self, fault: Fault) -> Fault:
        if fault.kind in HOLDING:
            self._held.append(fault)
        return super()._arm(fault)

    def pause(self) -> None:
        """Let nothing through, in either direction, without closing a connection: a black hole."""
        self.flows.clear()

    def resume(self) -> None:
        """Let everything through again, also the bytes that `pause` has held."""
        self.flows.set()

    def let_go(self) -> None:
        """Let everything through again, also the requests and replies that faults hold."""
        self.resume()
        for fault in self._held:
            fault.release()

    def break_all(self) -> None:
        """Close every connection."""
        for pair in list(self._pairs):
            pair.close()

    def lead_to(self, port: int) -> None:
        """Put another server in the place of the one before: connections end, and new ones lead there."""
        self.lead_new_to(port)
        self.break_all()

    def lead_new_to(self, port: int) -> None:
        """Move the address: new connections lead to another server, and open ones stay where they are.

        A connection that is being opened is complete when this returns. So a test that then ends all connections of the
        old server misses none.
        """
        with self._leading:
            self._server_port = port

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                with self._leading:
                    server = socket.create_connection(("127.0.0.1", self._server_port))
                for end in (client, server):  # no reply may wait for an acknowledgement, a delay that no test armed
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                client.close()
                continue
            pair = _Pair(self, client, server)
            self._pairs.append(pair)  # first, so that `break_all` ends every connection with a reply
            pair.start()

    def close(self) -> None:
        """End the proxy and its connections."""
        _shut(self._listener, socket.SHUT_RDWR)  # a close alone would leave a thread in accept(), and the port open
        self._acceptor.join(JOIN_SECONDS)
        self._listener.close()
        self.let_go()
        self.break_all()
        for pair in self._pairs:
            pair.join()


class _Pair:
    """One client's connection and its twin to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._mute = False
        self._owed: deque[Fault | None] = deque()  # for each request under way, the fault that waits for its reply
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._requests, self._replies)]

    def start(self) -> None:
        """Begin to carry bytes in both directions."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for the threads of a closed pair, and close the sockets."""
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
        self._client.close()
        self._server.close()

    def _requests(self) -> None:
        framer = Framer()
        while data := _receive(self._client):
            for request in framer.feed(data):
                self._forward(request)
        _shut(self._server, socket.SHUT_WR)

    def _forward(self, request: bytes) -> None:
        self._proxy.flows.wait()
        if random.random() < LATE:
            time.sleep(LATE_SECONDS)
        words = words_of(request)
        fault = self._proxy.strike(words, ON_REQUESTS)
        if fault is not None and fault.kind != "late":
            fault.struck.set()
            if fault.kind == "lose":
                fault.done.set()
                self.close()
                return
            if fault.kind == "hold":
                if fault.close:
                    _shut(self._client, socket.SHUT_RDWR)
                fault.go_on.wait()
        self._owed.extend([fault] * replies_to(words))
        _send(self._server, request)

    def _replies(self) -> None:
        framer = Framer()
        while data := _receive(self._server):
            for reply in framer.feed(data):
                self._back(reply)
        self.close()

    def _back(self, reply: bytes) -> None:
        self._proxy.flows.wait()
        words = words_of(reply)
        fault = None
        if words[:1] in MESSAGES:
            fault = self._proxy.strike(words, ("message",))
        elif self._owed:
            fault = self._owed.popleft()
        if fault is not None and fault.kind == "late":
            fault.struck.set()
            fault.go_on.wait()
        if self._mute:
            pass
        elif fault is None or fault.kind in HOLDING:
            _send(self._client, reply)
        else:
            _send(self._client, fault.forge(reply) if fault.kind == "forge" else b"")
            self._mute = fault.mute
            if fault.close:
                self.close()
        if fault is not None:
            fault.struck.set()
            fault.done.set()

    def close(self) -> None:
        for end in (self._client, self._server):
            _shut(end, socket.SHUT_RDWR)


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(65536)
    except OSError:
        return b""


def _send(end: socket.socket, data: bytes) -> None:
    try:
        end.sendall(data)
    except OSError:
        pass  # the receiver has gone


def _shut(end: socket.socket, how: int) -> None:
    try:
        end.shutdown(how)
    except OSError:
        pass
