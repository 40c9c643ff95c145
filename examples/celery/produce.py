"""Sends the messages: python3 produce.py warm-up, or python3 produce.py MESSAGES PASSWORDS"""

import sys
import time

from tasks import send

EVERY = 0.3  # seconds between two passwords


def produce(messages, passwords):
    """A campaign all at once, and passwords as people log in. Returns how late the latest of these was sent: what a busy machine cost."""
    for i in range(messages):
        send.apply_async(({"id": f"campaign-{i}", "kind": "campaign", "queued_ms": int(time.time() * 1000)},), queue="campaign")
    began, late = time.monotonic(), 0.0
    for i in range(passwords):
        due = began + EVERY * (i + 1)
        time.sleep(max(0.0, due - time.monotonic()))
        send.apply_async(({"id": f"otp-{i}", "kind": "otp", "queued_ms": int(time.time() * 1000)},), queue="otp")
        late = max(late, time.monotonic() - due)
    return late


if __name__ == "__main__":
    if sys.argv[1] == "warm-up":
        for queue in ("otp", "campaign"):
            send.apply_async(({"id": queue, "kind": "warm-up", "queued_ms": 0},), queue=queue)
    else:
        print(f"{produce(int(sys.argv[1]), int(sys.argv[2])):.3f}")
