"""Who may reach a coordinator, and what they may do: users and groups of this machine, certificates of others."""
import contextlib
import grp
import json
import os
import pathlib
import pwd
import re
import signal
import socket
import ssl
import stat
import subprocess
import unittest

import authority
import harness

COORDINATOR = harness.BUILD / "bin" / "harmony-coordinator"
NOBODY = 65534
DEVICES = "sim:mem=16MiB"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings


def answers(connection):
    """Whether the other side speaks HTTP/2 with us, which it does not before it takes us for somebody."""
    with contextlib.suppress(OSError):
        connection.settimeout(30)
        connection.sendall(PREFACE)
        return len(connection.recv(9)) > 0
    return False


class Access(harness.Scratch):

    def setUp(self):
        super().setUp()
        self.socket = self.dir / "c" / "c.sock"
        self.socket.parent.mkdir(mode=0o700)
        self.env["HARMONY_SOCKET"] = str(self.socket)

    def coordinator(self, *args):
        """A coordinator without processes to direct. What it says when it listens, or its exit code."""
        log = open(self.dir / "coordinator.log", "w+")
        self.addCleanup(log.close)
        command = [COORDINATOR, "--socket", self.socket, "--state-dir", self.dir / "s", "--devices", DEVICES,
                   "--host-memory", "64MiB", *map(str, args)]
        self.process = subprocess.Popen(command, stderr=log, env=self.env, cwd=self.dir)
        self.addCleanup(self.end, self.process)
        text = harness.wait_for(
            lambda: self.process.poll() is not None and "exit" or
            re.search("event=listening.*", (self.dir / "coordinator.log").read_text()), "it listens")
        return self.process.wait() if text == "exit" else text[0]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(60), 0)

    def log_text(self):
        return (self.dir / "coordinator.log").read_text()

    def error(self, *args, **kw):
        """(code, message) of a command that fails."""
        done = self.harmony(*args, "--json", check=None, **kw)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        error = json.loads(done.stderr.strip().splitlines()[-1])["error"]
        return error["code"], error["message"]


