"""Is this installation safe and working: all questions that a snapshot of a cluster and the policy can answer."""

from webhook.cluster.doctor_cluster import named, outside, replicas
from webhook.cluster.doctor_registration import controllers, coverage, reach, registered, settings
from webhook.cluster.installation import Installation, Line


def examine(installation: Installation) -> list[Line]:
    """All answers that need no network, in the order in which they are worth reading."""
    checks = (registered, settings, reach, controllers, coverage, replicas, named, outside)
    return [
        *(
            Line("WARN", "readable", f"{kind} could not be read: {why}", f"run doctor as a user who may list {kind}")
            for kind, why in installation.unreadable.items()
        ),
        *(line for check in checks for line in check(installation)),
    ]
