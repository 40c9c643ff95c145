"""A client of CORTEX's decision service. It needs nothing but Python's standard library.

    guard = Guard("http://127.0.0.1:9096")
    may = guard.admit("whatsapp", priority=9)
    if may.allowed:
        ...                                   # make the call, at most may.timeout seconds
        guard.report(may, "success", latency)  # or, if it failed:
        again = guard.decide("whatsapp", 9, 0, {"http_status": 429}, latency, may, retry_after="3")
        if again.retry:
            time.sleep(again.delay)

If the service does not answer, or does not let the program in, calls are allowed and retries wait by plain jittered backoff: a guard that is gone must not stop what it
guards. It is then left alone for a second, so that it costs each call next to nothing.
"""

import http.client
import json
import random
import re
import threading
import time
import urllib.error
import urllib.request
import warnings
from typing import NamedTuple


class Admission(NamedTuple):
    allowed: bool
    timeout: float  # seconds; 0 = no bound
    token: str = ""
    reason: str = ""
    retry_after: float = 0.0  # seconds, where it is not allowed
    asked: tuple = ()  # target, priority, attempt


class Decision(NamedTuple):
    retry: bool
    delay: float  # seconds
    reason: str = ""


class Refused(Exception):
    """The service found fault with the request: a mistake of the program, or a target that it does not know."""


class Guard:
    def __init__(self, url, token=None, wait=0.25, timeout=10.0, retries=3, base=0.5, most=30.0):
        self.url = url.rstrip("/") + "/cortex.v1.DecisionService/"
        self.header = {"Content-Type": "application/json"}
        if token:
            self.header["Authorization"] = "Bearer " + token
        self.wait, self.timeout = wait, timeout
        self.retries, self.base, self.most = retries, base, most
        self._away_until = 0.0
        self._lock = threading.Lock()
        # The service is asked directly, whatever proxy the environment names.
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def admit(self, target, priority, attempt=0):
        got = self._ask("Admit", {"target": target, "priority": priority, "attempt": attempt})
        asked = (target, priority, attempt)
        if got is None:
            return Admission(True, self.timeout, asked=asked)
        return Admission(got["allowed"], got["timeout_ms"] / 1000, got["token"], got["reason"], got["retry_after_ms"] / 1000, asked)

    def report(self, admission, outcome, latency):
        # Without a token by target: the service has too many open, or was away. Failures are told by decide; these alone would look like a fault.
        if admission.token:
            who = {"token": admission.token}
        elif not admission.allowed:
            return
        else:
            who = dict(zip(("target", "priority", "attempt"), admission.asked))
        self._ask("Report", {**who, "outcome": outcome, "latency_ms": latency * 1000})

    def decide(self, target, priority, attempt, error, latency, admission=None, retry_after=None):
        """error is such as {"http_status": 503}, {"grpc_code": 14}, {"class": "timeout"} or {"message": str(e)}."""
        if not 400 <= error.get("http_status", 500) < 600:  # a redirect that was not followed, or no status at all: nothing that another attempt mends
            error = {"class": "neutral"}
        if "message" in error:  # it may be long: the service takes 4,096 bytes; and half of a pair of UTF-16 is no text
            error = {**error, "message": error["message"][:1000].encode(errors="replace").decode()}
        ask = {"target": target, "priority": priority, "attempt": attempt, "error": error, "latency_ms": latency * 1000}
        if admission is not None and admission.token:
            ask["token"] = admission.token
        if retry_after:
            ask["retry_after"] = retry_after
        got = self._ask("Decide", ask)
        if got is None:
            return self.plain(attempt, error, retry_after)
        return Decision(got["retry"], got["delay_ms"] / 1000, got["reason"])

    def plain(self, attempt, error, retry_after=None):
        """What is done without the service: full jitter, and what the server asks for."""
        status, code = error.get("http_status", 503), error.get("grpc_code", 14)
        no_use = status in (501, 505, 506, 508, 510) or status < 500 and status not in (408, 425, 429) or code not in (4, 8, 14)
        if no_use or error.get("class") == "neutral" or error.get("retryable") is False:
            return Decision(False, 0.0, "NOT_RETRYABLE")
        if attempt >= self.retries:
            return Decision(False, 0.0, "MAX_RETRIES_EXCEEDED")
        delay = random.uniform(0, min(self.most, self.base * 2**attempt))
        if retry_after and re.fullmatch("[0-9]{1,100}", retry_after):  # the target wrote it: "²" is a digit for Python, and no number
            delay = min(int(retry_after), self.most) + random.uniform(0, self.base)
        return Decision(True, delay)

    def _ask(self, method, body):
        with self._lock:
            if time.monotonic() < self._away_until:
                return None
        request = urllib.request.Request(self.url + method, json.dumps(body).encode(), self.header)
        try:
            try:
                with self._http.open(request, timeout=self.wait) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as e:
                with e:
                    said = e.read(10_000).decode(errors="replace")
                if e.code in (400, 404):
                    raise Refused(said) from None
                if e.code in (401, 403):  # no reason to stop either, but somebody has to know
                    warnings.warn(f"CORTEX does not let this program in, which goes on without it: {said.strip()}", stacklevel=3)
        except (OSError, ValueError, http.client.HTTPException):  # URLError is the first; the last is an answer that is cut off
            pass
        with self._lock:
            self._away_until = time.monotonic() + 1
        return None
