"""A Celery worker that sends messages through an API with a quota, which it shares with everybody else who sends.

With CORTEX_URL set, a task asks the decision service before each attempt and before each retry. Without, it does what such workers
usually do: try again when Retry-After says so, else in a second.
"""

import http.client
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request

from celery import Celery

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "decisions"))
from cortex import Guard  # noqa: E402

TARGET = "whatsapp"
PRIORITY = {"otp": 9, "campaign": 2}  # a password that comes late is of no use; a newsletter is
PATIENCE = 30.0  # seconds that a process waits for its turn, before it gives the message back to the queue

app = Celery("messages", broker=os.environ["BROKER_URL"])
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_timer_precision=0.1,
    broker_connection_retry_on_startup=True,
)
# wait: on a machine that does nothing else the default, 0.25 s, is plenty; this one also runs the workers, Redis, the API and perhaps a build.
guard = Guard(os.environ["CORTEX_URL"], wait=2.0) if os.environ.get("CORTEX_URL") else None
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(message, timeout):
    """Returns None, or the error and what the API says of when to come back."""
    request = urllib.request.Request(os.environ["API_URL"], json.dumps(message).encode(), {"Content-Type": "application/json"})
    try:
        with opener.open(request, timeout=timeout) as answer:
            answer.read()
            return None, None
    except urllib.error.HTTPError as e:
        with e:
            try:  # what it says of the error may be cut off, or anything
                said = str(json.loads(e.read())["error"]["message"])
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
                said = ""
            return {"http_status": e.code, "message": said[:1000]}, e.headers.get("Retry-After")
    except (OSError, http.client.HTTPException) as e:  # the latter is an answer that is cut off: it may have been sent
        return {"message": str(e)[:1000]}, None


def turn(priority, attempt):
    """Waits in the process until the attempt is allowed. A refusal is none of this message: whichever came next would be told the same.

    With a countdown instead, Celery would take the next message from the queue to be told so, and the next, until all of the
    campaign lay in the memory of one worker and asked again and again. Passwords have processes of their own, so nothing that matters
    waits behind this.
    """
    until = time.monotonic() + PATIENCE
    while True:
        may = guard.admit(TARGET, priority, attempt)
        if may.allowed or time.monotonic() > until:
            return may
        time.sleep(random.uniform(0, may.retry_after))  # not all of them at once


@app.task(bind=True, max_retries=None)
def send(self, message, attempt=0):
    if guard is None:
        error, hint = post(message, 10)
        if error:
            raise self.retry(countdown=float(hint or 1))
        return

    priority = PRIORITY.get(message["kind"], 5)

    def later(seconds, attempt):
        raise self.retry(args=(message,), kwargs={"attempt": attempt}, countdown=seconds)

    may = turn(priority, attempt)
    if not may.allowed:
        later(may.retry_after, attempt)
    began = time.monotonic()
    error, hint = post(message, may.timeout or 10)
    took = time.monotonic() - began
    if not error:
        guard.report(may, "success", took)
        return
    again = guard.decide(TARGET, priority, attempt, error, took, may, hint)
    if again.retry:  # this message has to wait: the process goes on with the next one
        later(again.delay, attempt + 1)
    if again.reason == "NOT_RETRYABLE":
        return  # a letter box would be the place for it
    # No retry is worth its price now. The message is not lost: it is sent as if it were new, some time later.
    later(random.uniform(2, 5) if priority < 9 else random.uniform(0.5, 1), 0)
