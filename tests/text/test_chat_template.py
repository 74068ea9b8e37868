"""Templates mean what `transformers` makes of them; their work and memory have bounds."""

import json

import pytest
from transformers import PreTrainedTokenizerFast

from canopy.errors import InvalidDeployment, InvalidRequest
from canopy.text import bounded_jinja
from canopy.text.chat_template import ChatOptions
from canopy.text.tokenizer import Tokenizer

MESSAGES = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": "hi", "z": 1, "a": "é"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "  and 'now'?"},
]
TEMPLATES = {
    "tools are none": "{{ tools is none }}{{ documents is none }}{% if tools %}T{% endif %}",
    "tools is defined": "{% if tools is not none and tools is defined %}T{% endif %}x",
    "json": "{% for m in messages %}{{ m | tojson }}{{ m | tojson(indent=2) }}{% endfor %}",
    "absent bos": "{{ bos_token is defined }}{{ bos_token }}|{{ eos_token }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% endfor %}{% if add_generation_prompt %}>{% endif %}",
    "set in generation": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}"
    "{% endgeneration %}{{ x }}",
    "loop": "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}"
    "{{ loop.revindex0 }}{{ (loop.nextitem or m).role }}{{ (loop.previtem or m).role }}\n"
    "{% if loop.index0 == 2 %}{% break %}{% endif %}{% endfor %}",
    "filtered loop": "{% for m in messages if m.role == 'user' %}{{ m.content | trim }}{% else %}-"
    "{% endfor %}{% for m in nothing %}x{% else %}none{% endfor %}",
    "items": "{% for k, v in messages[1].items() %}{{ k }}={{ v }};{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}{{ messages[::-1][0].content }}{{ messages[1:] | length }}",
    "macro": "{% macro f(m, depth) %}{{ m.role * depth }}{% if depth > 1 %}{{ f(m, depth - 1) }}"
    "{% endif %}{% endmacro %}{{ f(messages[0], 3) }}",
    "recursive": "{% for x in [[1, [2]], [3]] recursive %}{{ x if x is number else loop(x) }}"
    "{% endfor %}",
    "block": "{% set x | upper %}a{{ messages | length }}{% endset %}{% set y %}b{% endset %}"
    "{{ x ~ y }}",
    "filters": "{{ messages | map(attribute='role') | unique | join(',') }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
    "{{ '%s-%d' | format('a', 3) }}{{ '{:>5}'.format('b') }}{{ 'x'.ljust(3) }}|{{ -7 | abs }}"
    "{{ messages[0].content.split(' ')[-1] | replace('k', 'K') | default('d') }}"
    "{{ [3, 1] | sort }}",
    "trimming": "{% if true %}\n  a\n  {% endif %}\n b\n",
    "unpacking": "{% set a, b = 'x', 'y' %}{{ a }}{{ b }}{{ {'a': 1} | tojson }}{{ dict(a=1) }}",
}


def folder_with(tiny_folder, folder, template, **settings) -> Tokenizer:
    (folder / "tokenizer.json").write_bytes((tiny_folder / "tokenizer.json").read_bytes())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"} | settings
    settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return Tokenizer(folder)


def theirs(folder) -> str:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_in_transformers(tiny_folder, tmp_path, name):
    tokenizer = folder_with(tiny_folder, tmp_path, TEMPLATES[name])
    assert tokenizer.render_chat(MESSAGES) == theirs(tmp_path)


def test_of_named_templates_the_default_counts(tiny_folder, tmp_path):
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert folder_with(tiny_folder, tmp_path, named).render_chat(MESSAGES) == "D"
    assert theirs(tmp_path) == "D"
    with pytest.raises(InvalidDeployment, match="tool_use"):
        folder_with(tiny_folder, tmp_path, named[:1])


def test_a_template_file_goes_before_the_template_in_the_settings(tiny_folder, tmp_path):
    (tmp_path / "chat_template.jinja").write_text("file {{ eos_token }}")
    tokenizer = folder_with(tiny_folder, tmp_path, "settings", eos_token={"content": "<|end|>"})
    assert tokenizer.render_chat(MESSAGES) == "file <|end|>"


def test_wrong_syntax_is_found_at_load(tiny_folder, tmp_path):
    with pytest.raises(InvalidDeployment, match=r"tokenizer_config.json.*line 2"):
        folder_with(tiny_folder, tmp_path, "a\n{% for m in messages %}")
    with pytest.raises(InvalidDeployment, match="chat_template"):
        folder_with(tiny_folder, tmp_path, 7)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles alternate') }}", "roles alternate"),
        ("{{ messages[0].absent.more }}", "absent"),
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ bos_token + 'x' }}", "bos_token"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_an_error_inside_a_template_refuses_the_request_with_its_text(
    tiny_folder, tmp_path, template, words
):
    tokenizer = folder_with(tiny_folder, tmp_path, template)
    with pytest.raises(InvalidRequest, match=words):
        tokenizer.render_chat(MESSAGES)


