"""PostgreSQL for the lab: a cloud image with it, and the same programs for the lab host, whose image has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.events import Events
from harness.image import Cache, Image, choose_cache, provide
from harness.image.build import build
from harness.lab.transport.base import Runner
from tests.patience import patience
from tests.soak.cloud_images import make_image

_SECONDS = 300.0
_EXTENSION = (Path(__file__).parent / "postgres_image" / "extend").read_bytes()
_ARCHIVE = "/root/postgres.tar.gz"
_INSTALL = f"tar -C / --skip-old-files -xzf {_ARCHIVE}"
_REMOVE = f"""
cd / && tar -tzf {_ARCHIVE} | grep -v '/$' | xargs rm -f {_ARCHIVE}
rm -rf opt/postgres usr/lib/postgresql usr/share/postgresql var/lib/bench
"""
_START = "exec env LD_LIBRARY_PATH=/opt/postgres setpriv --reuid=nobody --regid=nogroup --clear-groups sh -ec"
PREPARE = f"""
chown nobody:nogroup . && {_START} 'tar -xzf /var/lib/bench/bench.tar.gz'
"""
"""Puts the database with pgbench's tables of scale 1 in the present directory."""
COMMAND = f"""
{_START} '
pg_ctl --pgdata=db --silent --wait --timeout=120 --options="-k /tmp" --log=log start || {{ tail -n 5 log; exit 1; }}
pgbench --host=/tmp --client=1 --time=5 --no-vacuum bench
pg_ctl --pgdata=db --silent --wait --mode=fast stop'
"""
"""Starts the server on it, runs pgbench for 5 s, and stops the server."""


def postgres_image(events: Events) -> Image:
    """The image, from the cache or built now: disk.qcow2 and host.tar.gz. Raises LabUnavailable."""
    recipe = make_image(
        "cloud-postgres",
        ("linux-image-cloud-amd64", "systemd-resolved", "postgresql", "libc-bin"),
        extension=_EXTENSION,
        outputs=("host.tar.gz",),
    )
    return provide(Cache(choose_cache()), [recipe], build, events)[recipe.name]


@contextmanager
def postgres_installed(host: Runner, image: Image) -> Iterator[None]:
    """The programs of the image on the host, which has Debian's release of the image. They are removed at the end."""
    with ExitStack() as stack:
        stack.callback(host.run, ["sh", "-c", _REMOVE], deadline=patience(_SECONDS))
        host.put(image.path / "host.tar.gz", _ARCHIVE, deadline=patience(_SECONDS))
        host.run(["sh", "-c", _INSTALL], deadline=patience(_SECONDS))
        yield
