"""A systemd of a test's own: process 1 of namespaces of its own (processes, mounts, control groups, network, names), with
the units of an installation. Nothing of the machine's own systemd, if it has one, is asked or touched.

It needs root, and a control group (version 2) in which a group can be made: `unavailable()` says what is missing.
"""
import contextlib
import os
import pathlib
import re
import shutil
import subprocess

import harness

SOURCE = pathlib.Path(__file__).resolve().parents[2]
INIT = pathlib.Path("/lib/systemd/systemd")
PREFIX = "/run/installed"  # as seen inside: programs, libraries, units
UNITS = f"{PREFIX}/lib/systemd/system"
USER = "harmony"
UID = 60990  # in a range that Debian gives to nobody
GROUP, GROUP_ID = "ml", 60991  # one that users of Harmony may be in

# Process 1 before it is systemd. Everything below /run is ours; the rest can only be read.
BOOT = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$STAGE"
mkdir -p "$STAGE"/installed/bin "$STAGE"/installed/lib/torch "$STAGE"/installed/lib/cuda "$STAGE"/shared "$STAGE"/state
mount --bind "$BIN" "$STAGE"/installed/bin
mount --bind "$TORCH" "$STAGE"/installed/lib/torch
[ ! -d "$CUDA" ] || mount --bind "$CUDA" "$STAGE"/installed/lib/cuda
mount --bind "$WORK" "$STAGE"/shared
mkdir -p "$STAGE"/systemd/system "$STAGE"/systemd/system.conf.d
cp -r "$IMAGE"/run/. "$STAGE"
for name in basic sysinit sockets shutdown multi-user; do
  printf '[Unit]\nDefaultDependencies=no\n' > "$STAGE"/systemd/system/$name.target
done
printf '[Manager]\nDefaultEnvironment=LD_LIBRARY_PATH=%s/lib/torch:%s/lib/cuda\n' /run/installed /run/installed \
  > "$STAGE"/systemd/system.conf.d/test.conf
for file in passwd group; do cp /etc/$file "$STAGE"/$file; done
grep -q '^harmony:' /etc/passwd || echo "harmony:x:$ID:$ID::/:/usr/sbin/nologin" >> "$STAGE"/passwd
grep -q '^harmony:' /etc/group || echo "harmony:x:$ID:" >> "$STAGE"/group
echo "$OTHERS" >> "$STAGE"/group
mount --bind "$STAGE"/passwd /etc/passwd
mount --bind "$STAGE"/group /etc/group
mount -n --move "$STAGE" /run
chown -R harmony:harmony /run/shared
mount -n --bind /run/state /var/lib
umount -n -R /sys/fs/cgroup
mount -n -t cgroup2 cgroup2 /sys/fs/cgroup
mount -n -o remount,bind,ro /
exec env -i container=harmony-test LANG=C PATH="$PATH" SYSTEMD_UNIT_PATH=/run/systemd/system:/run/installed/lib/systemd/system \
  "$INIT" --system --unit=basic.target --log-target=null --show-status=false
"""


def own_group():
    """Where this process's control group of version 2 is mounted; None where there is none."""
    mounts = pathlib.Path("/proc/self/mountinfo").read_text()
    mount = re.search(r"(?m)^\S+ \S+ \S+ (\S+) (\S+) .* - cgroup2 ", mounts)
    group = re.search(r"(?m)^0::(.*)$", pathlib.Path("/proc/self/cgroup").read_text())
    if not mount or not group:
        return None
    return pathlib.Path(mount[2]) / os.path.relpath(group[1], mount[1])


def unavailable():
    """Why there can be no such systemd here; empty where there can."""
    if not INIT.exists() or shutil.which("systemctl") is None:
        return "there is no systemd here"
    if os.geteuid() != 0:
        return "a systemd of our own needs root"
    group = own_group()
    if group is None:
        return "there are no control groups of version 2"
    if not os.access(group, os.W_OK):
        return f"no control group can be made in {group}"
    done = subprocess.run(["unshare", *NAMESPACES, "mount", "--make-rprivate", "/"], capture_output=True, text=True)
    return f"no namespaces can be made: {done.stderr.strip()}" if done.returncode != 0 else ""


