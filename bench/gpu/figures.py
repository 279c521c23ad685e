"""Figures of a measurement: a line of JSON for each, written as soon as it is known, so that a step that fails or hangs
afterwards has reported it.

A figure has a `name` and a `value` with a `unit`, or, where it could not be had, `failed` with the reason.
"""
import contextlib
import json
import os
import sys
import traceback

FILE = "HARMONY_FIGURES"  # names the file to append to; without it figures are only printed
REASON_CHARACTERS = 600, 1400  # of the beginning, where the error is, and of the end, where logs are


def note(name, value, unit="", **more):
    _write({"name": name, "value": value, "unit": unit, **more})


def note_failure(name, reason):
    first, last = REASON_CHARACTERS
    _write({"name": name, "failed": reason if len(reason) <= first + last else f"{reason[:first]}\n...\n{reason[-last:]}"})


def _write(figure):
    line = json.dumps(figure)
    print(line, flush=True)
    if FILE in os.environ:
        with open(os.environ[FILE], "a") as file:
            file.write(line + "\n")


@contextlib.contextmanager
def attempt(name, failures):
    """What fails inside is noted under the name and added to `failures`; whatever comes next goes on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
        traceback.print_exc(file=sys.stdout)
        failures.append(name)
        note_failure(name, f"{type(error).__name__}: {error}")


def read(path):
    """Those of a file; a last line that was cut off is left out."""
    figures = []
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        for line in file:
            with contextlib.suppress(ValueError):
                figures.append(json.loads(line))
    return figures
