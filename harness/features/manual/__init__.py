"""`virt-overhead completion SHELL` and `virt-overhead man`: the command line as a script for shells, and as a page.

Both are written from the parser of all commands (commands.py).
"""
