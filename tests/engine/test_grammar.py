import json
from time import monotonic

import pytest

from engine.config import EngineConfig
from engine.errors import GrammarError
from engine.grammar import Grammars
from engine.loading import load_engine
from engine.plan import Completion
from engine.sequence import FinishReason, SamplingParams, Sequence
from engine.tokenizer import Tokenizer
from tests.support.tiny_model import write_tiny_model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
COLOURS = ["červená", "緑", 'blue "sky"', "👩‍👩‍👧"]
EXPLOSIVE = {"type": "string", "pattern": "^((a{100}){100}){100}$"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return Grammars(tokenizer)


@pytest.fixture
def ask(folder, tokenizer, grammars):
    """Return a function that answers requests in one batch, each name with its schema."""
    config = EngineConfig(num_blocks=4096, max_sequences=128, max_step_tokens=2048, num_threads=1)
    engine = load_engine(folder, config)

    def sequence_of(name, schema):
        params = SamplingParams(max_tokens=120, temperature=1.0, seed=sum(name.encode()))
        constraint = grammars.constraint(json.dumps(schema))
        return Sequence(name, tokenizer.encode(f"{name}: "), params, constraint=constraint)

    def run(schemas):
        for name, schema in schemas.items():
            engine.add(sequence_of(name, schema))
        ended: dict[str, Completion] = {}
        while engine.has_work:
            ended |= {one.sequence_id: one for one in engine.step().finished}
        engine.check_integrity()
        assert {one.finish_reason for one in ended.values()} == {FinishReason.STOP}
        return {name: tokenizer.decode(one.token_ids) for name, one in ended.items()}

    return run


def test_in_one_batch_every_answer_keeps_to_its_own_schema(ask):
    people = {f"person {number}": PERSON for number in range(64)}
    colours = {f"colour {number}": {"enum": COLOURS} for number in range(64)}

    texts = ask(people | colours)

    found = [json.loads(texts[name]) for name in people]
    assert all(set(person) == {"name", "age"} for person in found)
    assert all(len(person["name"]) <= 8 and 0 <= person["age"] <= 120 for person in found)
    assert all(json.loads(texts[name]) in COLOURS for name in colours)


def test_an_answer_in_a_batch_is_the_answer_alone(ask):
    people = {f"person {number}": PERSON for number in range(12)}
    others = {f"colour {number}": {"enum": COLOURS} for number in range(12)}

    together = ask(people | others)

    assert together["person 7"] == ask({"person 7": PERSON})["person 7"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objct"},
        {"type": "string", "pattern": "("},
        {"$ref": "#"},
        {"$ref": "#/$defs/nothing"},
        {"$ref": "http://127.0.0.1/schema"},
        {"not": {"type": "string"}},
        {"type": "array", "uniqueItems": True},
        {"oneOf": [{"type": "integer"}, {"minimum": 3}]},
        {"enum": [f"value {number}" for number in range(200_000)]},
        {"type": "string", "const": "a", "enum": ["b"]},
        {"x-guidance": {"lenient": True}, "not": {}},
    ],
)
def test_a_schema_that_cannot_be_kept_to_is_refused_in_time(grammars, schema):
    begun_s = monotonic()

    with pytest.raises(GrammarError):
        grammars.check(json.dumps(schema))

    assert monotonic() - begun_s < 2


@pytest.mark.parametrize(
    "schema",
    [
        PERSON,
        {},
        {"type": "object"},
        {"$ref": "#/$defs/tree", "$defs": {"tree": {"properties": {"left": {"$ref": "#"}}}}},
        {"type": "string", "pattern": "^(a+)+$"},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    ],
)
def test_a_schema_that_can_be_kept_to_is_taken(grammars, schema):
    grammars.check(json.dumps(schema))


def test_a_schema_that_grows_too_complex_ends_the_answer_unmatched(grammars, tokenizer):
    constraint = grammars.constraint(json.dumps(EXPLOSIVE))
    constraint.allowed_after([])

    mask = constraint.allowed_after(tokenizer.encode('"'))

    (end,) = tokenizer.eos_token_ids
    assert int.from_bytes(mask, "little") == 1 << end
    assert not constraint.is_matched()


def test_answers_with_one_schema_do_not_share_where_they_are(grammars, tokenizer):
    schema = json.dumps(PERSON)
    first, second = grammars.constraint(schema), grammars.constraint(schema)
    begin = second.allowed_after([])

    first.allowed_after(tokenizer.encode('{"name": "a'))

    assert second.allowed_after([]) == begin
    assert grammars.constraint(schema).allowed_after([]) == begin


def test_a_schema_is_compiled_once(grammars):
    schema = json.dumps({"enum": [f"value {number}" for number in range(3_000)]})
    grammars.check(schema)
    begun_s = monotonic()

    for _ in range(50):
        grammars.check(schema)

    assert monotonic() - begun_s < 0.1


def test_no_more_schemas_are_kept_than_a_few(tokenizer):
    grammars = Grammars(tokenizer)

    for number in range(100):
        grammars.check(json.dumps({"const": number}))

    assert grammars.num_kept == 64


def test_a_whole_match_allows_the_end_alone(grammars, tokenizer):
    constraint = grammars.constraint('{"enum": ["ab"]}')

    mask = constraint.allowed_after(tokenizer.encode('"ab"'))

    (end,) = tokenizer.eos_token_ids
    assert int.from_bytes(mask, "little") == 1 << end
    assert constraint.is_matched()


def test_the_same_step_can_be_asked_again(grammars, tokenizer):
    constraint = grammars.constraint(json.dumps(PERSON))
    begun = tokenizer.encode('{"name": "')

    first = constraint.allowed_after(begun)

    assert constraint.allowed_after(begun) == first


def test_a_tokenizer_without_an_end_token_takes_no_schema(tokenizer):
    endless = Tokenizer(tokenizer.definition, None, {}, frozenset())

    with pytest.raises(GrammarError, match="no token to end"):
        Grammars(endless).check("{}")
