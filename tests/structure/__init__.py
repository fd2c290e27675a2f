"""Figures of the code's structure, and the limits that `tox -e lint` keeps: sizes, words, class names, circles."""
