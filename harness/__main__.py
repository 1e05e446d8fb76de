"""The command `lockstep`; Ctrl-C while it is imported ends it in a line, too."""

import sys


def main() -> None:
    try:
        from lockstep.harness.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("lockstep: stopped\n")
        sys.exit(130)
    run(prog_name="lockstep")


if __name__ == "__main__":
    main()
