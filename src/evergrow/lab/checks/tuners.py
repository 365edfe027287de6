"""The conformance suite of tuners: what every one promises on every backbone it serves.

``run_tuner_checks("adapter")`` runs it on a registered tuner, ``iter_tuner_checks()``
yields every registered tuner on every backbone under every check, for a test runner.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.adapt.loop import training_mode
from evergrow.adapt.tuners import (
    TUNERS,
    Tuner,
    create_tuner,
    restore_tuner,
    tuners_of,
)
from evergrow.adapt.tuners.tuner import SavedTuner
from evergrow.core.errors import EvergrowError, ParameterError
from evergrow.core.record import read_record, write_record
from evergrow.core.registry import Registry
from evergrow.core.seeding import borrow_global_generators, generator
from evergrow.features import hash_weights
from evergrow.lab.checks.inputs import require_raises
from evergrow.lab.checks.properties import require
from evergrow.lab.checks.suite import Case, CheckFailure, CheckResult

ModelFactory = Callable[[], nn.Module]

SETTINGS: dict[str, dict[str, Any]] = {
    "adapter": {"bottleneck": 8},
    "lora": {"rank": 4},
    "sdlora": {"rank": 4},
    "vpt-deep": {"tokens": 3},
    "vpt-shallow": {"tokens": 3},
}
"""Settings that tuners are checked with, beyond their defaults."""


def _timm(name: str, **options: Any) -> nn.Module:
    import timm

    # timm draws initial weights from the global generator.
    with borrow_global_generators():
        torch.default_generator.manual_seed(0)
        model: nn.Module = timm.create_model(name, **options)
    return model.eval()


_SMALL = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 48,
    "num_heads": 3,
    "num_classes": 5,
}

BACKBONES: dict[str, ModelFactory] = {
    "vit": lambda: _timm("vit_tiny_patch16_224", depth=3, **_SMALL),
    "dinov2": lambda: _timm(
        "vit_small_patch14_reg4_dinov2", depth=2, init_values=0.5, **_SMALL
    ),
    # The classifier of these models starts near zero and would let next to no gradient
    # through.
    "eva": lambda: _timm(
        "eva02_tiny_patch14_224", depth=2, **{**_SMALL, "num_classes": 0}
    ),
    # Branches that start at nothing, as is usual, would give the tuner's parts in them
    # no gradient.
    "resnet": lambda: _timm("test_resnet", num_classes=5, zero_init_last=False),
}
"""Small backbones with random weights: plain, with layer scale and registers, with rotary positions, without blocks."""


@dataclass(frozen=True)
class Setup:
    """One kind of tuner and one kind of backbone.

    Parameters
    ----------
    tuner : str
        Name of the tuner.
    model : callable
        Makes the backbone, with the same weights every time, in evaluation mode.
    settings : dict
        Settings of the tuner.
    shape : tuple of int
        Shape of a batch of images.
    """

    tuner: str
    model: ModelFactory
    settings: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (4, 3, 32, 32)

    def images(self) -> Tensor:
        """Return the batch that checks look at."""
        return torch.randn(self.shape, generator=generator(0, "tuner checks", "images"))

    def backward(self, answer: Tensor) -> None:
        """Run a loss backwards in which every output has a weight of its own."""
        weights = torch.randn(
            answer.shape, generator=generator(0, "tuner checks", "loss")
        )
        torch.autograd.backward((answer * weights.to(answer)).sum())

    def tuned(self, seed: int = 0, shake: bool = True) -> tuple[nn.Module, Tuner]:
        """Return a model with a tuner on it that, if shaken, does something."""
        model = self.model()
        tuner = create_tuner(self.tuner, model, seed=seed, **self.settings)
        if shake:
            shake_parameters(tuner, seed)
        return model, tuner


def shake_parameters(tuner: Tuner, seed: int = 0) -> None:
    """Move all parameters of a tuner a little: many start at zero and would change nothing."""
    source = generator(seed, "tuner checks", "shake")
    with torch.no_grad():
        for parameter in tuner.parameters():
            parameter.add_(
                (0.1 * torch.randn(parameter.shape, generator=source)).to(parameter)
            )


_ZERO = "prompts start at zero, as published; std=0.02 has the property"

TUNER_OPT_OUTS: dict[tuple[str, str], str] = {
    ("vpt-deep", "start_is_named_by_the_seed"): _ZERO,
    ("vpt-shallow", "start_is_named_by_the_seed"): _ZERO,
}
"""Promises that a tuner does not make, each with the reason."""


TUNER_CHECKS: Registry[Callable[[Setup], None]] = Registry("tuner check")
"""Every check by name; each takes a :class:`Setup` and raises :class:`CheckFailure` or :class:`CheckSkipped`."""


def _same(a: Tensor, b: Tensor, what: str) -> None:
    if not torch.equal(a, b):
        if a.shape == b.shape:
            gap = float((a.detach() - b.detach()).abs().max())
        else:
            gap = float("nan")
        raise CheckFailure(f"{what} must agree to the bit, got a gap of {gap:.3g}")


def _close(a: Tensor, b: Tensor, what: str, tolerance: float) -> None:
    gap = float((a.detach() - b.detach()).abs().max() / b.detach().abs().max())
    require(
        gap <= tolerance,
        f"{what} must agree to {tolerance:g}, got a relative gap of {gap:.3g}",
    )


@TUNER_CHECKS.register("disabled_is_the_base_model")
def disabled_is_the_base_model(setup: Setup) -> None:
    """Require that a disabled tuner leaves the base model, to the bit, and that an enabled one does something."""
    images = setup.images()
    base = setup.model()
    model, tuner = setup.tuned()
    with torch.no_grad():
        expected = base(images)
        tuned = model(images)
        require(
            not torch.equal(tuned, expected),
            "an enabled tuner must change what the model computes",
        )
        with tuner.disable():
            _same(model(images), expected, "a disabled tuner and the base model")
        _same(model(images), tuned, "before and after a disabled stretch")
        tuner.disable()
        _same(model(images), expected, "a disabled tuner and the base model")
        with tuner.enable():
            _same(model(images), tuned, "an enabled stretch and before")
        _same(model(images), expected, "after an enabled stretch")


@TUNER_CHECKS.register("removed_is_the_base_model")
def removed_is_the_base_model(setup: Setup) -> None:
    """Require that removal gives back modules, hooks, gradient flags, weights and answers of the base model."""
    model = setup.model()
    flagged = next(iter(model.parameters())).requires_grad_(False)
    before = [
        (name, id(part), sorted(part.__dict__)) for name, part in model.named_modules()
    ]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    digest = hash_weights(model)
    expected = model(setup.images())
    tuner = create_tuner(setup.tuner, model, **setup.settings)
    require(
        hash_weights(model) == digest,
        "a tuned model must keep the names and values of its state",
    )
    shake_parameters(tuner)
    model(setup.images())
    tuner.remove()
    after = [
        (name, id(part), sorted(part.__dict__)) for name, part in model.named_modules()
    ]
    require(
        after == before, "removal must leave the same modules with the same attributes"
    )
    require(
        not any(_hooks(part) for part in model.modules()), "removal must leave no hooks"
    )
    require(
        [p.requires_grad for p in model.parameters()] == flags,
        "removal must restore requires_grad",
    )
    require(
        not flagged.requires_grad, "removal must not unfreeze what was frozen before"
    )
    require(
        hash_weights(model) == digest, "removal must leave the weights as they were"
    )
    require(tuners_of(model) == [], "removal must leave no tuner on the model")
    _same(model(setup.images()), expected, "a removed tuner and the base model")


def _hooks(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks)


@TUNER_CHECKS.register("save_load_equal")
def save_load_equal(setup: Setup) -> None:
    """Require that a saved tuner comes back to the bit, without the backbone, and on no model that it does not fit."""
    model, tuner = setup.tuned()
    images = setup.images()
    expected = model(images)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tuner.safetensors"
        write_record(path, tuner.saved())
        _same(
            _loaded(setup, path)(images),
            expected,
            "a saved tuner on a new model and the original",
        )
        size = sum(tensor.nbytes for tensor in tuner.state_dict().values())
        require(
            path.stat().st_size < size + 40_000,
            "the file must hold the tuner's parameters only",
        )
        narrow = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
        require_raises(
            EvergrowError,
            lambda: restore_tuner(read_record(SavedTuner, path), narrow),
            "loading on another architecture",
        )
    state = {name: tensor.clone() for name, tensor in tuner.state_dict().items()}
    other, fresh = setup.tuned(seed=1)
    fresh.load_state_dict(state)
    _same(other(images), expected, "a tuner with the state of another")


def _loaded(setup: Setup, path: Path) -> nn.Module:
    model = setup.model()
    restore_tuner(read_record(SavedTuner, path), model)
    return model


@TUNER_CHECKS.register("only_the_tuner_gets_gradients")
def only_the_tuner_gets_gradients(setup: Setup) -> None:
    """Require that every parameter of the tuner gets a gradient and none of the backbone does, until it is frozen."""
    model, tuner = setup.tuned()
    total = tuner.n_trainable
    require(
        total == sum(p.numel() for p in tuner.parameters()),
        "trainable counts must add up to the total",
    )
    setup.backward(model(setup.images()))
    missing = [
        name
        for name, p in tuner.named_parameters()
        if p.grad is None or not bool(p.grad.any())
    ]
    require(
        not missing,
        f"every parameter of the tuner must get a gradient, got none for {missing}",
    )
    touched = [
        name
        for name, p in model.named_parameters()
        if p.grad is not None or p.requires_grad
    ]
    require(
        not touched,
        f"no parameter of the backbone may get a gradient, got one for {touched}",
    )
    tuner.requires_grad_(False)
    require(
        not model(setup.images()).requires_grad, "a frozen tuner must need no gradient"
    )
    require(tuner.n_trainable == 0, "a frozen tuner must count no trainable parameter")
    tuner.requires_grad_(True)
    require(tuner.n_trainable == total, "an unfrozen tuner must count all again")


@TUNER_CHECKS.register("training_leaves_the_backbone_alone")
def training_leaves_the_backbone_alone(setup: Setup) -> None:
    """Require that steps in the loop's training mode change the tuner and not one bit of the backbone's state."""
    model, tuner = setup.tuned()
    digest = hash_weights(model)
    before = [p.detach().clone() for p in tuner.parameters()]
    optimizer = torch.optim.SGD(tuner.parameters(), lr=0.1, momentum=0.9)
    with borrow_global_generators(), training_mode(model):
        torch.default_generator.manual_seed(0)
        modes = [part.training for part in model.modules()]
        for _ in range(2):
            optimizer.zero_grad()
            setup.backward(model(setup.images()))
            optimizer.step()
        require(
            modes == [part.training for part in model.modules()],
            "a pass must leave all parts in their mode",
        )
    moved = [not torch.equal(old, new) for old, new in zip(before, tuner.parameters())]
    require(all(moved), "a step must change every parameter of the tuner")
    require(
        hash_weights(model) == digest,
        "a step must not change the backbone's weights or statistics",
    )


@TUNER_CHECKS.register("evaluation_is_repeatable")
def evaluation_is_repeatable(setup: Setup) -> None:
    """Require that in evaluation mode of the backbone the same images give the same answer, one by one too."""
    model, tuner = setup.tuned()
    images = setup.images()
    with torch.no_grad():
        first = model(images)
        _same(model(images), first, "two passes in evaluation mode")
        _close(
            torch.cat([model(image[None]) for image in images]),
            first,
            "images alone and in a batch",
            1e-4,
        )
        tuner.eval()
        _same(model(images), first, "a tuner in evaluation mode of its own")


@TUNER_CHECKS.register("start_is_named_by_the_seed")
def start_is_named_by_the_seed(setup: Setup) -> None:
    """Require that the seed alone decides the initial parameters, and that the global generator is not used."""
    state = torch.random.get_rng_state()
    (_, first), (_, again), (_, other) = (
        setup.tuned(seed, shake=False) for seed in (0, 0, 1)
    )
    require(
        torch.equal(torch.random.get_rng_state(), state),
        "making a tuner must not use the global generator",
    )
    for name, tensor in first.state_dict().items():
        _same(
            again.state_dict()[name], tensor, f"{name} of two tuners with the same seed"
        )
    different = any(
        not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters())
    )
    require(different, "another seed must give other parameters")


@TUNER_CHECKS.register("several_coexist")
def several_coexist(setup: Setup) -> None:
    """Require that tuners on one model work alone as if the others were not there, and leave in any order."""
    images = setup.images()
    model = setup.model()
    expected = model(images)
    flags = [p.requires_grad for p in model.parameters()]
    tuners = []
    alone = []
    for seed in range(3):
        single, tuner = setup.tuned(seed)
        alone.append(single(images).detach())
        tuners.append(create_tuner(setup.tuner, model, seed=seed, **setup.settings))
        shake_parameters(tuners[-1], seed)
        tuners[-1].disable()
    for tuner, answer in reversed(list(zip(tuners, alone))):
        with tuner.enable():
            _same(model(images), answer, "one of several tuners and the same one alone")
    for tuner in tuners:
        tuner.enable()
    model(images)
    tuners[1].remove()
    tuners[0].remove()
    require(
        not any(p.requires_grad for p in model.parameters()),
        "the backbone must stay frozen until the last leaves",
    )
    _same(model(images), alone[2], "the tuner that stays and the same one alone")
    tuners[2].remove()
    _same(model(images), expected, "the model that all have left and the base model")
    require(
        [p.requires_grad for p in model.parameters()] == flags,
        "the last to leave must restore requires_grad",
    )


@TUNER_CHECKS.register("precisions")
def precisions(setup: Setup) -> None:
    """Require float64 near float32, and that autocast to bfloat16 works forwards and backwards."""
    images = setup.images()
    model, _ = setup.tuned()
    expected = model(images).detach()
    wide = setup.model().double()
    tuner = create_tuner(setup.tuner, wide, **setup.settings)
    shake_parameters(tuner)
    require(
        {p.dtype for p in tuner.parameters()} == {torch.float64},
        "a tuner must have the type of its backbone",
    )
    _close(wide(images.double()).float(), expected, "float64 and float32", 1e-4)
    model, tuner = setup.tuned()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answer = model(images)
        setup.backward(answer.float())
    _close(answer.detach().float(), expected, "autocast and float32", 0.2)
    require(
        all(
            bool(torch.isfinite(p.grad).all())
            for p in tuner.parameters()
            if p.grad is not None
        ),
        "finite gradients",
    )


@TUNER_CHECKS.register("bad_settings_are_refused")
def bad_settings_are_refused(setup: Setup) -> None:
    """Require that an unknown setting is an error, and that it leaves the model untouched."""
    model = setup.model()
    digest = hash_weights(model)
    flags = [p.requires_grad for p in model.parameters()]
    require_raises(
        ParameterError,
        lambda: create_tuner(setup.tuner, model, no_such_setting=1),
        "an unknown setting",
    )
    require(
        hash_weights(model) == digest and tuners_of(model) == [],
        "a refusal must leave the model untouched",
    )
    require(
        [p.requires_grad for p in model.parameters()] == flags,
        "a refusal must not freeze the model",
    )


def iter_tuner_checks(
    tuners: Iterable[str] | None = None,
    backbones: Iterable[str] | None = None,
    checks: Iterable[str] | None = None,
) -> Iterator[Case]:
    """Yield every registered tuner on every backbone under every check, for a test runner to parametrise over.

    Parameters
    ----------
    tuners, backbones, checks : iterable of str, optional
        Names; all by default. Backbones are those of :data:`BACKBONES`.

    Examples
    --------
    >>> from evergrow.lab.checks.tuners import iter_tuner_checks
    >>> [str(case) for case in iter_tuner_checks(["ssf"], ["vit"], ["save_load_equal"])]
    ['ssf-vit-save_load_equal']
    """
    for tuner in tuners or TUNERS.names():
        TUNERS[tuner]  # an unknown name is an error here, not a result
        for backbone in backbones or BACKBONES:
            yield from _cases(tuner, backbone, BACKBONES[backbone], checks)


def _cases(
    tuner: str, backbone: str, model: ModelFactory, checks: Iterable[str] | None
) -> Iterator[Case]:
    setup = Setup(tuner, model, SETTINGS.get(tuner, {}))
    for check in checks or TUNER_CHECKS.names():
        yield Case(
            f"{tuner}-{backbone}",
            check,
            setup,
            TUNER_CHECKS[check],
            TUNER_OPT_OUTS.get((tuner, check)),
        )


def run_tuner_checks(
    tuner: str, model: ModelFactory | None = None, checks: Iterable[str] | None = None
) -> list[CheckResult]:
    """Run the suite on one tuner.

    Parameters
    ----------
    tuner : str
        Name of a registered tuner; register your own with ``TUNERS.register``.
    model : callable, optional
        Makes a backbone with the same weights every time, in evaluation mode, for
        images of 32 by 32; all of :data:`BACKBONES` in turn by default.
    checks : iterable of str, optional
        Names of checks; all by default.

    Returns
    -------
    list of CheckResult
        One per backbone and check; failures are results, not exceptions. A backbone
        that the tuner cannot serve is skipped, with the reason.

    Examples
    --------
    >>> from evergrow.lab.checks.tuners import BACKBONES, run_tuner_checks
    >>> {result.status for result in run_tuner_checks("lora", BACKBONES["vit"], ["save_load_equal"])}
    {'passed'}
    """
    if model is None:
        return [case.run() for case in iter_tuner_checks([tuner], None, checks)]
    return [
        case.run()
        for case in _cases(tuner, getattr(model, "__name__", "model"), model, checks)
    ]
