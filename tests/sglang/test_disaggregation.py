"""A prefill and a decode engine behind sglang-router, and the Manager that they share.

What either of them has saved, the prefill engine restores for any prompt. Clients, the prefill engine and the Manager
leave at every stage of a request: others go on, and nothing is kept for those that are gone.
"""

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from engine import near, tokens
from patience import TRIES, patient

from harness.processes import wait_until
from harness.server import HOST, free_port
from harness.sglang_router import SglangRouter
from harness.sglang_server import described

PROMPT = tokens(300, 4)
CACHED = 288
# A lease ends so long after its request has left, when nobody looks: 10 s.
HELD_LIMIT_S = 20
# Of a client.
ANSWER_LIMIT_S = 60
PAIR = {
    "disaggregation_transfer_backend": "mooncake_tcp",
    "host": HOST,
    "context_length": 4096,
    "max_total_tokens": 4096,
    "disable_overlap_schedule": False,
}
ENVIRONMENT = {
    # Mooncake listens everywhere by itself.
    "MC_TCP_BIND_ADDRESS": HOST,
    # How soon a decode engine notices that the prefill engine is gone, and how long it waits for a word of it.
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2",
    "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "1",
    "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT": "3",
    # Nobody tells it of a request that has failed on the prefill engine.
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "10",
    # The router's look at an engine's health is no request of its own.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
}


