"""Fields that several bodies share: sampling numbers, stop strings, metadata.

Knows no whole body. A description says what the field takes; validation puts it into the message of
a refusal.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

MAX_TOKENS_LIMIT = 1_000_000

_SEED_LIMIT = 2**63


def _as_list(value: Any) -> Any:  # a validator sees whatever the caller sent
    return [value] if isinstance(value, str) else value


MaxTokens = Annotated[
    int | None,
    Field(ge=1, le=MAX_TOKENS_LIMIT, description="an integer from 1 to what the context leaves"),
]
Temperature = Annotated[float, Field(ge=0, le=2, description="a number from 0 to 2")]
TopP = Annotated[float, Field(gt=0, le=1, description="a number above 0, up to 1")]
TopK = Annotated[int, Field(ge=0, le=1_000_000, description="an integer from 0, which is off")]
Seed = Annotated[
    int | None, Field(ge=-_SEED_LIMIT, lt=_SEED_LIMIT, description="a 64-bit signed integer")
]
_StopString = Annotated[str, StringConstraints(min_length=1, max_length=16_384)]
# Lengths stand inside of the union: outside of it they would be asked of None too.
Stop = Annotated[
    Annotated[list[_StopString], Field(min_length=1, max_length=4)] | None,
    BeforeValidator(_as_list),
    Field(description="one to four strings that are not empty"),
]
_Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]
_Value = Annotated[str, StringConstraints(max_length=512)]
Metadata = Annotated[
    Annotated[dict[_Name, _Value], Field(max_length=16)] | None,
    Field(description="up to 16 strings of up to 512 characters, names up to 64"),
]
