"""LangChain's ChatOpenAI with a tool agent, and litellm, against the gateway and a real server."""

import os
from typing import Annotated

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # ask nobody for prices
import litellm

pytestmark = pytest.mark.server


class City(BaseModel):
    """A place."""

    name: Annotated[str, Field(max_length=8)]
    is_capital: bool


@tool
def distance(km: Annotated[int, Field(ge=0, le=999)]) -> str:
    """How far it is."""
    return f"{km} km"


@pytest.fixture
def langchain(url) -> ChatOpenAI:
    return ChatOpenAI(
        model="canopy",
        base_url=f"{url}/v1",
        api_key="none",
        temperature=0.8,
        seed=4,
        max_tokens=300,
    )


def test_langchain_answers_and_streams_the_same(langchain):
    whole = langchain.invoke("abc")
    assert "".join(piece.text for piece in langchain.stream("abc")) == whole.text
    assert whole.usage_metadata["output_tokens"] > 0


def test_langchains_agent_calls_a_tool_and_reads_its_result(langchain):
    question = HumanMessage("how far?")
    agent = langchain.bind_tools([distance], tool_choice="required", parallel_tool_calls=False)
    call_message = agent.invoke([question])
    [call] = call_message.tool_calls
    assert call["name"] == "distance"
    result = distance.invoke(call)
    assert isinstance(result, ToolMessage)
    answer = langchain.bind_tools([distance], tool_choice="none").invoke(
        [question, call_message, result]
    )
    assert answer.text
    assert answer.tool_calls == []


def test_langchain_gets_structured_output(langchain):
    for method in ("json_schema", "function_calling"):
        city = langchain.with_structured_output(City, method=method).invoke("which city?")
        assert isinstance(city, City)


def test_langchain_gets_logprobs(langchain):
    answer = langchain.bind(logprobs=True, top_logprobs=2).invoke("abc")
    content = answer.response_metadata["logprobs"]["content"]
    assert len(content) == answer.usage_metadata["output_tokens"]


def test_litellm_speaks_to_the_gateway(url):
    options = {
        "model": "openai/canopy",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": "abc"}],
        "max_tokens": 12,
        "temperature": 0,
    }
    whole = litellm.completion(**options)
    pieces = litellm.completion(stream=True, **options)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == whole.choices[0].message.content
    assert whole.usage.completion_tokens == 12


def test_litellm_speaks_to_triton_itself(server):
    url = f"http://{server.host}:{server.http_port}/v2/models/canopy/generate"
    answer = litellm.completion(
        model="triton/canopy",
        api_base=url,
        messages=[{"role": "user", "content": "abc"}],
        max_tokens=8,
    )
    assert answer.choices[0].message.content
