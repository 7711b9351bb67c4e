"""What the cache of the compiler gives is what the compiler would."""

import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CCACHE = shutil.which("ccache")
COMPILER = shutil.which("g++")


@unittest.skipUnless(CCACHE and COMPILER, "SKIPPED: needs ccache and g++")
class PrecompiledHeader(unittest.TestCase):
    """As CMake has it: DIR/pch.hxx includes a header that changes, DIR/pch.hxx.gch lies beside it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("pch.hxx", '#include "value.h"\n')
        self.write("pch.hxx.cxx", "")
        self.write("main.cc", "int main() { return kValue; }\n")

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def compile(self, *arguments):
        subprocess.run(
            [os.path.join(ROOT, "cmake", "ccache.sh"), CCACHE, COMPILER, "-fpch-preprocess",
             "-include", "pch.hxx", *arguments],
            cwd=self.folder, check=True,
            env={**os.environ, "CCACHE_DIR": os.path.join(self.folder, "cache")})

    def value_compiled(self, value):
        self.write("value.h", "constexpr int kValue = %d;\n" % value)
        self.compile("-x", "c++-header", "-o", "pch.hxx.gch", "-c", "pch.hxx.cxx")
        self.compile("-o", "main.o", "-c", "main.cc")
        subprocess.run([COMPILER, "main.o", "-o", "main"], cwd=self.folder, check=True)
        return subprocess.run([os.path.join(self.folder, "main")], check=False).returncode

    def test_is_of_the_headers_as_they_are(self):
        """Two changes to builds of the same state, whose precompiled header came from the cache."""
        self.assertEqual(self.value_compiled(1), 1)
        shutil.copy(os.path.join(self.folder, "pch.hxx.gch"), os.path.join(self.folder, "first"))
        self.assertEqual(self.value_compiled(2), 2)
        shutil.copy(os.path.join(self.folder, "first"), os.path.join(self.folder, "pch.hxx.gch"))
        self.assertEqual(self.value_compiled(3), 3)


if __name__ == "__main__":
    unittest.main()
