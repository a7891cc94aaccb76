"""A real sglang-router on loopback, from the environment of tools/sglang_rig.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .server import HOST, Server, free_port

# A request that gets no answer in this time is over.
REQUEST_LIMIT_S = 60


class SglangRouter(Server):
    """Sends each request to one prefill and one decode server. What fails there is not tried again.

    `bootstrap`: the port on which the decode server finds the prefill server.
    """

    def __init__(self, prefill: int, bootstrap: int, decode: int, log_path: Path) -> None:
        port = free_port()
        command = [
            *(sys.executable, "-m", "sglang_router.launch_router", "--pd-disaggregation", "--policy", "round_robin"),
            *("--prefill", f"http://{HOST}:{prefill}", str(bootstrap), "--decode", f"http://{HOST}:{decode}"),
            *("--host", HOST, "--port", str(port), "--request-timeout-secs", str(REQUEST_LIMIT_S)),
            *("--prometheus-host", HOST, "--prometheus-port", str(free_port())),
            *("--worker-startup-timeout-secs", "60", "--worker-startup-check-interval", "1"),
            *("--health-check-interval-secs", "1", "--health-check-timeout-secs", "1"),
            *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
            *("--disable-retries", "--disable-circuit-breaker"),
        ]
        super().__init__(command, log_path, os.environ, port, ready="/readiness")
