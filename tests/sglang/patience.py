"""For tests that compare content: a busy machine may answer late."""

PATIENT = {"lookup_wait_us": 2_000_000, "lookup_limit_ms": 10_000}
# What is delayed for too long is given up all the same, and the next request brings it again.
TRIES = 3


def patient(manager, **more):
    """The configuration of a linker that has this Manager."""
    return {"endpoint": f"unix://{manager.socket}"} | PATIENT | more
