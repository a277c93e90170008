"""Shared by the ops' Python modules: one call registers the fake kernel, with the rule for `torch.vmap`, and one the
autograd formula of an op."""

import functools
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from mdops._library import library_path
from mdops.errors import DerivativeError, LibraryError
from mdops.tracing import is_exported


def _is_list_of_tensors(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], torch.Tensor)


def register_fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates the function that gives the shapes and dtypes of `torch.ops.mdops.<name>`'s results, and lets
    `torch.vmap` call the op for each member of a batch in turn.

    Raises LibraryError if the compiled library has no such op.
    """
    if not hasattr(torch.ops.mdops, name):
        raise LibraryError(
            f"{library_path('libmdops.so')} lacks the op {name}: it was built from other sources than the Python "
            "code. Build it again, with `make build` or `pip install --no-build-isolation .`"
        )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def fake(*args: Any) -> Any:
            lists = (value if _is_list_of_tensors(value) else [value] for value in args)
            devices = {item.device for items in lists for item in items if isinstance(item, torch.Tensor)}
            if len(devices) > 1:
                raise RuntimeError(
                    f"mdops::{name}: its tensors are on several devices: {sorted(map(str, devices))}"
                )
            return function(*args)

        torch.library.register_fake(f"mdops::{name}", fake)
        torch.library.register_vmap(f"mdops::{name}", functools.partial(_one_by_one, name))
        for key in ("AutocastCPU", "AutocastCUDA"):
            _library.impl(name, functools.partial(_as_given, name), key, with_keyset=True)
        return fake

    return decorate


def register_fake_like(name: str, *places: int) -> None:
    """`register_fake` for an op whose results have the shapes and dtypes of its arguments at these places."""

    def fake(*args: Any) -> Any:
        found = tuple(args[k].new_empty(args[k].shape) for k in places)
        return found if len(found) > 1 else found[0]

    register_fake(name)(fake)


_library = torch.library.Library("mdops", "IMPL")  # its registrations last as long as this object


def _as_given(name: str, keys: Any, *args: Any) -> Any:
    """The op under autocast: its products by PyTorch must not be cast."""
    both = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    both = both | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
    with torch._C._ExcludeDispatchKeyGuard(both):
        return getattr(torch.ops.mdops, name)(*args)


def _one_by_one(name: str, info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    """The op for each member of a batch, and the batch dimension of its results: the first.

    Raises RuntimeError for a batch without members, and for results of different shapes, which only those of
    `neighbor_pairs` do.
    """
    if info.batch_size == 0:
        raise RuntimeError(f"mdops::{name}: torch.vmap over a batch without members")

    def member(value: Any, dim: Any, k: int) -> Any:
        if isinstance(value, (list, tuple)):
            dims = dim if isinstance(dim, (list, tuple)) else [dim] * len(value)
            return [member(item, d, k) for item, d in zip(value, dims, strict=True)]
        return value if dim is None or not isinstance(value, torch.Tensor) else value.select(dim, k)

    op = getattr(torch.ops.mdops, name)
    pairs = list(zip(args, in_dims, strict=True))
    found = [op(*(member(value, dim, k) for value, dim in pairs)) for k in range(info.batch_size)]
    if isinstance(found[0], torch.Tensor):
        return torch.stack(found), 0
    together: list[Any] = []
    dims: list[Any] = []
    for parts in zip(*found, strict=True):
        if _is_list_of_tensors(parts[0]):
            together.append([torch.stack(items) for items in zip(*parts, strict=True)])
            dims.append([0] * len(parts[0]))
            continue
        if any(part.shape != parts[0].shape for part in parts):
            raise RuntimeError(
                f"mdops::{name}: torch.vmap needs results of one shape, and here they follow from the data"
            )
        together.append(torch.stack(parts))
        dims.append(0)
    return tuple(together), tuple(dims)


def _no_gradient(value: Any) -> Any:
    """What a formula returns for an argument without a gradient: a list for a list of tensors."""
    if _is_list_of_tensors(value):
        return [None] * len(value)
    return [] if isinstance(value, list) and not value else None


class _Kept(int):
    """The place of a tensor among those that a context saves."""


# Not nested in its callers: a nested recursive function holds itself, and with it the tensors, until Python collects
# reference cycles.
def _keep(value: Any, kept: list[torch.Tensor]) -> Any:
    """The argument with places in `kept` instead of tensors."""
    if isinstance(value, torch.Tensor):
        kept.append(value)
        return _Kept(len(kept) - 1)
    return [_keep(item, kept) for item in value] if _is_list_of_tensors(value) else value


def _restored(value: Any, kept: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, _Kept):
        return kept[value]
    return [_restored(item, kept) for item in value] if isinstance(value, list) else value


def as_non_leaf(weight: torch.Tensor) -> torch.Tensor:
    """The tensor as no leaf, so that a backward pass can tell whether it needs its gradient: for leaves it cannot."""
    return weight.view_as(weight) if weight.is_leaf and weight.requires_grad else weight


def is_by_pytorch() -> bool:
    """Whether, on a CPU, PyTorch's own operations replace an equal op: calling them, and recording them in autograd,
    takes a tenth of the time. Not if autocast would cast them, or if a compiler or exporter needs the op."""
    return not (torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or is_exported())


class _Last(torch.autograd.Function):
    """Results that depend on their arguments, so that a backward pass to these finds that there is no formula."""

    @staticmethod
    def forward(name: str, args: list[Any], *kept: torch.Tensor) -> Any:
        return _flat(getattr(torch.ops.mdops, name)(*_restored(args, kept)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise DerivativeError(
            f"mdops::{ctx.name} has no derivatives: its results are the last derivatives of this kind"
        )


def _flat(results: Any) -> Any:
    """The results as a flat tuple, with those in lists; a single tensor unchanged."""
    if isinstance(results, torch.Tensor):
        return results
    return tuple(chain.from_iterable([r] if isinstance(r, torch.Tensor) else r for r in results))


def last_derivative(name: str, *args: Any) -> Any:
    """The results of `torch.ops.mdops.<name>(*args)` in a formula, flattened, if the op has no formula of its own: a
    backward pass through them raises DerivativeError. PyTorch would warn and treat them as constant."""
    if not torch.is_grad_enabled():
        return _flat(getattr(torch.ops.mdops, name)(*args))
    kept: list[torch.Tensor] = []
    return _Last.apply(name, [_keep(value, kept) for value in args], *kept)


def apart(values: Sequence[Any], places: Sequence[int]) -> tuple[list[Any], list[torch.Tensor]]:
    """The values with new aliases of the tensors at these places, so that a gradient is for this place alone; and
    these aliases."""
    given = list(values)
    for k in places:
        one = given[k]
        given[k] = one.view_as(one) if one.requires_grad else one.detach().requires_grad_()
    return given, [given[k] for k in places]


def register_formulas_by(
    name: str,
    function: Callable[..., torch.Tensor],
    differentiable: Sequence[int],
    own: int = 1,
    takes_result: bool = False,
) -> None:
    """Registers the gradients of an op of one result. Those by the first `own` of its differentiable arguments, which
    come first, are the op `<name>_backward(grad, *args)`; with `takes_result` the result is its last argument. Those by
    the others, and second ones, are by PyTorch's operations in `function`, which computes the same."""
    places = (0, *(k + 1 for k in differentiable))

    def formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
        first: Any = (None,) * own
        if any(needs[:own]):
            first = call(f"{name}_backward", grads[0], *args)
            first = (first,) if own == 1 else first
        if not any(needs[own:]):
            return *first, *(None for _ in differentiable[own:])
        create = torch.is_grad_enabled()
        with torch.enable_grad():
            given, leaves = apart(args[: len(args) - takes_result], differentiable)
            y, others = function(*given), leaves[own:]
            found = torch.autograd.grad(y, others, grads, create_graph=create, materialize_grads=True)
        return *first, *found

    def backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
        create = torch.is_grad_enabled()
        with torch.enable_grad():
            given, leaves = apart(args[: len(args) - takes_result], places)
            y, first = function(*given[1:]), leaves[1 : 1 + own]
            found = torch.autograd.grad(y, first, leaves[:1], create_graph=True)
            return torch.autograd.grad(found, leaves, grads, create_graph=create, materialize_grads=True)

    register_formula(name, formula, differentiable, saved=(0,) if takes_result else ())
    register_formula(f"{name}_backward", backward_formula, places)


