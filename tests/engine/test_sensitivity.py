"""What a layer's rounding costs, and which layers are therefore kept in bytes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.distance import distance, load_full, log_probabilities, no_cache, whole_texts
from engine.layer_parts import Place, linears_of, with_linears
from engine.model.decoder import Decoder
from engine.model.families import read_model_config
from engine.model.stored_linear import Part
from engine.rounding import round_int4, round_int8
from engine.sensitivity import Sensitivity, choose_kept, measure_sensitivities
from engine.text_kernels import TextKernels
from tests.support.family_models import write_family_model

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [[5, 17, 99, 3, 254, 7, 7, 81], [200, 1, 64]]

costs = st.floats(0, 1)
sensitivities = st.lists(st.tuples(costs, st.integers(1, 9)), max_size=12).map(
    lambda pairs: [
        Sensitivity(Place(index, Part.DOWN), cost, extra_bytes)
        for index, (cost, extra_bytes) in enumerate(pairs)
    ]
)


def cost_of(chosen):
    return sum(one.cost for one in chosen)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a small model in full, its configuration, and its weights in half bytes."""
    folder = write_family_model(tmp_path_factory.mktemp("source") / "model", "gemma2")
    full = load_full(folder, torch.float32, longest=8)
    rounded = [
        {
            part: round_int4(linear.data, torch.eye(linear.num_in), 32)
            for part, linear in linears_of(layer).items()
        }
        for layer in full.layers
    ]
    return full, read_model_config(folder), rounded


@pytest.fixture(scope="module")
def measured(model):
    full, config, rounded = model
    return measure_sensitivities(full, config, rounded, TEXTS)


def distance_with(model, changed):
    """Return how far answers are when the weights of some places are rounded."""
    full, config, rounded = model
    layers = list(full.layers)
    for place in changed:
        linear = linears_of(layers[place.layer])[place.part]
        data = rounded[place.layer][place.part].dequantise()
        exchanged = {place.part: replace(linear, data=data)}
        layers[place.layer] = with_linears(layers[place.layer], exchanged)
    batch, kernels = whole_texts(TEXTS), TextKernels(torch.float32)
    wanted, found = (
        log_probabilities(Decoder(weights, kernels, no_cache(config)), batch)
        for weights in (full, replace(full, layers=tuple(layers)))
    )
    return float(distance(found, wanted))


@given(sensitivities, costs)
def test_what_is_not_kept_costs_no_more_than_the_budget(measured, budget):
    kept = choose_kept(measured, budget)

    assert cost_of(one for one in measured if one.place not in kept) <= budget + 1e-9


@given(sensitivities, costs)
def test_nothing_is_kept_that_the_budget_has_room_for(measured, budget):
    kept = choose_kept(measured, budget)

    chosen = [one for one in measured if one.place in kept]
    least = min(chosen, key=lambda one: one.cost / one.extra_bytes, default=None)
    left = cost_of(one for one in measured if one.place not in kept)
    assert least is None or left + least.cost > budget - 1e-9


@given(sensitivities, costs, st.randoms())
def test_the_same_layers_are_kept_in_whatever_order_they_were_measured(measured, budget, random):
    shuffled = random.sample(measured, len(measured))

    assert choose_kept(shuffled, budget) == choose_kept(measured, budget)


def test_the_layer_that_saves_most_for_a_byte_is_kept_first():
    dear = Sensitivity(Place(0, Part.GATE_UP), cost=0.4, extra_bytes=300)
    cheap = Sensitivity(Place(1, Part.QKV), cost=0.3, extra_bytes=100)

    assert choose_kept([dear, cheap], budget=0.5) == {cheap.place}


def test_a_layer_costs_what_rounding_it_alone_moves_answers_by(model, measured):
    assert [one.place for one in measured] == [
        Place(layer, part) for layer in range(4) for part in Part
    ]
    alone = [distance_with(model, [one.place]) for one in measured]
    assert [one.cost for one in measured] == pytest.approx(alone, rel=1e-4)


def test_bytes_cost_what_they_take_more_than_half_bytes(model, measured):
    _, _, rounded = model
    weight = rounded[0][Part.DOWN]

    extra = {one.place: one.extra_bytes for one in measured}

    in_bytes = round_int8(weight.dequantise())
    taken = in_bytes.values.nbytes + in_bytes.scales.nbytes
    assert extra[Place(0, Part.DOWN)] == taken - weight.values.nbytes - weight.scales.nbytes


def test_costs_of_single_layers_add_up_to_about_what_all_cost_together(model, measured):
    together = distance_with(model, [one.place for one in measured])
    assert cost_of(measured) == pytest.approx(together, rel=0.5)
