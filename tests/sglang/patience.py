"""Options of linkers whose tests compare content: a busy machine may answer late."""

PATIENT = {"lookup_wait_us": 2_000_000, "lookup_limit_ms": 10_000}


def patient(manager, **more):
    """The configuration of a linker that has this Manager."""
    return {"endpoint": f"unix://{manager.socket}"} | PATIENT | more
