"""How far a rounded copy's answers are from the model's, as a rise of perplexity."""

from math import log

import pytest
import torch

from engine.distance import distance, measure_rise
from engine.model.config import Quantisation, Scheme
from engine.quantize import Lessons, quantise_folder
from tests.support.family_models import write_family_model

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [[5, 17, 99, 3, 254, 7, 7, 81], [200, 1, 64]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_family_model(tmp_path_factory.mktemp("source") / "model", "gemma2")


def test_a_model_is_no_way_from_itself(folder):
    assert measure_rise(folder, folder, TEXTS) == pytest.approx(0, abs=1e-6)


def test_the_distance_is_the_mean_over_rows_of_what_is_lost_by_wrong_bets():
    wanted = torch.tensor([[0.5, 0.5], [1.0, 1e-30]])
    found = torch.tensor([[0.25, 0.75], [0.5, 0.5]])

    lost = 0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.75) + log(2)
    assert float(distance(found.log(), wanted.log())) == pytest.approx(lost / 2)


@pytest.mark.parametrize("family", ["gemma2", "llama-llama3"])
def test_half_bytes_raise_perplexity_more_than_bytes(family, tmp_path):
    folder = write_family_model(tmp_path / "model", family)
    lessons = Lessons(TEXTS, num_steps=1, max_rise=None)
    for quantisation in (Quantisation(Scheme.INT8, None), Quantisation(Scheme.INT4, 32)):
        quantise_folder(folder, tmp_path / quantisation.scheme, quantisation, lessons)

    in_bytes, in_half_bytes = (
        measure_rise(folder, tmp_path / scheme, TEXTS) for scheme in (Scheme.INT8, Scheme.INT4)
    )

    assert 0 < in_bytes < in_half_bytes
