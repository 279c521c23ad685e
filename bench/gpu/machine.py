"""Where the programs are, and in what environment they run on a machine that has only a GPU's driver and PyTorch."""
import importlib.util
import json
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MANIFEST = "manifest.json"  # of a folder that pack.py made


def programs():
    """The folder that holds bin/; in a pack the files of the repository lie beside it."""
    if "HARMONY_BUILD" in os.environ:
        return pathlib.Path(os.environ["HARMONY_BUILD"])
    return ROOT if (ROOT / "bin" / "harmony").exists() else ROOT / "build"


def package_folders(name):
    """Where Python has a package, without importing it."""
    found = importlib.util.find_spec(name)
    return [pathlib.Path(folder) for folder in found.submodule_search_locations] if found else []


def version_of_torch_in(folder):
    return re.search(r"^__version__ = '([^']*)'", (folder / "version.py").read_text(), re.MULTILINE)[1]


def torch_version():
    """Of the PyTorch of this Python, or None."""
    found = package_folders("torch")
    return version_of_torch_in(found[0]) if found else None


def torch_at_fault():
    """Why this PyTorch's libraries are not those that a pack's programs were built with; None where they are."""
    manifest = programs() / MANIFEST
    wanted = json.loads(manifest.read_text())["torch"] if manifest.exists() else None
    if wanted is None or wanted == torch_version():
        return None
    return f"the programs were built with torch {wanted}, {sys.executable} has {torch_version()}"


def library_path():
    """What LD_LIBRARY_PATH has to be. Python itself must not see it: the pack has other versions of what it links."""
    folders = []
    if (programs() / "libs").is_dir():  # a pack, whose programs find nothing by themselves
        folders = [programs() / "libs", *[folder / "lib" for folder in package_folders("torch")]]
    for folder in package_folders("nvidia"):
        folders += sorted(folder.glob("*/lib"))
    return ":".join([*map(str, folders), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


def memory():
    """{name: bytes} of the host's memory, as the kernel tells."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}


def environment(fake):
    """What is added to the environment of the programs; with `fake` they find the driver made for tests."""
    added = {"LD_LIBRARY_PATH": library_path()}
    if fake:
        import harness  # found after use()
        gpus = harness.fake_gpus(1, devices=1)
        added = {**gpus, "LD_LIBRARY_PATH": f"{gpus['LD_LIBRARY_PATH']}:{added['LD_LIBRARY_PATH']}"}
    return added


def use():
    """Makes the tests' modules importable, and has them find the programs."""
    os.environ["HARMONY_BUILD"] = str(programs())
    sys.path[:0] = [str(ROOT / part) for part in ("tests/integration", "tests/export", "client/export", "bench")]
