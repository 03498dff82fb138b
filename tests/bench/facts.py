"""The facts of a small namespace, for what is measured without a server."""

from webhook.cluster.snapshot import Snapshot

GPU = "requests.nvidia.com/gpu"
SMALL = Snapshot.from_objects(
    [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "ai-training", "labels": {"gpu.platform/team": "training"}},
        },
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "training", "namespace": "ai-training"},
            "spec": {"hard": {GPU: "6"}},
            "status": {"hard": {GPU: "6"}, "used": {GPU: "2"}},
        },
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"gpu.platform/pool": "training"}}},
        *(
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
            for name, value in (("gpu-critical-inference", 100000), ("gpu-training", 50000), ("gpu-batch-low", 10000))
        ),
    ],
)
"""A small namespace as they are: a quota with a GPU key, three classes, a node of the pool."""
