"""The two ways of starting a server, over HTTP: both know each other's pages."""

import json
import os
import signal
import sys

import pytest
from engine import tokens
from patience import PATIENT

import orbitkv
from harness.processes import session_pids, wait_until
from harness.sglang_server import SglangServer, backend_arguments, linker_arguments

PROMPT = tokens(200, 9)
CACHED = 192


@pytest.fixture
def serve(tmp_path, seeded):
    servers = []

    def start(arguments, **more):
        log = tmp_path / f"serve{len(servers)}.log"
        server = SglangServer(seeded, log, ["--skip-tokenizer-init", *arguments], cache_tokens=2048, **more)
        servers.append(server)
        server.wait_ready(240)
        return server

    yield start
    for server in servers:
        server.kill()


def generate(server):
    sampling = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    body = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True}
    status, data = server.request("POST", "/generate", body)
    assert status == 200, data
    answer = json.loads(data)
    about = answer["meta_info"]
    logprobs = [row[0] for row in about["output_token_logprobs"]]
    return answer["output_ids"], logprobs, (about.get("cached_tokens_details") or {}).get("host", 0)


@pytest.mark.timeout(900)
def test_both_ways(serve, manager):
    options, environment = backend_arguments(manager.socket)
    first = serve(options, environment=environment)
    assert wait_until(lambda: manager.sample("orbitkv_registrations_total") >= 1, 30)
    tokens_of_first, _, host = generate(first)
    assert host == 0
    assert wait_until(lambda: manager.sample("orbitkv_blocks_resident") >= CACHED // 16, 30)
    _, warm, _ = generate(first)
    first.kill()

    second = serve(linker_arguments(manager.socket, **PATIENT))
    manager.wait_serving(2)
    assert generate(second) == (tokens_of_first, warm, CACHED)
    assert second.terminate() in (0, -15)


@pytest.mark.timeout(900)
def test_one_line_starts_both(serve, tmp_path):
    socket = tmp_path / "run" / "m.sock"
    launcher = (sys.executable, "-m", "orbitkv.run", "--socket", str(socket), "--pool-bytes", "64MiB", "--")
    server = serve([], launcher=launcher)
    manager = int(server.process.log_path.read_text().partition("(process ")[2].partition(",")[0])
    try:
        assert generate(server)[2] == 0
        samples = "orbitkv_blocks_resident"
        assert wait_until(lambda: orbitkv.status(str(socket), 20.0)["samples"].get(samples, 0) >= CACHED // 16, 60)
        assert server.terminate() == 0
        assert session_pids(manager), "the Manager stays"
    finally:
        os.kill(manager, signal.SIGTERM)
    assert wait_until(lambda: not session_pids(manager), 30), "the Manager leads a session of its own"
