"""From a decoded image to the tensor a backbone expects; the settings travel with the backbone and the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import FileFormatError, InputError, ParameterError
from evergrow.core.record import from_values, to_values
from evergrow.core.validation import check_choice, check_number

if TYPE_CHECKING:
    from PIL.Image import Image

CropMode = Literal["center", "squash", "border"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_LARGEST_STORED = 4096
"""Sides of images that a file may ask for: three times what any backbone takes, and 200 MB."""

_RESIZED_LIMIT = 2**26
"""Beyond so many resized pixels (a strip 1 pixel wide) only the part that the crop keeps is computed."""


@lru_cache(64)
@torch.inference_mode(False)
def _channels(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return a number per channel on a device; copied for each batch, it would wait for all that a GPU has to do."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop, scale to [0, 1], normalise.

    Parameters
    ----------
    size : tuple of int
        Height and width of the result.
    resize : tuple of int
        Height and width that images are resized for before the crop.
    crop_mode : {"center", "squash", "border"}
        ``"center"`` resizes the shorter side and cuts out the centre; ``"squash"``
        resizes both sides, whatever the proportions; ``"border"`` resizes the longer
        side and fills up with the mean colour.
    interpolation : str
        Pillow's filter for resizing, with antialiasing.
    mean, std : tuple of float
        Per channel, for pixels in [0, 1]. Means of 0 and deviations of 1 leave the
        pixels alone.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import Preprocessing, decode_image
    >>> image = decode_image(np.zeros((300, 400, 3), dtype=np.uint8))
    >>> tuple(Preprocessing.pilot()(image).shape)
    (3, 224, 224)
    >>> Preprocessing.from_dict(Preprocessing.pilot().to_dict()) == Preprocessing.pilot()
    True
    """

    size: tuple[int, int] = (224, 224)
    resize: tuple[int, int] = (256, 256)
    crop_mode: CropMode = "center"
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        for name, length in (("size", 2), ("resize", 2), ("mean", 3), ("std", 3)):
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)) or len(value) != length:
                raise ParameterError(
                    f"{name} must have {length} numbers, got {value!r}"
                )
            for part in value:
                if length == 2:
                    check_number(name, part, low=1, high=65536, integer=True)
                else:
                    check_number(name, part, low=0, low_open=name == "std")
            object.__setattr__(
                self, name, tuple(map(int if length == 2 else float, value))
            )
        check_choice("crop_mode", self.crop_mode, get_args(CropMode))
        check_choice("interpolation", self.interpolation, get_args(Interpolation))

    @classmethod
    def pilot(cls, size: int = 224, resize: int | None = None) -> Self:
        """Return pixels in [0, 1] without normalisation, as published continual-learning numbers used them.

        Parameters
        ----------
        size : int
            Height and width of the result.
        resize : int, optional
            What the shorter side is resized to before the crop; by default 8/7 of the
            size (256 for 224). With the size itself, as for CIFAR, nothing of a square
            is cut off.
        """
        check_number("size", size, low=1, integer=True)
        if resize is None:
            resized = round(size * 256 / 224)
        else:
            resized = resize
        return cls(
            (size, size), (resized, resized), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
        )

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> Self:
        """Return what timm's evaluation transform does with ``timm.data.resolve_model_data_config(model)``."""
        _, height, width = config["input_size"]
        crop_fraction = config.get("crop_pct") or 0.875
        resize = (math.floor(height / crop_fraction), math.floor(width / crop_fraction))
        mode: Any = config.get("crop_mode") or "center"
        if mode not in get_args(CropMode):
            mode = "center"
        interpolation: Any = config.get("interpolation") or "bilinear"
        return cls(
            (height, width), resize, mode, interpolation, config["mean"], config["std"]
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings that :meth:`to_dict` gave; optional ones of a later evergrow decide nothing.

        Raises
        ------
        FileFormatError
            If one is missing or out of range; sizes from files are bounded, since
            images of that size are made.
        """
        made = from_values(cls, values, "preprocessing")
        missing = {item.name for item in fields(cls)} - {*values}
        if missing:
            raise FileFormatError(
                f"preprocessing lacks {sorted(missing)}; it is damaged"
            )
        if max(made.size) > _LARGEST_STORED:
            raise FileFormatError(
                f"preprocessing must give images of at most {_LARGEST_STORED} pixels, got {made.size}"
            )
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values that JSON keeps as they are."""
        return dict(to_values(self))

    def for_view(self, size: int, whole: int) -> Self:
        """Return the same for another size of images, or for the middle of larger ones.

        Parameters
        ----------
        size : int
            Height and width of the result.
        whole : int
            The size that images are resized for; the middle of that is seen. A smaller
            one than ``size`` shows some of the border that the network's own view cuts
            off.

        Raises
        ------
        ParameterError
            If that is more than the whole image.

        Examples
        --------
        >>> from evergrow.features import Preprocessing
        >>> Preprocessing().for_view(320, 320).resize, Preprocessing().for_view(224, 252).resize
        ((365, 365), (288, 288))
        """
        height, width = (int(part * whole / self.size[0]) for part in self.resize)
        if min(height, width) < size:
            raise ParameterError(
                f"zoom must not show more than the whole image, as {size}of{whole} does: take at least "
                f"{size}of{math.ceil(size * self.size[0] / min(self.resize))}"
            )
        return replace(self, size=(size, size), resize=(height, width))

    def cuts(self) -> list[tuple[Preprocessing, slice]]:
        """Return the views that the result holds side by side: how each is made, and its columns."""
        return [(self, slice(0, self.size[1]))]

    def __call__(self, image: Image) -> Tensor:
        """Return a float32 tensor (3, height, width) of an image in RGB.

        Parameters
        ----------
        image : PIL.Image.Image
            From :func:`decode_image`.
        """
        return self.normalised(self.pixels(image).contiguous())

    def pixels(self, image: Image) -> Tensor:
        """Return the bytes (3, height, width) of an image in RGB, resized and cropped: a quarter of the tensor's size.

        Workers send these; :meth:`normalised` does the rest where the backbone
        computes.
        """
        from PIL import Image as PILImage

        if getattr(image, "mode", None) != "RGB":
            raise InputError(
                f"image must be a PIL image in RGB (see decode_image), got {getattr(image, 'mode', image)!r}"
            )
        window = self.window(image.height, image.width)
        height, width = self._resized_size(image.height, image.width)
        resample = PILImage.Resampling[self.interpolation.upper()]
        covers = height >= self.size[0] and width >= self.size[1]
        if (
            covers and window is None
        ):  # a strip, of which only the part that the crop keeps is computed
            across = image.width / width
            down = image.height / height
            left, top, right, bottom = self._crop_box(height, width)
            part = (left * across, top * down, right * across, bottom * down)
            return to_bytes(image.resize(self.size[::-1], resample, box=part))
        if (width, height) != image.size:
            image = image.resize((width, height), resample)
        if not covers:  # laid on the middle of a background
            if self.crop_mode == "border":
                fill = tuple(round(255 * value) for value in self.mean)
            else:
                fill = (0, 0, 0)
            height = max(self.size[0], height)
            width = max(self.size[1], width)
            background = PILImage.new("RGB", (width, height), fill)
            background.paste(
                image, ((width - image.width) // 2, (height - image.height) // 2)
            )
            image = background
        return to_bytes(image.crop(self._crop_box(height, width)))

    def normalised(self, pixels: Tensor) -> Tensor:
        """Return bytes (..., 3, height, width) as the float32 tensor that a backbone expects, on the same device.

        Examples
        --------
        >>> import numpy as np, torch
        >>> from evergrow.features import Preprocessing, decode_image
        >>> own = Preprocessing()
        >>> image = decode_image(np.full((300, 400, 3), 99, dtype=np.uint8))
        >>> torch.equal(own.normalised(own.pixels(image)), own(image))
        True
        """
        result = pixels / 255
        if any(self.mean) or any(value != 1 for value in self.std):
            if torch.compiler.is_compiling():
                channels = _channels.__wrapped__
            else:
                channels = _channels
            result.sub_(channels(self.mean, result.device)).div_(
                channels(self.std, result.device)
            )
        return result

    def window(
        self, height: int, width: int
    ) -> tuple[tuple[int, int], int, int] | None:
        """Return the size that an image is resized to, and the top and left of the crop in it.

        None where borders must be filled, or where it is a strip of which only a part
        is worth computing.
        """
        resized = self._resized_size(height, width)
        if (
            resized[0] < self.size[0]
            or resized[1] < self.size[1]
            or resized[0] * resized[1] > _RESIZED_LIMIT
        ):
            return None
        left, top, _, _ = self._crop_box(*resized)
        return resized, top, left

    def _crop_box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of the centre of an image."""
        top = round((height - self.size[0]) / 2.0)
        left = round((width - self.size[1]) / 2.0)
        return left, top, left + self.size[1], top + self.size[0]

    def _resized_size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after resizing, rounded as torchvision (one target) and timm (two targets) do."""
        if self.crop_mode == "squash":
            return self.resize
        if self.crop_mode == "center" and self.resize[0] == self.resize[1]:
            short = self.resize[0]
            long = int(short * max(height, width) / min(height, width))
            if height <= width:
                return (short, long)
            return (long, short)
        ratios = (height / self.resize[0], width / self.resize[1])
        if self.crop_mode == "border":
            ratio = max(ratios)
        else:
            ratio = min(ratios)
        return max(round(height / ratio), 1), max(round(width / ratio), 1)


@dataclass(frozen=True)
class ViewStack(Preprocessing):
    """Several views of an image side by side: it is decoded once, and travels as one tensor.

    Parameters
    ----------
    parts : tuple of Preprocessing
        What is done for each view. Below the smaller ones the sheet is black.

    Examples
    --------
    >>> from evergrow.features.preprocess import Preprocessing, stack_views
    >>> sheet = stack_views(Preprocessing(), (None, (320, 320)))
    >>> sheet.size, [columns for _, columns in sheet.cuts()]
    ((320, 544), [slice(0, 224, None), slice(224, 544, None)])
    """

    parts: tuple[Preprocessing, ...] = ()

    def cuts(self) -> list[tuple[Preprocessing, slice]]:
        """Return the views, each with its columns of the sheet."""
        ends = np.cumsum([part.size[1] for part in self.parts]).tolist()
        return [
            (part, slice(end - part.size[1], end))
            for part, end in zip(self.parts, ends, strict=True)
        ]

    def pixels(self, image: Image) -> Tensor:
        """Return the bytes (3, height, width) of the sheet of an image."""
        sheet = torch.zeros(*self.size, 3, dtype=torch.uint8).permute(
            2, 0, 1
        )  # as images lie in memory
        for part, columns in self.cuts():
            sheet[:, : part.size[0], columns] = part.pixels(image)
        return sheet

    def window(
        self, height: int, width: int
    ) -> tuple[tuple[int, int], int, int] | None:
        """Return the window of the first view, or None if a view has none."""
        found = [part.window(height, width) for part in self.parts]
        return None if None in found else found[0]


@lru_cache(64)
def stack_views(
    own: Preprocessing, views: tuple[tuple[int, int] | None, ...]
) -> Preprocessing:
    """Return the preprocessing of several views; a single view needs no sheet.

    Parameters
    ----------
    own : Preprocessing
        What is done for the network's own view.
    views : tuple of (int, int) or None
        Size and whole of each, as in :meth:`Preprocessing.for_view`, None for the
        network's own; repetitions do not count.
    """
    parts = [
        own if view is None else own.for_view(*view) for view in dict.fromkeys(views)
    ]
    if len(parts) == 1:
        return parts[0]
    size = (max(part.size[0] for part in parts), sum(part.size[1] for part in parts))
    shared = {
        item.name: getattr(own, item.name)
        for item in fields(own)
        if item.name != "size"
    }
    return ViewStack(size, **shared, parts=tuple(parts))


def to_bytes(image: Image) -> Tensor:
    """Return the bytes (3, height, width) of an image in RGB."""
    return torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)


PRESETS: dict[str, Callable[[Preprocessing], Preprocessing]] = {
    "timm": lambda own: own,
    "pilot": lambda own: Preprocessing.pilot(_square(own, "pilot")),
    "pilot-cifar": lambda own: Preprocessing.pilot(
        _square(own, "pilot-cifar"), own.size[0]
    ),
}
"""Presets, from a model's own preprocessing: that itself, and two of published continual-learning numbers."""


def _square(own: Preprocessing, preset: str) -> int:
    if own.size[0] != own.size[1]:
        raise ParameterError(
            f"preset must be 'timm' for a model whose images are not square, got {preset!r}"
        )
    return own.size[0]
