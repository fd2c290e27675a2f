"""Exchange with other tools: reads fio's output from elsewhere into a run, and writes runs for other tools.

`virt-overhead import` (importing.py): the bytes of a file become documents (document.py), whether fio printed JSON,
terse lines or normal text (normal_form.py). Of several results of one call, the last one counts, and the times of the
sections show what ran at once (timeline.py). Each section of a job file (section.py) becomes a point with its workload
and figures (reader.py), and the points of host and guests a stored run with copies of the files. Whatever is doubtful
is refused, or a note of the cell.

`virt-overhead export` (exporting.py): the measurements as CSV or Parquet, or as the tree of bench-fio that fio-plot
draws; and losses, verdicts and values as gauges for Prometheus. A run is given to others without what
identifies machines and users (sharing.py): as a file, as an entry of the gallery, or by HTTP POST.

`virt-overhead images export` and `images import` (bundling.py) bring the images to machines that cannot build them.
"""
