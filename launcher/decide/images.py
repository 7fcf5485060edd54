"""Which images a pod's containers really run, and whether these are the pinned ones. Pure."""

from launcher.cluster.views import PodView

UNTRUSTED_TIME = ("keeper", "worker")
"""Containers that live beside or as the untrusted code; what prover and gate run was proven by their behaviour."""


def image_ids(pod: PodView) -> tuple[tuple[str, str], ...]:
    """Return (container, imageID) as far as the kubelet has published them."""
    everyone = (*(pod.init or ()), *(pod.containers or ()))
    return tuple((each.name, each.image_id) for each in everyone if each.image_id is not None)


def other_image(pod: PodView) -> str | None:
    """Say which container runs another digest than the pod's spec pins; None when none is known to.

    Only digests are compared: the repository named may be another that holds the same image. An id without a repository
    is that of the image's configuration (images loaded onto the node, not pulled), which says nothing about the digest.
    """
    for name in UNTRUSTED_TIME:
        container, pinned = pod.container(name), _digest(pod.image(name))
        runs = _digest(container.image_id) if container is not None else None
        if pinned is not None and runs is not None and pinned != runs:
            return f"{name} runs {runs}, and not {pinned}"
    return None


def changed_spec(pod: PodView) -> str | None:
    """Say that the pod's spec is not the attested one any more; None while nobody has changed it.

    ``metadata.generation`` rises with every change of the spec, and once with the deletion.
    """
    allowed = 1 if pod.deletion_at is None else 2
    if pod.generation is None or pod.generation <= allowed:
        return None
    return f"the pod's spec was changed after its attestation (generation {pod.generation})"


def _digest(image: str | None) -> str | None:
    _, at, digest = (image or "").rpartition("@")
    return digest if at and digest.startswith("sha256:") else None