NAMESPACES = ["--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--cgroup", "--net", "--uts", "--ipc"]


def cached(name):
    """What the build tree was configured with."""
    return re.search(rf"(?m)^{name}:\w+=(.*)$", (harness.BUILD / "CMakeCache.txt").read_text())[1]


class Machine:
    """Running from construction to stop(). `work` is /run/shared inside, and belongs to the user of the units. `files`:
    texts by their path below /run.
    """

    def __init__(self, scratch, work, files):
        self.group = own_group() / f"harmony-test-{os.getpid()}-{scratch.name}"
        self.log = open(scratch / "systemd.log", "w+b")
        image, stage = scratch / "image", scratch / "stage"
        for folder in (image, stage):
            folder.mkdir()
        subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={PREFIX}", f"-DHARMONY_DOCUMENTS={harness.BUILD / 'documents'}",
                        "-P", SOURCE / "cmake" / "InstallByPrefix.cmake"],
                       env=os.environ | {"DESTDIR": str(image)}, check=True, capture_output=True)
        for path, text in files.items():
            file = image / "run" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        torch = pathlib.Path(cached("HARMONY_LIBTORCH")).resolve()
        environment = os.environ | {
            "STAGE": str(stage), "BIN": str(harness.BUILD / "bin"), "WORK": str(work), "IMAGE": str(image), "ID": str(UID),
            "OTHERS": f"{GROUP}:x:{GROUP_ID}:",
            "TORCH": str(torch / "lib"), "CUDA": str(torch.parent / "nvidia/cu13/lib"), "INIT": str(INIT)}
        self.group.mkdir()
        self.process = None
        try:
            enter = f"echo $$ > {self.group}/cgroup.procs && exec unshare \"$@\""
            self.process = subprocess.Popen(["sh", "-c", enter, "sh", *NAMESPACES, "sh", "-c", BOOT], env=environment,
                                            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)
            harness.wait_for(lambda: self.process.poll() is not None or self.booted(), "systemd to run")
            if self.process.poll() is not None:
                raise AssertionError(f"systemd did not start:\n{self.said()}")
        except BaseException:
            self.stop()
            raise

    def said(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def init(self):
        """Process 1, by its number outside; None before there is one."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return children[0] if children else None

    def booted(self):
        with contextlib.suppress(FileNotFoundError):
            init = self.init()
            return (init is not None and pathlib.Path(f"/proc/{init}/comm").read_text() == "systemd\n" and
                    self.run("systemctl", "is-active", "basic.target").stdout == "active\n")
        return False

    def run(self, *command, user=None, **kw):
        """A command inside, to its end."""
        enter = ["nsenter", "--target", self.init(), "--mount", "--pid", "--cgroup", "--net", "--uts", "--ipc"]
        if user is not None:
            enter += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        environment = {"PATH": os.environ["PATH"], "LANG": "C", "HOME": "/run/shared",
                       "SYSTEMD_UNIT_PATH": f"/run/systemd/system:{UNITS}"}
        return subprocess.run([*enter, *map(str, command)], env=environment, text=True, capture_output=True,
                              cwd="/", stdin=subprocess.DEVNULL, timeout=harness.DEADLINE, **kw)

    def processes(self):
        """The numbers, outside, of all that run but systemd and its waiting parent."""
        pids = set()
        for folder, _, _ in os.walk(self.group):
            with contextlib.suppress(OSError):  # the group may be removed meanwhile
                pids |= set(map(int, pathlib.Path(folder, "cgroup.procs").read_text().split()))
        return sorted(pids - {self.process.pid, int(self.init())})

    def stop(self):
        """Ends all that runs in it, and removes its control groups."""
        if not self.group.exists():
            return
        (self.group / "cgroup.kill").write_text("1")
        if self.process is not None:
            self.process.wait()

        def removed():
            for folder, _, _ in os.walk(self.group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            return not self.group.exists()
        harness.wait_for(removed, f"{self.group} to be empty")
        self.log.close()
