"""schemathesis against running processes: no request it makes of the document gives a 500, and
every answer is one the document tells of.
"""

from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.live_stack import API_KEY, LiveStack
from tests.support.load import amount

KEPT = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# What is open takes nothing that could be made wrong.
CONTRACT = schemathesis.openapi.from_path(KEPT).include(path_regex="^/v1/")
OPERATIONS = [found.ok() for found in CONTRACT.get_all_operations() if isinstance(found, Ok)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    stack = LiveStack(tmp_path_factory.mktemp("fuzz"), step_ms=0.1, max_body_bytes=65_536)
    stack.start()
    yield stack
    stack.stop()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_no_request_is_answered_with_a_500_or_off_the_document(stack, operation, mode):
    @given(case=operation.as_strategy(mode))
    @settings(
        max_examples=amount(quick=10, soak=100),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
        database=None,
    )
    def explore(case):
        headers = {"Authorization": f"Bearer {API_KEY}"}
        answer = case.call(base_url=stack.api.url, headers=headers, timeout=10)
        # An address too long is refused before there is a route.
        assume(answer.status_code != 414)

        case.validate_response(answer, checks=CHECKS)

    explore()
