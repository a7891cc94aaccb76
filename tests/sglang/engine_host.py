"""One SGLang engine in a process of its own, driven by JSON lines: a command on stdin, its answer on stdout.

Forked by forks.py. Commands are the functions of class Host whose names do not begin with an underscore. Requests go on
between the commands. The engine's scheduler, which runs in a fork of this process, answers to the commands of probe.py.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import probe

from harness.json_lines import JsonLines
from harness.sglang_server import described

# Of one answer, when an engine is so busy that it comes late.
ANSWER_LIMIT_S = 120
# Between two looks of its HTTP server at whether a client is still there.
CLIENT_LOOK_S = 1
# For an engine without requests to say that it is idle.
IDLE_S = 30


def _linker_arguments(linker):
    name = {"linker": "OrbitKVLinker", "linker_module_path": "orbitkv.sglang"}
    return {
        "enable_unified_cache_external_linker": True,
        "unified_cache_external_linker_backend": "dynamic",
        "unified_cache_external_linker_config": {field: linker.pop(field, value) for field, value in name.items()}
        | {"linker_extra_config": linker},
    }


def _forks_processes():
    """The engine's processes are forks of this one, which has imported what SGLang would let each import again."""
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_arguments, **_more: None


def _names_shared_memory():
    """After this process, so that who started it can remove what is left."""
    from sglang.srt.managers import load_snapshot

    prefix = f"/dev/shm/sglang_{os.getpid()}_"
    load_snapshot.shm_path_for = lambda name: prefix + Path(name).name


