"""Sends the messages: python3 produce.py warm-up, or python3 produce.py MESSAGES PASSWORDS"""

import sys
import time

from tasks import send


def produce(messages, passwords):
    """A campaign all at once, and passwords as people log in."""
    for i in range(messages):
        send.apply_async(({"id": f"campaign-{i}", "kind": "campaign", "queued_ms": int(time.time() * 1000)},), queue="campaign")
    for i in range(passwords):
        time.sleep(0.4)
        send.apply_async(({"id": f"otp-{i}", "kind": "otp", "queued_ms": int(time.time() * 1000)},), queue="otp")


if __name__ == "__main__":
    if sys.argv[1] == "warm-up":
        for queue in ("otp", "campaign"):
            send.apply_async(({"id": queue, "kind": "warm-up", "queued_ms": 0},), queue=queue)
    else:
        produce(int(sys.argv[1]), int(sys.argv[2]))
