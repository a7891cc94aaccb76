"""`orbitkv run -- vllm serve`: the one line that a user types, and what its server shows."""

import json
import os
import signal
import sys

import pytest
from engine import tokens

from harness.processes import session_pids, wait_until
from harness.vllm_server import VllmServer

PROMPT = tokens(200, 9)
CACHED = 192


def manager_pid(log):
    return int(log.read_text().partition("(process ")[2].partition(",")[0])


@pytest.fixture
def server(tmp_path, seeded):
    socket = tmp_path / "run" / "m.sock"
    launcher = (sys.executable, "-m", "orbitkv.run", "--socket", str(socket), "--pool-bytes", "64MiB", "--")
    arguments = ("--tokens-only", "--generation-config", "vllm")
    started = VllmServer(
        seeded,
        tmp_path / "serve.log",
        None,
        max_model_len=512,
        kv_cache_bytes=64 << 20,
        arguments=arguments,
        launcher=launcher,
    )
    yield started
    started.kill()
    pid = manager_pid(tmp_path / "serve.log")
    os.kill(pid, signal.SIGTERM)
    assert wait_until(lambda: not session_pids(pid), 30), "the Manager leads a session of its own"


def generate(server):
    body = {"token_ids": PROMPT, "sampling_params": {"temperature": 0, "max_tokens": 8, "ignore_eos": True}}
    status, data = server.request("POST", "/inference/v1/generate", body)
    assert status == 200, data
    return json.loads(data)["choices"][0]["token_ids"]


@pytest.mark.timeout(600)
def test_one_line_starts_both_and_the_server_shows_what_was_restored(server, tmp_path):
    server.wait_ready()
    cold = generate(server)
    assert wait_until(lambda: server.metric("vllm:orbitkv_saved_blocks_total") >= CACHED // 32, 20)
    server.reset_prefix_cache()
    assert generate(server) == cold
    assert server.metric("vllm:external_prefix_cache_hits_total") == CACHED
    assert server.metric("vllm:orbitkv_restored_tokens_total") == CACHED
    assert server.metric("vllm:orbitkv_restored_bytes_total") > 0
    assert server.terminate() == 0
    assert session_pids(manager_pid(tmp_path / "serve.log")), "the Manager stays"
