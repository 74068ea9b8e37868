"""Every config.pbtxt says what the code of its model relies on."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

REPOSITORY = Path(__file__).parents[2] / "model_repository"
STAGES = ("draft", "tree_builder", "verifier")


def config_of(model: str) -> model_config_pb2.ModelConfig:
    text = (REPOSITORY / model / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.mark.parametrize("model", STAGES)
def test_a_stage_takes_one_packed_message_and_gives_one(model):
    config = config_of(model)
    for tensors, name in ((config.input, "request"), (config.output, "reply")):
        assert [(t.name, t.data_type, list(t.dims)) for t in tensors] == [
            (name, model_config_pb2.TYPE_UINT8, [-1])
        ]


@pytest.mark.parametrize("model", STAGES)
def test_stages_are_plain_models_with_one_instance(model):
    config = config_of(model)
    assert config.max_batch_size == 0
    assert not config.model_transaction_policy.decoupled
    assert [group.count for group in config.instance_group] == [1]


def test_the_entry_model_is_decoupled_and_every_input_is_optional():
    config = config_of("canopy")
    assert config.model_transaction_policy.decoupled
    assert all(tensor.optional for tensor in config.input)
