import pytest

from ops.demo_model import MODEL_NAME, ensure_demo_model


@pytest.mark.real_model
def test_a_finished_model_is_left_alone(model_folder):
    said: list[str] = []

    manifest = ensure_demo_model(model_folder, said.append)

    assert manifest.name == MODEL_NAME
    assert manifest.licence == "Apache-2.0"
    assert said == []
