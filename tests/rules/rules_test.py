"""The repository obeys its rules, and each rule notices when it is broken."""

import os
import unittest

import rules

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def messages(path, text):
    return [message for _, _, message in rules.check_file(path, text)]


class Repository(unittest.TestCase):
    def test_obeys_the_rules(self):
        violations = rules.check_tree(ROOT)
        if violations:
            self.fail("\n" + "\n".join("%s:%d: %s" % v for v in violations))

    def test_is_seen(self):
        files = rules.read_tree(ROOT)
        for path in ("base/error.h", "proto/options.proto", "scripts/test.sh", "README.md"):
            if os.path.exists(os.path.join(ROOT, path)):
                self.assertIn(path, files)
        self.assertGreater(len(files), 100)

    def test_every_library_folder_is_on_the_ladder(self):
        with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
            cmake = file.read()
        for folder in rules.LADDER:
            self.assertRegex(cmake, rf"\b{folder}\b")


class Rules(unittest.TestCase):
    def assert_breaks(self, path, text, part):
        found = messages(path, text)
        self.assertTrue(any(part in message for message in found), f"{text!r}: {found}")

    def assert_obeys(self, path, text):
        self.assertEqual(messages(path, text), [])

    def test_include_ladder(self):
        self.assert_breaks("tiers/a.cc", '#include "scheduler/schedule.h"\n', "may not include")
        self.assert_breaks("scheduler/a.cc", '#include "tiers/arena.h"\n', "may not include")
        self.assert_breaks("base/a.cc", '#include "proto/options.pb.h"\n', "may not include")
        self.assert_breaks("engine/a.cc", '#include "tools/command.h"\n', "may not include")
        self.assert_breaks("proto/a.cc", '  #  include "engine/engine.h"\n', "may not include")
        self.assert_obeys("engine/a.cc", '#include "tiers/arena.h"\n#include <map>\n')
        self.assert_obeys("tools/a.cc", '#include "engine/engine.h"\n')
        self.assert_obeys("device/a.cc", '#include "hwy/highway.h"\n')

    def test_slow_includes(self):
        self.assert_breaks("tools/a.cc", "#include <CLI/CLI.hpp>\n", "base/command_line.h")
        self.assert_breaks("engine/a.cc", "#include <fmt/chrono.h>\n", "base/utc.h")
        self.assert_obeys("base/command_line.cc", "#include <CLI/CLI.hpp>\n")

    def test_ladder_has_no_cycle(self):
        order = list(rules.LADDER)
        for folder, allowed in rules.LADDER.items():
            for other in allowed:
                self.assertLess(order.index(other), order.index(folder))

    def test_pragma_once(self):
        self.assert_breaks("base/a.h", "int x;\n", "#pragma once")
        self.assert_obeys("base/a.h", "#pragma once\nint x;\n")

    def test_banned(self):
        for code, part in [
                ("assert(x);", "assert"), ("int* p = new int;", "naked new"), ("delete p;", "delete"),
                ("delete[] p;", "delete"), ("t.detach();", "detached"), ("printf(x);", "printf"),
                ("std::snprintf(b, 3, f);", "printf"), ("std::cout << x;", "terminal"),
                ("void* p = std::malloc(3);", "allocation"), ("x = rand();", "rand")]:
            self.assert_breaks("base/a.cc", f"void f() {{ {code} }}\n", part)
            self.assert_obeys("tools/a.cc", f"void f() {{ {code} }}\n")

    def test_banned_words_elsewhere_are_fine(self):
        for code in [
                "// assert(x), a new idea: delete it", "/* new\n delete */", 'f("printf(");',
                "A(const A&) = delete;", "static_assert(x);", "ASSERT(x);", "int new_size = 0;",
                "void* p = new (place) A();", 'x = R"(std::cout)";', "char c = '\"'; // new",
                "int n = 1'000'000;", "delete p;  // NOLINT: the library wants it"]:
            self.assert_obeys("base/a.cc", code + "\n")

    def test_columns(self):
        self.assert_breaks("base/a.cc", "// " + "x" * 98 + "\n", "101 columns")
        self.assert_obeys("base/a.cc", "// " + "\u00e4" * 97 + "\n")
        table = "// clang-format off\n" + "x" * 120 + "\n// clang-format on\n"
        self.assert_obeys("base/a.cc", table)
        self.assert_breaks("base/a.cc", table + "y" * 120 + "\n", "120 columns")

    def test_lengths(self):
        self.assert_breaks("base/a.cc", "//\n" * 501, "501 lines")
        body = "  x();\n" * 79
        self.assert_breaks("base/a.cc", f"namespace a {{\nvoid f() {{\n{body}}}\n}}\n",
                           "a function of 81 lines")
        short = f"namespace a {{\nclass B {{\n void f() {{\n{body[:-7]}}}\n}};\n}}\n"
        self.assert_obeys("base/a.cc", short)
        self.assert_obeys("base/a.cc", "struct A {\n" + "  int x;\n" * 100 + "};\n")

    def test_functions_are_found(self):
        text = ("#define M(x) do { \\\n  } while (0)\n"
                "A::A(int x) : x_{x}, y_(1) {\n  if (x) {\n  }\n}\n\n"
                "template <class T>\nint f(T t) {\n  return [&] { return t; }();\n}\n"
                "int g() { return 1; }\nconst int kTable[] = {1, 2};\n")
        self.assertIn((8, 11), list(rules.functions(text)))
        self.assertIn((12, 12), list(rules.functions(text)))
        self.assertEqual(max(last for _, last in rules.functions(text)), 12)

    def test_leftovers_and_paths(self):
        self.assert_breaks("base/a.cc", "// TO" + "DO: later\n", "leftover")
        self.assert_breaks("docs/a.md", "FIX" + "ME\n", "leftover")
        self.assert_breaks("configs/a.json", '{"nvme_path": "/ho' + 'me/me/x"}\n', "one machine")
        self.assert_obeys("docs/a.md", "`$HOME/work/x`, src/work/x and /mnt/nvme\n")

    def test_file_names(self):
        self.assert_breaks("base/BadName.cc", "\n", "snake_case")
        self.assert_obeys("device/kernels/math.inl.h", "#pragma once\n")

    def test_unregistered_tests_are_found(self):
        files = {"tests/CMakeLists.txt": "foreach(folder base e2e)",
                 "tests/base/CMakeLists.txt": "headrace_tests(base headrace_base)",
                 "tests/base/deep/a_test.cc": "",
                 "tests/e2e/CMakeLists.txt": "add_test(NAME x COMMAND python -m unittest a_test)",
                 "tests/e2e/a_test.py": ""}
        self.assertEqual(list(rules.check_tests_registered(files)), [])
        files["tests/e2e/b_test.py"] = ""
        files["tests/lost/c_test.cc"] = ""
        self.assertEqual([v[0] for v in rules.check_tests_registered(files)],
                         ["tests/e2e/b_test.py", "tests/lost/c_test.cc", "tests/lost/c_test.cc"])


if __name__ == "__main__":
    unittest.main()
