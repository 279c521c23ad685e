"""Manual page and shell completion say what --help says, for they are made from the same declaration."""
import contextlib
import os
import pty
import re
import select
import shutil
import subprocess
import unittest

import harness


class CommandLine(harness.Scratch):

    def help_of(self, *command):
        """What --help shows: (names of the commands, names of the long options)."""
        text = self.harmony(*command, "--help").stdout
        options, _, commands = text.partition("\nSubcommands:\n")
        return (re.findall(r"(?m)^  (\S+)", commands),
                re.findall(r"(?m)^  (?:-\w,)?--([\w-]+)", options[options.index("Options:"):]))

    def offers(self, *words):
        """What `harmony complete` answers: (kind of paths, words)."""
        kind, *lines = self.harmony("complete", "harmony", *words).stdout.splitlines()
        return kind, [line.split("\t")[0] for line in lines]

    def page(self):
        """{command, or "" for the program: its part of the manual page}, without what troff needs."""
        text = self.harmony("manual").stdout
        plain = re.sub(r"\\f[BIR]|\\&", "", text).replace("\\-", "-")
        parts = re.split(r"(?m)^\.SS harmony ", plain)
        return {"": parts[0]} | {part.split()[0]: part for part in parts[1:]}


class OneDescriptionTest(CommandLine):

    def test_help_manual_and_completion_have_the_same_commands_and_options(self):
        commands, options = self.help_of()
        self.assertIn("run", commands)
        page = self.page()
        self.assertEqual(set(page), {"", *commands})
        self.assertEqual(self.offers("")[1], commands)
        self.assertEqual(self.offers("-")[1], ["--" + name for name in options])
        for command in commands:
            with self.subTest(command=command):
                own = self.help_of(command)[1]
                in_page = re.findall(r"(?m)^(?:-\w, )?--([\w-]+)", page[command])
                self.assertEqual(in_page, [name for name in own if name != "help"])
                offered = self.offers(command, "-")[1]
                # An option of the command hides the program's of the same name: --tls-cert of `up`.
                self.assertEqual(offered, ["--" + name for name in own + [o for o in options if o not in own]])

    def test_of_everything_that_takes_a_value_it_is_known_what(self):
        commands, options = self.help_of()
        for command, names in [((), options)] + [((c,), self.help_of(c)[1]) for c in commands]:
            for name in names:
                self.assertNotEqual(self.offers(*command, f"--{name}=")[0], ":unknown", (command, name))
            if command:
                self.assertNotEqual(self.offers(*command, "")[0], ":unknown", command)

    def test_the_page_is_sound(self):
        page = self.dir / "harmony.1"
        page.write_text(self.harmony("manual").stdout)
        if shutil.which("man") is None or shutil.which("groff") is None:
            self.skipTest("there is no man or no groff here")
        done = subprocess.run(["man", "--warnings=all", "-l", page], capture_output=True, text=True,
                              env=dict(self.env, LC_ALL="C.UTF-8", MANWIDTH="80", TERM="dumb"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"(?m)^ +--host-memory BYTES$")
        self.assertIn("$XDG_RUNTIME_DIR/harmony, or ~/.harmony", done.stdout)


class JobsTest(CommandLine):

    def test_jobs_and_processes_are_offered_with_and_without_a_coordinator(self):
        self.assertEqual(self.offers("watch", ""), (":none", []))
        self.assertFalse((self.dir / "s").exists(), "looking made a state directory")
        self.up("--devices", "sim:mem=8MiB")
        for name in ("first", "second"):
            job, _ = self.job(name, max_steps=1)
            self.harmony("submit", job, "--no-calibrate")
        self.assertEqual(self.offers("watch", "j"), (":none", ["job-1", "job-2"]))
        self.assertEqual(self.offers("logs", "--process", "worker-0")[1], ["worker-0"])
        self.harmony("watch", "job-2")
        self.harmony("down")
        self.assertEqual(self.offers("export", ""), (":directories", ["job-1", "job-2"]))
        self.assertEqual(self.offers("--state-dir", self.dir / "other", "watch", ""), (":none", []))


class ShellTest(CommandLine):

    def script(self, shell):
        path = self.dir / f"completion.{shell}"
        path.write_text(self.harmony("completion", shell).stdout)
        return path

    def test_the_script_for_bash_passes_shellcheck(self):
        if shutil.which("shellcheck") is None:
            self.skipTest("there is no shellcheck here")
        done = subprocess.run(["shellcheck", "--shell=bash", "--exclude=SC2207", self.script("bash")],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def typed(self, shell, start, *lines):
        """What a shell on a terminal makes of each line: its echoed command line after a tab and a return."""
        ours, theirs = pty.openpty()
        environment = dict(self.env, TERM="dumb", PATH=f"{harness.BUILD / 'bin'}:{os.environ['PATH']}", INPUTRC="/dev/null",
                           ZDOTDIR=str(self.dir), LC_ALL="C.UTF-8")
        process = subprocess.Popen(shell, env=environment, cwd=self.dir, stdin=theirs, stdout=theirs, stderr=theirs,
                                   start_new_session=True)
        self.addCleanup(self.end, process)
        os.close(theirs)
        text = ""
        with open(ours, "r+b", buffering=0) as terminal:

            def answer(line, until):
                nonlocal text
                terminal.write(line.encode())
                before = len(text)
                while not re.search(until, text[before:]):
                    self.assertTrue(select.select([terminal], [], [], harness.DEADLINE)[0], text)
                    text += terminal.read(4096).decode(errors="replace")
                return text[before:]

            # `args` prints what it was called with, so that no redrawing of the terminal has to be understood.
            answer(f"{start}\nargs() {{ printf '<%s>' \"$@\"; echo END; }}; echo rea''dy\n", "ready")
            found = []
            for line in lines:
                answered = answer(f"args harmony {line}\t\n", r"<harmony>.*END")
                # Zsh takes the slash behind a folder away again.
                found.append([word.rstrip("/") for word in re.findall(r"<([^<>]*)>", answered)[1:]])
            with contextlib.suppress(OSError):
                terminal.write(b"exit\n")
        return found

    LINES = {
        "stat": ["status"],
        "run job-f": ["run", "job-file.yaml"],
        "run job-file.yaml --set mode=harmony-p": ["run", "job-file.yaml", "--set", "mode=harmony-pp"],
        "run job-file.yaml --set data.path=job-f": ["run", "job-file.yaml", "--set", "data.path=job-file.yaml"],
        "run job-file.yaml --set=optim=ad": ["run", "job-file.yaml", "--set=optim=adamw"],
        "export job-1 --dtype bf": ["export", "job-1", "--dtype", "bf16"],
        "export out-d": ["export", "out-directory"],
        "up --devices 'sim*2:mem=1GiB; sim' --det": ["up", "--devices", "sim*2:mem=1GiB; sim", "--detach"],
        "list --runtime-dir /tmp:x --js": ["list", "--runtime-dir", "/tmp:x", "--json"],
    }

    def prepare(self):
        (self.dir / "job-file.yaml").write_text("")
        (self.dir / "out-directory").mkdir()
        (self.dir / "out-data").write_text("")

    def test_bash_completes_what_is_typed(self):
        self.prepare()
        found = self.typed(["bash", "--norc", "--noprofile", "-i"],
                           f"source {self.script('bash')}; complete -F _harmony_of_args args\n"
                           # `args harmony ...` is completed as `harmony ...` is.
                           "_harmony_of_args() { COMP_LINE=${COMP_LINE#args }; ((COMP_POINT -= 5));"
                           " COMP_WORDS=(\"${COMP_WORDS[@]:1}\"); ((COMP_CWORD -= 1)); _harmony harmony \"$2\" \"$3\"; }",
                           *self.LINES)
        self.assertEqual(dict(zip(self.LINES, found)), self.LINES)

    def test_zsh_completes_what_is_typed(self):
        if shutil.which("zsh") is None:
            self.skipTest("there is no zsh here")
        self.prepare()
        found = self.typed(["zsh", "-f", "-i"],
                           f"autoload -U compinit; compinit -D; source {self.script('zsh')}\n"
                           "compdef _precommand args", *self.LINES)
        self.assertEqual(dict(zip(self.LINES, found)), self.LINES)


if __name__ == "__main__":
    unittest.main(verbosity=2)
