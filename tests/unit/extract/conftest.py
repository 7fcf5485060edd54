"""An empty directory to extract into, and a function that does it."""

import os

import pytest

from launcher.errors import PodgateError
from launcher.extract.extraction import Extraction, Limits


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "parent" / "root"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def extract(root):
    """Extract an archive, in pieces of any size; return the error's code, or None."""

    def extract(archive, *, content_bytes=1 << 20, entries=100, seconds=60.0, step=1 << 20, clock=lambda: 0.0):
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        extraction = Extraction(fd, Limits(content_bytes, seconds, entries), clock=clock)
        try:
            for at in range(0, len(archive), step):
                extraction.feed(archive[at : at + step])
            extraction.finish()
        except PodgateError as error:
            return error.code
        finally:
            extraction.close()
            os.close(fd)
        return None

    return extract
