"""The disk overhead of virtual machines.

PYTEST_DONT_REWRITE: pytest would rewrite the assertions of a package with an entry point, and warn if it is too late.
"""


def main(module: str = "harness.cli", function: str = "main") -> int:
    """The console script `virt-overhead`, or another program. Nothing is imported before Ctrl-C is handled."""
    try:
        from importlib import import_module  # noqa: PLC0415

        return int(getattr(import_module(module), function)())
    except KeyboardInterrupt:
        import sys  # noqa: PLC0415

        sys.stderr.write("virt-overhead: interrupted\n")
        return 130
