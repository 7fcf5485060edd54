import json

from hypothesis import given, settings
from hypothesis import strategies as st
from isolation_samples import IMAGE, options, pod, wire

from isolation.digest import canonical_json, spec_hash
from isolation.objects.container import literal
from isolation.spec import JobSpec, SpecInvalid, parse_spec

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(max_size=5) | st.decimals()
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT | st.integers(), inner, max_size=4),
    max_leaves=8,
)
FIELDS = [
    "runId", "image", "command", "args", "env", "cpus", "memoryMb", "diskMb", "timeoutSeconds", "workspace", "input",
    "egress", "capability", "collectExclude", "requireResult", "labels", "apiVersion", "kind",
]  # fmt: skip

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=20)
ENV_NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True).filter(
    lambda name: not name.startswith(("PODGATE_", "KUBERNETES_", "LD_"))
)
VALID = st.fixed_dictionaries(
    {"runId": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,50}", fullmatch=True), "image": st.just(IMAGE)},
    optional={
        "command": st.lists(TEXT.filter(bool), max_size=5),
        "args": st.lists(TEXT, max_size=5),
        "env": st.dictionaries(ENV_NAMES, TEXT, max_size=5),
        "cpus": st.integers(100, 32_000).map(lambda millicores: millicores / 1000),
        "memoryMb": st.integers(128, 65_536),
        "diskMb": st.integers(64, 32_768),
        "timeoutSeconds": st.integers(1, 86_400),
        "workspace": st.just("/w") | st.none(),
        "capability": st.just("model") | st.none(),
        "collectExclude": st.lists(st.just("dist") | st.just("a/b"), max_size=3),
        "requireResult": st.booleans(),
        "labels": st.dictionaries(TEXT.filter(bool), TEXT, max_size=4),
    },
)


def outcome(value):
    try:
        return parse_spec(value)
    except SpecInvalid as error:
        return error


@given(ANYTHING)
def test_anything_is_a_spec_or_refused(value):
    assert isinstance(outcome(value), (JobSpec, SpecInvalid))


@settings(max_examples=300)
@given(st.sampled_from(FIELDS), ANYTHING)
def test_any_value_of_any_field_is_taken_or_refused_by_name(field, value):
    result = outcome(wire(**{field: value}))
    if isinstance(result, SpecInvalid):
        assert all(violation["path"].startswith(f"$.{field}") for violation in result.violations)
        json.dumps(result.violations).encode()
    else:
        canonical_json(result.model_dump(mode="json", exclude={"workspace", "input"}))


@given(st.dictionaries(ANY_TEXT, ANYTHING, max_size=3))
def test_an_unknown_field_is_refused_by_name(extra):
    unknown = {name: value for name, value in extra.items() if name not in FIELDS}
    result = outcome({**wire(), **unknown})
    assert isinstance(result, SpecInvalid) == bool(unknown)
    if unknown:
        assert len(result.violations) == len(unknown)


@given(VALID, st.randoms())
def test_the_hash_does_not_see_the_order_of_members(value, random):
    shuffled = dict(random.sample(sorted(value.items()), len(value)))
    for name in ("env", "labels"):
        if name in shuffled:
            shuffled[name] = dict(random.sample(sorted(shuffled[name].items()), len(shuffled[name])))
    assert spec_hash(parse_spec(shuffled)) == spec_hash(parse_spec(value))


@given(VALID)
def test_the_hash_does_not_see_whether_a_default_was_said(value):
    said = parse_spec(value).model_dump(mode="json", by_alias=True)
    assert spec_hash(parse_spec(said)) == spec_hash(parse_spec(value))


@given(VALID, VALID)
def test_two_specs_have_one_hash_only_when_they_are_one(one, other):
    first, second = parse_spec(one), parse_spec(other)
    assert (spec_hash(first) == spec_hash(second)) == (first == second)


@given(st.integers(100, 32_000))
def test_millicores_are_exact(millicores):
    assert parse_spec(wire(cpus=millicores / 1000)).millicores == millicores


@settings(max_examples=50)
@given(VALID)
def test_every_valid_spec_makes_a_pod_of_plain_json(value):
    built = pod(parse_spec(value), options())
    assert json.loads(canonical_json(built)) == built


def expanded(text):
    """What the kubelet makes of a word in which nothing is defined: ``$$`` is ``$``, ``$(NAME)`` would be looked up."""
    out, at = "", 0
    while at < len(text):
        if text[at] == "$" and at + 1 < len(text):
            assert text[at + 1] != "(", "a reference is left in the text"
            out += "$" if text[at + 1] == "$" else text[at : at + 2]
            at += 2
        else:
            out, at = out + text[at], at + 1
    return out


@given(st.text(alphabet="$()aA_", max_size=30))
def test_the_worker_gets_every_word_as_it_was_written(word):
    assert expanded(literal(word)) == word
