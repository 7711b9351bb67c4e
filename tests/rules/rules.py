"""The rules of the repository that a script can check. Standard library only.

Each rule is a function over one file that yields (line, message). check_tree() runs them all.
"""

import os
import re

# Folder -> folders whose headers it may include, beside its own.
LADDER = {
    "base": set(),
    "proto": {"base"},
    "aio": {"base", "proto"},
    "device": {"base", "proto"},
    "scheduler": {"base", "proto"},
    "tiers": {"base", "proto", "aio", "device"},
    "comm": {"base", "proto", "device"},
    "model": {"base", "proto", "device"},
    "engine": {"base", "proto", "aio", "device", "scheduler", "tiers", "comm", "model"},
}
LIBRARY_FOLDERS = set(LADDER)
# These stand above the ladder and below nobody.
TOP_FOLDERS = {"tools", "python", "bench", "tests"}

BANNED = [
    (r"(?<![\w_])assert\s*\(", "assert: use HR_CHECK or a typed error"),
    (r"(?<![\w.>:])new\b(?!\s*\()", "naked new: use make_unique or a container"),
    (r"(?<!= )(?<![\w])delete\b", "naked delete: let an owner do it"),
    (r"(?<![\w])(malloc|calloc|realloc|free)\s*\(", "C allocation: use an owner"),
    (r"\.\s*detach\s*\(", "detached thread: join it"),
    (r"(?<![\w])(f|s|sn|v|vf)?printf\s*\(", "printf: use fmt, or base/log.h for messages"),
    (r"std::(cout|cerr|clog)\b", "stream to the terminal: use base/log.h"),
    (r"(?<![\w])s?rand\s*\(", "rand: use base/random.h"),
]
# Header -> what stands for it, and the sources that may include it.
SLOW_INCLUDES = {
    "CLI/CLI.hpp": ("base/command_line.h", {"base/command_line.cc"}),
    "fmt/chrono.h": ("base/utc.h", set()),
}
LINE_COLUMNS = 100
FILE_LINES = 500
FUNCTION_LINES = 80
SKIPPED_FOLDERS = {"build", "runs", ".git", "__pycache__", "data", "third_party", "node_modules"}
TEXT_ENDINGS = (".h", ".cc", ".cu", ".cuh", ".proto", ".py", ".sh", ".txt", ".cmake", ".md", ".json",
                ".yml", ".yaml")


def blank_out(text):
    """`text` with comments and the insides of literals as spaces; lines stay where they are."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^\s()\\]{0,16})\(.*?\)(?P=tag)"'
        r'|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)

    def spaces(match):
        found = match.group(0)
        blank = re.sub(r"[^\n]", " ", found)
        return blank if found.startswith("/") else '"' + blank[1:-1] + '"'

    return pattern.sub(spaces, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def check_includes(path, text):
    folder = path.split("/")[0]
    if folder not in LADDER:
        return
    allowed = LADDER[folder] | {folder}
    for match in re.finditer(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE):
        target = match.group(1).split("/")[0]
        is_ours = target in LADDER or target in TOP_FOLDERS
        if is_ours and target not in allowed:
            yield (line_of(text, match.start(1)),
                   f'{folder}/ may not include "{match.group(1)}"; allowed: '
                   f'{", ".join(sorted(allowed))}')


def check_slow_includes(path, text):
    for match in re.finditer(r"^\s*#\s*include\s+<([^>]+)>", text, re.MULTILINE):
        instead, sources = SLOW_INCLUDES.get(match.group(1), (None, ()))
        if instead and path not in sources:
            yield (line_of(text, match.start(1)),
                   f"{match.group(1)} takes seconds to compile in each source: use {instead}")


def check_pragma_once(path, text):
    if path.endswith((".h", ".cuh")) and not re.search(r"^#pragma once$", text, re.MULTILINE):
        yield 1, "a header needs #pragma once"


def check_banned(path, text):
    if path.split("/")[0] not in LIBRARY_FOLDERS:
        return
    code = blank_out(text)
    lines = text.split("\n")
    for pattern, message in BANNED:
        for match in re.finditer(pattern, code):
            number = line_of(code, match.start())
            if "NOLINT" not in lines[number - 1]:  # a stated exception
                yield number, message


def check_columns(path, text):
    formatted = True
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() in ("// clang-format off", "// clang-format on"):
            formatted = line.strip().endswith("on")
        if formatted and len(line) > LINE_COLUMNS:
            yield number, f"{len(line)} columns; at most {LINE_COLUMNS}"


def check_file_length(path, text):
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield FILE_LINES, f"{lines} lines; at most {FILE_LINES}: split the file"


def functions(text):
    """(first line, last line) of every function body's definition, by counting braces."""
    code = blank_out(text)
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
                  lambda m: re.sub(r"[^\n]", " ", m.group(0)), code, flags=re.MULTILINE)
    scopes = []  # (is function, offset of its header) per open brace
    header_start = 0
    for match in re.finditer(r"[{};]", code):
        char, at = match.group(0), match.start()
        if char == "{":
            header = code[header_start:at]
            inside = any(is_function for is_function, _ in scopes)
            is_type = re.search(r"\b(namespace|class|struct|union|enum)\b[^()]*$", header)
            is_function = not inside and "(" in header and not is_type
            scopes.append((is_function, header_start + len(header) - len(header.lstrip())))
        elif char == "}" and scopes:
            is_function, start = scopes.pop()
            if is_function:
                yield line_of(code, start), line_of(code, at)
        header_start = at + 1


