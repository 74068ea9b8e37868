"""Settings of the benchmark `acceptance`, what was counted in each, and its figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness.benchmark import Record
from bench.harness.local_engine import Answer
from bench.harness.plots import plot_lines
from bench.harness.prompts import Prompt

EVERY_CATEGORY = "all"
_LISTED_NODES = 16  # of the figures that name no number of nodes


@dataclass(frozen=True)
class Setting:
    """One way to speculate; the mode is "greedy" exactly at temperature 0."""

    sources: str  # a name of acceptance.SOURCE_SETS, or the deployment's own source
    policy: str
    node_budget: int
    temperature: float
    mode: str

    @property
    def sampling(self) -> str:
        """The mode with its temperature; empty for greedy."""
        return "" if self.mode == "greedy" else f"{self.mode}_t{self.temperature:g}"

    @property
    def suffix(self) -> str:
        """Of a figure's name."""
        return f"_{self.sampling}" if self.sampling else ""


@dataclass
class Tally:
    """Rounds and nodes, added up."""

    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    def add(self, answer: Answer) -> None:
        """Count one answer's speculation report in."""
        self.num_rounds += answer.report["rounds"]
        self.num_drafted += answer.report["drafted_nodes"]
        self.num_accepted += answer.report["accepted_tokens"]

    @property
    def acceptance_length(self) -> float:
        return 1.0 + self.num_accepted / max(self.num_rounds, 1)

    @property
    def nodes_per_round(self) -> float:
        return self.num_drafted / max(self.num_rounds, 1)

    @property
    def accepted_per_node(self) -> float:
        return self.num_accepted / max(self.num_drafted, 1)


@dataclass
class Outcome:
    """What one setting reached, by category; EVERY_CATEGORY is their sum."""

    setting: Setting
    tallies: dict[str, Tally] = field(default_factory=lambda: {EVERY_CATEGORY: Tally()})
    accepted_by_depth: list[int] = field(default_factory=list)  # nodes accepted, from depth 1

    def add(self, prompt: Prompt, answer: Answer) -> None:
        """Count one answer in."""
        self.total.add(answer)
        self.tallies.setdefault(prompt.category, Tally()).add(answer)

    @property
    def total(self) -> Tally:
        return self.tallies[EVERY_CATEGORY]


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Policies are named at the first node budget, of the first set of sources; topn also by
    sources and budget. The set "all" is the one that needs no name."""
    figures: dict[str, float] = {}
    first = (outcomes[0].setting.sources, outcomes[0].setting.node_budget)
    for outcome in outcomes:
        setting, total = outcome.setting, outcome.total
        if (setting.sources, setting.node_budget) == first:
            name = f"{setting.policy}{setting.suffix}"
            figures[f"tau_{name}"] = total.acceptance_length
            figures[f"nodes_{name}"] = total.nodes_per_round
            figures[f"accepted_per_node_{name}"] = total.accepted_per_node
        if setting.policy == "topn":
            name = f"{setting.sources}{setting.node_budget}_tau{setting.suffix}"
            figures[name] = total.acceptance_length
    return figures | _figures_of_all_sources(outcomes) | _figures_of_chains(outcomes)


def _figures_of_all_sources(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """tree16_tau and its like; coupled_t1_tau and its like, with 16 nodes."""
    figures = {}
    for outcome in outcomes:
        setting = outcome.setting
        if setting.sources == "all" and setting.policy == "topn":
            if not setting.sampling:
                figures[f"tree{setting.node_budget}_tau"] = outcome.total.acceptance_length
            elif setting.node_budget == _LISTED_NODES:
                figures[f"{setting.sampling}_tau"] = outcome.total.acceptance_length
    return figures


def _figures_of_chains(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The longest greedy chain of every set, "all" as chain_tau; and how many times as many
    drafted tokens a tree of 16 brings a round (neural16_accept_gain)."""
    chains: dict[str, float] = {}
    trees: dict[str, float] = {}
    for outcome in outcomes:
        setting, tau = outcome.setting, outcome.total.acceptance_length
        if setting.policy == "chain" and not setting.sampling:
            chains[setting.sources] = tau
        if (
            setting.policy == "topn"
            and not setting.sampling
            and setting.node_budget == _LISTED_NODES
        ):
            trees[setting.sources] = tau
    figures = {"chain_tau" if s == "all" else f"{s}_chain_tau": chains[s] for s in chains}
    for sources in chains.keys() & trees.keys():
        if chains[sources] > 1.0:
            gain = (trees[sources] - 1.0) / (chains[sources] - 1.0)
            figures[f"{sources}{_LISTED_NODES}_accept_gain"] = gain
    return figures


def details_of(outcomes: Sequence[Outcome]) -> dict[str, list[Record]]:
    """Tables by setting, by category, and by depth."""
    return {
        "acceptance by policy": [_record(outcome, EVERY_CATEGORY) for outcome in outcomes],
        "acceptance by policy and category": [
            _record(outcome, category)
            for outcome in outcomes
            for category in sorted(set(outcome.tallies) - {EVERY_CATEGORY})
        ],
        "acceptance by depth": [r for outcome in outcomes for r in _depth_records(outcome)],
    }


def _record(outcome: Outcome, category: str) -> Record:
    tally = outcome.tallies[category]
    return {
        **_names(outcome.setting),
        "category": category,
        "rounds": tally.num_rounds,
        "acceptance_length": tally.acceptance_length,
        "nodes_per_round": tally.nodes_per_round,
        "accepted_per_node": tally.accepted_per_node,
    }


def _depth_records(outcome: Outcome) -> list[Record]:
    """The share of rounds that kept a node of each depth."""
    rounds = max(outcome.total.num_rounds, 1)
    return [
        {**_names(outcome.setting), "depth": depth, "share_of_rounds": num / rounds}
        for depth, num in enumerate(outcome.accepted_by_depth, 1)
    ]


def _names(setting: Setting) -> Record:
    return {
        "sources": setting.sources,
        "policy": setting.policy,
        "node_budget": setting.node_budget,
        "mode": setting.mode,
        "temperature": setting.temperature,
    }


def plot_acceptance(outcomes: Sequence[Outcome], folder: Path) -> None:
    """acceptance-by-depth.svg and acceptance-by-nodes.svg of the greedy trees, a line a set of
    sources. Raises ImportError without matplotlib."""
    greedy = [o for o in outcomes if o.setting.policy == "topn" and not o.setting.sampling]
    listed = [o for o in greedy if o.setting.node_budget == _LISTED_NODES]
    by_depth = [record for outcome in listed for record in _depth_records(outcome)]
    by_nodes = [_record(outcome, EVERY_CATEGORY) for outcome in greedy]
    plot_lines(by_depth, folder / "acceptance-by-depth.svg", "depth", "share_of_rounds", "sources")
    plot_lines(
        by_nodes, folder / "acceptance-by-nodes.svg", "node_budget", "acceptance_length", "sources"
    )
