"""Runs the command `lockstep`; Ctrl-C during the imports also prints one line."""

import os
import signal
import sys


def main() -> None:
    if os.name != "posix":
        sys.exit("lockstep: needs Linux or macOS; on Windows, run it in WSL")
    try:
        from lockstep.harness.cli.main import main as run
        from lockstep.harness.core import processes
    except KeyboardInterrupt:
        sys.stderr.write("lockstep: stopped\n")
        sys.exit(130)
    processes.adopt_orphans()
    spared = processes.list_descendants()  # of a shell that this process has replaced
    try:
        run(prog_name="lockstep")
    finally:  # the exit status is decided, and Python takes a moment to end
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        processes.end_descendants(spared)


if __name__ == "__main__":
    main()
