"""`python -m tidegate.stack` is `tidegate stack`."""

from tidegate.commands.stack import stack_commands

stack_commands(prog_name="tidegate stack")
