"""The units of deploy/systemd under a real systemd (systemd_machine.py): each process is one, and can die or be restarted alone."""
import json
import os
import pathlib
import re
import shutil
import unittest

import authority
import harness
import systemd_machine

# Paced, so that there are not many steps to do again without disturbance.
DEVICES = "sim*2:mem=8MiB,flops=200M,h2d=1GB/s,d2h=1GB/s,p2p=1GB/s"
ENDLESS = {"max_steps": 100000, "global_batch_size": 4, "sequence_length": 16, "mode": "harmony-pp", "layer_groups": [2, 2, 2],
           "virtual_replicas": 1}
WORKERS = ["harmony-worker@0", "harmony-worker@1"]
ALL = ["harmony-memory", "harmony-coordinator", "harmony-swapper", "harmony-host", *WORKERS]
WATCHDOG = 6  # seconds, for a busy machine
MEMBER, STRANGER = systemd_machine.GROUP_ID, 60992  # users, of the group of that number
STORM = 12  # more deaths than one that dies by itself may die


class SystemdTest(harness.Scratch):

    def setUp(self):
        super().setUp()
        if reason := systemd_machine.unavailable():
            self.skipTest(reason)
        self.work = self.dir / "work"
        self.work.mkdir()
        shutil.copytree(self.model, self.work / "model")
        shutil.copy(self.dir / "data.txt", self.work)
        self.machine = systemd_machine.Machine(self.dir, self.work, {
            "installed/etc/harmony/cluster.yaml": json.dumps({"devices": DEVICES, "host_memory": "256MiB"}),
            # There is no journal.
            "systemd/system/harmony-.service.d/log.conf": "[Service]\nStandardError=append:/run/shared/%p.log\n",
            **{f"systemd/system/{unit}.service.d/watchdog.conf": f"[Service]\nWatchdogSec={WATCHDOG}s\n"
               for unit in ("harmony-host", "harmony-coordinator", "harmony-swapper", "harmony-worker@1", "harmony-memory")}})
        self.addCleanup(self.machine.stop)

    def systemctl(self, *args, check=0):
        done = self.machine.run("systemctl", *args)
        if check is not None:
            self.assertEqual(done.returncode, check, f"{args}: {done.stdout}{done.stderr}\n{self.logs()}")
        return done.stdout

    def property(self, unit, name):
        return self.systemctl("show", "--value", "-p", name, unit).strip()

    def client(self, *args, check=0, user=systemd_machine.UID):
        state = ["--state-dir", "/var/lib/harmony"] if user == systemd_machine.UID else []
        done = self.machine.run(f"{systemd_machine.PREFIX}/bin/harmony", "--runtime-dir", "/run/harmony", *state, *args, user=user)
        if check is not None:
            self.assertEqual(done.returncode, check, f"{args}: {done.stdout}{done.stderr}\n{self.logs()}")
        return done

    def logs(self):
        return self.machine.run("sh", "-c", "systemctl --no-pager list-units --all 'harmony*'; "
                                "tail -n 15 /run/shared/*.log /var/lib/harmony/logs/*.log").stdout

    def start(self):
        self.systemctl("enable", "--runtime", *WORKERS)
        self.systemctl("start", "harmony.target")

    def submit(self):
        """A job that ends when it is told to; its id."""
        job, _ = self.job("endless", **ENDLESS)
        harness.write_job(self.work / "job.yaml", json.loads(job.read_text()) | {
            "model_name_or_path": "/run/shared/model", "output_dir": "/run/shared/out",
            "data": {"path": "/run/shared/data.txt", "format": "text-bytes"}})
        return json.loads(self.client("submit", "/run/shared/job.yaml", "--no-calibrate", "--json").stdout)["job_id"]

    def check_result(self, steps):
        """Losses and weights after so many steps are those of a trainer that nothing disturbs."""
        job, _ = self.job("plain", **ENDLESS | {"max_steps": steps})
        plain = self.plain(job, self.dir / "plain")
        self.assertEqual(harness.losses(self.work / "out"), harness.losses(plain))
        self.harmony("export", self.work / "out", "--checkpoint", steps, "-o", self.dir / "exported")
        self.assertEqual(harness.weights_digest(self.dir / "exported"), harness.weights_digest(plain / "final"))

    def steps(self):
        path = self.work / "out" / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def goes_on(self):
        """Waits for steps that are done from now on."""
        before = self.steps()
        try:
            harness.wait_for(lambda: self.steps() >= before + 2, f"steps after {before}", deadline=60)
        except AssertionError as error:
            self.fail(f"{error}\n{self.logs()}")

    def replaced(self, unit, pid):
        def is_replaced():
            return self.property(unit, "MainPID") not in ("0", pid) and self.property(unit, "ActiveState") == "active"
        harness.wait_for(is_replaced, f"{unit} to run again")

    def disturb(self, unit, act):
        """`act` ends the process of the unit, alone, and the job goes on with another one."""
        others = {other: self.property(other, "MainPID") for other in ALL if other != unit}
        pid = self.property(unit, "MainPID")
        act()
        self.replaced(unit, pid)
        self.goes_on()
        self.assertEqual({other: self.property(other, "MainPID") for other in others}, others)

    def start_coordinator_with(self, options):
        unit = "/run/systemd/system/harmony-coordinator.service.d/access.conf"
        self.machine.run("sh", "-c", f"mkdir -p {pathlib.Path(unit).parent}; printf '%s' \"$1\" > {unit}", "sh", f"""[Service]
ExecStart=
ExecStart={systemd_machine.PREFIX}/bin/harmony start-process coordinator --runtime-dir /run/harmony \
  --state-dir /var/lib/harmony {options}
SupplementaryGroups={systemd_machine.GROUP}
RestrictAddressFamilies=AF_INET AF_INET6
""")
        self.systemctl("daemon-reload")

    def kill(self, unit, signal):
        self.systemctl("kill", f"--signal={signal}", unit)

    def test_a_job_goes_on_when_units_die_hang_or_are_restarted_alone(self):
        self.start()
        job_id = self.submit()
        self.goes_on()
        self.assertEqual({self.property(unit, "ActiveState") for unit in ALL}, {"active"})
        self.systemctl("start", "harmony-worker@2", check=1)
        self.assertEqual(self.property("harmony-worker@2", "NRestarts"), "0")
        self.assertIn("there is no worker 2", self.logs())
        self.disturb("harmony-memory", lambda: self.kill("harmony-memory", "KILL"))
        # It has been given the memory by an owner that has it from systemd.
        self.disturb("harmony-worker@1", lambda: self.kill("harmony-worker@1", "KILL"))
        self.disturb("harmony-coordinator", lambda: (self.kill("harmony-coordinator", "KILL"), self.client("list")))
        self.disturb("harmony-swapper", lambda: self.systemctl("restart", "harmony-swapper"))
        self.disturb("harmony-memory", lambda: self.systemctl("restart", "harmony-memory"))
        for unit in ("harmony-host", "harmony-coordinator", "harmony-swapper", "harmony-worker@1", "harmony-memory"):
            self.disturb(unit, lambda: self.kill(unit, "STOP"))
        self.disturb("harmony-coordinator", lambda: self.systemctl("restart", "harmony-coordinator"))
        self.assertIn("harmony.target", self.client("down", check=2).stderr)

        # However often something kills a process, neither it nor the job is given up.
        for unit in ("harmony-worker@1", "harmony-coordinator"):
            for _ in range(STORM):
                pid = self.property(unit, "MainPID")
                self.kill(unit, "KILL")
                self.replaced(unit, pid)
            self.goes_on()
        # Only who hung died by itself.
        owner = self.machine.run("cat", "/run/shared/harmony-memory.log").stdout
        self.assertEqual(re.findall(r"worker 1 has died by itself: (\d+) of its", owner), ["1"], owner)

        # The stop waits for the checkpoint, for which processes that die are started again. It cannot be over before:
        self.kill("harmony-swapper", "STOP")
        self.systemctl("stop", "--no-block", "harmony.target")
        self.kill("harmony-worker@0", "KILL")
        self.kill("harmony-swapper", "KILL")
        self.systemctl("stop", "harmony.target")
        self.assertTrue((self.work / "out" / f"checkpoint-{self.steps()}").is_dir(), list((self.work / "out").iterdir()))
        harness.wait_for(lambda: not self.machine.processes(), "the others to stop")
        self.assertEqual({self.property(unit, "ActiveState") for unit in ALL}, {"inactive"})

        self.systemctl("start", "harmony.target")
        self.goes_on()
        self.client("cancel", job_id)
        self.client("watch", job_id)
        self.check_result(self.steps())

    @unittest.skipUnless(authority.OPENSSL, "openssl is not installed")
    def test_others_get_in_where_the_coordinators_unit_says_so(self):
        ca = authority.Authority(self.work / "ca")
        server, viewer = ca.sign("server", "DNS:localhost"), ca.sign("viewer")
        for path, user in ((ca.folder, systemd_machine.UID), *((path, systemd_machine.UID) for path in server),
                           *((path, STRANGER) for path in viewer)):
            os.chown(path, user, user)
        there = "/run/shared/ca"
        options = f"--socket-group {systemd_machine.GROUP} --listen localhost:7443 --tls-cert {there}/server.crt" \
                  f" --tls-key {there}/server.key --tls-client-ca {there}/ca.crt"
        self.start_coordinator_with(options + " --allow cert:viewer=look")
        self.systemctl("enable", "--runtime", *WORKERS)
        self.systemctl("start", "harmony-coordinator", check=1)
        self.assertIn("look", self.logs())
        self.assertEqual(self.property("harmony-coordinator", "NRestarts"), "0")
        self.start_coordinator_with(options + " --allow cert:viewer=read")
        self.start()
        job_id = self.submit()
        self.goes_on()
        self.assertIn(job_id, self.client("list", user=MEMBER).stdout)
        self.assertIn("is more than that", self.client("cancel", job_id, user=MEMBER, check=None).stderr)
        self.assertNotIn(job_id, self.client("list", user=STRANGER, check=None).stdout)
        tls = ["--address", "localhost:7443", "--tls-ca", f"{there}/ca.crt", "--tls-cert", f"{there}/viewer.crt",
               "--tls-key", f"{there}/viewer.key"]
        self.assertIn(job_id, self.client(*tls, "list", user=STRANGER).stdout)
        # The folder is made anew with its owner.
        self.disturb("harmony-memory", lambda: self.systemctl("restart", "harmony-memory"))
        self.assertIn(job_id, self.client("list", user=MEMBER).stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
