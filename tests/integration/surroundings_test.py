"""What launcher and `harmony run` say to a terminal and to a service manager, with fake programs in place of the real ones."""
import contextlib
import fcntl
import os
import pathlib
import pty
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import termios
import unittest

import harness
import launcher_test


class ServiceManagerTest(launcher_test.Launcher):

    def test_a_service_manager_is_told_of_the_start_the_stop_and_that_the_launcher_lives(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(self.dir / "notify"))
            manager.settimeout(harness.DEADLINE)
            self.env |= {"NOTIFY_SOCKET": str(self.dir / "notify"), "WATCHDOG_USEC": "3000000"}
            process = self.start("up", *self.cluster())
            said = []
            while said.count("WATCHDOG=1") < 3 or "READY=1" not in said:
                said.append(manager.recv(4096).decode())
            self.assertNotIn("STOPPING=1", said)
            child = self.processes()[("swapper", 0)]["pid"]
            self.assertNotIn(b"NOTIFY_SOCKET", pathlib.Path(f"/proc/{child}/environ").read_bytes())
            process.send_signal(signal.SIGTERM)
            while "STOPPING=1" not in said:
                said.append(manager.recv(4096).decode())
            self.wait_exit(process, 0)
            manager.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    said.append(manager.recv(4096).decode())
        self.assertEqual((said.count("READY=1"), said.count("STOPPING=1")), (1, 1))
        self.assertLessEqual(set(said) - {"WATCHDOG=1\nEXTEND_TIMEOUT_USEC=60000000"}, {"READY=1", "STOPPING=1", "WATCHDOG=1"})

    def test_the_units_for_systemd_are_sound(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("there is no systemd-analyze here")
        source, prefix = pathlib.Path(__file__).resolve().parents[2], self.dir / "installed"
        prefix.mkdir()
        (prefix / "bin").symlink_to(harness.BUILD / "bin")  # which has to be there
        (self.dir / "_harmony").write_text("")
        subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={prefix}", f"-DHARMONY_DOCUMENTS={self.dir}",
                        "-P", source / "cmake/InstallByPrefix.cmake"], check=True, capture_output=True)
        units = sorted((prefix / "lib/systemd/system").iterdir())
        self.assertEqual([unit.name for unit in units], sorted(
            path.name for path in (source / "deploy/systemd").iterdir() if path.suffix not in (".md", ".conf")))
        done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        for unit in units:
            if unit.suffix == ".service":
                done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", unit],
                                      capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, f"{unit}: {done.stdout[-2000:]}{done.stderr}")


class TerminalTest(launcher_test.Launcher):

    def test_on_a_terminal_a_frame_of_80_columns_is_redrawn_in_place(self):
        self.control("steps", 30)
        self.out.mkdir()
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        process = subprocess.Popen([harness.HARMONY, *map(str, self.run_arguments())], env=dict(self.env, TERM="xterm"),
                                   cwd=self.dir, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
        self.addCleanup(self.end, process)
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError), open(ours, "rb", buffering=0) as terminal:  # its end is an error
            while part := terminal.read(4096):
                text += part
        self.assertEqual(process.wait(harness.DEADLINE), 0)
        # Only what a frame takes is gone over again: what a screen that is long enough shows at the end.
        screen, most = [""], 0
        for move, rest in re.findall(r"\x1b\[(\d+A|J)([^\x1b]*)", text.decode().replace("\x1b[K", "")):
            if move != "J":
                most = max(most, int(move[:-1]))
                del screen[len(screen) - 1 - int(move[:-1]):]
                screen.append("")
            lines = rest.replace("\r\n", "\n").replace("\r", "").split("\n")
            screen[-1] += lines[0]
            screen += lines[1:]
        frames = re.findall(r"(?m)^.*step \d+/30.*$", "\n".join(screen))
        self.assertEqual(len([line for line in screen if line.startswith("memory: #")]), 1, "\n".join(screen))
        self.assertTrue(frames and 0 < most < 12, f"{most} lines up, frames {frames}")
        start = next(i for i, line in enumerate(screen) if re.match(r"job-1 .* step \d+/30", line))
        frame = screen[start:start + most]
        self.assertLess(max(map(len, frame)), 80, frame)
        for word in ("loss ", "1000 tokens/s", "memory [", "in 0 B/s", "out 0 B/s", "time: # computing"):
            self.assertIn(word, "\n".join(frame))

    @unittest.skipUnless(shutil.which("tmux"), "tmux, whose terminal shows wrong wrapping and scrolling, is not installed")
    def test_in_a_real_terminal_there_is_one_frame_at_any_time(self):
        self.control("steps", 100000)
        self.out.mkdir()
        tmux = ["tmux", "-L", self.dir.name, "-f", "/dev/null"]
        command = shlex.join(map(str, [harness.HARMONY, *self.run_arguments()]))
        subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "24", command], env=self.env, cwd=self.dir, check=True)
        self.addCleanup(subprocess.run, [*tmux, "kill-server"], stderr=subprocess.DEVNULL)

        def screen(*history):
            return subprocess.run([*tmux, "capture-pane", "-p", *history], capture_output=True, text=True).stdout
        step = r"(?m)^job-1 .* step (\d+)/100000"
        first = harness.wait_for(lambda: re.findall(step, screen()), "a frame")
        harness.wait_for(lambda: re.findall(step, screen()) not in (first, []), "it to be redrawn")
        # All that was shown, scrolled out or not, has one frame.
        shown = screen("-S", "-")
        self.assertEqual(len(re.findall(step, shown)), 1, shown)
        self.assertEqual(shown.count("memory: # data"), 1, shown)
        subprocess.run([*tmux, "send-keys", "C-c"], check=True)
        harness.wait_for(lambda: not list(self.runtime.iterdir()), "the run to end")

    def test_a_run_that_was_started_with_hangups_ignored_goes_on_without_its_terminal(self):
        self.control("steps", 100)
        with open(self.dir / "run.log", "ab") as log:
            process = subprocess.Popen(["nohup", harness.HARMONY, *map(str, self.run_arguments())], env=self.env, cwd=self.dir,
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.addCleanup(self.end, process)
        harness.wait_for(lambda: process.poll() is not None or "step " in (self.dir / "run.log").read_text(), "a step")
        process.send_signal(signal.SIGHUP)
        self.wait_exit(process, 0)
        self.assertIn("step 100/100", (self.dir / "run.log").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
