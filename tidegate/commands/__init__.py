"""The command line: each command parses, calls one function, prints."""

import sys

from tidegate.commands.early import end_well_until_begun


def main() -> None:
    """The program `tidegate`. Ends the process with 0 done, 1 failed, 2 misuse, 3 refused."""
    end_well_until_begun(sys.argv[1:])
    # Imported late, so that importing one command does not import all.
    from tidegate.commands.face import run_command_line

    run_command_line()