def check_function_length(path, text):
    if path.startswith("tests/"):
        return  # tables of cases
    for first, last in functions(text):
        if last - first + 1 > FUNCTION_LINES:
            yield first, f"a function of {last - first + 1} lines; at most {FUNCTION_LINES}"


def check_leftovers(path, text):
    for match in re.finditer(r"\b(TODO|FIXME|XXX|HACK)\b", text):
        yield line_of(text, match.start()), f"leftover {match.group(1)}: do it or drop it"


def check_machine_paths(path, text):
    for match in re.finditer(r"(?<![\w.$}/-])/(work|home|root|Users)/\w", text):
        yield line_of(text, match.start()), "a path of one machine"


def check_file_name(path, text):
    name = os.path.basename(path)
    if not re.fullmatch(r"[a-z0-9_]+(\.inl)?\.(h|cc|cu|cuh|proto)", name):
        yield 1, "file names are snake_case"


SOURCE_RULES = [check_includes, check_slow_includes, check_pragma_once, check_banned, check_columns,
                check_file_length, check_function_length, check_file_name]
TEXT_RULES = [check_leftovers, check_machine_paths]


def check_file(path, text):
    """Violations of one file; `path` is relative to the repository, with slashes."""
    rules = list(SOURCE_RULES) if path.endswith((".h", ".cc", ".cu", ".cuh")) else []
    if path.endswith(".proto"):
        rules.append(check_file_name)
    # CONTRIBUTING.md and the rules themselves name what is forbidden.
    if path != "CONTRIBUTING.md" and not path.startswith("tests/rules/"):
        rules += TEXT_RULES
    return [(path, line, message) for rule in rules for line, message in rule(path, text)]


def check_tests_registered(files):
    """Every test file is part of a binary or a ctest entry. `files`: path -> text."""
    listed = files.get("tests/CMakeLists.txt", "")
    for path in sorted(files):
        parts = path.split("/")
        if parts[0] != "tests" or len(parts) < 3 or not path.endswith(("_test.cc", "_test.py")):
            continue
        folder, name = parts[1], parts[-1]
        if not re.search(rf"\b{re.escape(folder)}\b", listed):
            yield path, 1, f"tests/CMakeLists.txt does not add the folder {folder}"
        cmake = files.get(f"tests/{folder}/CMakeLists.txt", "")
        globbed = path.endswith(".cc") and "headrace_tests" in cmake
        if not globbed and not re.search(rf"\b{re.escape(name[:-3])}\b", cmake):
            yield path, 1, f"tests/{folder}/CMakeLists.txt does not register it"


def read_tree(root):
    """Texts of the repository's files by path."""
    files = {}
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders
                         if name not in SKIPPED_FOLDERS and not name.startswith(".venv")]
        for name in names:
            if name.endswith(TEXT_ENDINGS):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    files[os.path.relpath(path, root).replace(os.sep, "/")] = file.read()
    return files


def check_tree(root):
    files = read_tree(root)
    violations = [v for path in sorted(files) for v in check_file(path, files[path])]
    return violations + list(check_tests_registered(files))