@unittest.skipUnless(authority.OPENSSL, "openssl is not installed")
class TlsTest(Access):

    def setUp(self):
        super().setUp()
        self.authority = authority.Authority(self.dir / "ca")
        self.server = self.authority.sign("server", "DNS:localhost,IP:127.0.0.1")

    def listen(self, *args, server=None):
        certificate, key = server or self.server
        said = self.coordinator("--listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key,
                                "--tls-client-ca", self.authority.ca, *args)
        if isinstance(said, str):
            self.port = int(re.search(r'address="127.0.0.1:(\d+)"', said)[1])
        return said

    def options(self, pair, ca=None, host="127.0.0.1"):
        """Of a command that a bearer of this certificate gives, who is elsewhere and has no socket."""
        self.env["HARMONY_SOCKET"] = str(self.dir / "nowhere.sock")
        return ["--address", f"{host}:{self.port}", "--tls-ca", ca or self.authority.ca, "--tls-cert", pair[0],
                "--tls-key", pair[1]]

    def connect(self, pair=None):
        """Whether a client with this certificate, or without, is answered."""
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        with contextlib.suppress(OSError), \
                authority.tls_context(self.authority, pair).wrap_socket(raw, server_hostname="localhost") as tls:
            return answers(tls)
        raw.close()
        return False

    def test_each_name_may_do_what_it_is_allowed(self):
        self.listen("--allow", "cert:viewer=read", "--allow", "cert:spiffe://here/trainer=change")
        viewer = self.options(self.authority.sign("viewer"))
        trainer = self.options(self.authority.sign("any", "URI:spiffe://here/trainer"))
        stranger = self.options(self.authority.sign("stranger"))
        # The common name counts only where there are no other names.
        pretender = self.options(self.authority.sign("viewer2", "DNS:elsewhere"))
        job, out = self.job("remote", max_steps=3)

        self.assertEqual(self.harmony("list", *viewer, "--json").stdout.strip(), "[]")
        code, message = self.error("submit", job, *viewer)
        self.assertEqual(code, "PERMISSION_DENIED")
        self.assertIn("certificate viewer: may read", message)
        self.assertIn("--allow cert:viewer=change", message)
        self.assertFalse(out.exists())
        for who, name in ((stranger, "stranger"), (pretender, "elsewhere")):
            code, message = self.error("list", *who)
            self.assertEqual(code, "PERMISSION_DENIED")
            self.assertIn(f"--allow cert:{name}=read", message)

        job_id = self.harmony("submit", job, *trainer).stdout.strip()
        self.assertEqual(job_id, "job-1")
        self.assertIn("job-1", self.harmony("status", *viewer).stdout)
        self.assertIn("job-1", self.harmony("status", "job-1", *viewer).stdout)
        self.assertEqual(self.error("cancel", job_id, *viewer)[0], "PERMISSION_DENIED")
        self.harmony("cancel", job_id, *trainer)
        self.harmony("watch", job_id, *viewer)
        self.assertIn('event=call method=Cancel by="certificate spiffe://here/trainer" from=127.0.0.1', self.log_text())

    def test_paths_of_a_job_from_elsewhere_are_whole(self):
        self.listen("--allow", "cert:trainer=change")
        trainer = self.options(self.authority.sign("trainer"))
        for changes, key in (({"model_name_or_path": "model"}, "model_name_or_path"), ({"output_dir": "out"}, "output_dir"),
                             ({"data": {"path": "data.txt", "format": "text-bytes"}}, "data.path")):
            with self.subTest(key):
                job, _ = self.job("relative", **changes)
                code, message = self.error("submit", job, *trainer)
                self.assertEqual(code, "INVALID_ARGUMENT")
                self.assertIn(key, message)
                self.assertIn("relative path", message)
        job, _ = self.job("set")
        self.assertIn("output_dir", self.error("plan", job, "--set", "output_dir=x", *trainer)[1])
        self.assertIn("microbatches", self.harmony("plan", job, *trainer).stdout)
        self.assertIn("name a job", self.error("logs", *trainer)[1])
        self.assertIn("takes no --address", self.error("down", *trainer)[1])

    def test_who_shows_no_valid_certificate_is_not_answered(self):
        self.listen("--allow", "cert:viewer=read", "--allow", "cert:old=read")
        viewer = self.authority.sign("viewer")
        old = self.authority.sign("old", expired=True)
        other = authority.Authority(self.dir / "other", "other")
        foreign = other.sign("viewer")
        self.assertTrue(self.connect(viewer))
        self.assertFalse(self.connect(), "without a certificate")
        self.assertFalse(self.connect(old), "with one that has expired")
        self.assertFalse(self.connect(foreign), "with one of another authority")
        with socket.create_connection(("127.0.0.1", self.port)) as plain:
            self.assertFalse(answers(plain), "without TLS")

        # And the command line says why, as far as it can know.
        code, message = self.error("list", *self.options(old))
        self.assertEqual(code, "FAILED_PRECONDITION")
        self.assertIn("old.crt: expired on 2020-01-02", message)
        code, message = self.error("list", *self.options(foreign))
        self.assertEqual(code, "UNAVAILABLE")
        self.assertIn("--tls-client-ca", message)
        code, message = self.error("list", *self.options(viewer, ca=other.ca))
        self.assertIn("not signed by --tls-ca", message)
        self.assertIn("--tls-cert is missing", self.error("list", "--address", "localhost:1", "--tls-ca", other.ca)[1])
        self.assertIn("HOST:PORT is expected", self.error("list", *self.options(viewer)[2:], "--address", "localhost")[1])

    def test_a_renewed_certificate_is_taken_without_a_restart(self):
        self.listen("--allow", "cert:viewer=read")
        viewer = self.options(self.authority.sign("viewer"))
        self.harmony("list", *viewer)
        next_authority = authority.Authority(self.dir / "next", "next")
        pair = next_authority.sign("server", "DNS:localhost,IP:127.0.0.1")
        for fresh, used in zip(pair, self.server):
            os.replace(fresh, used)
        viewer = self.options(self.authority.sign("viewer"), ca=next_authority.ca)
        harness.wait_for(lambda: self.harmony("list", *viewer, check=None).returncode == 0, "the new one", pause=0.5)

    def test_what_is_wrong_with_the_options_is_said_before_it_listens(self):
        certificate, key = self.server
        good = {"--listen": "127.0.0.1:0", "--tls-cert": certificate, "--tls-key": key,
                "--tls-client-ca": self.authority.ca, "--allow": "cert:a=read"}
        readable = self.dir / "readable.key"
        readable.write_bytes(key.read_bytes())
        readable.chmod(0o644)
        expired = self.authority.sign("expired", "DNS:localhost", expired=True)
        another = self.authority.sign("another")
        cases = [
            ({"--tls-cert": None}, "--tls-cert is missing"), ({"--tls-key": None}, "--tls-key is missing"),
            ({"--tls-client-ca": None}, "--tls-client-ca is missing"), ({"--listen": None}, "--listen HOST:PORT"),
            ({"--allow": None}, "nobody may call"), ({"--allow": "user:0=change"}, "nobody may call"),
            ({"--allow": "cert:a=write"}, "'write' is no right"), ({"--tls-key": readable}, f"chmod 600 {readable}"),
            ({"--tls-cert": expired[0], "--tls-key": expired[1]}, "expired on 2020-01-02"),
            ({"--tls-key": another[1]}, "is not the key of the certificate"),
            ({"--tls-cert": self.dir / "none.crt"}, "none.crt"), ({"--tls-client-ca": key}, "no certificate in it"),
            ({"--listen": "127.0.0.1"}, "HOST:PORT is expected"), ({"--socket-group": "no-such-group"}, "no-such-group"),
        ]
        for changes, text in cases:
            with self.subTest(text):
                options = {k: v for k, v in (good | changes).items() if v is not None}
                self.assertIn(self.coordinator(*[x for pair in options.items() for x in pair]), (1, 2))
                self.assertIn(text, self.log_text())
                self.assertFalse(self.socket.exists())


