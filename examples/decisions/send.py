"""Makes one call under the guard, with as many retries as it is worth: python3 send.py GUARD TARGET PRIORITY URL"""

import http.client
import sys
import time
import urllib.error
import urllib.request

from cortex import Guard


def call(guard, target, priority, url):
    attempt = 0
    while True:
        may = guard.admit(target, priority, attempt)
        if not may.allowed:
            return f"refused: {may.reason}, ask again in {may.retry_after:.1f} s"
        began, error, hint = time.monotonic(), None, None
        try:
            with urllib.request.urlopen(url, timeout=may.timeout or None) as answer:
                body = answer.read()
        except urllib.error.HTTPError as e:
            with e:
                error, hint = {"http_status": e.code}, e.headers.get("Retry-After")
        except (OSError, http.client.HTTPException) as e:  # the first: URLError and time-outs; the second: an answer that is cut off
            error = {"message": str(e)}
        took = time.monotonic() - began
        if error is None:
            guard.report(may, "success", took)
            return f"sent after {attempt} retries: {len(body)} bytes"
        again = guard.decide(target, priority, attempt, error, took, may, hint)
        if not again.retry:
            return f"failed: {error}, {again.reason}"
        time.sleep(again.delay)
        attempt += 1


if __name__ == "__main__":
    print(call(Guard(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]))
