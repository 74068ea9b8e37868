"""Every config.pbtxt of a stage says what messages.py says."""

from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from canopy import messages

REPOSITORY = Path(__file__).parents[2] / "model_repository"
STAGES = {
    "draft": (messages.DraftRequest, messages.DraftReply),
    "tree_builder": (messages.BuildRequest, messages.BuildReply),
    "verifier": (messages.VerifyRequest, messages.VerifyReply),
}
TYPES = {
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT64": np.uint64,
    "TYPE_FP32": np.float32,
}


def config_of(model: str) -> model_config_pb2.ModelConfig:
    text = (REPOSITORY / model / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def declared(tensors) -> dict[str, np.dtype]:
    name = model_config_pb2.DataType.Name
    return {t.name: np.dtype(TYPES[name(t.data_type)]) for t in tensors}


@pytest.mark.parametrize("model", STAGES)
def test_stage_tensors_are_the_message_fields(model):
    request, reply = STAGES[model]
    config = config_of(model)
    assert declared(config.input) == messages.array_fields(request)
    assert declared(config.output) == messages.array_fields(reply)
    assert all(list(t.dims) == [-1] for t in (*config.input, *config.output))


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