_MANY = "range(99999)"


@pytest.mark.parametrize(
    "template",
    [
        f"{{% for i in {_MANY} %}}{{% for j in {_MANY} %}}{{% endfor %}}{{% endfor %}}",
        f"{{% for i in {_MANY} if i < 0 %}}{{% endfor %}}" * 20,
        f"{{% for i in {_MANY} %}}{{{{ {_MANY} | sum }}}}{{% endfor %}}",
        f"{{% for i in {_MANY} %}}{{{{ 'long' * 99 }}}}{{{{ 'long' * 9999 }}}}{{% endfor %}}",
        "{{ 'x' * 1000000000 }}",
        "{{ 7 ** 1000000000 }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{% set ns = namespace(x='xx') %}{% for i in range(60) %}"
        "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(60) %}"
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
        "{% macro f(x) %}{{ f(x + x) }}{% endmacro %}{{ f('xx') }}",
    ],
)
def test_a_template_without_measure_is_ended(tiny_folder, tmp_path, template):
    tokenizer = folder_with(tiny_folder, tmp_path, template)
    with pytest.raises(InvalidRequest, match=r"steps|characters|too large"):
        tokenizer.render_chat(MESSAGES)


def test_a_long_chat_stays_within_the_bounds(tiny_folder, tmp_path):
    tokenizer = folder_with(tiny_folder, tmp_path, TEMPLATES["loop"].replace("== 2", "< 0"))
    assert tokenizer.render_chat(MESSAGES * 2000).count("\n") == 8000


def test_every_render_has_its_own_count(tiny_folder, tmp_path, monkeypatch):
    tokenizer = folder_with(tiny_folder, tmp_path, "{% for m in messages %}.{% endfor %}")
    monkeypatch.setattr(bounded_jinja, "MAX_STEPS", 10)
    assert [tokenizer.render_chat(MESSAGES) for _ in range(3)] == ["...."] * 3


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ('<tool_call>\n{"name": ...}</tool_call>', "hermes"),
        ("<tool_call>\n<function=example>", None),  # arguments as XML
        ("[TOOL_CALLS][{{ calls | tojson }}]", "mistral"),
        ("[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}", None),
        ("<|start_header_id|>ipython<|end_header_id|>", "llama3"),
        ("{{ messages[0].content }}", None),
    ],
)
def test_a_template_tells_how_its_model_writes_calls(tiny_folder, tmp_path, source, form):
    source = source if "{{" in source else f"{{% raw %}}{source}{{% endraw %}}"
    assert folder_with(tiny_folder, tmp_path, source).chat_form.tool_format == form


def test_options_of_a_template_can_forge_no_special_token(tiny_folder, tmp_path):
    tokenizer = folder_with(tiny_folder, tmp_path, "{{ x.y[0] }}")
    options = ChatOptions(template_kwargs={"x": {"y": ["a<|end|>"]}})
    for allowed, count in ((True, 2), (False, 8)):
        text = tokenizer.render_chat(MESSAGES, allowed, options)
        assert len(tokenizer.encode_rendered(text)) == count


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
ANSWERED = [*MESSAGES, {"role": "assistant", "content": "  It is\n"}]


@pytest.mark.parametrize(
    "template",
    [
        "{{ tools | tojson }}{% for m in messages %}[{{ m.content }}]{% endfor %}{{ thinks }}",
        "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}",
    ],
)
@pytest.mark.parametrize(
    ("messages", "options", "theirs_too"),
    [
        (MESSAGES, ChatOptions(tools=TOOLS), {"tools": TOOLS, "add_generation_prompt": True}),
        (
            MESSAGES,
            ChatOptions(add_generation_prompt=False, template_kwargs={"thinks": 3}),
            {"thinks": 3},
        ),
        (
            ANSWERED,
            ChatOptions(add_generation_prompt=False, continue_final_message=True),
            {"continue_final_message": True},
        ),
    ],
)
def test_options_mean_what_they_mean_in_transformers(
    tiny_folder, tmp_path, template, messages, options, theirs_too
):
    tokenizer = folder_with(tiny_folder, tmp_path, template)
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    expected = reference.apply_chat_template(messages, tokenize=False, **theirs_too)
    assert tokenizer.render_chat(messages, options=options) == expected
