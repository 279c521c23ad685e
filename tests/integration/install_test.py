"""deploy/install.sh and the Debian package: what they install runs without the build tree, and goes again without a trace."""
import json
import os
import pathlib
import pty
import re
import shutil
import subprocess
import unittest

import harness

SOURCE = pathlib.Path(__file__).resolve().parents[2]
INSTALL = SOURCE / "deploy" / "install.sh"
PROGRAMS = ["harmony", "harmony-compare", "harmony-coordinator", "harmony-swapper", "harmony-worker"]


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


class Installed(harness.Scratch):

    def setUp(self):
        super().setUp()
        self.prefix = self.dir / "prefix"
        self.env.pop("DESTDIR", None)
        for name in ("HARMONY_STATE_DIR", "HARMONY_RUNTIME_DIR", "XDG_CACHE_HOME", "SUDO_USER"):
            self.env.pop(name, None)

    def script(self, *args, check=0, prefix=None, **env):
        command = [INSTALL, "--prefix", prefix or self.prefix, *args]
        done = subprocess.run(command, env=self.env | env, text=True, capture_output=True, stdin=subprocess.DEVNULL,
                              timeout=harness.DEADLINE)
        self.assertEqual(done.returncode, check, f"{args}\n{done.stdout}\n{done.stderr}")
        return done.stdout if check == 0 else done.stderr

    def install(self, *args, **kw):
        return self.script("--build", harness.BUILD, "--without-cuda", *args, **kw)

    def run_bare(self, root, *command, cwd=None):
        """Runs it with nothing in the environment but a home."""
        done = subprocess.run([root / "bin" / command[0], *map(str, command[1:])], env={"HOME": str(self.dir)},
                              cwd=cwd or self.dir, text=True, capture_output=True, timeout=harness.DEADLINE)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def check_programs(self, root):
        """They train, with the libraries of the installation."""
        for name in PROGRAMS:
            libraries = subprocess.run(["ldd", root / "bin" / name], env={}, text=True, capture_output=True, check=True).stdout
            self.assertNotIn("not found", libraries)
            for library in re.findall(r"=> (\S*(?:libtorch|libc10|libgomp|libcu)\S*)", libraries):
                self.assertEqual(pathlib.Path(library).resolve().parent, root.resolve() / "lib" / "harmony")
        # The example, but for its length and its data, which a machine other than Debian may lack.
        job = self.dir / "work" / "job.yaml"
        job.parent.mkdir()
        shutil.copy(root / "share" / "harmony" / "examples" / "job.yaml", job)
        self.run_bare(root, "harmony", "run", job, "--devices", "sim*2:mem=64MiB", "--no-calibrate", "--set", "max_steps=1",
                      "--set", f"data.path={self.dir / 'data.txt'}", cwd=job.parent)
        self.assertTrue((job.parent / "runs" / "example" / "final" / "model.safetensors").exists())
        self.assertIn("global_batch_size", self.run_bare(root, "harmony", "complete", "harmony", "run", "--set", "glo"))


