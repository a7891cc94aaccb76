"""A real SGLang server on loopback, on the rig of tools/sglang_rig.py."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sglang_rig

from .chat_server import ChatServer, Reply
from .server import HOST, free_port

PAGE_TOKENS = 16


def linker_settings(manager_socket: Path, **fields: Any) -> dict[str, Any]:
    """The arguments that make an engine use OrbitKV's linker, as SGLang itself loads one."""
    return {
        "enable_unified_cache_external_linker": True,
        "unified_cache_external_linker_backend": "dynamic",
        "unified_cache_external_linker_config": {
            "linker": "OrbitKVLinker",
            "linker_module_path": "orbitkv.sglang",
            "linker_extra_config": {"endpoint": f"unix://{manager_socket}", **fields},
        },
    }


def linker_arguments(manager_socket: Path, **fields: Any) -> list[str]:
    """The same as options of the server."""
    settings = linker_settings(manager_socket, **fields)
    return [
        "--enable-unified-cache-external-linker",
        *("--unified-cache-external-linker-backend", settings["unified_cache_external_linker_backend"]),
        *("--unified-cache-external-linker-config", json.dumps(settings["unified_cache_external_linker_config"])),
    ]


def backend_arguments(manager_socket: Path) -> tuple[list[str], dict[str, str]]:
    """The same by OrbitKV's plugin: options, and what goes into the environment."""
    options = ["--radix-cache-backend", "orbitkv", "--enable-unified-cache-external-linker"]
    return options, {"ORBITKV_SGLANG_ENDPOINT": f"unix://{manager_socket}"}


def described(answer: Mapping[str, Any]) -> dict[str, Any]:
    """SGLang's answer as answers.py has one; "device" and "host" say where the tokens were that were not computed."""
    about = answer["meta_info"]
    found = about.get("cached_tokens_details") or {}
    return {
        "tokens": answer["output_ids"],
        "logprobs": [[(token, value) for value, token, _ in row] for row in about.get("output_top_logprobs") or []],
        "cached": about.get("cached_tokens", 0),
        "device": found.get("device", 0),
        "host": found.get("host", 0),
        "retractions": about.get("num_retractions", 0),
        "reason": about["finish_reason"],
    }


class SglangServer(ChatServer):
    """`sglang.launch_server` with the settings of the demo: float32, pages of 16 tokens, a cache of `cache_tokens`."""

    def __init__(
        self,
        model: Path,
        log_path: Path,
        arguments: list[str],
        *,
        environment: Mapping[str, str] | None = None,
        context_tokens: int = 4096,
        cache_tokens: int = 8192,
        requests: int = 4,
        launcher: tuple[str, ...] = (),  # what the server's command is an argument of
    ) -> None:
        port = free_port()
        env = os.environ | sglang_rig.environment(Path(sys.prefix)) | (environment or {})
        # SGLang's scheduler process polls beside the threads of the computation: see vllm_server.py.
        env.setdefault("OMP_WAIT_POLICY", "passive")
        command = [
            *launcher,
            *(sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--served-model-name", "model"),
            *("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--disable-cuda-graph"),
            *(
                "--page-size",
                str(PAGE_TOKENS),
                "--max-total-tokens",
                str(cache_tokens),
                "--max-running-requests",
                str(requests),
            ),
            *("--context-length", str(context_tokens), "--chunked-prefill-size", str(context_tokens)),
            *("--mem-fraction-static", "0.1", "--random-seed", "1", "--skip-server-warmup"),
            *("--host", HOST, "--port", str(port), "--log-level", "info"),
            *arguments,
        ]
        super().__init__(command, log_path, env, port, {"return_cached_tokens_details": True})

    def chat_restored(self, content: str, max_tokens: int = 16) -> tuple[Reply, int]:
        """The reply, and how many tokens of the prompt came from a linker."""
        reply = self.chat(content, max_tokens)
        return reply, reply.found.get("host", 0)
