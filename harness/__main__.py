"""The command `lockstep`; Ctrl-C while it is imported ends it in a line, too."""

import os
import signal
import sys


def main() -> None:
    if os.name != "posix":
        sys.exit("lockstep: needs Linux or macOS; on Windows, run it in WSL")
    try:
        from lockstep.harness.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("lockstep: stopped\n")
        sys.exit(130)
    try:
        run(prog_name="lockstep")
    finally:  # the exit status is decided, and Python takes a moment to end
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
