"""Repeats that are marked by the client's own retry header, and the key that says so itself."""

import pytest


def submit(client, count=None, **body):
    headers = {} if count is None else {"x-stainless-retry-count": count}
    answer = client.post("/v1/jobs", json={"prompt": "hi", **body}, headers=headers)
    assert answer.status_code == 202
    return answer.json["id"]


def test_a_marked_repeat_gets_the_first_answers_job(client):
    first = submit(client, "0")

    assert submit(client, "1") == first
    assert submit(client, "2") == first


def test_two_first_requests_are_two_jobs_however_equal(client):
    first, second = submit(client, "0"), submit(client, "0")

    repeat = submit(client, "1")

    assert first != second
    assert repeat == second


def test_a_repeat_of_another_body_is_a_request_of_its_own(client):
    first = submit(client, "0")

    assert submit(client, "1", max_tokens=7) != first


def test_a_repeat_whose_first_request_never_came_is_taken_and_repeated_in_turn(client):
    first = submit(client, "1")

    assert submit(client, "2") == first


def test_requests_that_say_nothing_of_repeats_are_never_taken_for_one(client):
    first = submit(client)

    assert submit(client) != first
    assert submit(client, "1") != first


@pytest.mark.parametrize("count", ["", "x", "-1", "1.5", "1" * 9])
def test_a_mark_out_of_shape_says_nothing(client, count):
    submit(client, "0")

    assert submit(client, count) != submit(client, count)


def test_a_window_after_the_first_request_a_repeat_is_a_new_one(client, api):
    submit(client, "0")

    (key,) = api.client.keys("*idempotency*")

    assert 0 < api.client.pttl(key) <= 900_000


def test_the_clients_own_key_comes_before_its_mark(client):
    keyed = {"Idempotency-Key": "mine"}
    first = client.post("/v1/jobs", json={"prompt": "hi"}, headers=keyed).json["id"]

    marked = {**keyed, "x-stainless-retry-count": "0"}
    repeat = client.post("/v1/jobs", json={"prompt": "hi"}, headers=marked).json["id"]

    assert repeat == first
