#!/usr/bin/env python3
"""clang-tidy with the checks of .clang-tidy, and clang's thread-safety analysis, over all product code.

  tests/tidy/clang_tidy.py              files that changed since they were found clean
  tests/tidy/clang_tidy.py --all        every file
  tests/tidy/clang_tidy.py --without-torch   files that changed, but for those with LibTorch's headers, which take minutes
  tests/tidy/clang_tidy.py FILE...      what these are compiled in, headers too

What is checked is what is compiled: sources, and the files in which CMake puts several of a library together. A file is clean for as long as its text, that of the headers of this project that it includes (directly or not), its
compile command and .clang-tidy stay: a hash of all of these in the user's cache says so, for all clones, as the
compiler's cache does. Needs the compile commands of the release build (build/compile_commands.json). Prints what
clang-tidy prints; exits 1 on any warning.
"""
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "harmony" / "clang-tidy"
TOOL = "clang-tidy-14"
PRODUCT = re.compile("(build/)?(client|common|coordinator|swapper|worker)/")
# Thread-safety warnings are clang's own; the compile commands are gcc's.
EXTRA = ["-Wthread-safety", "-Wno-unknown-warning-option"]
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)


@functools.lru_cache(maxsize=None)
def text_of(path):
    """Of a source of this project; of a generated header, that of the .proto it comes from."""
    proto = re.fullmatch(r"(harmony/v1/\w+)(\.grpc)?\.pb\.h", path)
    at = ROOT / ("proto/" + proto.group(1) + ".proto" if proto else path)
    return at.read_text() if at.is_file() else None


@functools.lru_cache(maxsize=None)
def includes_of(path):
    included = (i.removeprefix(f"{ROOT}/") for i in INCLUDE.findall(text_of(path)))
    return tuple(i for i in included if text_of(i) is not None)


def all_of(path):
    """The file and all it includes of this project, sorted."""
    found, todo = {path}, [path]
    while todo:
        for include in includes_of(todo.pop()):
            if include not in found:
                found.add(include)
                todo.append(include)
    return sorted(found)


def key_of(path, command, common):
    hashed = hashlib.sha256(common)
    hashed.update(command.replace(str(ROOT), "").encode())
    for each in all_of(path):
        hashed.update(each.encode() + b"\0" + text_of(each).replace(str(ROOT), "").encode() + b"\0")
    return hashed.hexdigest()


def check(path):
    command = [TOOL, "-p", "build", "--quiet", "--warnings-as-errors=*",
               *["--extra-arg=" + arg for arg in EXTRA], path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    # What stays of standard error when all is well is a count of suppressed warnings.
    return path, done.returncode, done.stdout + (done.stderr if done.returncode else "")


def main(arguments):
    commands = json.loads((ROOT / "build/compile_commands.json").read_text())
    by_path = {os.path.relpath(c["file"], ROOT): c["command"] for c in commands}
    paths = sorted(p for p in by_path if PRODUCT.match(p))
    named = {os.path.relpath(a, ROOT) for a in arguments if not a.startswith("-")}
    compiled = {p: set(all_of(p)) for p in paths}
    if unknown := sorted(n for n in named if not any(n in files for files in compiled.values())):
        sys.exit(f"clang-tidy: nothing that build/compile_commands.json names includes {', '.join(unknown)}")
    paths = [p for p in paths if not named or named & compiled[p]]
    if "--without-torch" in arguments:
        paths = [p for p in paths if "libtorch/torch/include" not in by_path[p]]
    common = (ROOT / ".clang-tidy").read_bytes() + " ".join([TOOL, *EXTRA]).encode()
    keys = {p: key_of(p, by_path[p], common) for p in paths}
    CACHE.mkdir(parents=True, exist_ok=True)
    everything = bool(named) or "--all" in arguments
    due = [p for p, key in keys.items() if everything or not (CACHE / key).exists()]
    start, failed = time.monotonic(), 0
    # The longest first: those that include LibTorch, at the end of the alphabet.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, code, output in pool.map(check, reversed(due)):
            if code == 0:
                (CACHE / keys[path]).touch()
                continue
            failed += 1
            print(output, end="", flush=True)
    print(f"clang-tidy: {len(due)} of {len(keys)} files checked in {time.monotonic() - start:.0f} s, "
          f"{failed} with warnings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
