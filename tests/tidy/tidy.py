#!/usr/bin/env python3
"""Rules of the source tree that a compiler does not check (docs/architecture.md, "Where things go").

Formatting, include directions, namespaces, pure folders, file sizes, sources that nobody builds, switched-off
tests. Prints every breach as FILE:LINE: what, and exits 1 when there is one.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70

# Folder -> folders of this project whose headers it may include. Longest prefix wins.
MAY_INCLUDE = {
    "common/base": ["common/base"],
    "common/document": ["common/base", "common/document"],
    "common/model": ["common/base", "common/document", "common/model"],
    "common/graphs": ["common/base", "common/document", "common/model", "common/graphs"],
    "common/job": ["common/base", "common/document", "common/model", "common/job"],
    "common/command": ["common/base", "common/model", "common/command"],
    "common/plan": ["common/base", "common/document", "common/model", "common/job", "common/command", "common/plan"],
    "common/profile": ["common/base", "common/document", "common/model", "common/job", "common/command",
                       "common/plan", "common/profile"],
    "common/cuda": ["common/base", "common/cuda", "common/document", "common/ipc", "common/plan"],
    "common": ["common", "proto"],
    "coordinator/recovery": ["common/base", "common/model", "common/job", "common/command", "common/plan",
                             "coordinator/recovery"],
    "coordinator/dispatch": ["common/base", "common/model", "common/job", "common/command", "common/plan",
                             "common/profile", "coordinator/recovery", "coordinator/dispatch"],
    "coordinator/runner": ["common/base", "common/model", "common/job", "common/command", "common/plan",
                           "common/profile", "coordinator/recovery", "coordinator/dispatch", "coordinator/runner"],
    "coordinator/planner": ["common/base", "common/model", "common/job", "common/command", "common/plan",
                            "common/profile", "coordinator/recovery", "coordinator/dispatch", "coordinator/planner"],
    "coordinator": ["common", "proto", "coordinator"],
    "worker/layers": ["common/base", "common/model", "worker/device", "worker/layers"],
    "worker/service": ["common", "proto", "worker", "swapper/copies"],  # of devices with copies=worker
    "worker": ["common", "proto", "worker"],
    "swapper/core": ["common/base", "common/model", "common/job", "common/command", "common/plan", "common/profile",
                     "swapper/core"],
    "swapper": ["common", "proto", "swapper"],
    "client": ["common", "proto", "client"],
    "tests/sim/simulator": ["common/base", "common/model", "common/job", "common/command", "common/plan",
                            "common/profile", "coordinator/recovery", "coordinator/dispatch", "coordinator/runner",
                            "tests/sim/simulator"],
    "tests": ["common", "proto", "coordinator", "worker", "swapper", "client", "tests"],
    "bench": ["common", "proto", "coordinator", "worker", "swapper", "client", "tests", "bench"],
}
# Folder -> the namespace that its files open; that of a test is that of what it tests. Longest prefix wins.
NAMESPACES = {
    "common/base": "harmony",
    "common/command": "harmony::command",
    "common/cuda": "harmony::cuda",
    "common/document": "harmony::document",
    "common/graphs": "harmony::graphs",
    "common/io": "harmony::io",
    "common/ipc": "harmony::ipc",
    "common/job": "harmony::job",
    "common/model": "harmony::model",
    "common/plan": "harmony::plan",
    "common/profile": "harmony::profile",
    "common/rpc": "harmony::rpc",
    "common/runtime": "harmony::runtime",
    "common/trace": "harmony::trace",
    "coordinator/dispatch": "harmony::dispatch",
    "coordinator/planner": "harmony::planner",
    "coordinator/recovery": "harmony::recovery",
    "coordinator/runner": "harmony::runner",
    "coordinator/service": "harmony::service",
    "coordinator/store": "harmony::store",
    "worker": "harmony::worker",
    "swapper": "harmony::swapper",
    "client": "harmony::client",
    "bench": "harmony::bench",
    "bench/baselines": "harmony::baselines",
    "bench/paper": "harmony::paper",
    "bench/published_planner": "harmony::published",
    "tests/fake_cuda": "harmony::fake_cuda",
    "tests/fake_cuda_compute": "harmony::fake_cuda",
    "tests/fuzz": "harmony::fuzz",
    "tests/integration": "harmony::fake",
    "tests/sim": "harmony::sim",
    "tests/support": "harmony::testing_support",
}
# Nothing of these is seen by others.
WITHOUT_NAMESPACE = {"client/launcher/pidfd.h", "common/ipc/dump_main.cc", "tests/support/test_headers.cc"}
PURE = ["common/base", "common/document", "common/model", "common/graphs", "common/job", "common/command", "common/plan",
        "common/profile", "coordinator/recovery", "coordinator/dispatch", "coordinator/runner", "coordinator/planner",
        "tests/sim/simulator", "swapper/core"]
# What pure code may not touch: threads, files, clocks, sockets, gRPC, torch.
IMPURE = re.compile(r'#include\s+[<"](thread|mutex|condition_variable|future|fstream|filesystem|chrono|'
                    r'iostream|unistd\.h|sys/[^>]*|fcntl\.h|grpc[^>"]*|torch[^>"]*|ATen[^>"]*|c10[^>"]*|'
                    r'spdlog[^>"]*|common/base/mutex\.h)[>"]')
PURE_EXCEPTIONS = {"common/base/clock.cc", "common/base/mutex.h", "common/job/job_file.cc"}

breaches = []


def breach(path, line, text):
    breaches.append(f"{path}:{line}: {text}")


def tracked():
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                         capture_output=True, text=True, check=True).stdout.split("\n")
    return [p for p in out if p and (ROOT / p).is_file()]


def allowed_for(path):
    best = max((k for k in MAY_INCLUDE if path.startswith(k + "/")), key=len, default=None)
    return MAY_INCLUDE.get(best)


def check_includes(path, lines):
    allowed = allowed_for(path)
    pure = any(path.startswith(p + "/") for p in PURE) and path not in PURE_EXCEPTIONS
    for number, line in enumerate(lines, 1):
        match = re.match(r'#include "([^"]+)"', line)
        if match and allowed is not None:
            target = match.group(1)
            top = target.split("/")[0]
            if top in {"common", "coordinator", "worker", "swapper", "client", "tests", "bench"}:
                if not any(target.startswith(a + "/") for a in allowed):
                    breach(path, number, f"may not include {target}")
                if not (ROOT / target).exists():
                    breach(path, number, f"includes {target}, which does not exist")
        if pure and IMPURE.match(line):
            breach(path, number, f"pure code may not have {line.strip()}")


def namespace_of(path):
    inner = path.removeprefix("tests/unit/")
    best = max((k for k in NAMESPACES if inner.startswith(k + "/")), key=len, default=None)
    return NAMESPACES.get(best)


def check_namespace(path, lines):
    wanted = namespace_of(path)
    if wanted is None:
        breach(path, 1, "NAMESPACES has no row for its folder")
        return
    opened = False
    for number, line in enumerate(lines, 1):
        match = re.match(r"namespace (harmony\b[\w:]*)", line)
        if not match:
            continue
        # Forward declarations of wire messages; namespaces within that of the folder.
        inside = wanted != "harmony" or match.group(1) == "harmony::limits"
        if match.group(1) == wanted or (inside and match.group(1).startswith(wanted + "::")):
            opened = True
        elif match.group(1) != "harmony::v1":
            breach(path, number, f"opens {match.group(1)}, its folder's is {wanted}")
    if not opened and path not in WITHOUT_NAMESPACE and not path.startswith("tests/fuzz/fuzz_"):
        breach(path, 1, f"does not open {wanted}")


def check_text(path, lines):
    if len(lines) > MAX_FILE_LINES:
        breach(path, len(lines), f"{len(lines)} lines, over {MAX_FILE_LINES}: split it")
    for number, line in enumerate(lines, 1):
        if re.search(r"\bDISABLED_|#if 0\b|GTEST_SKIP\(\)\s*;", line):
            breach(path, number, "a test or code switched off without a reason")
        if re.search(r"\bstd::string_view\b", line):
            breach(path, number, "use absl::string_view (the Abseil in use has its own type)")
        if re.match(r"#include <(mutex|shared_mutex|condition_variable)>", line) and \
                not path.startswith(("tests/", "bench/")) and path != "common/base/mutex.h":
            breach(path, number, "use common/base/mutex.h, whose locking clang checks")
        if re.search(r"\busing namespace\b", line) and path.endswith(".h"):
            breach(path, number, "no 'using namespace' in a header")


def check_functions(path, lines):
    """A function body in our format starts with '... {' at column 0 (or 2 in a class) and ends with '}'
    at the same column."""
    start, indent = None, ""
    for number, line in enumerate(lines, 1):
        if start is None:
            match = re.match(r"( {0,2})[A-Za-z].*\) (const )?(override )?(noexcept )?\{$", line)
            if match and not re.match(r" *(namespace|class|struct|enum|extern)\b", line):
                start, indent = number, match.group(1)
        elif line == indent + "}":
            if number - start + 1 > MAX_FUNCTION_LINES:
                breach(path, start, f"function of {number - start + 1} lines, over {MAX_FUNCTION_LINES}")
            start = None


def check_built(sources):
    listed = "\n".join((ROOT / p).read_text() for p in tracked()
                       if p.endswith(("CMakeLists.txt", ".cmake", ".sh")))
    for path in sources:
        if path.endswith(".cc") and not re.search(r"\b" + re.escape(pathlib.Path(path).name), listed):
            breach(path, 1, "no build file lists it")


def check_format(sources):
    for tool in ("clang-format-14", "clang-format"):
        try:
            done = subprocess.run([tool, "--dry-run", "-Werror", *sources], cwd=ROOT,
                                  capture_output=True, text=True)
        except FileNotFoundError:
            continue
        for line in done.stderr.split("\n"):
            if "error:" in line:
                breaches.append(line)
        return
    breach("tests/tidy/tidy.py", 1, "clang-format is not installed: deploy/setup.sh --with-tests")


def main():
    sources = [p for p in tracked() if p.endswith((".cc", ".h", ".cu", ".cuh"))]
    for path in sources:
        lines = (ROOT / path).read_text().split("\n")
        check_includes(path, lines)
        check_namespace(path, lines)
        check_text(path, lines)
        check_functions(path, lines)
    check_built(sources)
    check_format(sources)
    for line in breaches:
        print(line)
    print(f"tidy: {len(sources)} files, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
