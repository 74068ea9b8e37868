"""The deployment: frozen dataclasses, the only home of defaults.

Each is a table of the deployment's file, see deployment_file.
"""

from dataclasses import dataclass, field

from canopy.cpus import has_matrix_tiles, usable_cpus
from canopy.dtypes import AUTO, DTYPES, QUANTIZED, target_dtype
from canopy.errors import InvalidDeployment
from canopy.sampling import Acceptance, PolicyName

DEVICES = ("cpu", "cuda")
HEAD_SOURCES = ("eagle3", "dspark", "dflash")  # published draft heads
NEURAL_SOURCES = ("block", "markov", *HEAD_SOURCES, "auto", "all")  # may read hidden states
SOURCES = ("none", "lookup", "autoregressive", *NEURAL_SOURCES)
POLICIES = tuple(name.name.lower() for name in PolicyName if name is not PolicyName.OFF)
ACCEPTANCE_MODES = tuple(mode.name.lower() for mode in Acceptance)
DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_DRAFTER = "default"  # what comes with Canopy for the source, made for the default model
DEFAULT_NGRAMS = "default"  # the store that comes with Canopy, counted for any vocabulary
LONGEST_MATCH = 8
MAX_GRAPH_ROWS = 1024
GPU_BLOCK_SIZES = (64, 128, 256)


def require(condition: bool, message: str) -> None:
    """Raises InvalidDeployment where a condition does not hold."""
    if not condition:
        raise InvalidDeployment(message)


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    require(value in choices, f"{name} = {value!r}: choose one of {', '.join(choices)}")


@dataclass(frozen=True)
class TargetConfig:
    """The model whose distribution is kept."""

    model: str = DEFAULT_MODEL  # a name that `canopy fetch-model` knows, or a Hugging Face folder
    dtype: str = AUTO  # CPU: int4 for the default model without AMX, else int8; GPU: bfloat16
    device: str = "cpu"
    num_threads: int = 0  # 0: all CPUs that affinity and quota allow
    max_graph_rows: int = 256  # cuda: rows of a step up to which it replays a CUDA graph; 0: never
    batch_invariant: bool = False  # cuda: logits of a node are the same in any tree and batch
    tensor_parallel_size: int = 1  # ranks that share the weights and the cache
    rendezvous: str = ""  # host:port where `canopy worker`s join; "": ranks on this machine
    worker_timeout_s: float = 60.0  # a rank that is silent for longer counts as hung

    def __post_init__(self) -> None:
        _require_choice("target.device", self.device, DEVICES)
        is_faster_in_4_bits = self.model == DEFAULT_MODEL and not has_matrix_tiles()
        dtype = target_dtype(self.dtype, self.device, is_faster_in_4_bits)
        object.__setattr__(self, "dtype", dtype)
        _require_choice("target.dtype", self.dtype, (AUTO, *DTYPES))
        require(
            self.device == "cpu" or self.dtype not in QUANTIZED,
            f'target.dtype = "{self.dtype}" is for the CPU: choose a float type on a GPU',
        )
        require(self.num_threads >= 0, "target.num_threads must be 0 (all CPUs) or more")
        is_fit = 0 <= self.max_graph_rows <= MAX_GRAPH_ROWS
        require(is_fit, f"target.max_graph_rows must be in 0..{MAX_GRAPH_ROWS}")
        require(
            not self.batch_invariant or (self.device != "cpu" and self.tensor_parallel_size == 1),
            'target.batch_invariant is for one rank on a GPU; on the CPU "int8" and "int4" are so',
        )
        self._check_ranks()

    @property
    def replays_graphs(self) -> bool:
        """Ranks do not: each would have to replay what the others do, collectives included."""
        return self.device != "cpu" and self.max_graph_rows > 0 and self.tensor_parallel_size == 1

    def _check_ranks(self) -> None:
        size = self.tensor_parallel_size
        require(1 <= size <= 64, "target.tensor_parallel_size must be in 1..64")
        require(
            size == 1 or self.dtype not in QUANTIZED,
            f'target.dtype = "{self.dtype}" runs on one rank: choose "bfloat16" or "float32", or '
            "tensor_parallel_size = 1",
        )
        is_fit = size > 1 or not self.rendezvous
        require(is_fit, "target.rendezvous is for tensor_parallel_size = 2 or more")
        require(self.worker_timeout_s >= 2.0, "target.worker_timeout_s must be at least 2")


