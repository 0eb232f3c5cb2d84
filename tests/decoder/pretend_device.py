"""A device that is none: tensors which say they live elsewhere, computed on the CPU, where mixing devices fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretend"

waits: Counter[str] = Counter()
"""What came from the device to the host, by operation."""

copies: Counter[str] = Counter()
"""What went from the host to the device."""


class MixedDevices(RuntimeError):
    """An operation over tensors of two devices."""


class Elsewhere(torch.Tensor):
    """A tensor of the device; `raw` is where its numbers are."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Elsewhere:
        with torch.inference_mode(False):  # a view of a tensor made outside of it is none of inference
            made = torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
                cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
                device=torch.device(NAME, 0),
            )  # fmt: skip
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        waits["tolist"] += 1
        return self.raw.tolist()

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.raw!r})"


class _Everywhere(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


# the host's tensors that a device's operation may be given
_TAKES_HOST = ("index", "index_put", "index_put_", "_index_put_impl_", "copy_")


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    flat = tree_flatten((args, kwargs))[0]
    ours = [a for a in flat if isinstance(a, Elsewhere)]
    hosts = [a for a in flat if isinstance(a, torch.Tensor) and not isinstance(a, Elsewhere)]
    asked = next((a for a in [*flat, kwargs.get("device")] if isinstance(a, torch.device)), None)
    there = bool(ours) if asked is None else asked.type == NAME
    if name == "copy_":
        there = isinstance(args[0], Elsewhere)
        if ours and hosts:
            (copies if there else waits)[name] += 1
    elif name in ("_to_copy", "to"):
        if bool(ours) != there:
            (copies if there else waits)[name] += 1
    elif ours and any(host.ndim for host in hosts):
        if name not in _TAKES_HOST or not isinstance(args[0], Elsewhere):
            raise MixedDevices(f"{func}: {[(type(a).__name__, tuple(a.shape)) for a in [*ours, *hosts]]}")
        copies[f"{name} by host ids"] += 1
    if ours and name in (
        "_local_scalar_dense",
        "equal",
        "is_nonzero",
        "nonzero",
        "masked_select",
        "unique2",
        "_unique2",
    ):
        waits[name] += 1
    if (
        ours
        and name in ("index", "index_put", "index_put_", "_index_put_impl_")
        and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    ):
        waits[f"{name} by mask"] += 1
    if name == "_fused_sdp_choice":
        return 0
    known = {id(a.raw): a for a in ours}
    plain_args, plain_kwargs = tree_map(_plain, (args, kwargs))
    if plain_kwargs.get("pin_memory"):
        plain_kwargs["pin_memory"] = False
    out = func(*plain_args, **plain_kwargs)
    if not there:
        return out
    if name in ("_to_copy", "to") and not ours:  # a copy, not the host's own
        out = out.clone()

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else Elsewhere(value)

    return tree_map(placed, out)


class _Backend(_DummyBackendModule):
    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.empty(0)

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None: ...


def _plain(value: Any) -> Any:
    if isinstance(value, Elsewhere):
        return value.raw
    return torch.device("cpu") if isinstance(value, torch.device) else value


_registered = False


@contextmanager
def pretending() -> Iterator[None]:
    """The device "pretend" exists inside."""
    global _registered
    if not _registered:
        _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
        _registered = True
    waits.clear()
    copies.clear()
    lifted = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(.., device=) is made on the host and copied
    try:
        with _Everywhere():
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(lifted)


def moved(module: Any) -> Any:
    """The module with its weights on the device."""
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None and not isinstance(weight, Elsewhere):
                part._parameters[name] = torch.nn.Parameter(Elsewhere(weight.detach()), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None and not isinstance(buffer, Elsewhere):
                part._buffers[name] = Elsewhere(buffer)
    return module
