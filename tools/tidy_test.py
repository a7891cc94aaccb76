"""Each rule of tools/tidy.py fires on what it forbids and stays silent on what it allows."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import cxx_scan
import tidy

TOP = "// A thing.\n#pragma once\n"


def rules(files: dict[str, str]) -> list[str]:
    """The rules that fire on a tree with these files, as "path:line rule"."""
    found = tidy.check([tidy.Source(path, text) for path, text in files.items()])
    return [f"{f.path}:{f.line} {f.rule}" for f in found]


class Layering(unittest.TestCase):
    def fires(self, path: str, include: str) -> bool:
        text = (TOP if path.endswith(".h") else "") + f'#include "orbitkv/{include}"\n'
        return any("layering" in rule for rule in rules({path: text}))

    def test_upward_and_sideways(self):
        self.assertTrue(self.fires("src/orbitkv/base/a.h", "os/b.h"))
        self.assertTrue(self.fires("src/orbitkv/pool/a.cc", "channel/b.h"))
        self.assertTrue(self.fires("src/orbitkv/client/a.cc", "cache/b.h"))
        self.assertTrue(self.fires("src/orbitkv/client/a.cc", "service/b.h"))
        self.assertTrue(self.fires("src/orbitkv/cache/a.cc", "testing/b.h"))

    def test_downward_and_own(self):
        self.assertFalse(self.fires("src/orbitkv/cache/a.h", "pool/b.h"))
        self.assertFalse(self.fires("src/orbitkv/cache/a.h", "cache/b.h"))
        self.assertFalse(self.fires("src/orbitkv/client/a.cc", "channel/b.h"))
        self.assertFalse(self.fires("src/orbitkv/manager/a.cc", "service/b.h"))
        self.assertFalse(self.fires("src/orbitkv/cache/a_test.cc", "testing/b.h"))

    def test_unknown_folder(self):
        self.assertTrue(self.fires("src/orbitkv/attic/a.cc", "base/b.h"))
        self.assertTrue(self.fires("src/orbitkv/manager/a.cc", "attic/b.h"))


class Headers(unittest.TestCase):
    def test_top_comment(self):
        self.assertEqual(rules({"src/orbitkv/base/a.h": TOP}), [])
        self.assertEqual(rules({"src/orbitkv/base/a.h": "#pragma once\n"}), ["src/orbitkv/base/a.h:1 top-comment"])
        self.assertEqual(rules({"src/orbitkv/base/a.h": "// A thing.\n"}), ["src/orbitkv/base/a.h:1 top-comment"])


class Draws(unittest.TestCase):
    def fires(self, statement: str) -> bool:
        return any(
            "draw-order" in rule for rule in rules({"src/orbitkv/base/a.cc": "void F() { " + statement + " }\n"})
        )

    def test_without_an_order(self):
        self.assertTrue(self.fires("Make(prng.Below(3), 1 + prng.Below(4));"))
        self.assertTrue(self.fires("Make(f(prng_.Next()), world().prng().Next());"))
        self.assertTrue(self.fires("x = prng.Below(4) * 64 + prng.Below(64);"))
        self.assertTrue(self.fires("EXPECT_EQ(prng.Next(), other_prng.Next());"))

    def test_with_an_order(self):
        self.assertFalse(self.fires("Make({prng.Below(3), prng.Below(4)});"))
        self.assertFalse(self.fires("Point p{.x = prng.Below(3), .y = prng.Below(4)};"))
        self.assertFalse(self.fires("x = prng.Below(4) == 0 ? prng.Below(3) : 1 + prng.Below(2);"))
        self.assertFalse(self.fires("x = prng.Below(2) == 0 && prng.Below(3) == 0;"))
        self.assertFalse(self.fires("x = prng.Below(1 + prng.Below(3));"))
        self.assertFalse(self.fires("x[prng.Below(3)] = prng.Below(4);"))
        self.assertFalse(self.fires("if (prng.Below(3) == 0) Make(prng.Below(4)); Make(prng.Below(5));"))
        self.assertFalse(self.fires("for (int i = prng.Below(3); i > 0; --i) Make(prng.Below(4));"))


class OrphanTests(unittest.TestCase):
    def test_named_or_not(self):
        path = "src/orbitkv/base/a_test.cc"
        lists = "src/orbitkv/base/CMakeLists.txt"
        self.assertEqual(rules({path: ""}), [f"{path}:1 orphan-test"])
        self.assertEqual(rules({path: "", lists: "orbitkv_test(b SOURCES aa_test.cc)"}), [f"{path}:1 orphan-test"])
        self.assertEqual(rules({path: "", lists: "orbitkv_test(a_test SOURCES a_test.cc)"}), [])


class Names(unittest.TestCase):
    def test_file_names(self):
        for name in ("util.h", "string_utils.h", "misc.h", "ring_impl.h"):
            self.assertIn("banned-name", " ".join(rules({f"src/orbitkv/base/{name}": TOP})), name)
        self.assertIn("banned-name", " ".join(rules({"tools/helpers.py": ""})))
        self.assertIn("banned-name", " ".join(rules({"src/orbitkv/base/BigThing.h": TOP})))
        self.assertEqual(rules({"src/orbitkv/base/futile.h": TOP, "src/orbitkv/base/simplified.h": TOP}), [])

    def test_words(self):
        for word in ("TO" + "DO", "FIX" + "ME", "XX" + "X"):
            self.assertEqual(rules({"docs/a.md": f"ok\n{word}: later\n"}), ["docs/a.md:2 banned-word"])
        self.assertEqual(rules({"src/orbitkv/base/a.cc": "// XXH3 and mktemp XXXXXX\n"}), [])

    def test_machine_paths_and_hosts(self):
        for where in ("home", "work", "opt", "root"):
            self.assertEqual(rules({"docs/a.md": f"see /{where}/x\n"}), ["docs/a.md:1 machine-path"], where)
        self.assertEqual(rules({"docs/a.md": "src/work/x $root/opt/y\n"}), [])
        for host in ("deb.debian" + ".org", "py" + "pi.org", "download.pytorch" + ".org"):
            self.assertEqual(rules({"docs/a.md": f"http://{host}/x\n"}), ["docs/a.md:1 registry-host"], host)
        self.assertEqual(rules({"docs/a.md": "https://www.apache.org/licenses\n"}), [])


class SystemCalls(unittest.TestCase):
    def test_headers(self):
        text = "#include <sys/mman.h>\n"
        self.assertEqual(rules({"src/orbitkv/pool/a.cc": text}), ["src/orbitkv/pool/a.cc:1 system-call"])
        self.assertEqual(rules({"src/orbitkv/pool/a.cc": "#include <unistd.h>\n"})[0][-11:], "system-call")
        self.assertEqual(rules({"apps/x/main.cc": "#include <linux/futex.h>\n"})[0][-11:], "system-call")
        self.assertEqual(rules({"src/orbitkv/os/a.cc": text}), [])
        self.assertEqual(rules({"tests/integration/a.cc": text}), [])

    def test_sleep_and_threads(self):
        sleep = "void F() { std::this_thread::sleep_for(x); }\n"
        self.assertEqual(rules({"src/orbitkv/pool/a.cc": sleep}), ["src/orbitkv/pool/a.cc:1 sleep"])
        self.assertEqual(rules({"tests/a.cc": sleep}), ["tests/a.cc:1 sleep"])
        self.assertEqual(rules({"bench/a.cc": sleep}), [])
        self.assertEqual(rules({"src/orbitkv/pool/a.cc": "std::thread t;\n"}), ["src/orbitkv/pool/a.cc:1 thread"])
        self.assertEqual(rules({"src/orbitkv/pool/a.cc": "t.detach();\n"}), ["src/orbitkv/pool/a.cc:1 thread"])
        self.assertEqual(rules({"src/orbitkv/pool/a.cc": "// std::thread, sleep_for\n"}), [])
        self.assertEqual(rules({"src/orbitkv/os/a.cc": "std::thread t;\n"}), [])

    def test_purity(self):
        text = "auto t = std::chrono::steady_clock::now();\n"
        self.assertEqual(rules({"src/orbitkv/cache/a.cc": text}), ["src/orbitkv/cache/a.cc:1 purity"])
        self.assertEqual(rules({"src/orbitkv/service/a.cc": "os::MonotonicNs();\n"})[0][-6:], "purity")
        self.assertEqual(rules({"src/orbitkv/pool/a.cc": text}), [])


class HashMaps(unittest.TestCase):
    def fires(self, code: str, header: str = "") -> bool:
        files = {
            "src/orbitkv/cache/a.h": TOP + header,
            "src/orbitkv/cache/a.cc": '#include "orbitkv/cache/a.h"\n' + code,
        }
        return any("hash-iteration" in rule for rule in rules(files))

    def test_range_for(self):
        member = "absl::flat_hash_map<Key, std::vector<int>> index_;\n"
        self.assertTrue(self.fires("void F() { for (auto& [k, v] : index_) {} }", member))
        self.assertTrue(self.fires("void F() { for (const auto& e : this->index_) {} }", member))
        self.assertTrue(self.fires("void F(X& x) { for (const auto& e : x.index_) {} }", member))
        self.assertTrue(self.fires("std::unordered_set<int> s; void F() { for (int i : s) {} }"))
        self.assertFalse(self.fires("void F() { for (auto& v : index_[k]) {} }", member))
        self.assertFalse(self.fires("void F() { for (auto& v : order_) {} }", member))

    def test_begin_and_aliases(self):
        self.assertTrue(self.fires("auto F() { return index_.begin(); }", "absl::flat_hash_map<int, int> index_;\n"))
        alias = "using Index = absl::flat_hash_map<int, int>;\nIndex index_;\n"
        self.assertTrue(self.fires("void F() { for (auto& e : index_) {} }", alias))
        self.assertTrue(self.fires("void F() { absl::erase_if(index_, p); }", alias))
        self.assertFalse(self.fires("bool F() { return index_.find(k) == index_.end(); }", alias))

    def test_other_folders_may(self):
        text = "std::unordered_map<int, int> m; void F() { for (auto& e : m) {} }"
        self.assertEqual(rules({"src/orbitkv/manager/a.cc": text}), [])
        self.assertEqual(rules({"src/orbitkv/service/a.cc": text}), ["src/orbitkv/service/a.cc:1 hash-iteration"])


class Sizes(unittest.TestCase):
    def test_file_length(self):
        path = "src/orbitkv/base/a.cc"
        self.assertEqual(rules({path: "int x;\n" * tidy.MAX_FILE_LINES}), [f"{path}:1 file-length"])
        self.assertEqual(rules({path: "int x;\n" * (tidy.MAX_FILE_LINES - 1)}), [])

    def test_function_length(self):
        path = "src/orbitkv/base/a.cc"
        body = "  x();\n" * (tidy.MAX_FUNCTION_LINES - 2)
        long = "namespace a {\nclass B {\n  B() : c_{1} {}\n};\n\nint F(int a) const {\n" + body + "}\n}\n"
        self.assertEqual(rules({path: long}), [f"{path}:6 function-length"])
        self.assertEqual(rules({path: long.replace(body, body[7:])}), [])
        strings = 'void F() {\n  const char* s = "{";  // {\n}\n' + "int x;\n" * 80
        self.assertEqual(rules({path: strings}), [])

    def test_python_function_length(self):
        text = "def f():\n" + "    pass\n" * tidy.MAX_FUNCTION_LINES
        self.assertEqual(rules({"tools/a.py": text}), ["tools/a.py:1 function-length"])

    def test_scan_of_class_bodies_and_lambdas(self):
        text = "struct S {\n  int a = f(1);\n  void G() {\n    auto l = [](int x) { return x; };\n  }\n};\n"
        self.assertEqual(list(cxx_scan.functions(text)), [(3, 5)])


class Tree(unittest.TestCase):
    def test_main_reports_and_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "src/orbitkv/base/a.h")
            path.parent.mkdir(parents=True)
            path.write_text("int x;\n")
            self.assertEqual(tidy.main([folder]), 1)
            path.write_text(TOP)
            self.assertEqual(tidy.main([folder]), 0)


if __name__ == "__main__":
    unittest.main()
