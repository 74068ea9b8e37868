import json
from collections import Counter

import pytest

from bench.harness.prompts import OWN_PROMPTS, InvalidPrompts, Prompt, load_prompts, spread

CATEGORIES = {
    "chat",
    "code",
    "continue",
    "json",
    "math",
    "qa",
    "rewrite",
    "summarize",
    "translate",
}


def test_the_projects_own_prompts_cover_every_category_without_repeats():
    prompts = load_prompts(OWN_PROMPTS)
    counts = Counter(prompt.category for prompt in prompts)
    assert len(prompts) >= 60
    assert set(counts) == CATEGORIES
    assert min(counts.values()) >= 6
    assert len({prompt.text for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"category": "qa", "prompt": "a"}\nnonsense\n', "line 2: not valid JSON"),
        ('{"category": "qa"}\n', "line 1: prompt must be"),
        ('{"category": 3, "prompt": "a"}\n', "line 1: category must be"),
        ('{"category": "qa", "prompt": " "}\n', "line 1: prompt must be"),
        ('["qa", "a"]\n', "line 1: expected an object"),
        ("\n\n", "holds no prompt"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_bad_prompt_file_is_refused_with_its_place(tmp_path, content, reason):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidPrompts, match=reason):
        load_prompts(path)


def test_a_missing_prompt_file_is_refused(tmp_path):
    with pytest.raises(InvalidPrompts, match="cannot be read"):
        load_prompts(tmp_path / "absent.jsonl")


def test_further_keys_blank_lines_and_unusual_line_separators_are_read(tmp_path):
    path = tmp_path / "prompts.jsonl"
    record = {"id": 7, "category": "qa", "prompt": "one\u2028two"}
    path.write_text(json.dumps(record, ensure_ascii=False) + "\n\n", encoding="utf-8")
    assert load_prompts(path) == [Prompt("qa", "one\u2028two")]


def test_a_spread_takes_the_categories_in_turn():
    prompts = [Prompt(category, f"{category}{i}") for category in "abc" for i in range(3)]
    assert [p.text for p in spread(prompts, 4)] == ["a0", "b0", "c0", "a1"]
    assert sorted(p.text for p in spread(prompts, 99)) == sorted(p.text for p in prompts)
