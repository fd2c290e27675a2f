"""The disk overhead of virtual machines.

PYTEST_DONT_REWRITE: pytest would rewrite the assertions of a package with an entry point, and warn if it is too late.
"""
