"""Images decoded once and kept in memory, for trainings that read them often."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from evergrow.data.items import Images, Items
from evergrow.features.encoding import choose_workers, loaded_batches
from evergrow.features.images import decode_image, median_side
from evergrow.features.preprocess import Preprocessing

_ENLARGEMENT = 10 / 7
"""Side of a decoded image over the side of the network's input."""

_MAX_BYTES = 2**31
"""Images that would take more memory are decoded again whenever they are read."""

_BATCH = 16


@dataclass(frozen=True, eq=False)
class _SquareImages(Dataset[Tensor]):
    """Batches of images, each resized and cropped to one size.

    Parameters
    ----------
    items : Items
        Images.
    transform : Preprocessing
        Sets the size.
    """

    items: Items
    transform: Preprocessing

    def __getitems__(self, rows: list[int]) -> Tensor:
        """Return bytes (n, height, width, 3), or raise the error of a file."""
        images = []
        for name, source in self.items.batch(rows):
            if isinstance(source, Exception):
                raise source
            pixels = self.transform.pixels(decode_image(source, name=name))
            images.append(pixels.permute(1, 2, 0).contiguous())
        return torch.stack(images)


def decoded_images(
    items: Items, preprocessing: Preprocessing, device: torch.device
) -> Items:
    """Decode images once, to the central part that a network reads at evaluation.

    Images in one array, and images that would need too much memory, are returned
    unchanged. Decoded images are somewhat larger than the network's input, so that
    random crops and larger views keep their resolution.

    Parameters
    ----------
    items : Items
        Images.
    preprocessing : Preprocessing
        Preprocessing of the network.
    device : torch.device
        Device of the network. It decides the number of worker processes.

    Raises
    ------
    ImageError
        If an image is unreadable.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from evergrow.adapt.decoded_images import decoded_images
    >>> from evergrow.data.items import Images
    >>> from evergrow.features import Preprocessing
    >>> photos = [np.zeros((90, 80, 3), dtype=np.uint8) for _ in range(3)]
    >>> cpu = torch.device("cpu")
    >>> decoded = decoded_images(Images(photos), Preprocessing.pilot(28), cpu)
    >>> decoded.pixels.shape
    (3, 40, 40, 3)
    """
    if not isinstance(items, Images) or items.pixels is not None:
        return items
    height, width = preprocessing.size
    factor = _ENLARGEMENT
    side = median_side(items)
    if side is not None:
        factor = min(factor, max(side / min(height, width), 1.0))
    size = (round(height * factor), round(width * factor))
    if len(items) * size[0] * size[1] * 3 > _MAX_BYTES:
        return items
    transform = replace(preprocessing, size=size, resize=size)
    rows = list(range(len(items)))
    batches = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
    workers = choose_workers(
        "auto", len(batches), device, _BATCH * size[0] * size[1] * 3
    )
    with loaded_batches(
        _SquareImages(items, transform), batches, workers=workers, device=device
    ) as loaded:
        # Copied, because batches from workers lie in shared memory.
        arrays = [np.array(batch.numpy()) for batch in loaded]
    return Images(np.concatenate(arrays), items.names)
