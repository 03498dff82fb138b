"""gpu-webhook: admission of GPU workloads in clusters that several teams share."""

__version__ = "0.1.0"
