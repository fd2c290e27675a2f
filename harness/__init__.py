"""The disk overhead of virtual machines.

PYTEST_DONT_REWRITE: pytest would rewrite the assertions of a package with an entry point, and warn if it is too late.
"""


def main() -> int:
    """The console script `virt-overhead`. Nothing is imported before Ctrl-C is handled."""
    try:
        from harness.cli import main as run_command  # noqa: PLC0415

        return run_command()
    except KeyboardInterrupt:
        import sys  # noqa: PLC0415

        sys.stderr.write("virt-overhead: interrupted\n")
        return 130
