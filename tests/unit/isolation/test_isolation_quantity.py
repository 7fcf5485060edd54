from decimal import Decimal

import pytest
from isolation_samples import recorded
from kubernetes.utils.quantity import parse_quantity

from isolation import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1Gi", Decimal(2**30)),
        ("250m", Decimal("0.25")),
        (".25", Decimal("0.25")),
        ("1.", Decimal(1)),
        ("100e-3", Decimal("0.1")),
        ("1E3", Decimal(1000)),
        ("1E", Decimal(10**18)),
        ("1Ei", Decimal(2**60)),
        ("+01", Decimal(1)),
        ("-1", Decimal(-1)),
        ("1n", Decimal("1e-9")),
        (1073741824, Decimal(2**30)),
    ],
)
def test_quantities_are_read_exactly(text, value):
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1\n",
        "m",
        "1mi",
        "1mm",
        "128MB",
        "1ki",
        "1K",
        "1Ni",
        "1e",
        "1e1m",
        "0x1",
        "\u0661",
        "--1",
        "1e9999",
        True,
        None,
        1.5,
        [],
        {},
    ],
)
def test_what_is_no_quantity_is_none(text):
    assert quantity.parse(text) is None
    assert not quantity.equal(text, text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1Gi", "1024Mi"),
        ("1", "1000m"),
        ("0.25", "250m"),
        ("1e9", "1G"),
        ("1.5Gi", "1536Mi"),
        ("0.1Gi", "107374182400m"),
    ],
)
def test_equal_values_are_equal_however_they_are_spelt(one, other):
    assert quantity.equal(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1Gi", "1G"),
        ("1024Mi", "1025Mi"),
        ("1", "1000.0000001m"),
        ("9007199254740993", "9007199254740992"),
        ("2Gi", "2048.0000001Mi"),
        ("1Gi", "x"),
    ],
)
def test_nothing_is_rounded(one, other):
    assert not quantity.equal(one, other)


@pytest.mark.parametrize("kind", ["cpu", "memory", "ephemeral-storage", "sizeLimit"])
def test_what_a_server_stored_equals_what_was_sent(kind):
    rounded_up = {"0.0005", "500u", "0.0001"}  # the server knows no less than a thousandth
    spellings = [
        one for one in recorded("quantities")[kind] if isinstance(one["sent"], str) and isinstance(one["stored"], str)
    ]
    kept = [
        one
        for one in spellings
        if one["sent"].strip() == one["sent"] and one["sent"] not in rounded_up and one["sent"] != "8Ei"
    ]
    assert len(kept) >= 4
    assert [one for one in kept if not quantity.equal(one["sent"], one["stored"])] == []


@pytest.mark.parametrize(
    ("amount", "spelt"),
    [(1, "1m"), (250, "250m"), (1000, "1"), (1500, "1500m"), (32_000, "32")],
)
def test_processors_are_spelt_as_the_server_does(amount, spelt):
    assert quantity.cpu(amount) == spelt


@pytest.mark.parametrize(
    ("amount", "spelt"),
    [(0, "0"), (1, "1Mi"), (1000, "1000Mi"), (1024, "1Gi"), (1536, "1536Mi"), (32_768, "32Gi"), (2**20, "1Ti")],
)
def test_sizes_are_spelt_as_the_server_does(amount, spelt):
    assert quantity.mebibytes(amount) == spelt


@pytest.mark.parametrize(
    "suffix", ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-2"]
)
@pytest.mark.parametrize("number", ["0", "1", "12", "1.5", ".5", "0.125", "-3", "+7", "123456789"])
def test_the_clients_own_parser_agrees(number, suffix):
    if suffix[:1] in {"e", "E"} and len(suffix) > 1 and suffix != "Ei":
        expected = Decimal(number + suffix)  # the client reads no decimal exponents
    else:
        expected = parse_quantity(number + suffix)
    assert quantity.parse(number + suffix) == expected
