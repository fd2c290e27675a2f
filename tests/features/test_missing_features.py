"""What the kernel asks of a feature that is not installed is refused, with the remedy."""

from __future__ import annotations

import re
import subprocess
import sys

# A process of its own, because the features of a process are loaded once.
_ASK = """
import harness.features
harness.features.NAMES = ()
from harness.errors import Unsupported
from harness.feature import array_maker, backup_maker, features, find_passed_device, settings_holder

assert features() == ()
print(find_passed_device(None, "/dev/nvme0n1"))
for find in (array_maker, backup_maker, settings_holder):
    try:
        find()
    except Unsupported as error:
        print(f"{error.message}: {error.hint}")
"""


def test_what_only_a_feature_does_is_refused_with_the_remedy() -> None:
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert [answer.partition(":")[0] for answer in answers] == [
        "this installation passes no devices through",
        "this installation makes no arrays",
        "this installation makes no backups",
        "this installation changes no settings of hosts",
    ]
    assert all(re.search("select (other )?modes", answer) for answer in answers)
