import pytest
import torch
from click.testing import CliRunner

from engine.config import CacheType, ComputeType
from ops.bench import weights_memory
from ops.bench.task import Task, TokenRequest
from ops.bench.weights_speed import Kind, measure
from tests.support.tiny_model import write_tiny_model


@pytest.fixture
def folder(tmp_path):
    return write_tiny_model(tmp_path / "tiny")


@pytest.fixture
def _two_threads_afterwards():
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


def test_an_engines_memory_is_measured_in_a_process_of_its_own(folder):
    result = CliRunner().invoke(weights_memory.main, [str(folder)])

    assert result.exit_code == 0, result.output
    name, _, _, process, saved_in_files, saved_in_process = result.output.splitlines()[1].split()
    assert name == "tiny"
    assert 0 <= int(process) < 100
    assert (saved_in_files, saved_in_process) == ("0", "0")


@pytest.mark.usefixtures("_two_threads_afterwards")
def test_each_kind_of_engine_answers_the_same_requests(folder):
    requests = [TokenRequest(str(index), [1, 2 + index], 3) for index in range(4)]
    kinds = [Kind(folder, kv_dtype) for kv_dtype in CacheType]

    speeds = measure(kinds, ComputeType.FLOAT32, Task(str(folder), requests, 2, {}), num_rounds=1)

    assert [sorted(speed.answers) for speed in speeds] == [["0", "1", "2", "3"]] * 2
    assert all(speed.token_s > 0 for speed in speeds)
