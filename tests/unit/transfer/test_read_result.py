"""A result is read whole, or its absence, size or fault is told; never is something unreadable taken for nothing."""

import json
import os

import pytest

from launcher.errors import PodgateError
from launcher.testing.local_exec import Faults
from launcher.transfer import download
from launcher.transfer.download import ResultRead

pytestmark = pytest.mark.anyio


@pytest.fixture
def output(pod):
    path = pod.storage / "current" / "output"
    path.mkdir(parents=True)
    return path


async def read_result(*where):
    async def no_pause(_seconds):
        pass

    return await download.read_result(*where, sleep=no_pause)


async def code_of(pod):
    with pytest.raises(PodgateError) as caught:
        await read_result(pod, "ns", "pod", 100)
    return caught.value.code


async def test_a_result_comes_byte_for_byte(pod, output):
    (output / "result.json").write_bytes(b'{"a": "\xc3\xb6"}\n')
    assert await read_result(pod, "ns", "pod", 100) == ResultRead(
        present=True, bytes=12, content=b'{"a": "\xc3\xb6"}\n'
    )


async def test_no_result_is_absent_and_an_empty_one_is_present(pod, output):
    assert await read_result(pod, "ns", "pod", 100) == ResultRead(present=False, bytes=0, content=None)
    (output / "result.json").write_bytes(b"")
    assert await read_result(pod, "ns", "pod", 100) == ResultRead(present=True, bytes=0, content=b"")


async def test_exactly_the_limit_is_read_and_one_byte_more_only_measured(pod, output):
    (output / "result.json").write_bytes(b"x" * 100)
    assert (await read_result(pod, "ns", "pod", 100)).content == b"x" * 100
    (output / "result.json").write_bytes(b"x" * 101)
    assert await read_result(pod, "ns", "pod", 100) == ResultRead(present=True, bytes=101, content=None)


async def test_a_result_without_a_read_bit_comes_all_the_same(pod, output):
    (output / "result.json").write_bytes(b"{}")
    (output / "result.json").chmod(0)
    assert (await read_result(pod, "ns", "pod", 100)).content == b"{}"


async def test_a_link_a_fifo_and_a_directory_are_no_results(pod, output, tmp_path):
    (tmp_path / "secret").write_text("{}")
    (output / "result.json").symlink_to(tmp_path / "secret")
    assert await code_of(pod) == "result_invalid"
    (output / "result.json").unlink()
    os.mkfifo(output / "result.json")
    assert await code_of(pod) == "result_invalid"
    (output / "result.json").unlink()
    (output / "result.json").mkdir()
    assert await code_of(pod) == "result_invalid"


async def test_a_missing_output_directory_is_a_failure_and_no_absence(pod):
    (pod.storage / "current").mkdir()
    assert await code_of(pod) == "collect_failed"


@pytest.mark.parametrize("cut", [0, 1, 30])
async def test_a_cut_line_is_tried_again_and_then_a_failure(pod, output, cut):
    (output / "result.json").write_bytes(b"{}")
    pod.faults = [Faults(cut_received=cut)]
    assert (await read_result(pod, "ns", "pod", 100)).content == b"{}"


@pytest.mark.parametrize(
    "line",
    [
        {"ok": True},
        {"ok": True, "present": True, "bytes": 2},
        {"ok": True, "present": True, "bytes": 3, "content": "e30=", "sha256": "0"},
        {"ok": True, "present": True, "bytes": 2, "content": "e30=", "sha256": "0"},
        {"ok": True, "present": True, "bytes": 2, "content": "***", "sha256": "0"},
        {"ok": True, "present": True, "bytes": -1},
    ],
)
async def test_a_line_that_does_not_hold_together_is_a_failure(pod, output, line):
    body = json.dumps(line).encode() + b"\n"
    pod.faults = [Faults(change=lambda at, _piece: body if at == 0 else b"") for _ in range(3)]
    assert await code_of(pod) == "collect_failed"
