#!/usr/bin/env python3
"""Run the checks against other programs (TRL, transformers, peft, llama.cpp, vLLM, trackers), and print one table.

    python tests/parity/run.py                        # all, one after another
    python tests/parity/run.py check_lora check_gguf  # some
    python tests/parity/run.py --list

Builds rlhost, installs what checks.toml says a check needs into an environment in target/parity, and runs the check there. Its output goes
to target/parity/NAME.txt, and with --update to NAME.txt beside the script, where the last output of each is kept. A check that lacks a
program or a value (`--set vllm=/path/to/vllm`) is left out, and the table says why. Exits 1 if a check fails.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
CACHE = REPOSITORY / "target/parity"


class LeftOut(Exception):
    """A check that can't run here, and why."""


@dataclass
class Check:
    """A table of checks.toml."""

    name: str
    arguments: tuple = ()
    packages: tuple = ()
    programs: tuple = ()
    examples: tuple = ()
    download: tuple = ()

    def command(self, target, values):
        """The command line of the script, whose environment is made if it is not there."""
        if missing := [program for program in self.programs if shutil.which(program) is None]:
            raise LeftOut(f"needs {', '.join(missing)}")
        values = {"target": target, "rlhost": target / "rlhost", "cache": CACHE, **values}
        try:
            arguments = [argument.format(**values) for argument in self.arguments]
        except KeyError as name:
            raise LeftOut(f"needs --set {name.args[0]}=VALUE") from None
        return [self.python(), HERE / f"{self.name}.py", *arguments]

    def python(self):
        """The interpreter of an environment with the check's packages."""
        if not self.packages:
            return sys.executable
        folder = CACHE / "environments" / hashlib.sha256("\n".join(sorted(self.packages)).encode()).hexdigest()[:12]
        python = folder / "bin/python"
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            pip(python, "install", *self.packages)
            (folder / "complete").touch()
        if self.download and not (CACHE / "sources").exists():
            pip(python, "download", "--no-deps", "--dest", CACHE / "sources", *self.download)
        return python


def pip(python, *arguments):
    """Runs pip, whose failure leaves the check out: a package may not exist for this machine."""
    done = subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise LeftOut(f"pip: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")


def build(checks):
    subprocess.run(["cargo", "build", "--locked", "--bin", "rlhost"], cwd=REPOSITORY, check=True)
    for example in sorted({example for check in checks for example in check.examples}):
        subprocess.run(["cargo", "build", "--locked", "--package", "rlhost", "--example", example], cwd=REPOSITORY, check=True)


def run(check, target, values):
    """Runs a check; returns how it ended, and its last line if it failed."""
    output = CACHE / f"{check.name}.txt"
    try:
        command = check.command(target, values)
    except LeftOut as reason:
        return "left out", str(reason)
    environment = os.environ | {"PATH": f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    with output.open("w") as file:
        code = subprocess.run([*map(str, command)], cwd=REPOSITORY, stdout=file, stderr=subprocess.STDOUT, env=environment).returncode
    lines = output.read_text(errors="replace").strip().splitlines()
    return ("passed", "") if code == 0 else (f"failed ({code})", lines[-1] if lines else "no output")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="checks to run (default: all)")
    parser.add_argument("--list", action="store_true", help="print the checks' names as JSON, and end")
    parser.add_argument("--update", action="store_true", help="keep the outputs of the checks that pass beside their scripts")
    parser.add_argument("--no-build", action="store_true", help="take the programs that are in --target")
    parser.add_argument("--target", type=Path, default=REPOSITORY / "target/debug", help="where cargo puts its programs")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a value that arguments in checks.toml refer to")
    args = parser.parse_args()

    checks = {name: Check(name, **table) for name, table in tomllib.loads((HERE / "checks.toml").read_text()).items()}
    if args.list:
        print(json.dumps(list(checks)))
        return 0
    if unknown := [name for name in args.names if name not in checks]:
        parser.error(f"no check is named {', '.join(unknown)}; there are {', '.join(checks)}")
    if malformed := [value for value in args.set if "=" not in value]:
        parser.error(f"--set takes NAME=VALUE, not {malformed[0]!r}")
    chosen = [checks[name] for name in args.names or checks]
    values = dict(value.split("=", 1) for value in args.set)
    CACHE.mkdir(parents=True, exist_ok=True)
    if not args.no_build:
        build(chosen)

    failed = False
    for check in chosen:
        print(f"{check.name:26}", end="", flush=True)
        begin = time.monotonic()
        result, detail = run(check, args.target.resolve(), values)
        print(f"{result:12} {time.monotonic() - begin:6.0f} s   {detail}"[:160].rstrip(), flush=True)
        failed |= result.startswith("failed")
        if args.update and result == "passed":
            shutil.copyfile(CACHE / f"{check.name}.txt", HERE / f"{check.name}.txt")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
