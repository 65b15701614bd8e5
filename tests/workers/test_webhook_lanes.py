from workers.webhook_lanes import Lanes, Wait


def fill(lanes, *receivers):
    return [lanes.enter(receiver) for receiver in receivers]


def let_hang(lanes, *receivers):
    """Let each have a place and time out on it."""
    for receiver in receivers:
        lanes.enter(receiver)
        lanes.leave(receiver, duration_s=15.0, hung=True)


def test_one_receiver_gets_a_quarter_of_the_places():
    lanes = Lanes(slots=8)

    taken = fill(lanes, "a", "a", "a", "b")

    assert taken[:2] == [None, None]
    assert isinstance(taken[2], Wait)
    assert taken[3] is None


def test_a_place_that_was_given_back_is_free_again():
    lanes = Lanes(slots=4)
    lanes.enter("a")

    lanes.leave("a", duration_s=0.1, hung=False)

    assert lanes.enter("a") is None


def test_receivers_that_hung_get_half_of_the_places_together():
    lanes = Lanes(slots=4)
    let_hang(lanes, "a", "b", "c")

    taken = fill(lanes, "a", "b", "c")

    assert taken[:2] == [None, None]
    assert isinstance(taken[2], Wait)


def test_an_eighth_is_kept_for_receivers_that_answered_last_time():
    lanes = Lanes(slots=16)
    lanes.enter("good")
    lanes.leave("good", duration_s=0.1, hung=False)

    taken = fill(lanes, *map(str, range(15)))

    assert taken[:14] == [None] * 14
    assert isinstance(taken[14], Wait)
    assert fill(lanes, "good", "good") == [None, None]


def test_a_single_place_is_open_to_everybody():
    lanes = Lanes(slots=1)

    assert lanes.enter("a") is None
    assert isinstance(lanes.enter("b"), Wait)


def test_a_receiver_that_answers_again_is_no_longer_held_back():
    lanes = Lanes(slots=2)
    let_hang(lanes, "a", "b")
    lanes.enter("a")

    lanes.leave("a", duration_s=0.1, hung=False)

    assert fill(lanes, "b", "a") == [None, None]


def test_those_who_wait_come_back_one_after_the_other_and_not_all_at_once():
    lanes = Lanes(slots=4)
    lanes.enter("a")
    lanes.leave("a", duration_s=2.0, hung=False)
    lanes.enter("a")

    waits = [lanes.enter("a") for _ in range(100)]

    seconds = [wait.seconds for wait in waits if wait is not None]
    assert len(seconds) == 100
    assert 0.4 < seconds[0] < 0.6
    assert 1.9 < seconds[1] - seconds[0] < 2.1
    assert seconds[-1] <= 60.0


def test_receivers_of_long_ago_are_forgotten():
    lanes = Lanes(slots=4)
    let_hang(lanes, "old", *map(str, range(10_000)))

    taken = fill(lanes, "9998", "9999", "9997", "old")

    assert taken[:2] == [None, None]
    assert isinstance(taken[2], Wait)
    assert taken[3] is None
