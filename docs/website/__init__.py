"""The documentation as a site: `tox -e docs`."""
