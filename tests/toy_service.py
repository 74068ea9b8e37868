"""A model repository whose one model speaks the wire format of `canopy` without a language model.

It streams the words of its prompt, one every `WORD_S`; a prompt that starts with "[" comes back as
an error.
"""

import shutil
from pathlib import Path

from waiting import wait_until

from canopy.config import ServerConfig
from canopy.server.probe import read_metrics
from canopy.server.runtime import MODEL_REPOSITORY

WORD_S = 0.02
ENDLESS = "word " * 4000  # longer than any wait of a test

MODEL = """
import json, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def text_of(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()[0].decode()


class TritonPythonModel:
    def initialize(self, args):
        self.running, self.draining, self.cancelled = {}, False, set()
        self.families = []
        self.gauge = self.metric("canopy_running_sequences", pb_utils.MetricFamily.GAUGE)
        self.lock = threading.Lock()  # metric updates from two threads at once crash the server
        self.steps = self.metric("canopy_steps_total", pb_utils.MetricFamily.COUNTER)

    def metric(self, name, kind):
        self.families.append(pb_utils.MetricFamily(name=name, description=name, kind=kind))
        return self.families[-1].Metric(labels={})

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            control = text_of(request, "control")
            if control:
                self.obey(json.loads(control), sender)
            elif self.draining:
                self.refuse(sender, "[unavailable] the server drains")
            else:
                self.count(request.request_id(), True)
                threading.Thread(target=self.serve, args=(request, sender), daemon=True).start()

    def obey(self, message, sender):
        self.draining |= message["op"] == "drain"
        known = self.running.get(message.get("request_id"), False)
        self.cancelled.add(message.get("request_id"))
        num_left = sum(self.running.values())
        reply = {
            "cancelled": int(known), "draining": self.draining, "num_left": num_left,
            "is_alive": True, "is_ready": not self.draining, "status": self.status(),
            "reason": "", "num_running": num_left, "num_waiting": 0, "num_places": 8,
            "stages": {"draft": "ready", "tree_builder": "ready", "verifier": "ready"},
        }
        if message["op"] == "describe":
            defaults = {"temperature": 0.2, "top_p": 0.9, "max_tokens": 9, "chat_max_tokens": 99}
            reply = {"model": "toy", "max_context_length": 99, "defaults": defaults}
        reply = json.dumps(reply)
        sender.send(pb_utils.InferenceResponse(self.outputs(reply, "stop", None)), flags=FINAL)

    def status(self):
        return "stopping" if self.draining else "ready"

    def refuse(self, sender, text):
        error = pb_utils.TritonError(text, pb_utils.TritonError.UNAVAILABLE)
        sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)

    def serve(self, request, sender):
        try:
            self.stream(request, sender)
        except Exception as error:
            self.refuse(sender, f"[internal] {error!r}")
        finally:
            self.count(request.request_id(), False)

    def count(self, request_id, is_running):
        with self.lock:
            self.running[request_id] = is_running
            self.gauge.set(sum(self.running.values()))

    def stream(self, request, sender):
        text = text_of(request, "text_input")
        if text is None:
            text = json.loads(text_of(request, "messages"))[-1]["content"]
        if text.startswith("["):
            return self.refuse(sender, text)
        words = text.split() or [""]
        for index, word in enumerate(words):
            time.sleep(WORD_S)
            with self.lock:
                self.steps.increment(1)
            if request.request_id() in self.cancelled:
                return self.refuse(sender, "[cancelled] by the client")
            last = index + 1 == len(words)
            report = text_of(request, "sampling_parameters") if last else None
            outputs = self.outputs(word + " ", "length" if last else "None", report)
            response = pb_utils.InferenceResponse(outputs)
            sender.send(response, flags=FINAL) if last else sender.send(response)

    def outputs(self, text, reason, report):
        values = {"text_output": text, "finish_reason": reason, "speculation": report}
        counts = {"num_input_tokens": 7, "num_output_tokens": 1}
        strings = [
            pb_utils.Tensor(name, np.array([value.encode()], object))
            for name, value in values.items() if value is not None
        ]
        return strings + [
            pb_utils.Tensor(name, np.array([value], np.uint32)) for name, value in counts.items()
        ]
"""


def becomes_idle(server: ServerConfig) -> bool:
    """Whether no request runs any more, soon; the gauge follows the last response."""
    return wait_until(lambda: read_metrics(server)["canopy_running_sequences"] == 0)


def write_toy_repository(folder: Path, model: str = MODEL) -> Path:
    """The toy model under the real model's own config.pbtxt."""
    target = folder / "canopy" / "1"
    target.mkdir(parents=True)
    shutil.copy(MODEL_REPOSITORY / "canopy" / "config.pbtxt", target.parent)
    (target / "model.py").write_text(model.replace("WORD_S", str(WORD_S)), encoding="utf-8")
    return folder
