"""Tests of the processes that answer JSON lines: their ends, and whose shared memory goes with them."""

import os
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.children import Child, ChildError, NoAnswerError
from harness.processes import SHARED_MEMORY, session_pids

SCRIPT = """
import json, mmap, os, subprocess, sys, time
kept = []
for line in sys.stdin:
    name, arguments = json.loads(line)
    if name == "map":
        with open(arguments["path"], "a+b") as file:
            file.truncate(4096)
            kept.append(mmap.mmap(file.fileno(), 4096))
    elif name == "spawn":
        subprocess.Popen(["sleep", "60"])
    elif name == "die":
        print("the last words", file=sys.stderr, flush=True)
        os._exit(3)
    elif name == "hang":
        time.sleep(1)
    elif name == "sleep":
        time.sleep(10)
        open(arguments["path"], "w").close()
    print(json.dumps(arguments), flush=True)
"""


class Children(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.script = Path(folder.name) / "script.py"
        self.script.write_text(SCRIPT)
        self.log = Path(folder.name) / "log"
        self.own = SHARED_MEMORY / f"orbitkv_children_test_{os.getpid()}_own"
        self.servers = SHARED_MEMORY / f"orbitkv_children_test_{os.getpid()}_server"
        self.addCleanup(self.own.unlink, missing_ok=True)
        self.addCleanup(self.servers.unlink, missing_ok=True)

    def start(self, limit_s=30.0):
        child = Child(Path(sys.executable), self.script, {}, self.log, limit_s)
        self.addCleanup(child.close)
        return child

    def test_a_call_is_answered(self):
        self.assertEqual(self.start().call("echo", number=7), {"number": 7})

    def test_a_call_of_one_that_died_says_what_it_said_last(self):
        with self.assertRaisesRegex(ChildError, "the process ended: the last words"):
            self.start().call("die")

    def test_a_call_without_an_answer_ends(self):
        with self.assertRaisesRegex(NoAnswerError, "did not answer within 0.2 s"):
            self.start(limit_s=0.2).call("hang")

    def test_one_that_cannot_be_set_up_has_ended(self):
        child = self.start()
        with self.assertRaisesRegex(ChildError, "the last words"):
            child.set_up(["die", {}])
        self.assertEqual(session_pids(child.pid), [])

    def test_one_that_ended_is_not_one_that_does_not_answer(self):
        with self.assertRaises(ChildError) as caught:
            self.start().call("die")
        self.assertNotIsInstance(caught.exception, NoAnswerError)

    def test_its_own_shared_memory_goes_with_it_and_the_servers_stays(self):
        self.servers.touch()
        child = self.start()
        child.call("map", path=str(self.servers))
        child.call("map", path=str(self.own))
        child.close()
        self.assertTrue(self.servers.exists())
        self.assertFalse(self.own.exists())

    def test_after_a_failure_nobody_waits_for_it(self):
        late = self.script.with_name("late")
        with self.assertRaises(ZeroDivisionError), self.start() as child:
            child.send(["sleep", {"path": str(late)}])
            raise ZeroDivisionError
        self.assertEqual(session_pids(child.pid), [])
        self.assertFalse(late.exists())

    def test_what_it_started_ends_with_it(self):
        child = self.start()
        child.call("spawn")
        self.assertEqual(len(session_pids(child.pid)), 2)
        child.close()
        self.assertEqual(session_pids(child.pid), [])


if __name__ == "__main__":
    unittest.main()
