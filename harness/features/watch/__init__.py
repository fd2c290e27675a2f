"""`virt-overhead watch`: follows a run that is measuring, from another shell.

It only reads the stored files of the run (progress.py), again and again, until the run ends.
"""
