"""One vLLM engine in a process of its own, driven by JSON lines: a command on stdin, its answer on stdout.

Forked by forks.py. Commands are the functions of class Host whose names do not begin with an underscore.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback

import weight_files

from harness.json_lines import JsonLines


def _connector(options):
    """Ours; with "children" it is the one that is called "orbitkv" among them, in that order."""
    children = options.pop("children", None)
    if children is not None:
        return {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "connectors": [_child(options) if child == "orbitkv" else child for child in children]
            },
        } | options.pop("parent", {})
    return {
        "kv_connector": "OrbitKVConnector",
        "kv_connector_module_path": "orbitkv.vllm",
        "kv_role": options.pop("role", "kv_both"),
        "kv_load_failure_policy": options.pop("policy", "recompute"),
        "kv_connector_extra_config": options,
    }


def _child(options):
    options = {key: value for key, value in options.items() if key != "parent"}
    return _connector(options)


def _our_part(connector):
    """Of a connector of which ours may be a child."""
    children = getattr(connector, "sub_connectors", [connector])
    return next(child for child in children if type(child).__name__ == "OrbitKVConnector")


class MallocInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def allocated_bytes():
    """What malloc has given out: the process has more, in pieces that are free."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = MallocInfo
    info = ask()
    return info.uordblks + info.hblkhd


