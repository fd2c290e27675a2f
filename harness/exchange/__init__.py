"""Exchange with other tools: reads fio's output from elsewhere into a run, and writes runs for other tools."""