class InstallTest(Installed):

    def test_what_is_installed_runs_without_the_build_tree_wherever_it_is_moved_to(self):
        said = self.install()
        self.assertIn(f"export PATH=\"{self.prefix}/bin:$PATH\"", said)
        self.assertEqual([p for p in files_below(self.prefix) if p.startswith("bin/")],
                         sorted(f"bin/{name}" for name in PROGRAMS + (["harmony-cuda"] if (harness.BUILD / "bin/harmony-cuda").exists() else [])))
        unit = (self.prefix / "lib/systemd/system/harmony.service").read_text()
        self.assertIn(f"ExecStart={self.prefix}/bin/harmony up --config {self.prefix}/etc/harmony/cluster.yaml ", unit)
        worker = (self.prefix / "lib/systemd/system/harmony-worker@.service").read_text()
        self.assertIn(f"ExecStart={self.prefix}/bin/harmony start-process worker %i ", worker)
        limits = unit[unit.index("# Regions of host memory"):unit.index("[Install]")]
        self.assertIn(limits, worker)
        page = subprocess.run(["gzip", "-dc", self.prefix / "share/man/man1/harmony.1.gz"], text=True, capture_output=True, check=True)
        self.assertEqual(page.stdout, self.harmony("manual").stdout)
        for shell, path in (("bash", "bash-completion/completions/harmony"), ("zsh", "zsh/site-functions/_harmony")):
            self.assertEqual((self.prefix / "share" / path).read_text(), self.harmony("completion", shell).stdout)
        cluster = self.run_bare(self.prefix, "harmony", "doctor", "--config", self.prefix / "etc/harmony/cluster.yaml")
        self.assertNotIn("PROBLEM", cluster)
        moved = self.dir / "moved"
        self.prefix.rename(moved)
        self.check_programs(moved)

    def test_below_destdir_nothing_else_is_touched_and_nothing_is_left(self):
        image = self.dir / "image"
        self.install(prefix="/usr", DESTDIR=str(image))
        self.assertIn("etc/harmony/cluster.yaml", files_below(image))
        self.assertIn("usr/share/zsh/vendor-completions/_harmony", files_below(image))
        self.assertEqual((image / "usr/lib/systemd/system/harmony.service").read_text(),
                         (SOURCE / "deploy/systemd/harmony.service").read_text())
        self.run_bare(image / "usr", "harmony", "--version")
        self.script("--uninstall", prefix="/usr", DESTDIR=str(image))
        self.assertEqual(files_below(image), [])

    def test_installing_again_replaces_what_was_there_but_what_somebody_has_changed(self):
        self.install()
        config = self.prefix / "etc/harmony/cluster.yaml"
        config.write_text("devices: sim\n")
        (self.prefix / "bin" / "harmony-of-yore").write_text("")
        (self.prefix / "bin" / "other").write_text("")
        with open(self.prefix / "lib/harmony/manifest", "a") as manifest:
            manifest.write("file bin/harmony-of-yore\n")
        (self.prefix / "bin" / "harmony").write_text("damaged")
        self.install()
        self.run_bare(self.prefix, "harmony", "--version")
        self.assertFalse((self.prefix / "bin" / "harmony-of-yore").exists())
        self.assertEqual(config.read_text(), "devices: sim\n")
        self.assertIn(f"kept: {config}", self.script("--uninstall"))
        self.assertEqual(files_below(self.prefix), ["bin/other", "etc/harmony/cluster.yaml"])

    def test_what_is_wrong_is_said_before_anything_is_copied(self):
        fake = self.dir / "fake-build"
        (fake / "bin").mkdir(parents=True)
        for wanted, args in ((f"{self.dir}/none is no build tree", ["--build", self.dir / "none"]),
                             (f"{fake} is no build tree", ["--build", fake])):
            self.assertIn(wanted, self.script(*args, check=1))
        (fake / "CMakeCache.txt").write_text("")
        self.assertIn(f"no program {fake}/bin/harmony:", self.script("--build", fake, check=1))
        for name in PROGRAMS:
            (fake / "bin" / name).symlink_to(harness.BUILD / "bin" / name)
        self.assertIn("no manual page", self.script("--build", fake, check=1))
        (fake / "documents").symlink_to(harness.BUILD / "documents")
        (fake / "bin" / "harmony-worker").unlink()
        (fake / "bin" / "harmony-worker").write_text("#!/bin/sh\necho harmony-worker 0.0.1+other\n")
        (fake / "bin" / "harmony-worker").chmod(0o755)
        self.assertIn("of several builds", self.script("--build", fake, check=1))
        self.assertIn("full path", self.script(prefix="relative", check=2))
        self.assertIn("unknown option '--prefx'", self.script("--prefx", check=2))
        self.assertIn("there is no installation in", self.script("--uninstall", check=1))
        self.assertFalse(self.prefix.exists())
        (self.prefix / "bin").mkdir(parents=True)
        (self.prefix / "bin" / "harmony").write_text("somebody's")
        self.assertIn("not of this script", self.install(check=1))
        self.assertEqual(files_below(self.prefix), ["bin/harmony"])


