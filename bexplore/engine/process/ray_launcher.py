"""Start ranks by Ray: `python -m bexplore.engine.process.ray_launcher NUM_RANKS WORKER...`.

Runs as a program: a placement group of one bundle a rank, and in each a task that runs the worker as a process of its
own. Ray's own workers, which live on, are not ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bexplore.engine.process.rank_listener import KEY_VARIABLE
from bexplore.host.process_tree import WORKER_MARK

# Variables of this process that ranks need, wherever they run.
_CARRIED = (KEY_VARIABLE, WORKER_MARK, "OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR")


def run_rank(rank: int, num_ranks: int, worker: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the worker of one rank to its end, with the devices that Ray has given to this task."""
    own = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(num_ranks)}
    # In a session of its own: a rank that ends kills its process group.
    return subprocess.run(
        worker, env=os.environ | dict(environment) | own, start_new_session=True, check=False
    ).returncode


def main(num_ranks: int, worker: Sequence[str]) -> None:
    """Start all ranks and wait for their end; a local cluster where the environment names none."""
    import ray  # an optional extra, and slow to import
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS")
    local: dict[str, Any] = {} if address else {"num_cpus": num_ranks, "include_dashboard": False}
    ray.init(address=address, log_to_driver=True, **local)
    has_devices = ray.cluster_resources().get("GPU", 0) >= num_ranks
    bundle = {"CPU": 1, "GPU": 1} if has_devices else {"CPU": 1}
    group = placement_group([bundle] * num_ranks, strategy="PACK")
    ray.get(group.ready())
    remote = ray.remote(num_cpus=1, num_gpus=1 if has_devices else 0, max_retries=0)(run_rank)
    environment = {name: os.environ[name] for name in _CARRIED if name in os.environ}
    ranks = [
        remote.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        ).remote(rank, num_ranks, list(worker), environment)
        for rank in range(num_ranks)
    ]
    ray.get(ranks)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
