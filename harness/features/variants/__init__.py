"""Variants: `[variant.NAME]` of a scenario or lab file. Each mode is measured in several complete stacks.

A variant has another emulator or machine type, other options of the attachment, or other settings of the host's kernel.
Its guests run beside those of the reference, or by turns with them where they cannot: then each round boots them anew.
`feature.py` makes a mode of each mode in each variant; the kernel measures modes that have another one to be compared
with (`Mode.against`) and judges the difference. `report.py` shows it.
"""
