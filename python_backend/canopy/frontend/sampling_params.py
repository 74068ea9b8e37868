"""From what a client asks for to SamplingParams, under the limits of model and deployment."""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from canopy.config import Deployment
from canopy.errors import InvalidRequest
from canopy.frontend.sampling_options import ClientParameters
from canopy.grammar.compiler import GrammarCompiler
from canopy.sampling import Acceptance, PolicyName, SamplingParams
from canopy.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelLimits:
    """What the target model allows."""

    max_context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    defaults: ClientParameters = ClientParameters()  # of a request that names no sampling


class SamplingParamsBuilder:
    """For one deployment and its target."""

    def __init__(
        self,
        deployment: Deployment,
        model: ModelLimits,
        tokenizer: Tokenizer,
        max_context_length: int,
        grammars: GrammarCompiler | None,
    ) -> None:
        """grammars: of structured output; none: it is refused."""
        self._deployment = deployment
        self._model = model
        self._tokenizer = tokenizer
        self._max_context_length = max_context_length
        self._grammars = grammars

    def build(
        self, given: ClientParameters, num_prompt_tokens: int, default_max_tokens: int
    ) -> SamplingParams:
        """Raises InvalidRequest.

        The last token emitted needs no place in the context: hence the `+ 1`.
        """
        room = self._max_context_length - num_prompt_tokens + 1
        max_tokens = min(given.max_tokens or default_max_tokens, room)
        if given.min_tokens > max_tokens:
            raise InvalidRequest(
                f"min_tokens = {given.min_tokens} exceeds the {max_tokens} tokens that "
                "max_tokens and the context leave"
            )
        self._check_known("allowed_token_ids", given.allowed_token_ids)
        self._check_known("logit_bias", [token_id for token_id, _ in given.logit_bias])
        policy, node_budget = self._speculation(given)
        seed = secrets.randbits(64) if given.seed is None else given.seed
        params = SamplingParams(
            temperature=given.temperature,
            top_k=given.top_k if given.top_k < self._model.vocab_size else 0,
            top_p=given.top_p,
            min_p=given.min_p,
            typical_p=given.typical_p,
            repetition_penalty=given.repetition_penalty,
            presence_penalty=given.presence_penalty,
            frequency_penalty=given.frequency_penalty,
            logit_bias=given.logit_bias,
            bad_words_ids=self._bad_words_ids(given.bad_words),
            allowed_token_ids=tuple(dict.fromkeys(given.allowed_token_ids)),
            logprobs=-1 if given.logprobs is None else given.logprobs,
            prompt_logprobs=-1 if given.prompt_logprobs is None else given.prompt_logprobs,
            grammar=self._grammar(given),
            seed=seed,
            max_tokens=max_tokens,
            min_tokens=given.min_tokens,
            stop_token_ids=self._stop_token_ids(given),
            acceptance=self._acceptance(given),
            policy=policy,
            node_budget=node_budget,
        )
        self._check_leaves_tokens(params)
        return params

    def origins(self, parameters: Mapping[str, Any]) -> dict[str, str]:
        """Where the value of an option comes from: the request, the model's folder, the deployment.

        An option that none of them names has Canopy's own default, and is left out.
        """
        recommended, plain = self._model.defaults, ClientParameters()
        origins = dict.fromkeys(
            ("max_tokens", "speculation", "acceptance", "node_budget"), "deployment"
        )
        for option in fields(ClientParameters):
            if getattr(recommended, option.name) != getattr(plain, option.name):
                origins[option.name] = "model"
        asked = {name for name, value in parameters.items() if value is not None}
        return origins | dict.fromkeys(sorted(asked), "request")

    def _bad_words_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Tokens of each word, as it stands at the start of a text and after a space."""
        spelled = [variant for word in words for variant in (word, f" {word.lstrip()}")]
        found = [tuple(self._tokenizer.encode_rendered(text)) for text in spelled]
        return tuple(dict.fromkeys(token_ids for token_ids in found if token_ids))

    def _grammar(self, given: ClientParameters) -> str:
        """Compiled here to refuse it in time; the stages compile it for themselves."""
        if not given.structured_outputs:
            return ""
        if self._grammars is None:
            raise InvalidRequest(
                "structured_outputs cannot be used: the tokens of this model are not known as bytes"
            )
        if given.ignore_eos:
            raise InvalidRequest(
                "ignore_eos does not go with structured_outputs: nothing can follow a whole text"
            )
        self._grammars.matcher(given.structured_outputs)
        return given.structured_outputs

    def _check_leaves_tokens(self, params: SamplingParams) -> None:
        left = set(params.allowed_token_ids or range(self._model.vocab_size))
        left -= {word[0] for word in params.bad_words_ids if len(word) == 1}
        if not left:
            raise InvalidRequest("allowed_token_ids and bad_words leave no token to sample")
        if params.min_tokens > 0 and left <= set(params.stop_token_ids):
            raise InvalidRequest(
                f"min_tokens = {params.min_tokens} cannot be reached: every token that is allowed "
                "is one of stop_token_ids"
            )

    def _check_known(self, name: str, token_ids: Iterable[int]) -> None:
        too_large = [i for i in token_ids if i >= self._model.vocab_size]
        if too_large:
            raise InvalidRequest(
                f"{name} {too_large[:5]} lie outside the vocabulary of "
                f"{self._model.vocab_size} tokens"
            )

    def _stop_token_ids(self, given: ClientParameters) -> tuple[int, ...]:
        self._check_known("stop_token_ids", given.stop_token_ids)
        eos = () if given.ignore_eos else self._model.eos_token_ids
        return tuple(dict.fromkeys((*eos, *given.stop_token_ids)))

    def _acceptance(self, given: ClientParameters) -> Acceptance:
        """At temperature 0 every mode is greedy; above it, greedy is refused."""
        if given.temperature == 0.0:
            return Acceptance.GREEDY
        if given.acceptance == "greedy":
            raise InvalidRequest('acceptance = "greedy" goes with temperature = 0')
        return Acceptance[(given.acceptance or self._deployment.tree.acceptance).upper()]

    def _speculation(self, given: ClientParameters) -> tuple[PolicyName, int]:
        tree = self._deployment.tree
        node_budget = tree.node_budget if given.node_budget is None else given.node_budget
        name = given.speculation or tree.policy
        has_drafter = self._deployment.drafter.source != "none"
        if given.speculation not in (None, "off") and not has_drafter:
            raise InvalidRequest(f'speculation = "{name}": this deployment has no drafter')
        if name == "off" or node_budget == 0 or not has_drafter:
            return PolicyName.OFF, 0
        return PolicyName[name.upper()], node_budget