@dataclass(frozen=True)
class DrafterConfig:
    """Where proposals come from, and how far a proposal may grow."""

    source: str = "lookup"
    model: str = ""  # the folder of a drafter model, made for the target's vocabulary
    dtype: str = ""  # of a drafter model; empty: the target's, float32 for a draft head
    num_threads: int = 0  # 0: all CPUs; no other stage computes while drafting
    max_nodes: int = 64  # drafted nodes of one proposal, a superset of the tree that is verified
    num_candidates: int = 512  # of a block drafter's vocabulary, scored at each node
    row_size: int = 32  # entries of a proposal row kept for the ratio rules (K)
    coupling: float = 0.7  # c in `log q + c * G`, the ranking of children in coupled mode
    max_match: int = 8  # longest suffix, in tokens, that lookup matches; 8 at most
    min_match: int = 1
    learn_online: str = AUTO  # lookup's store takes up served answers: on, off; auto: see serve
    ngrams: str = DEFAULT_NGRAMS  # lookup's n-gram store: a file, "": none, default: Canopy's own

    def __post_init__(self) -> None:
        choices = {"source": SOURCES, "dtype": ("", *DTYPES), "learn_online": (AUTO, "on", "off")}
        for name, known in choices.items():
            _require_choice(f"drafter.{name}", getattr(self, name), known)
        require(
            self.dtype not in QUANTIZED or self.source == "autoregressive",
            "drafter.dtype: only an autoregressive drafter has integers; a head has floats",
        )
        require(self.num_threads >= 0, "drafter.num_threads must be 0 (all CPUs) or more")
        for name in ("max_nodes", "row_size", "num_candidates", "min_match"):
            require(getattr(self, name) >= 1, f"drafter.{name} must be at least 1")
        is_fit = self.min_match <= self.max_match <= LONGEST_MATCH
        require(is_fit, f"drafter.max_match must be in min_match..{LONGEST_MATCH}")
        require(
            (self.source == "autoregressive" or self.reads_hidden_states) == bool(self.model),
            'drafter.model is the folder of a drafter: all sources but "none" and "lookup" need it',
        )

    @property
    def threads(self) -> int:
        """Of this machine's cores."""
        return self.num_threads or usable_cpus()

    @property
    def reads_hidden_states(self) -> bool:
        return self.source in NEURAL_SOURCES


@dataclass(frozen=True)
class TreeConfig:
    """Default policy and limits of the trees that are verified; requests may override them."""

    policy: str = "priced"
    node_budget: int = 16  # most drafted nodes a round; the anchor is not counted
    max_depth: int = 16
    max_branch: int = 8  # most children of one node
    uniform_branch: int = 3  # policy uniform: children of every node
    threshold: float = 0.05  # policies threshold and entropy: least joint probability of a branch
    entropy_narrow_bits: float = 1.0  # policy entropy: one child of a node under this
    entropy_stop_bits: float = 2.5  # no child from here on; two or three in between
    entropy_max_nodes: int = 48
    survival_threshold: float = 0.1  # policy survival: least survival of a node, the fixed price
    price_ttl_steps: int = 8  # steps for which a price is reused under the same load; 1: never
    profile: str = ""  # what `canopy profile` wrote; "": where it writes unless told otherwise
    profile_seconds: float = 40.0  # `canopy serve` measures so long if it does not fit; 0: never
    acceptance: str = "coupled"  # the mode for temperature > 0; temperature 0 is always greedy

    def __post_init__(self) -> None:
        _require_choice("tree.policy", self.policy, POLICIES)
        _require_choice("tree.acceptance", self.acceptance, ACCEPTANCE_MODES)
        require(self.acceptance != "greedy", "tree.acceptance is the mode for temperature > 0")
        require(0 <= self.node_budget <= 256, "tree.node_budget must be in 0..256")
        require(1 <= self.max_depth <= 64, "tree.max_depth must be in 1..64")
        require(1 <= self.max_branch <= 64, "tree.max_branch must be in 1..64")
        for name in ("uniform_branch", "price_ttl_steps", "entropy_max_nodes"):
            require(getattr(self, name) >= 1, f"tree.{name} must be at least 1")
        for name in ("threshold", "survival_threshold"):
            require(0.0 < getattr(self, name) < 1.0, f"tree.{name} must lie between 0 and 1")
        require(
            0.0 < self.entropy_narrow_bits < self.entropy_stop_bits,
            "tree.entropy_stop_bits must exceed tree.entropy_narrow_bits, which is positive",
        )
        is_fit = self.profile_seconds == 0.0 or 1.0 <= self.profile_seconds <= 600.0
        require(is_fit, "tree.profile_seconds must be 0 (never) or in 1..600")


