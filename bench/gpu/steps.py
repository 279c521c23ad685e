"""Steps of a measurement: each a process with a time limit, a log and figures of its own. What a step leaves behind is
ended with it, and results are written while it runs, so that whatever happens next takes nothing away."""
import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import tarfile
import time
import uuid

import figures

MARK = "HARMONY_MEASUREMENT"  # in the environment of all that we start, whoever its parent is by now
SECONDS = "HARMONY_STEP_SECONDS"  # in a step's environment: its time limit
SAVE_SECONDS = 15
LOG_BYTES = 1 << 20  # of a log, what is kept of its end
TAIL_CHARACTERS = 2500


class Step:
    """What is run, with at most `limit` seconds; left out where less than `least` are left."""

    def __init__(self, name, command, limit, least=10, background=False, uses_gpu=True, after=None):
        self.name, self.command, self.limit, self.least = name, [str(word) for word in command], limit, least
        self.background = background  # goes on beside the next steps, but not beside one that is not so if it uses the GPU
        self.uses_gpu = uses_gpu
        self.after = after  # the name of a step that has to have ended well


class Run:
    """A step's process."""

    def __init__(self, step, folder, limit, mark):
        self.step, self.began, self.limit = step, time.monotonic(), limit
        self.log, self.figures = folder / f"{step.name}.log", folder / f"{step.name}.figures"
        self.mark = f"{mark}.{step.name}"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                step.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, MARK: self.mark, figures.FILE: str(self.figures), SECONDS: str(limit),
                     "PYTHONUNBUFFERED": "1"})

    def over(self):
        """Whether it has ended, or had to be."""
        return self.process.poll() is not None or time.monotonic() - self.began > self.limit

    def end(self):
        """Ends whatever is left of it, and says what became of it."""
        code = self.process.poll()
        end_marked(self.mark)
        self.process.wait()
        status = "hung" if code is None else "ok" if code == 0 else "failed"
        return self.record(status, code)

    def record(self, status, code=None):
        text = tail(self.log).decode(errors="replace")
        return {"name": self.step.name, "status": status, "exit": code, "limit": round(self.limit),
                "seconds": round(time.monotonic() - self.began, 1), "figures": figures.read(self.figures),
                "last_lines": text[-TAIL_CHARACTERS:] if status in ("failed", "hung") else ""}


def tail(path):
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        return file.read()


def marked(mark, prefix=False):
    """The processes whose environment has this mark, or one that begins with it."""
    wanted, found = f"{MARK}={mark}".encode() + b"\0" * (not prefix), []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes() + b"\0":
                    found.append(int(entry.name))
    return found


def end_marked(mark, prefix=False):
    """Ends processes at once; some may start others meanwhile."""
    for _ in range(20):
        pids = marked(mark, prefix)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


class Measurement:
    """Runs steps within a budget of seconds; `save` is called with all records whenever something is new."""

    def __init__(self, out, folder, budget, save):
        self.out, self.folder, self.save, self.began, self.budget = out, folder, save, time.monotonic(), budget
        self.folder.mkdir(parents=True, exist_ok=True)
        self.mark = uuid.uuid4().hex
        self.records, self.beside, self.now = [], [], None

    def seconds_left(self):
        return self.budget - (time.monotonic() - self.began)

    def run(self, step):
        """Steps in the background are not timed; all others are, and have the GPU for themselves."""
        if not step.background:
            for run in [run for run in self.beside if run.step.uses_gpu]:
                self.join(run.step.name)
        reason = self.reason_to_skip(step)
        if reason:
            self.records.append({"name": step.name, "status": "skipped", "seconds": 0, "figures": [], "last_lines": reason})
            print(f"{step.name}: skipped, {reason}", flush=True)
            return self.write()
        run = Run(step, self.folder, min(step.limit, self.seconds_left()), self.mark)
        if step.background:
            self.beside.append(run)
        else:
            self.wait(run)

    def reason_to_skip(self, step):
        if step.after:
            self.join(step.after)
            before = [record for record in self.records if record["name"] == step.after]
            if not before or before[0]["status"] != "ok":
                return f"{step.after} did not end well"
        left = self.seconds_left()
        return f"{left:.0f} s are left, it needs {step.least}" if left < step.least else None

    def join(self, name):
        """Waits for a step that runs beside others."""
        for run in [run for run in self.beside if run.step.name == name]:
            self.beside.remove(run)
            self.wait(run)

    def wait(self, run):
        saved, self.now = time.monotonic(), run
        while not run.over():
            time.sleep(0.1)
            if time.monotonic() - saved > SAVE_SECONDS:
                self.write()
                saved = time.monotonic()
        record = run.end()
        self.records.append(record)
        self.now = None
        print(f"{record['name']}: {record['status']}, {record['seconds']} s, {self.seconds_left():.0f} s left", flush=True)
        self.write()

    def finish(self):
        for run in list(self.beside):
            self.join(run.step.name)

    def write(self):
        """What is known by now; of a step that did not come to its end, too."""
        self.save(self.records + [run.record("running") for run in [*filter(None, [self.now]), *self.beside]])
        pack_logs(self.folder, self.out / "logs.tar.gz")


def pack_logs(folder, archive):
    """The ends of all logs as one file, which is whole at any time."""
    scratch = archive.with_suffix(".new")
    with tarfile.open(scratch, "w:gz", compresslevel=4) as packed:
        for path in sorted(folder.iterdir()):
            data = tail(path)
            entry = tarfile.TarInfo(path.name)
            entry.size, entry.mtime = len(data), int(path.stat().st_mtime)
            packed.addfile(entry, io.BytesIO(data))
    os.replace(scratch, archive)


def write_json(path, document):
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(scratch, path)
