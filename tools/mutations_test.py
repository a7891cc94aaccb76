"""The seeded mutations still apply to the tree, and each says something else than what is there."""

from __future__ import annotations

import unittest

import mutations


class Mutations(unittest.TestCase):
    def test_each_applies_once(self):
        for mutation in mutations.load():
            with self.subTest(mutation.name):
                text = (mutations.ROOT / mutation.file).read_text()
                self.assertEqual(text.count(mutation.find), 1)
                self.assertNotEqual(mutation.apply(text), text)

    def test_there_are_enough_and_they_differ(self):
        listed = mutations.load()
        self.assertGreaterEqual(len(listed), 15)
        self.assertEqual(len({one.name for one in listed}), len(listed))
        self.assertEqual(len({(one.file, one.find, one.replace) for one in listed}), len(listed))

    def test_they_break_the_core(self):
        for mutation in mutations.load():
            self.assertRegex(mutation.file, r"^src/orbitkv/(state|wire|pool|cache|store|service|manager)/\w+\.(cc|h)$")


if __name__ == "__main__":
    unittest.main()
