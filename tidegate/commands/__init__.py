"""The command line: each command parses, calls one function, prints."""


def main() -> None:
    """The program `tidegate`. Ends the process with 0 done, 1 failed, 2 misuse, 3 refused."""
    # Imported late, so that importing one command does not import all.
    from tidegate.commands.face import run_command_line

    run_command_line()
