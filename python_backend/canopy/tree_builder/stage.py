"""The build stage: updates prices from the load and the last step, and selects the trees."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from canopy.config import Deployment, LimitsConfig, TreeConfig
from canopy.costs.profile import Profile
from canopy.costs.profile_file import ProfileWatch, load_profile
from canopy.protocol.messages import BuildReply, BuildRequest
from canopy.sampling import Acceptance, PolicyName
from canopy.tree.forest import offsets_of
from canopy.tree.policies import PolicySettings
from canopy.tree.survival import correct_log_odds
from canopy.tree_builder.controller import BudgetController, MeasuredStep, StepLoad
from canopy.tree_builder.goodput import NodeBudget, has_blocks, least_survival
from canopy.tree_builder.load_monitor import NOT_KNOWN, KnownLoad
from canopy.tree_builder.selection import NodeRanking, rank_nodes, select_nodes
from canopy.tree_builder.server_load import ServerLoad

logger = logging.getLogger(__name__)

_NOT_MEASURED = Profile()
_MAX_COSTS = 1024  # most entries of a cost curve in a reply
_MOST_LOG_PROB = 1e-3  # 0 but for rounding


class PolicyTreeBuilder:
    """`protocol.stages.TreeBuilder`; keeps what it learns of machine and drafter, no sequence."""

    def __init__(
        self,
        tree: TreeConfig,
        profile: Profile = _NOT_MEASURED,
        read_load: Callable[[], KnownLoad] = lambda: NOT_KNOWN,
        max_prompt_rows: int = LimitsConfig.max_step_tokens,
        new_profile: Callable[[], Profile | None] = lambda: None,
    ) -> None:
        """max_prompt_rows: prompt tokens that the verifier computes in one step.

        new_profile: gives a profile when it was measured anew.
        """
        self._tree = tree
        self._max_prompt_rows = max_prompt_rows
        self._sibling_rates = profile.sibling_rates
        self._controller = BudgetController.of_profile(profile)
        self._read_load = read_load
        self._new_profile = new_profile

    def build(self, request: BuildRequest) -> BuildReply:
        """Select nodes of every proposal. Raises ValueError for ragged fields that do not fit."""
        if (profile := self._new_profile()) is not None:
            learnt = self._controller.log_odds_correction
            fresh = BudgetController.of_profile(profile)
            self._controller = replace(fresh, log_odds_correction=learnt)
        known = self._read_load()
        load = self._step_load(request, known.load)
        controller = self._controller.updated(_measured_step(request))
        rankings = list(
            rank_proposals(request, self._tree, self._sibling_rates, controller.log_odds_correction)
        )
        selection = select_nodes(rankings, controller, load)
        self._controller = selection.controller
        return BuildReply(
            num_selected=np.array([len(nodes) for nodes in selection.chosen], np.int32),
            selected=np.concatenate([np.zeros(0, np.int32), *selection.chosen]),
            draft_next=np.array([self._next_draft(request, load)], np.int32),
            price=np.array([selection.budget.price], np.float32),
            log_odds_correction=np.array([controller.log_odds_correction], np.float32),
            least_survival=least_survival_field(selection.budget, controller.log_odds_correction),
            predicted_ms=np.array([selection.controller.predicted_ms], np.float32),
            load_state=np.array([known.state], np.int32),
            num_failed=np.array([sum(ranking is NOTHING for ranking in rankings)], np.int32),
            **self._cached_prices(request, load),
        )

    def _cached_prices(self, request: BuildRequest, load: StepLoad) -> dict[str, Any]:
        """The fields from which the cached tree builder can select in the next steps, if it may."""
        is_calm = load.num_queued == 0 and load.num_prompt_rows == 0
        is_known = self._controller.is_converged or not np.any(
            request.policies == PolicyName.PRICED
        )
        has_room = has_blocks(load.num_running, load.num_free_blocks)
        if self._tree.price_ttl_steps == 1 or not (is_calm and is_known and has_room):
            return {"price_ttl_steps": np.ones(1, np.int32)}
        curve = self._controller.cost_curve(load, min(int(request.node_budgets.sum()), _MAX_COSTS))
        return {
            "price_ttl_steps": np.array([self._tree.price_ttl_steps], np.int32),
            "goodput": np.array([curve.goodput], np.float32),
            "non_verify_ms": np.array([curve.non_verify_ms], np.float32),
            "costs_ms": curve.costs_ms.astype(np.float32),
        }

    def _step_load(self, request: BuildRequest, server: ServerLoad) -> StepLoad:
        """Load of this step: running sequences from the request, waiting ones from whichever of
        the request and the metrics page counts more."""
        return StepLoad(
            num_running=max(_value(request.num_running), len(request.num_nodes), 1),
            num_waiting=max(_value(request.num_waiting), server.num_waiting),
            num_free_blocks=_value(request.num_free_blocks),
            num_prompt_rows=min(_value(request.num_prompt_tokens), self._max_prompt_rows),
            verifier_queue=server.verifier_queue,
        )

    def _next_draft(self, request: BuildRequest, load: StepLoad) -> int:
        """Steps until the next draft. Fixed policies draft every step, even at a loss."""
        if np.any(request.policies != PolicyName.PRICED):
            return 1
        return self._controller.next_draft(load.num_running)


def least_survival_field(budget: NodeBudget, log_odds_correction: float) -> np.ndarray:
    """BuildReply.least_survival."""
    return np.array([least_survival(budget.price, log_odds_correction)], np.float32)


NOTHING = NodeRanking(nodes=[], survivals=[], is_priced=False, is_drawn=False)


def rank_proposals(
    request: BuildRequest,
    tree: TreeConfig,
    sibling_rates: tuple[float, ...],
    log_odds_correction: float,
) -> Iterator[NodeRanking]:
    """The ranked nodes of each sequence of a request; NOTHING where its proposal cannot be read.

    Raises ValueError for ragged fields that do not fit.
    """
    offsets = offsets_of(request.num_nodes + 1)
    _check_lengths(request, int(offsets[-1]))
    request, is_readable = readable(request, offsets)
    calibrated = correct_log_odds(
        request.log_probs, _global_parents(request, offsets), log_odds_correction
    )
    choices = (request.policies, request.node_budgets, request.acceptances)
    lists = (values.tolist() for values in (*choices, offsets[:-1], offsets[1:], is_readable))
    for policy, budget, mode, start, end, can_be_read in zip(*lists, strict=True):
        if not can_be_read:
            logger.error("a proposal of %d nodes cannot be read", end - start - 1)
            yield NOTHING
            continue
        name, own = PolicyName(policy), slice(start, end)
        logs = calibrated if name.is_calibrated else request.log_probs
        yield rank_nodes(
            _settings(name, budget, tree, sibling_rates),
            Acceptance(mode).draws_children,
            request.parents[own],
            logs[own],
            request.entropies[own],
        )


def readable(request: BuildRequest, offsets: np.ndarray) -> tuple[BuildRequest, np.ndarray]:
    """The request without what no policy can read, and bool [S]: whose proposals it can.

    Numbers are checked all at once, for proposals are sound but for a fault of the drafter.
    """
    local = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], request.num_nodes + 1)
    is_root = request.parents == -1
    is_sound = np.where(local == 0, is_root, (request.parents >= 0) & (request.parents < local))
    is_sound &= (request.log_probs <= _MOST_LOG_PROB) & (request.entropies >= 0.0)
    is_sound &= request.entropies < np.inf
    is_readable = (request.policies >= 0) & (request.policies < len(PolicyName))
    is_readable &= (request.acceptances >= 0) & (request.acceptances < len(Acceptance))
    is_readable &= request.node_budgets >= 0
    if is_sound.all() and is_readable.all():
        return request, is_readable
    is_readable &= np.logical_and.reduceat(is_sound, offsets[:-1])
    bad = np.repeat(~is_readable, request.num_nodes + 1)
    selection = {
        "parents": np.where(bad, -1, request.parents),
        "log_probs": np.where(bad, 0.0, request.log_probs),
    }
    return replace(request, **selection), is_readable


@lru_cache(maxsize=256)
def _settings(
    name: PolicyName, budget: int, tree: TreeConfig, sibling_rates: tuple[float, ...]
) -> PolicySettings:
    """Kept, since a step asks for one per sequence."""
    return PolicySettings.of_request(name, budget, tree, sibling_rates)


def _check_lengths(request: BuildRequest, num_nodes: int) -> None:
    for name in ("parents", "log_probs", "entropies"):
        if len(getattr(request, name)) != num_nodes:
            raise ValueError(f"{len(getattr(request, name))} {name} for {num_nodes} nodes")


def _global_parents(request: BuildRequest, offsets: np.ndarray) -> np.ndarray:
    """Parents as indices into the whole array; negative at the anchors."""
    starts = np.repeat(offsets[:-1], request.num_nodes + 1)
    return np.where(request.parents < 0, -1, request.parents + starts)


def _measured_step(request: BuildRequest) -> MeasuredStep:
    return MeasuredStep(*request.last_counts.tolist(), *request.last_times_ms.tolist())


def _value(field: np.ndarray) -> int:
    return int(field[0])


def make_tree_builder(
    deployment: Deployment, read_load: Callable[[], KnownLoad] = lambda: NOT_KNOWN
) -> PolicyTreeBuilder:
    """The build stage of a deployment."""
    return PolicyTreeBuilder(
        deployment.tree,
        load_profile(deployment),
        read_load,
        deployment.limits.max_step_tokens,
        ProfileWatch(deployment).changed,
    )
