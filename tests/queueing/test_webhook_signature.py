import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueing.webhook_signature import SignatureError, WebhookSecret, signed_headers, verify

OLD, NEW = WebhookSecret(b"o" * 24), WebhookSecret(b"n" * 64)
NOW_S = 1_700_000_000
BODY = '{"id":"evt_1","text":"na\u00efve \u2615 \U0001f600","score":0.1}'.encode()


def headers(*signers: WebhookSecret, **changed: str) -> dict[str, str]:
    signed = signed_headers(signers or (NEW,), "evt_1", NOW_S, BODY)
    return signed | {f"webhook-{name}": value for name, value in changed.items()}


def test_the_signature_is_the_standards_formula():
    expected = hmac.new(b"n" * 64, b"evt_1.1700000000." + BODY, hashlib.sha256).digest()

    assert headers() == {
        "webhook-id": "evt_1",
        "webhook-timestamp": "1700000000",
        "webhook-signature": "v1," + base64.b64encode(expected).decode(),
    }


def test_what_was_signed_verifies():
    assert verify(NEW, headers(), BODY, NOW_S) == "evt_1"


def test_while_a_secret_is_rotated_both_verify():
    both = headers(NEW, OLD)

    assert verify(NEW, both, BODY, NOW_S) == verify(OLD, both, BODY, NOW_S) == "evt_1"


def test_a_malformed_or_unknown_signature_beside_a_good_one_does_no_harm():
    good = headers()["webhook-signature"]

    assert verify(NEW, headers(signature=f"v2,abc garbage {good} v1,"), BODY, NOW_S) == "evt_1"


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "evt_2"},
        {"timestamp": "1700000001"},
        {"timestamp": "soon"},
        {"signature": ""},
        {"signature": "v1,"},
        {"signature": "v1,\u2460"},
        {"signature": headers()["webhook-signature"].replace("v1,", "v2,")},
    ],
)
def test_a_changed_header_does_not_verify(changed):
    with pytest.raises(SignatureError):
        verify(NEW, headers(**changed), BODY, NOW_S)


def test_a_missing_header_does_not_verify():
    with pytest.raises(SignatureError):
        verify(NEW, {"webhook-id": "evt_1"}, BODY, NOW_S)


def test_a_changed_body_does_not_verify():
    with pytest.raises(SignatureError):
        verify(NEW, headers(), BODY + b" ", NOW_S)


def test_another_secret_does_not_verify():
    with pytest.raises(SignatureError):
        verify(OLD, headers(), BODY, NOW_S)


@pytest.mark.parametrize("off_s", [-360, 360])
def test_a_message_from_six_minutes_away_does_not_verify(off_s):
    with pytest.raises(SignatureError, match="five minutes"):
        verify(NEW, headers(), BODY, NOW_S + off_s)


@given(st.binary(min_size=24, max_size=64))
def test_a_secret_survives_its_text(key):
    assert WebhookSecret.parse(WebhookSecret(key).text).key == key


def test_a_generated_secret_is_new_and_of_the_right_length():
    first, second = WebhookSecret.generate(), WebhookSecret.generate()

    assert first.key != second.key
    assert WebhookSecret.parse(first.text) == first


@pytest.mark.parametrize(
    "text",
    [
        "",
        base64.b64encode(b"k" * 32).decode(),
        "whsec_",
        "whsec_not base64!",
        "whsec_" + base64.b64encode(b"k" * 23).decode(),
        "whsec_" + base64.b64encode(b"k" * 65).decode(),
        "WHSEC_" + base64.b64encode(b"k" * 32).decode(),
    ],
)
def test_what_is_no_secret_is_refused_without_being_quoted(text):
    with pytest.raises(ValueError, match="a webhook secret") as caught:
        WebhookSecret.parse(text)

    assert text == "" or text not in str(caught.value) or text == "whsec_"


def test_tenants_secrets_differ_and_stay_the_same():
    secrets = {NEW.for_tenant("a").text, NEW.for_tenant("b").text, NEW.text}

    assert len(secrets) == 3
    assert NEW.for_tenant("a") == NEW.for_tenant("a")
    assert WebhookSecret.parse(NEW.for_tenant("a").text) == NEW.for_tenant("a")


def test_a_secret_does_not_show_itself():
    assert "nnnn" not in repr(NEW)
    assert NEW.text not in repr(NEW)
