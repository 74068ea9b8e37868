"""lm-evaluation-harness' local-completions against the gateway: a task scored by log-probs."""

import json
from pathlib import Path

import lm_eval
import pytest
import torch
from lm_eval.tasks import TaskManager
from transformers import LlamaForCausalLM

from canopy.text.tokenizer import Tokenizer

pytestmark = pytest.mark.server

DOCUMENTS = [
    {"question": "abcabcab", "choices": ["c", "x", "q!"], "answer": 0},
    {"question": "1, 2, 3,", "choices": [" 4", " cat", "..."], "answer": 0},
    {"question": "the cat sat on the", "choices": [" mat", " 7", "zz"], "answer": 0},
]
TASK = """
task: tiny_choices
dataset_path: json
dataset_kwargs:
  data_files: {{test: {path}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


def test_each_choice_has_the_log_prob_that_the_model_gives_it(url, triton, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    documents = tmp_path / "documents.jsonl"
    documents.write_text("\n".join(map(json.dumps, DOCUMENTS)))
    (tmp_path / "task.yaml").write_text(TASK.format(path=documents))
    folder = Path(triton.deployment.target.model)
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "base_url": f"{url}/v1/completions",
            "model": "canopy",
            "tokenizer": str(folder),
            "num_concurrent": 1,
            "max_retries": 1,
        },
        tasks=["tiny_choices"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    told = [sample["filtered_resps"] for sample in found["samples"]["tiny_choices"]]
    expected = reference(folder)
    for own, theirs in zip(told, expected, strict=True):
        for (log_prob, _), reference_log_prob in zip(own, theirs, strict=True):
            assert float(log_prob) == pytest.approx(reference_log_prob, abs=1.0)
    assert "acc,none" in found["results"]["tiny_choices"]


def reference(folder: Path) -> list[list[float]]:
    """Of the same weights in float32; the server's are of int8."""
    model, tokenizer = LlamaForCausalLM.from_pretrained(folder), Tokenizer(folder)
    found = []
    for document in DOCUMENTS:
        found.append([])
        for choice in document["choices"]:
            context = tokenizer.encode(document["question"])
            token_ids = tokenizer.encode(document["question"] + choice)
            with torch.no_grad():
                rows = torch.log_softmax(model(torch.tensor([token_ids])).logits[0], -1)
            places = range(len(context) - 1, len(token_ids) - 1)
            pairs = zip(places, token_ids[len(context) :], strict=True)
            found[-1].append(sum(float(rows[row, token]) for row, token in pairs))
    return found
