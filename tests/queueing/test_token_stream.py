import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueing.errors import StoreUnavailable
from queueing.job import Choice
from queueing.token_stream import FIRST, FollowedText, Piece, TextDiverged, TokenStreams
from tests.support.jobs import TENANT, a_job, claim_one, enqueue, finish

A_TEXT = st.text(alphabet="ab é☕", max_size=24)


@pytest.fixture
def streams(client):
    return TokenStreams(client)


@pytest.fixture
def lease(queue):
    """Return the lease of a job that runs."""
    enqueue(queue, a_job())
    return claim_one(queue).lease


def logprob(number):
    return {"token": str(number), "logprob": -0.5, "bytes": [number], "top_logprobs": []}


def test_pieces_are_read_in_the_order_they_were_told(streams, lease):
    pieces = [Piece(0, 0, "a"), Piece(1, 0, "é"), Piece(0, 1, "b", 1, (logprob(7),))]
    streams.append([(lease, piece) for piece in pieces[:2]])
    streams.append([(lease, pieces[2])])

    read = streams.read(lease.job_id)

    assert read.pieces == tuple(pieces)
    assert not read.has_ended


def test_a_reader_goes_on_where_he_was(streams, lease):
    streams.append([(lease, Piece(0, 0, "a"))])
    position = streams.read(lease.job_id).position
    streams.append([(lease, Piece(0, 1, "b"))])

    read = streams.read(lease.job_id, position)

    assert read.pieces == (Piece(0, 1, "b"),)
    assert streams.read(lease.job_id, read.position).pieces == ()


def test_whoever_lost_the_lease_says_nothing(streams, queue, lease):
    queue.release(lease)
    newer = claim_one(queue).lease

    told = streams.append([(lease, Piece(0, 0, "zombie")), (newer, Piece(0, 0, "alive"))])

    assert told == 1
    assert streams.read(newer.job_id).pieces == (Piece(0, 0, "alive"),)


def test_a_job_that_ended_is_seen_to_have_ended(streams, queue, lease):
    queue.cancel(lease.job_id, TENANT)

    assert streams.read(lease.job_id) == streams.read(lease.job_id, FIRST)
    assert streams.read(lease.job_id).has_ended
    assert streams.append([(lease, Piece(0, 0, "late"))]) == 0


def test_a_job_that_is_gone_has_ended(streams):
    assert streams.read("job_nobody").has_ended


def test_a_stream_lives_for_a_time_and_goes_with_its_job(streams, queue, client, lease):
    streams.append([(lease, Piece(0, 0, "a"))])
    (key,) = client.keys("*:stream")
    lifetime_ms = client.pttl(key)

    queue.erase(lease.job_id, TENANT)

    assert 0 < lifetime_ms <= 600_000
    assert client.keys("*:stream") == []


def test_who_follows_is_told_once_a_call_of_all_jobs_that_gained(streams, queue, client):
    enqueue(queue, a_job("job_1"), a_job("job_2"))
    leases = [claim_one(queue).lease, claim_one(queue).lease]
    with client.pubsub() as subscription:
        subscription.subscribe("{pm}:streamed")
        assert subscription.get_message(timeout=1)["type"] == "subscribe"

        streams.append([(lease, Piece(0, number, "x")) for lease in leases for number in (0, 1)])

        assert sorted(subscription.get_message(timeout=1)["data"].split()) == ["job_1", "job_2"]
        assert subscription.get_message(timeout=0) is None


def test_a_full_store_refuses_pieces_and_still_takes_the_result(streams, queue, client):
    enqueue(queue, a_job("job_1"))
    claim = claim_one(queue)
    client.config_set("maxmemory", 1)

    try:
        with pytest.raises(StoreUnavailable):
            streams.append([(claim.lease, Piece(0, 0, "a"))])
        finish(queue, claim)
    finally:
        client.config_set("maxmemory", 0)

    assert streams.read("job_1").has_ended


@given(A_TEXT, st.lists(st.integers(0, 24)), st.lists(st.integers(0, 24)), st.integers(0, 24))
def test_a_text_that_is_told_twice_is_read_once(text, cuts, other_cuts, lost_at):
    followed = FollowedText(0)
    first_run = pieces_of(text, cuts)[: lost_at % 4]
    second_run = pieces_of(text, other_cuts)

    gains = [followed.take(piece) for piece in first_run + second_run]
    gains.append(followed.finish(whole(text)))

    assert "".join(gain.text for gain in gains if gain) == text
    assert [one for gain in gains if gain for one in gain.logprobs] == notes(text)


@given(A_TEXT, st.lists(st.integers(0, 24)), st.sets(st.integers(0, 24)))
def test_what_was_lost_on_the_way_comes_with_the_result(text, cuts, lost):
    followed = FollowedText(0)
    arrived = [piece for place, piece in enumerate(pieces_of(text, cuts)) if place not in lost]

    gains = [followed.take(piece) for piece in arrived]
    gains.append(followed.finish(whole(text)))

    assert "".join(gain.text for gain in gains if gain) == text


def test_another_text_in_a_second_run_is_noticed():
    followed = FollowedText(0)
    followed.take(Piece(0, 0, "the cat"))

    with pytest.raises(TextDiverged):
        followed.take(Piece(0, 0, "the dog"))


def test_another_text_in_the_result_is_noticed():
    followed = FollowedText(0)
    followed.take(Piece(0, 0, "the cat"))

    with pytest.raises(TextDiverged):
        followed.finish(Choice(0, "the ca", "stop"))


def pieces_of(text, cuts):
    """Cut a text, of whose letters each is a token with a note."""
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [
        Piece(0, start, text[start:end], start, tuple(notes(text)[start:end]))
        for start, end in pairwise(places)
    ]


def notes(text):
    return [logprob(number) for number in range(len(text))]


def whole(text):
    return Choice(0, text, "stop", json.loads(json.dumps({"content": notes(text)})))