class SocketTest(Access):

    def mode(self, path):
        return stat.S_IMODE(path.stat().st_mode)

    def test_sockets_are_the_owners_alone_unless_a_group_is_named(self):
        self.coordinator()
        attach = self.socket.with_name("attach.sock")
        self.assertEqual((self.mode(self.socket), self.mode(attach)), (0o600, 0o600))
        self.stop()
        self.assertFalse(self.socket.exists() or attach.exists())
        group = os.getgid()
        self.coordinator("--socket-group", grp.getgrgid(group).gr_name)
        self.assertEqual((self.mode(self.socket), self.socket.stat().st_gid), (0o660, group))
        self.assertEqual(self.mode(attach), 0o600)
        self.assertEqual(self.mode(self.socket.parent), 0o710)

    def test_a_whole_set_of_processes_works_with_a_group(self):
        del self.env["HARMONY_SOCKET"]
        self.up("--devices", DEVICES, "--socket-group", str(os.getgid()), "--allow", f"user:{NOBODY}=read")
        folder = self.runtime / "harmony"
        self.assertEqual(self.mode(folder / "coordinator.sock"), 0o660)
        self.assertEqual(self.mode(folder / "attach.sock"), 0o600)
        job, _ = self.job("trained", max_steps=2)
        self.harmony("submit", job, "--no-calibrate")
        self.harmony("watch")
        self.harmony("down")
        self.assertIn("no right", self.harmony("up", "--devices", DEVICES, "--allow", "user:0=own", "--detach", check=2).stderr)

    def as_nobody(self, *args, groups=(), check=0):
        return self.harmony(*args, check=check, user=NOBODY, group=NOBODY, extra_groups=list(groups))

    @unittest.skipUnless(os.geteuid() == 0, "takes another user: run as root")
    def test_another_user_of_the_group_reads_and_does_not_change(self):
        self.dir.chmod(0o755)  # its folders are as they were
        probe = subprocess.run([harness.HARMONY, "--version"], user=NOBODY, group=NOBODY, extra_groups=[],
                               capture_output=True, check=False)
        if probe.returncode != 0:
            self.skipTest("another user may not start the programs of this build")
        group = 54321  # of nobody; root need not be a member
        name = pwd.getpwuid(NOBODY).pw_name
        self.coordinator("--socket-group", group)
        done = self.as_nobody("pause", "job-1", check=1)
        self.assertIn("no coordinator listens", done.stderr, "who is not of the group is kept out")
        self.assertEqual(self.as_nobody("status", "--json", groups=[group]).returncode, 0)
        done = self.as_nobody("pause", "job-1", groups=[group], check=None)
        self.assertIn(f"{name} (uid {NOBODY}): may read, and Pause is more", done.stderr)
        self.assertIn(f"--allow user:{name}=change", done.stderr)
        # The processes' own socket opens for nobody else.
        connect = ("import socket,sys; s = socket.socket(socket.AF_UNIX); sys.exit(s.connect_ex(sys.argv[1]) != 13)")
        subprocess.run(["python3", "-c", connect, self.socket.with_name("attach.sock")], user=NOBODY, group=NOBODY,
                       extra_groups=[group], check=True)
        self.stop()
        for rule in (f"user:{name}=change", f"group:{group}=change"):
            self.coordinator("--socket-group", group, "--allow", rule)
            done = self.as_nobody("pause", "job-1", groups=[group], check=None)
            self.assertIn("no job 'job-1'", done.stderr)
            self.stop()

    @unittest.skipUnless(os.geteuid() == 0, "takes other users: run as root")
    def test_other_users_do_not_keep_the_owner_out(self):
        self.dir.chmod(0o755)
        group = 54321
        self.coordinator("--socket-group", group)
        take_all = ("import socket, sys\n"
                    "all = [socket.socket(socket.AF_UNIX) for _ in range(64)]\n"
                    "for each in all: each.connect(sys.argv[1])\n"
                    "print('taken', flush=True)\n"
                    "sys.stdin.read()")
        for user in (54321, 54322, 54323):
            taker = subprocess.Popen(["python3", "-c", take_all, self.socket], user=user, group=group, extra_groups=[],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.addCleanup(taker.wait)
            self.addCleanup(taker.stdout.close)
            self.addCleanup(taker.stdin.close)
            self.assertEqual(taker.stdout.readline(), "taken\n")
        with socket.socket(socket.AF_UNIX) as own:
            own.settimeout(60)
            own.connect(str(self.socket))
            self.assertNotEqual(own.recv(9), b"", "the owner's connection is closed")

    def test_connections_that_say_nothing_are_few_and_end(self):
        self.coordinator()
        silent = [socket.socket(socket.AF_UNIX) for _ in range(100)]
        for connection in silent:
            self.addCleanup(connection.close)
            connection.connect(str(self.socket))
            connection.setblocking(False)

        def closed():
            """How many the coordinator has closed; of the others there is nothing to read but its settings."""
            count = 0
            for connection in silent:
                try:
                    while data := connection.recv(4096):
                        pass
                    count += data == b""
                except BlockingIOError:
                    pass
                except OSError:
                    count += 1
            return count
        harness.wait_for(lambda: closed() >= 100 - 64, "those beyond the limit to be closed")
        harness.wait_for(lambda: closed() == 100, "all to be closed")
        self.harmony("list")


if __name__ == "__main__":
    unittest.main(verbosity=2)