@dataclass(frozen=True)
class CacheConfig:
    """The target's paged KV cache."""

    num_tokens: int = 32768  # capacity over all sequences; rounded down to whole blocks
    block_size: int = 16  # tokens; on a GPU 64, 128 or 256: its kernels read whole tiles of a block
    prefix_reuse: bool = True

    def __post_init__(self) -> None:
        require(self.block_size >= 1, "cache.block_size must be at least 1")
        require(self.num_tokens >= self.block_size, "cache.num_tokens must hold one block or more")

    @property
    def num_blocks(self) -> int:
        return self.num_tokens // self.block_size


@dataclass(frozen=True)
class LimitsConfig:
    """What a deployment accepts; beyond it a request is refused, never dropped."""

    max_running: int = 32  # sequences served in one step
    max_waiting: int = 256  # accepted requests that wait for a place; one more is "unavailable"
    max_context_length: int = 0  # tokens of prompt and answer; 0: what the model allows
    max_step_tokens: int = 512  # prompt tokens computed in one step, over all sequences
    max_prompt_slowdown: float = 3.0  # of a step by prompts, while others decode; 0: no bound
    default_max_tokens: int = 256  # of a prompt that is continued as it stands
    default_chat_max_tokens: int = 0  # of a chat's answer; 0: to the end of the context
    max_prompt_bytes: int = 1 << 20
    request_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("max_running", "max_step_tokens", "default_max_tokens", "max_prompt_bytes"):
            require(getattr(self, name) >= 1, f"limits.{name} must be at least 1")
        for name in ("max_waiting", "max_context_length", "default_chat_max_tokens"):
            require(getattr(self, name) >= 0, f"limits.{name} must be 0 or more")
        require(self.request_timeout_s > 0, "limits.request_timeout_s must be positive")
        slowdown = self.max_prompt_slowdown
        require(
            slowdown == 0 or slowdown > 1,
            "limits.max_prompt_slowdown must be above 1, or 0 for none",
        )


@dataclass(frozen=True)
class ServerConfig:
    """Addresses and timing of the Triton server process."""

    folder: str = ""  # of a Triton server, with bin/ and backends/; "": that of the wheel
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    drain_timeout_s: float = 30.0
    metrics_interval_s: float = 0.25
    shared_memory_mb: int = 64  # first size of each model's shared-memory region

    def __post_init__(self) -> None:
        require(
            bool(self.host) and not set("[]/ ") & set(self.host),
            f"server.host is a name or an address without brackets and port, not {self.host!r}",
        )
        ports = (self.http_port, self.grpc_port, self.metrics_port)
        require(all(0 < port < 65536 for port in ports), "server ports must be in 1..65535")
        require(len(set(ports)) == 3, "server ports must differ from each other")
        require(self.metrics_interval_s > 0, "server.metrics_interval_s must be positive")


@dataclass(frozen=True)
class Deployment:
    """One deployment file, complete."""

    target: TargetConfig = field(default_factory=TargetConfig)
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    tree: TreeConfig = field(default_factory=TreeConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def __post_init__(self) -> None:
        size = self.cache.block_size
        is_fit = self.target.device == "cpu" or size in GPU_BLOCK_SIZES
        require(is_fit, f"cache.block_size = {size}: choose 64, 128 or 256 on a GPU")