class Host:
    def __init__(self, setup):
        from vllm import LLM, envs

        if setup["forks_workers"]:
            # Behind the back of vLLM's CPU platform, which sets the variable itself.
            envs.environment_variables["VLLM_WORKER_MULTIPROC_METHOD"] = lambda: "fork"
        settings = {
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": 32,
            "max_model_len": 1024,
            "kv_cache_memory_bytes": 64 << 20,
            "max_num_seqs": 8,
            "generation_config": "vllm",
            "seed": 0,
            "disable_log_stats": False,
        } | setup["llm"]
        if setup.get("connector") is not None:
            settings["kv_transfer_config"] = _connector(dict(setup["connector"]))
        if settings.pop("weights_from_files", False):
            weight_files.register()
            settings["weight_transfer_config"] = {"backend": weight_files.BACKEND}
        if settings.pop("kv_events", False):
            settings["kv_events_config"] = {"enable_kv_cache_events": True, "publisher": "null"}
        self._llm = LLM(**settings)
        self._answers = {}  # of requests that `add` began and that have ended

    # ---- what both kinds of engine can do ---------------------------------------------------------------------------

    @staticmethod
    def _sampling(n, wishes=None, samples=1, **params):
        """`wishes`: the request's kv_transfer_params; `samples`: answers to one prompt."""
        from vllm import SamplingParams

        more = {"extra_args": {"kv_transfer_params": wishes}} if wishes else {}
        more |= {"temperature": 0} if samples == 1 else {"temperature": 1, "seed": 7, "n": samples}
        return SamplingParams(max_tokens=n, detokenize=False, ignore_eos=True, **({"logprobs": 3} | more | params))

    def generate(self, prompts, n=8, salt=None, lora=None, **params):
        from vllm.lora.request import LoRARequest

        sampling = self._sampling(n, **params)
        inputs = [{"prompt_token_ids": prompt} | ({"cache_salt": salt} if salt else {}) for prompt in prompts]
        begin = time.monotonic()
        adapter = LoRARequest(**lora) if lora else None
        outputs = self._llm.generate(inputs, sampling, use_tqdm=False, lora_request=adapter)
        return {"seconds": time.monotonic() - begin, "outputs": [self._output(output) for output in outputs]}

    @staticmethod
    def _output(output):
        def table(logprobs):
            return [sorted((token, entry.logprob) for token, entry in (row or {}).items()) for row in logprobs or []]

        first = output.outputs[0]
        return {
            "tokens": list(first.token_ids),
            "logprobs": table(first.logprobs),
            "prompt_logprobs": table(output.prompt_logprobs),
            "cached": output.num_cached_tokens,
            "kv_transfer_params": output.kv_transfer_params,
            "reason": first.finish_reason,
            "samples": [[list(sample.token_ids), table(sample.logprobs)] for sample in output.outputs],
        }

    def reset(self):
        """Drops the engine's own prefix cache; the connector is not told."""
        return self._llm.reset_prefix_cache()

    def reset_all(self):
        return self._llm.reset_prefix_cache(reset_connector=True)

    def reload_weights(self, folder):
        """As a trainer does it: no cache is reset, and no connector is told."""
        self._llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        return True

    def transfer_weights(self, file):
        """As a trainer does it that sends them, with a backend that takes them out of a file."""
        self._llm.init_weight_transfer_engine({"init_info": {}})
        self._llm.start_weight_update()
        self._llm.update_weights({"update_info": {"file": file}})
        self._llm.finish_weight_update()
        return True

    def load_into_model(self, file):
        """As a trainer's own code in the worker does it. Only the norms: the CPU build has packed the rest."""

        def load(worker, file):
            from safetensors.torch import load_file

            weights = {name: tensor for name, tensor in load_file(file).items() if "norm" in name}
            worker.model_runner.get_model().load_weights(weights.items())

        self._llm.collective_rpc(load, args=(file,))
        return True

    def metrics(self):
        """The values; of a histogram, how much was counted."""
        return {m.name: getattr(m, "value", getattr(m, "count", None)) for m in self._llm.get_metrics()}

    def samples(self, name):
        """Labels and value of each sample of one metric."""
        return [(metric.labels, metric.value) for metric in self._llm.get_metrics() if metric.name == name]

    # ---- only in one process ----------------------------------------------------------------------------------------

    def about(self):
        """vLLM's version and its model runner."""
        import vllm

        runner = self._core.model_executor.driver_worker.worker.model_runner
        modules = [kind.__module__ for kind in type(runner).__mro__]
        return {"version": vllm.__version__, "runner": "v2" if "vllm.v1.worker.gpu.model_runner" in modules else "v1"}

    @property
    def _core(self):
        return self._llm.llm_engine.engine_core.engine_core

    @property
    def _scheduler(self):
        return self._core.scheduler

    @property
    def _ours(self):
        return _our_part(self._scheduler.connector).scheduler

    @property
    def _worker(self):
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return _our_part(get_kv_transfer_group()).worker

    def _step_until(self, done, seconds=20.0, step=None):
        """Steps the engine until done() holds. Bounded."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                raise TimeoutError(f"the engine did not get there: {self.statuses()}")
            (step or self._core.step_fn)()

    def settle(self):
        """Steps until nothing is owed: no request, no save that is not acknowledged."""
        self._step_until(lambda: not self._scheduler.has_requests())
        return self.state()

    def keep_events(self):
        """What the engine publishes from now on is kept for `events`."""
        publisher = self._scheduler.kv_event_publisher
        self._events, publish = [], publisher.publish

        def keep(batch):
            self._events += batch.events
            publish(batch)

        publisher.publish = keep
        return True

    def events(self):
        return [
            {
                "kind": type(event).__name__,
                "medium": getattr(event, "medium", None),
                "block_hashes": list(getattr(event, "block_hashes", ())),
                "token_ids": list(getattr(event, "token_ids", ())),
            }
            for event in self._events
        ]

    def wait_up(self, seconds=30.0):
        end = time.monotonic() + seconds
        links = (self._ours._link, self._worker._link)
        while not all(link.client is not None and link.client.wait_up(0.05) for link in links):
            if time.monotonic() > end:
                return False
        return True

    def state(self):
        pool = self._scheduler.kv_cache_manager.block_pool
        return {
            "counters": vars(self._ours.counters),
            "groups": [group.span_tokens for group in self._ours._groups],
            "requests": len(self._scheduler.requests),
            "tracked": len(self._ours._requests),
            "jobs": len(self._ours._jobs),
            "watched": self._ours._jobs.watched_blocks,
            "loading": len(self._ours._loading),
            "worker_loads": len(self._worker._loads),
            "worker_saves": len(self._worker._saves),
            "free_blocks": pool.get_num_free_blocks(),
            "client": self._ours._link.client.state if self._ours._link.client else "none",
        }

    def fail_loads(self, count):
        """The next `count` loads fail as a whole, before a byte is copied."""
        worker, original = self._worker, type(self._worker)._start_load
        left = [count]

        def start(load):
            if left[0] > 0:
                left[0] -= 1
                return None
            return original(worker, load)

        worker._start_load = start
        return True

    def corrupt_blocks(self, indices):
        """The next load reports these blocks as damaged, and their pages hold rubbish."""
        worker, original = self._worker, type(self._worker)._end_load

        def end(load, bad, failed_keys):
            worker._end_load = lambda *args, **more: original(worker, *args, **more)
            bad = bad | {index for index in indices if index < len(load.block_ids)}
            places = [number for number, _, count in load.runs for _ in range(count)]
            for index in bad:
                for layer in worker._layers[places[index]]:
                    layer.tensor[load.block_ids[index]].fill_(7.0)
            return original(worker, load, bad, True)

        worker._end_load = end
        return True

    def add(self, req_id, prompt, n=8, **params):
        self._llm.llm_engine.add_request(req_id, {"prompt_token_ids": prompt}, self._sampling(n, **params))
        return True

    def traffic(self, requests, seconds=120.0):
        """Runs requests {"id", "prompt", "n", "abort_after"} together; the last is a number of steps, or None.

        Answers by id; of those that were aborted there is none.
        """
        engine = self._llm.llm_engine
        for request in requests:
            self.add(request["id"], request["prompt"], request["n"])
        answers = {}
        steps = 0
        end = time.monotonic() + seconds
        while engine.has_unfinished_requests():
            if time.monotonic() > end:
                raise TimeoutError(f"requests without an end: {self.statuses()}")
            for output in engine.step():
                if output.finished:
                    answers[output.request_id] = self._output(output)
            steps += 1
            for request in requests:
                if request["abort_after"] == steps and request["id"] not in answers:
                    engine.abort_request([request["id"]], internal=False)
        return answers

    def abort(self, req_id):
        self._llm.llm_engine.abort_request([req_id], internal=False)
        return self.state()

    def step(self, count=1):
        for _ in range(count):
            self._step()
        return self.state()

    def step_until(self, statuses):
        """A look-up's answer may take more steps than one thinks."""
        self._step_until(lambda: self.statuses() == statuses, step=self._step)
        return True

    def _step(self):
        for output in self._llm.llm_engine.step():
            if output.finished:
                self._answers[output.request_id] = self._output(output)

    def answers(self, req_ids, seconds=20.0):
        """Steps until these requests, which `add` began, have ended."""
        end = time.monotonic() + seconds
        while not all(req_id in self._answers for req_id in req_ids):
            if time.monotonic() > end:
                raise TimeoutError(f"no answer; requests are {self.statuses()}")
            self._step()
        return [self._answers.pop(req_id) for req_id in req_ids]

    def hold_loads(self, hold):
        """While held, finished restores are not reported: requests stay in their load."""
        worker = self._worker
        if hold:
            worker.poll = lambda: None
        else:
            del worker.poll
        return True

    def slow_loads(self, steps):
        """Each restore is reported so many steps late."""
        worker = self._worker
        end_load, finished = worker._end_load, worker.take_finished_loads
        late = []

        def end(load, bad, failed_keys):
            late.append([steps, load, bad, failed_keys])

        def take():
            worker.poll()
            for entry in list(late):
                entry[0] -= 1
                if entry[0] <= 0:
                    late.remove(entry)
                    end_load(*entry[1:])
            return finished()

        worker._end_load, worker.take_finished_loads = end, take
        return True

    def kill_at_load(self, pid):
        """The Manager dies when the next restore begins."""
        worker, original = self._worker, type(self._worker)._start_load

        def start(load):
            del worker._start_load
            os.kill(pid, signal.SIGKILL)
            return original(worker, load)

        worker._start_load = start
        return True

    def fail_on_rank(self, rank):
        """The next load fails on one rank only."""

        def fail(self, rank):
            from vllm.distributed.kv_transfer import get_kv_transfer_group

            worker = get_kv_transfer_group().worker
            if worker._rank != rank:
                return False

            def start(load):
                del worker._start_load  # that of the class again; none: it could not start

            worker._start_load = start
            return True

        return sorted(self._llm.collective_rpc(fail, args=(rank,)))

    def pause(self, mode):
        self._core.pause_scheduler(mode=mode, clear_cache=False)
        return self._scheduler.has_unfinished_requests()

    def resume(self):
        self._core.resume_scheduler()
        return True

    def unregister(self):
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        get_kv_transfer_group().unregister_kv_caches()
        worker = self._worker
        return {"client": worker._client is not None, "loads": len(worker._loads), "saves": len(worker._saves)}

    def restore(self, moved):
        """`moved`: the pages lie in other memory now, as the engine's own cache tensors do."""
        import torch
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        worker = self._worker
        before = [pages.address for layers in worker._layers for pages in layers]
        if moved:
            for tensor in worker._kv_caches.values():
                storage = tensor.untyped_storage()
                copy = torch.UntypedStorage(storage.nbytes())
                copy.copy_(storage)
                tensor.set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())
        get_kv_transfer_group().restore_kv_caches()
        after = [pages.address for layers in worker._layers for pages in layers]
        return [a == b for a, b in zip(before, after, strict=True)]

    def hold_saves(self):
        """Saves are begun only when the engine ends, right before it closes the worker's side."""
        worker = self._worker
        start, shutdown, held = worker.start_saves, worker.shutdown, []
        worker.start_saves = held.append

        def end():
            for metadata in held:
                start(metadata)
            shutdown()

        worker.shutdown = end
        return True

    def holds(self):
        """Entries of all collections in OrbitKV's objects and modules, but for those with a limit; memory in use."""
        roots = [module for name, module in sys.modules.items() if name.startswith("orbitkv")]
        counts = []
        self._count([self._ours, self._worker, *roots], counts, set())
        return {"entries": sum(counts), "allocated KiB": allocated_bytes() >> 10}

    def _count(self, owners, counts, seen):
        for owner in owners:
            if id(owner) in seen or hasattr(owner, "_limit"):
                continue
            seen.add(id(owner))
            values = [value for name, value in vars(owner).items() if not name.startswith("__")]
            counts += [len(value) for value in values if isinstance(value, (dict, list, set))]
            ours = [value for value in values if type(value).__module__.startswith("orbitkv")]
            self._count([value for value in ours if hasattr(value, "__dict__")], counts, seen)

    def statuses(self):
        return sorted(request.status.name for request in self._scheduler.requests.values())

    def callback_share(self, prompts, n):
        """Time inside connector callbacks as a share of the time inside steps."""
        spent = [0.0]
        connector = self._scheduler.connector
        names = ("get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta")
        for name in (*names, "update_connector_output", "request_finished_all_groups", "on_new_request"):
            original = getattr(connector, name)

            def timed(*args, original=original, **kwargs):
                begin = time.perf_counter()
                try:
                    return original(*args, **kwargs)
                finally:
                    spent[0] += time.perf_counter() - begin

            setattr(connector, name, timed)
        result = self.generate(prompts, n)
        return {"callbacks": spent[0], "seconds": result["seconds"]}


def main():
    lines = JsonLines()
    host = Host(lines.setup)
    lines.answer({"ok": "ready"})
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            lines.answer({"ok": getattr(host, name)(**arguments)})
        except Exception:
            lines.answer({"error": traceback.format_exc()})
    host._llm.llm_engine.engine_core.shutdown()
