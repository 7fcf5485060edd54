"""What channel 3 says about the end of a process."""

import json

from launcher.cluster.execstream import parse_status


def test_success() -> None:
    status, _ = parse_status(b'{"metadata":{},"status":"Success"}')
    assert (status.success, status.exit_code) == (True, 0)


def test_an_exit_code() -> None:
    causes = {"causes": [{"reason": "ExitCode", "message": "3"}]}
    said = {"status": "Failure", "reason": "NonZeroExitCode", "details": causes, "message": "exit code 3"}
    status, _ = parse_status(json.dumps(said).encode())
    assert (status.success, status.exit_code, status.reason) == (False, 3, "NonZeroExitCode")


def test_a_failure_without_an_exit_code_has_its_http_code() -> None:
    said = {"status": "Failure", "reason": "InternalError", "code": 500, "message": "x" * 9000}
    status, code = parse_status(json.dumps(said).encode())
    assert (status.exit_code, code) == (None, 500)
    assert len(status.message or "") == 500


def test_rubbish_is_no_success() -> None:
    for said in (b"", b"[]", b"{", b'"Success"', b'{"details": 3}'):
        status, code = parse_status(said)
        assert (status.success, status.exit_code, code) == (False, None, None)