class _Formula(NamedTuple):
    """The gradients of an op, as passed to `register_formula`."""

    name: str
    backward: Callable[..., Any]
    differentiable: Sequence[int]
    constant: Sequence[int]
    saved: Sequence[int]

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Saves what `gradients` needs. Every line in both takes time in each step: for small systems most of it."""
        tensors = [k for k, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        kept = [inputs[k] for k in tensors]
        others = list(inputs)
        for k in tensors:
            others[k] = None
        lists = [k for k, value in enumerate(inputs) if isinstance(value, (list, tuple))]
        for k in lists:
            others[k] = _keep(others[k], kept)
        ctx.tensors, ctx.lists, ctx.others = tensors, lists, others
        if self.constant or self.saved:
            results = (output,) if isinstance(output, torch.Tensor) else output
            ctx.mark_non_differentiable(*(results[k] for k in self.constant))
            kept += [results[k] for k in self.saved]
            if set(self.saved).intersection(self.constant):
                # Zeros as large as what is saved would cost more than the op.
                ctx.set_materialize_grads(False)
        ctx.save_for_backward(*kept)

    def gradients(self, ctx: Any, wanted: Sequence[Any], grads: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of all arguments; `wanted`: whether each needs one."""
        kept, args = ctx.saved_tensors, list(ctx.others)
        result: list[Any] = [None] * len(args)
        for place, k in enumerate(ctx.tensors):
            args[k] = kept[place]
        for k in ctx.lists:
            args[k] = _restored(args[k], kept)
            result[k] = _no_gradient(args[k])
        needs = self._needed(ctx, wanted)
        if self.saved:
            args += kept[len(kept) - len(self.saved) :]
        # PyTorch's products give different bits for different strides.
        grads = tuple([g.contiguous() if isinstance(g, torch.Tensor) else g for g in grads])
        device = next((g.device.type for g in grads if isinstance(g, torch.Tensor)), "cpu")
        if torch.is_autocast_enabled(device):  # PyTorch's own operations in a formula keep their dtypes, too
            with torch.autocast(device, enabled=False):
                found = self.backward(needs, grads, args)
        else:
            found = self.backward(needs, grads, args)
        for k, grad in zip(self.differentiable, found, strict=True):
            result[k] = grad
        return tuple(result)

    def _needed(self, ctx: Any, wanted: Sequence[Any]) -> tuple[bool, ...]:
        """Whether the current pass needs the gradients: one by positions alone, as for forces, skips those of weights
        that are not leaves. Lists of tensors count as wanted if they have a gradient."""
        needs = tuple([wanted[k] for k in self.differentiable])
        if sum(map(bool, needs)) < 2:  # the pass is for this one
            return needs
        behind = getattr(ctx, "next_functions", ())  # of each tensor; absent in torch.func's own passes
        if len(behind) != len(ctx.tensors):
            return needs
        nodes = dict(zip(ctx.tensors, behind, strict=True))
        given = zip(self.differentiable, needs, strict=True)
        return tuple([need and (k not in nodes or is_wanted(nodes[k][0])) for k, need in given])


