"""kopf's admission server with the injection that our rule `training` makes: the peer that a Python user would take.

kopf offers no way to serve admission without a cluster, so its own pieces are put together as its operator does.
"""

import asyncio
import functools
import logging
import sys
from typing import Any

import kopf
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.references import Insights, Resource
from kopf._core.engines.admission import serve_admission_request
from kopf._core.intents.registries import OperatorRegistry
from kopf._core.reactor.inventory import ResourceMemories

POOL = {"key": "gpu.platform/pool", "operator": "In", "values": ["training"]}
PODS = Resource("", "v1", "pods", "Pod", "pod", namespaced=True, preferred=True, verbs=frozenset({"list", "watch"}))

registry = OperatorRegistry()


@kopf.on.mutate("pods", registry=registry, operation="CREATE")
async def mutate(spec: kopf.Spec, patch: kopf.Patch, **_: Any) -> None:
    """Class and pool for a GPU pod, as far as that goes without a policy, a quota or a record."""
    containers = spec.get("containers", [])
    if not any("nvidia.com/gpu" in each.get("resources", {}).get("limits", {}) for each in containers):
        return
    patch.spec["priorityClassName"] = "gpu-training"
    patch.spec["priority"] = None
    patch.spec["preemptionPolicy"] = None
    terms = [{"matchExpressions": [POOL]}]
    patch.spec["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    patch.meta["annotations"] = {"gpu.platform/injected": '{"rule":"training","class":"gpu-training"}'}


async def main(cert: str, key: str) -> None:
    insights = Insights()
    insights.webhook_resources.add(PODS)
    serve = functools.partial(
        serve_admission_request,
        settings=OperatorSettings(),
        memories=ResourceMemories(),
        memobase={},
        registry=registry,
        insights=insights,
        indices={},
    )
    server = kopf.WebhookServer(addr="127.0.0.1", host="127.0.0.1", certfile=cert, pkeyfile=key)
    async with server:
        async for config in server(serve):
            print(f"listening on {config['url']}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    asyncio.run(main(*sys.argv[1:]))