class UninstallTest(Installed):

    def state(self):
        return self.dir / "s" / "harmony"

    def test_nothing_is_replaced_or_removed_under_processes_that_run(self):
        self.install()
        program = self.prefix / "bin" / "harmony"
        self.addCleanup(self.harmony, "down", "--now", check=None)
        subprocess.run([program, "up", "--detach", "--devices", "sim:mem=8MiB"], env=self.env, capture_output=True, check=True)
        supervisor = json.loads((self.runtime / "harmony" / "processes.json").read_text())["supervisor"]
        before = files_below(self.prefix)
        for args in (["--uninstall", "--remove-state"], ["--build", harness.BUILD, "--without-cuda"]):
            said = self.script(*args, check=1)
            for pid in (supervisor, *self.all_pids()):
                self.assertIn(f"process {pid} of ", said)
            stop = re.search(rf"(?m)^  ({program} --runtime-dir {self.runtime}/harmony down)$", said)
            self.assertTrue(stop, said)
        self.assertEqual(files_below(self.prefix), before)
        self.assertTrue(self.state().exists())
        # Another installation with the same state does not take it away either.
        other = self.dir / "other"
        self.install(prefix=other)
        self.assertIn(f"uses {self.state()}: stop it", self.script("--uninstall", "--remove-state", prefix=other, check=1))
        subprocess.run(stop[1].split(), env=self.env, check=True, capture_output=True)
        self.script("--uninstall", "--remove-state")
        self.assertFalse(self.prefix.exists())
        self.assertFalse(self.state().exists())

    def test_state_is_asked_about_and_kept_or_removed(self):
        self.install()
        self.state().mkdir(parents=True)
        (self.state() / "jobs.sqlite").write_text("jobs")
        cache = self.dir / ".cache" / "harmony"
        cache.mkdir(parents=True)
        before = files_below(self.prefix)
        said = self.script("--uninstall", check=2)
        self.assertIn("--keep-state or --remove-state", said)
        self.assertIn(str(self.state()), said)
        self.assertEqual(files_below(self.prefix), before)
        self.assertIn(f"kept: {self.state()}", self.script("--uninstall", "--keep-state"))
        self.assertFalse(self.prefix.exists())
        self.assertTrue((self.state() / "jobs.sqlite").exists())
        for answer, left in ((b"\n", True), (b"y\n", False)):
            self.install()
            ours, theirs = pty.openpty()
            process = subprocess.Popen([INSTALL, "--prefix", self.prefix, "--uninstall"], env=self.env, stdin=theirs,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            os.write(ours, answer)
            said, _ = process.communicate(timeout=harness.DEADLINE)
            os.close(ours)
            os.close(theirs)
            self.assertEqual(process.returncode, 0, said)
            self.assertIn(f"{self.state()}\n", said)
            self.assertFalse(self.prefix.exists())
            self.assertEqual((self.state().exists(), cache.exists()), (left, left))

    def test_an_installation_that_was_cut_short_is_finished_first(self):
        self.install()
        manifest = self.prefix / "lib/harmony/manifest"
        manifest.write_text("incomplete\n" + manifest.read_text())
        self.assertIn("install again, and then uninstall", self.script("--uninstall", check=1))
        self.install()
        self.script("--uninstall")
        self.assertFalse(self.prefix.exists())


class PackageTest(Installed):

    def version(self, folder, *tags):
        """Of a package of a repository in `folder`."""
        git = ["git", "-C", str(folder), "-c", "user.name=test", "-c", "user.email=test@localhost"]
        for tag in tags:
            subprocess.run(git + (["tag", tag] if tag else ["commit", "-q", "--allow-empty", "-m", "x"]), check=True)
        facts = self.dir / "facts.cmake"
        facts.write_text(f"set(CPACK_HARMONY_SOURCE_DIR {folder})\nset(CPACK_PACKAGE_VERSION 0.1.0)\n"
                         f"include({SOURCE}/cmake/PackageFacts.cmake)\nmessage(\"${{CPACK_PACKAGE_VERSION}}\")\n")
        return subprocess.run(["cmake", "-P", facts], env=dict(self.env, GIT_CEILING_DIRECTORIES=str(self.dir)), text=True,
                              capture_output=True, check=True).stderr.strip()

    @unittest.skipUnless(shutil.which("dpkg-shlibdeps"), "there is no dpkg-shlibdeps here")
    def test_versions_of_packages_rise_with_commits_and_tags(self):
        repository = self.dir / "repository"
        repository.mkdir()
        self.assertEqual(self.version(repository), "0.1.0")
        subprocess.run(["git", "init", "-q", repository], check=True)
        versions = [self.version(repository, *tags) for tags in ([""], ["", ""], ["v0.2", "other"], ["", ""], ["v0.3.1"])]
        self.assertRegex(" ".join(versions), r"^0\.1\.0\+1\.g\w+ 0\.1\.0\+3\.g\w+ 0\.2 0\.2\+2\.g\w+ 0\.3\.1$")
        for lower, higher in zip(versions, versions[1:]):
            subprocess.run(["dpkg", "--compare-versions", lower, "lt", higher], check=True)

    @unittest.skipUnless(shutil.which("dpkg-shlibdeps"), "there is no dpkg-shlibdeps here")
    def test_the_package_names_what_it_needs_and_its_programs_run(self):
        done = subprocess.run(["cpack", "-G", "DEB", "-B", self.dir / "packed", "--config", harness.BUILD / "CPackConfig.cmake"],
                              env=self.env, text=True, capture_output=True, timeout=harness.DEADLINE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        package, = (self.dir / "packed").glob("harmony_*.deb")
        control = subprocess.run(["dpkg-deb", "-f", package], text=True, capture_output=True, check=True).stdout
        for needed in (r"libc6 \(>= 2", "libgrpc", "libsqlite3-0", "libyaml-cpp"):
            self.assertRegex(control, rf"(?m)^Depends: .*{needed}")
        self.assertNotIn("torch", control.split("Description:")[0])
        scripts = self.dir / "scripts"
        subprocess.run(["dpkg-deb", "-e", package, scripts], check=True)
        self.assertEqual((scripts / "conffiles").read_text(), "/etc/harmony/cluster.yaml\n")
        for name in ("postinst", "prerm", "postrm"):
            self.assertTrue(os.access(scripts / name, os.X_OK))
        root = self.dir / "root"
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        owners = subprocess.run(["dpkg-deb", "-c", package], text=True, capture_output=True, check=True).stdout
        self.assertEqual({line.split()[1] for line in owners.splitlines()}, {"root/root"})
        self.assertNotIn("manifest", owners)
        self.assertEqual((root / "usr/lib/systemd/system/harmony.service").read_text(),
                         (SOURCE / "deploy/systemd/harmony.service").read_text())
        self.check_programs(root / "usr")

    def test_scripts_pass_shellcheck(self):
        if shutil.which("shellcheck") is None:
            self.skipTest("there is no shellcheck here")
        scripts = [*(SOURCE / "deploy").glob("*.sh"), *(SOURCE / "deploy/debian").glob("p*")]
        done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