def is_wanted(node: Any) -> bool:
    """Whether the current pass reaches this node of the graph."""
    if node is None or not node.next_functions:  # for a leaf the engine does not tell
        return True
    wanted: bool = torch._C._will_engine_execute_node(node)
    return wanted


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, formula: _Formula, *args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            found = getattr(torch.ops.mdops, formula.name)(*args)
        formula.keep(ctx, args, found)
        ctx.formula = formula
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *ctx.formula.gradients(ctx, ctx.needs_input_grad[1:], grads)


_formulas: dict[str, _Formula] = {}


def formula_of(name: str) -> _Formula:
    """The gradients of an op that has a formula."""
    return _formulas[name]


def is_transformed() -> bool:
    """Whether a transformation of `torch.func`, or forward-mode differentiation, is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def refuse_tangents(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raises DerivativeError if forward-mode differentiation (`torch.func.jvp`) reaches an op: PyTorch would treat its
    results as constants."""
    if forward_ad._current_level < 0:
        return
    if any(t.is_floating_point() and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise DerivativeError(
            f"mdops::{name} has no derivatives in forward mode (torch.func.jvp, jacfwd, hessian): use torch.autograd"
        )


def call(name: str, *args: Any) -> Any:
    """`torch.ops.mdops.<name>(*args)`, for an op without lists of tensors. On a CPU it avoids PyTorch's overhead for
    ops with a registered formula, which costs five times as much, even if nothing is recorded."""
    op = getattr(torch.ops.mdops, name)
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    if is_transformed() or not (tensors[0].is_cpu and is_by_pytorch()):
        refuse_tangents(name, tensors)
        return op(*args)
    if torch.is_grad_enabled() and any(value.requires_grad for value in tensors):
        return _Recorded.apply(formula_of(name), *args)
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)


def register_formula(
    name: str,
    backward: Callable[..., Any],
    differentiable: Sequence[int],
    constant: Sequence[int] = (),
    saved: Sequence[int] = (),
) -> None:
    """Registers the gradients of `torch.ops.mdops.<name>` to the arguments at the positions `differentiable`.

    `backward(needs, grads, args)` gets a tuple of bools (which of `differentiable` need a gradient), the
    gradients of the results, and the op's arguments; it returns the gradients in the order of
    `differentiable`. `constant` names the results without a gradient, `saved` those that come after the
    arguments in `args`; an op with saved results gets None for gradients that are zero.

    An argument may be a list of tensors: then its gradient is one, too.
    """
    formula = _formulas[name] = _Formula(name, backward, differentiable, constant, saved)

    def gradients(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return formula.gradients(ctx, ctx.needs_input_grad, grads)

    torch.library.register_autograd(f"mdops::{name}", gradients, setup_context=formula.keep)