class Pair:
    """`prefill` is another engine after `start_prefill`, at the same place."""

    def __init__(self, start_engine, manager, folder):
        self._start_engine = start_engine
        self._manager = manager
        self._ports = [free_port() for _ in range(3)]
        prefill, bootstrap, decode = self._ports
        self.router = SglangRouter(prefill, bootstrap, decode, folder / "router.log")

    def start_prefill(self):
        """By SGLang's own linker backend. It computes prompts in parts, and hands their pages over in parts."""
        prefill, bootstrap, _ = self._ports
        role = {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": bootstrap, "port": prefill}
        role["chunked_prefill_size"] = 64
        self.prefill = self._start_engine(patient(self._manager), environment=ENVIRONMENT, **PAIR, **role)
        self.prefill.listen()
        assert self.prefill.wait_up()

    def start_decode(self):
        """By OrbitKV's plugin."""
        linker = {"radix_cache_backend": "orbitkv", "enable_unified_cache_external_linker": True}
        role = {"disaggregation_mode": "decode", "disaggregation_decode_enable_radix_cache": True}
        environment = ENVIRONMENT | {"ORBITKV_SGLANG_ENDPOINT": f"unix://{self._manager.socket}"}
        self.decode = self._start_engine(environment=environment, port=self._ports[2], **PAIR, **role, **linker)
        self.decode.listen()
        assert self.decode.wait_up()

    def ask(self, prompt, n=8):
        """The answer, or {"status": ...} of a request that failed."""
        status, data = self.router.request("POST", "/generate", body(prompt, n), ANSWER_LIMIT_S)
        return described(json.loads(data)) if status == 200 else {"status": status, "error": data.decode()}

    def settle(self):
        return [engine.settle() for engine in (self.prefill, self.decode)]

    def evict(self):
        for engine in (self.prefill, self.decode):
            engine.evict()


def body(prompt, n, **more):
    sampling = {"temperature": 0, "max_new_tokens": n, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 3} | more


@pytest.fixture(scope="module")
def pair(start_engine, manager, folder):
    started = Pair(start_engine, manager, folder)
    try:
        started.start_prefill()
        started.start_decode()
        started.router.wait_ready(60)
        yield started
    finally:
        started.router.kill()


@pytest.fixture(scope="module")
def right(plain):
    """What an engine without a linker answers that computes all of the prompt."""
    answers = {}

    def answer(prompt, n=8):
        key = (tuple(prompt), n)
        if key not in answers:
            plain.flush()
            answers[key] = plain.one(prompt, n)
        return answers[key]

    return answer


@pytest.fixture
def clean(pair, manager, right):
    """Before a test the Manager has the prompt and the engines have nothing; after it they do their work again."""
    pair.ask(PROMPT)
    pair.evict()
    before = [state["available"] for state in pair.settle()]
    yield pair
    pair.evict()
    assert [state["available"] for state in pair.settle()] == before
    assert wait_until(lambda: not manager.held(), HELD_LIMIT_S), manager.held()
    for _ in range(TRIES):
        pair.ask(PROMPT)
        pair.evict()
        restored = pair.ask(PROMPT)
        pair.evict()
        if restored["host"] == CACHED:
            break
    assert restored["host"] == CACHED
    assert near([restored], [right(PROMPT)])


# ---- one answer -----------------------------------------------------------------------------------------------------


def test_both_say_who_they_are(pair):
    """In their logs, as the guide has it."""

    def said(engine, begin):
        return [line.partition(begin)[2] for line in engine.log.read_text().splitlines() if begin in line]

    for line in ("OrbitKV identity ", "OrbitKV pages "):
        (identity,) = said(pair.prefill, line)
        assert said(pair.decode, line) == [identity]
    assert "saves on, hits on" in pair.prefill.log.read_text()
    assert "saves on, hits off" in pair.decode.log.read_text()


def test_both_save_a_prompt_under_the_same_keys(pair, manager, right):
    prompt = tokens(300, 31)
    before = manager.samples()
    answer = pair.ask(prompt, n=60)
    assert near([answer], [right(prompt, 60)])
    pair.settle()
    after = manager.samples()

    def grown(name):
        return after[f"orbitkv_{name}"] - before[f"orbitkv_{name}"]

    assert grown("blocks_resident") == 22, "the whole pages of 359 tokens, of which the decode engine has generated 59"
    assert grown("blocks_already_here_total") + grown("blocks_already_there_total") == 18, "of the prompt alone"


@pytest.mark.parametrize("decode_has_it", [True, False])
def test_the_prefill_engine_restores_what_the_decode_engine_has_generated(pair, right, decode_has_it):
    prompt = tokens(100, 32 + decode_has_it)
    first = pair.ask(prompt, n=65)
    assert near([first], [right(prompt, 65)])
    pair.prefill.evict()
    if not decode_has_it:
        pair.decode.evict()
    turn = prompt + first["tokens"] + tokens(50, 12)
    second = pair.ask(turn)
    assert second["host"] == 160, "the whole pages of 164 tokens"
    assert near([second], [right(turn)])


def test_many_at_once(clean, right):
    """Also through the pages of others: the first ones are restored while later ones are computed and handed over."""
    prompts = [PROMPT[: 80 * (number % 3 + 1)] + tokens(40, 40 + number) for number in range(6)]
    expected = [right(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as clients:
        answers = list(clients.map(clean.ask, prompts))
    assert near(answers, expected)
    assert sum(answer["host"] for answer in answers) > 0


# ---- who leaves -----------------------------------------------------------------------------------------------------

# Who is held, and where: its scheduler, or the thread that hands pages over. What the Manager keeps then. Who hears for
# sure that the client has left, as none of its other threads can have ended the request before.
BOTH, ONE = ("prefill", "decode"), ("decode",)
STAGES = {
    "found": ("prefill", "lookup", "after", "leases", BOTH),
    "queued": ("prefill", "load", "after", "grants", BOTH),
    "computed": ("prefill", "finish_layer_wise_loading", "before", None, BOTH),
    "handed over": ("prefill", "send_kvcache", "before", None, ONE),
    "taken over": ("decode", "offload", "after", None, ONE),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_client_leaves_when_its_prompt_is(clean, manager, right, tmp_path, stage):
    name, call, when, kept, hear = STAGES[stage]
    engine, held = getattr(clean, name), tmp_path / "held"
    engine.plan(call=call, when=when, hold=str(held))
    prompt = PROMPT + tokens(60, 51)
    hearing = [getattr(clean, each) for each in hear]
    before = [each.aborts() for each in hearing]
    with contextlib.closing(clean.router.begin("POST", "/generate", body(prompt, 200))):
        assert engine.wait_for(path=str(held))
        assert kept is None or wait_until(lambda: kept in manager.held(), 5)
    for each, count in zip(hearing, before, strict=True):
        assert each.aborts(more_than=count) > count
    held.unlink()
    assert engine.probe(name="planned") == [[]]
    assert near([clean.ask(prompt)], [right(prompt)])


def test_a_client_leaves_while_tokens_are_generated(clean, right):
    before = clean.decode.aborts()
    events = clean.router.stream("/generate", body(PROMPT, 3000, stream=True), ANSWER_LIMIT_S)
    for _ in range(2):
        assert next(events)["meta_info"]["finish_reason"] is None
    events.close()
    assert clean.decode.aborts(more_than=before) > before
    assert near([clean.ask(PROMPT)], [right(PROMPT)])


def test_the_prefill_engine_dies_while_it_hands_pages_over(clean, manager, right, tmp_path):
    held = tmp_path / "held"
    prompt = PROMPT + tokens(60, 52)
    clean.prefill.plan(call="send_kvcache", when="before", hold=str(held))
    with contextlib.closing(clean.router.begin("POST", "/generate", body(prompt, 8), ANSWER_LIMIT_S)) as client:
        assert clean.prefill.wait_for(path=str(held))
        clean.prefill.kill()
        assert client.getresponse().status >= 500
    assert wait_until(lambda: "Lost connection with prefill" in clean.decode.log.read_text(), 30)
    clean.decode.settle()
    assert wait_until(lambda: not manager.held(), HELD_LIMIT_S), manager.held()
    clean.start_prefill()
    assert wait_until(clean.router.is_ready, 30)
    restored = clean.ask(prompt)
    assert restored["host"] >= CACHED, "what the first one had saved"
    assert near([restored], [right(prompt)])


@pytest.mark.parametrize(
    ("name", "call"), [("prefill", "lookup"), ("prefill", "start_layer_wise_loading"), ("decode", "offload")]
)
def test_the_manager_is_killed(clean, manager, right, name, call):
    getattr(clean, name).plan(call=call, when="before", kill=manager.pid)
    prompt = PROMPT + tokens(60, 53)
    answer = clean.ask(prompt)
    assert answer.get("status", 0) >= 500 or near([answer], [right(prompt)])
    manager.process.popen.wait(30)
    other = tokens(200, 54)
    assert near([clean.ask(other)], [right(other)]), "without a Manager"
    manager.start()
    manager.wait_serving(2)
    assert clean.prefill.wait_up() and clean.decode.wait_up()