class Host:
    def __init__(self, setup):
        tempfile.tempdir = None  # of the process that this one is a fork of
        self._folder = Path(tempfile.mkdtemp())
        _forks_processes()
        _names_shared_memory()
        probe.install()
        from sglang.srt.entrypoints.engine import Engine

        settings = {
            "skip_tokenizer_init": True,
            "device": "cpu",
            "attention_backend": "torch_native",
            "disable_cuda_graph": True,
            "disable_overlap_schedule": True,
            "page_size": 16,
            "max_total_tokens": 2048,
            "max_running_requests": 8,
            "context_length": 1024,
            "dtype": "float32",
            "random_seed": 1,
            "mem_fraction_static": 0.1,
            "skip_server_warmup": True,
            "log_level": "info",
        } | setup["engine"]
        if setup["linker"] is not None:
            settings |= _linker_arguments(dict(setup["linker"]))
        self._engine = Engine(**settings)
        self._loop = self._engine.loop
        self._requests = {}  # that `add` began: their tasks by id
        self._probes = 0
        self._aborts = 0

    # ---- requests ---------------------------------------------------------------------------------------------------

    async def _generate(self, prompt, n, rid=None, salt=None, lora=None, **params):
        sampling = {"temperature": 0, "max_new_tokens": n, "ignore_eos": True} | params
        try:
            answer = await self._engine.async_generate(
                input_ids=prompt,
                sampling_params=sampling,
                return_logprob=True,
                top_logprobs_num=3,
                rid=rid,
                cache_salt=salt,
                lora_path=lora,
            )
        except Exception as error:
            status = getattr(error, "status_code", None)
            return {"error": getattr(error, "detail", None) or str(error), "status": status}
        return described(answer)

    async def generate(self, prompts, n=8, **more):
        return await asyncio.gather(*(self._generate(prompt, n, **more) for prompt in prompts))

    async def add(self, rid, prompt, n=8, **more):
        """Begins a request that `answers` ends."""
        self._requests[rid] = self._loop.create_task(self._generate(prompt, n, rid, **more))
        await asyncio.sleep(0)

    async def answers(self, rids):
        tasks = [self._requests.pop(rid) for rid in rids]
        return await asyncio.wait_for(asyncio.gather(*tasks), ANSWER_LIMIT_S)

    async def abort(self, rid):
        self._engine.tokenizer_manager.abort_request(rid=rid)

    # ---- over HTTP --------------------------------------------------------------------------------------------------

    async def listen(self):
        """SGLang's own HTTP server, at the host and port of its settings. It goes on between the commands."""
        import uvicorn
        from sglang.srt.entrypoints import http_server
        from sglang.srt.managers import tokenizer_manager

        manager, settings = self._engine.tokenizer_manager, self._engine.server_args
        scheduler_info = self._engine._scheduler_init_result.scheduler_infos[0]
        http_server.set_global_state(http_server._GlobalState(manager, self._engine.template_manager, scheduler_info))
        app = http_server.app
        app.is_single_tokenizer_mode, app.server_args = True, settings
        app.warmup_thread_kwargs = {"server_args": settings}
        server = uvicorn.Server(uvicorn.Config(app, settings.host, settings.port, log_level="warning"))
        self._listening = self._loop.create_task(server.serve())
        if not await self._wait(lambda: server.started or self._listening.done(), IDLE_S) or not server.started:
            raise RuntimeError("the HTTP server did not start")
        tokenizer_manager._REQUEST_STATE_WAIT_TIMEOUT = CLIENT_LOOK_S
        abort = manager.abort_request

        def counted(*arguments, **more):
            self._aborts += 1
            abort(*arguments, **more)

        manager.abort_request = counted

    async def aborts(self, more_than=-1, seconds=60.0):
        """How many requests were aborted, those among them whose clients have left; waits until these are more."""
        await self._wait(lambda: self._aborts > more_than, seconds)
        return self._aborts

    # ---- the engine -------------------------------------------------------------------------------------------------

    async def flush(self):
        """Drops the engine's own cache; False when it does not become idle."""
        end = time.monotonic() + IDLE_S
        # SGLang refuses while it clears away behind a request whose answer has gone out.
        while not (await self._engine.tokenizer_manager.flush_cache()).success:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.02)
        return True

    async def update_weights(self, folder, flush_cache=True):
        from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

        request = UpdateWeightFromDiskReqInput(model_path=folder, flush_cache=flush_cache)
        success, message, _ = await self._engine.tokenizer_manager.update_weights_from_disk(request, None)
        return [success, message]

    async def plan(self, **plan):
        return self._probe("plan", **plan)

    async def wait_for(self, path, seconds=60.0):
        """Until there is this file."""
        return await self._wait(Path(path).exists, seconds)

    async def wait_up(self, seconds=60.0):
        """Until every rank's linker has a session with its Manager."""
        return await self._wait(lambda: all(self._probe("up")), seconds)

    async def settle(self, seconds=60.0):
        """Until no request and no offload is under way; what the first rank's scheduler holds then."""
        if not await self._wait(lambda: not any(self._busy(state) for state in self._probe("state")), seconds):
            raise TimeoutError(f"the engine did not settle: {self._probe('state')}")
        return self._probe("state")[0]

    @staticmethod
    def _busy(state):
        return any(state.get(key) for key in ("waiting", "running", "handed_over", "offloads", "loads"))

    async def evict(self):
        """Empties the engine's own cache and leaves its linker alone."""
        await self.settle()
        return self._probe("evict")

    @staticmethod
    async def _wait(condition, seconds):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.01)
        return True

    async def probe(self, name, **arguments):
        """What probe.py answers on each rank, in the order of ranks."""
        return self._probe(name, **arguments)

    def _probe(self, name, **arguments):
        self._probes += 1
        stem = self._folder / f"probe{self._probes}"
        self._engine.collective_rpc("orbitkv_probe", name=name, arguments=arguments, stem=str(stem))
        paths = sorted(self._folder.glob(f"{stem.name}.*"), key=lambda path: int(path.suffix[1:]))
        answers = [json.loads(path.read_text()) for path in paths]
        for path in paths:
            path.unlink()
        return answers

    # ---- the loop ---------------------------------------------------------------------------------------------------

    async def _serve(self, answer):
        reader = asyncio.StreamReader(limit=1 << 24)
        await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            name, arguments = json.loads(line)
            try:
                answer({"ok": await getattr(self, name)(**arguments)})
            except Exception:
                answer({"error": traceback.format_exc()})


def main():
    lines = JsonLines()
    host = Host(lines.setup)
    lines.answer({"ok": "ready"})
    host._loop.run_until_complete(host._serve(lines.answer))
    host._engine.shutdown()
