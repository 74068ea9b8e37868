"""The build stage: which nodes of every proposal are verified."""

import numpy as np

from canopy.config import Deployment, TreeConfig
from canopy.messages import BuildReply, BuildRequest
from canopy.policy import PolicySettings, select
from canopy.sampling import PolicyName
from canopy.tree.forest import split_ragged


class PolicyTreeBuilder:
    """`stages.protocol.TreeBuilder`: each sequence's own policy and budget, the same every turn."""

    def __init__(self, tree: TreeConfig) -> None:
        self._tree = tree

    def build(self, request: BuildRequest) -> BuildReply:
        """Select nodes of every proposal. Raises ValueError for ragged fields that do not fit."""
        sizes = request.num_nodes + 1
        proposals = zip(
            split_ragged(request.parents, sizes),
            split_ragged(request.log_probs, sizes),
            split_ragged(request.entropies, sizes),
            strict=True,
        )
        settings = [
            PolicySettings.of_request(PolicyName(policy), int(budget), self._tree)
            for policy, budget in zip(request.policies, request.node_budgets, strict=True)
        ]
        chosen = [select(s, *proposal) for s, proposal in zip(settings, proposals, strict=True)]
        return BuildReply(
            num_selected=np.array([len(nodes) for nodes in chosen], np.int32),
            selected=np.concatenate([np.zeros(0, np.int32), *chosen]),
            draft_next=np.ones(1, np.int32),
        )


def make_tree_builder(deployment: Deployment) -> PolicyTreeBuilder:
    """The build stage of a deployment."""
    return PolicyTreeBuilder(deployment.tree)
