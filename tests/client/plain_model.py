"""A second model for the toy server: the smallest that keeps to the vLLM backend's contract.

It takes nothing but `text_input`, `stream` and `sampling_parameters`, knows no control messages
and never says why it ended.
"""

from pathlib import Path

NAME = "plain"

CONFIG = """
name: "plain"
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
instance_group [ { kind: KIND_CPU count: 1 } ]
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
"""

MODEL = """
import threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "text_input")
            words = tensor.as_numpy()[0].decode().split()
            sender = request.get_response_sender()
            threading.Thread(target=self.serve, args=(words, sender), daemon=True).start()

    def serve(self, words, sender):
        for word in words:
            time.sleep(0.02)
            if sender.is_cancelled():
                break
            text = pb_utils.Tensor("text_output", np.array([(word + " ").encode()], object))
            sender.send(pb_utils.InferenceResponse([text]))
        sender.send(flags=FINAL)
"""


def add_plain_model(repository: Path) -> None:
    """Write it beside the other."""
    folder = repository / NAME / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
