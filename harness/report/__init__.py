"""The report of a run: one offline page, a table for the terminal, Markdown for continuous integration."""
