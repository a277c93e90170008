"""Runs the GPU kernels of the op `message` and its derivatives on the CPU, thread by thread, and compares them with
PyTorch's operations in float64.

    python scripts/emulate_message.py [--cuda DIR]

Use it to test changes of the kernels without a GPU, like scripts/emulate_attention.py.
"""

import ctypes
import dataclasses
import itertools

import torch
import torch.nn.functional as F
from gpu_emulator.compile import library_of

from mdops.ops.activation import CODES, of_code

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13}
TOLERANCE_OF_ONE = 2e-3  # for products of one part
PASSES = ("forward", "backward", "second")


@dataclasses.dataclass
class Case:
    """Rows of random numbers; some firsts have no rows, some rows no second, and some come after the last first."""

    inputs: int
    sent: int
    kept: int
    lengths: list[int]
    seconds: int
    activation: int
    dtype: torch.dtype
    groups: tuple[tuple[int, int], ...] = ()  # how many firsts each has, and how many of them are seconds
    parts: int = 2  # of numbers in products
    width: int | None = None  # with frames, and this many numbers of some rows taken elsewhere
    outer: bool = False  # rows are a number times a vector

    def __post_init__(self) -> None:
        gen = torch.Generator().manual_seed(sum(self.lengths))
        n, firsts, columns = sum(self.lengths), len(self.lengths), self.sent + self.kept
        self.rows = n + 5

        def numbers(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=gen, dtype=torch.float64).to(self.dtype)

        self.first = torch.arange(firsts).repeat_interleave(torch.tensor(self.lengths)).int()
        self.first = torch.cat([self.first, torch.full((5,), -1, dtype=torch.int32)])
        self.offsets = torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32)
        self.second = torch.randint(-1, self.seconds, (self.rows,), generator=gen).int()
        if self.groups:
            ends = [0, *itertools.accumulate(count for count, _ in self.groups)]
            every = [
                begin + k
                for begin, (_, size) in zip(ends, self.groups, strict=False)
                for _ in range(size)
                for k in range(size)
            ]
            self.second[:n] = torch.tensor(every).int()
            self.group_offsets = torch.tensor(ends).int()
        self.second[n:] = -1
        order = torch.argsort(torch.where(self.second < 0, self.seconds, self.second), stable=True)
        counts = torch.bincount(self.second[self.second >= 0].long(), minlength=self.seconds)
        self.second_offsets = torch.cat([torch.zeros(1), counts.cumsum(0)]).int()
        self.order = torch.where(torch.arange(self.rows) < int(counts.sum()), order, -1).int()
        self.x, self.weight = (
            numbers(self.rows, self.inputs),
            numbers(self.inputs, columns) / self.inputs**0.5,
        )
        self.number, self.vector = numbers(self.rows, 1), numbers(1, self.inputs)
        self.p, self.q = numbers(firsts, columns), numbers(self.seconds, columns)
        self.row_weight, self.scale = numbers(self.rows), numbers(self.kept)
        self.grad_sent, self.grad_kept = numbers(firsts, self.sent), numbers(self.rows, self.kept)
        self.along = [numbers(*t.shape) for t in (self.x, self.p, self.q, self.row_weight)]
        self.threshold = 1.5
        self.frame, self.grad_moments = numbers(self.rows, 3), numbers(firsts, 3, self.inputs)
        chosen = torch.randperm(self.rows, generator=gen)[: self.rows // 3].sort()[0]
        self.taken = torch.cat([chosen.repeat_interleave(1 + chosen % 2), torch.tensor([-1, -1])]).int()
        ends = torch.bincount(self.taken[:-2].long(), minlength=self.rows).cumsum(0)
        self.taken_offsets = torch.cat([torch.zeros(1), ends]).int()
        self.grad_taken = numbers(len(self.taken), self.width or 0)

    def expected(self) -> dict[str, list[torch.Tensor]]:
        given = (
            self.x,
            self.p,
            self.q,
            self.row_weight,
            self.grad_sent,
            self.grad_kept,
            self.scale,
            self.frame,
        )
        x, p, q, w, grad_sent, grad_kept, scale, frame = (t.double().requires_grad_() for t in given)
        number = self.number.double().requires_grad_()
        if self.outer:
            x = number * self.vector.double()
        there, first, second = (self.first >= 0)[:, None], self.first.long(), self.second.long()
        z = x @ self.weight.double() + torch.where(there, p[first], 0.0)
        z = z + torch.where((second >= 0)[:, None], q[second], 0.0)
        y = torch.where(there, of_code(self.activation, self.threshold)(z), 0.0)
        sent = torch.zeros_like(grad_sent).index_add(0, first.clamp(min=0), w[:, None] * y[:, : self.sent])
        kept = x + scale * y[:, self.sent :] if self.kept else x[:, :0]
        loss = (grad_sent * sent).sum() + (grad_kept * kept).sum()
        if self.outer:
            by = torch.autograd.grad(loss, (number, p, q, w))
            return {"forward": [sent.detach(), kept.detach()], "backward": list(by)}
        if self.width is not None:
            rows = torch.where(there[:, :, None], frame[:, :, None] * x[:, None], 0.0)
            moments = torch.zeros_like(self.grad_moments.double()).index_add(0, first.clamp(min=0), rows)
            taken = x[self.taken[:-2].long(), : self.width]
            loss = loss + (self.grad_moments * moments).sum() + (self.grad_taken[:-2] * taken).sum()
            by = torch.autograd.grad(loss, (x, p, q, w, frame))
            return {"backward": [v.detach() for v in by]}
        by = torch.autograd.grad(loss, (x, p, q, w), create_graph=True)
        ends = [sent, kept, x, p, q, w]
        along = sum((a.double() * b).sum() for a, b in zip(self.along, by, strict=True))
        wanted = (grad_sent, grad_kept, x, p, q, w)
        seconds = torch.autograd.grad(along, wanted, materialize_grads=True, allow_unused=True)
        found = {"forward": ends[:2], "backward": list(by), "second": list(seconds)}
        return {name: [value.detach() for value in values] for name, values in found.items()}

    def emulated(self, library: ctypes.CDLL, name: str, *, plain: bool, chip: int) -> list[torch.Tensor]:
        columns, rows = self.sent + self.kept, self.rows

        def space(*shape: int) -> torch.Tensor:
            return torch.full(shape, torch.nan, dtype=self.dtype)

        sums = [space(*self.grad_sent.shape), space(*self.grad_kept.shape)]
        by = [space(*t.shape) for t in (self.x, self.p, self.q, self.row_weight)]
        if self.outer:
            by[0], by_number = None, space(rows, 1)
        if name == "forward":
            given, out, by_z = [None] * 6, [*sums, *[None] * 4], None
        else:
            along = self.along if name == "second" else [None] * 4
            given, by_z = [self.grad_sent, self.grad_kept, *along], space(rows, columns)
            out = [*(sums if name == "second" else [None, None]), *by]
        memory = [space(rows, columns) if name == "second" else None]
        if plain:  # products are computed before and after
            by_z = self.x @ self.weight
            memory[0] = self.along[0] @ self.weight if name == "second" else None
        memory.append(space(rows, self.kept) if name != "forward" else None)
        if self.width is None:
            memory += [None] * 6
        else:
            by_frame = space(rows, 3)
            memory += [self.frame, self.grad_moments, self.grad_taken, by_frame]
            memory += [self.taken, self.taken_offsets]
        if self.outer:
            memory += [self.number, self.vector, None if name == "forward" else by_number]
        else:
            memory += [None] * 3
        indices = [self.first, self.offsets, self.second, self.order, self.second_offsets]
        indices.append(self.group_offsets if self.groups else None)
        tensors = [
            *indices,
            None if self.outer else self.x,
            (self.vector @ self.weight).contiguous() if self.outer else self.weight,
            self.p,
            self.q,
            self.row_weight,
            self.scale,
            *given,
            *out,
            by_z,
        ]
        tensors += memory
        pointers = [None if t is None or not t.numel() else t.data_ptr() for t in tensors]
        sizes = (
            rows,
            self.inputs,
            self.sent,
            self.kept,
            len(self.lengths),
            self.seconds,
            self.activation,
            chip,
            len(self.groups),
            self.parts,
            len(self.taken),
            self.width or 0,
        )
        called = (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(sizes))(*sizes)
        library.run_message(self.dtype == torch.float64, plain, ctypes.c_double(self.threshold), *called)
        if plain and name != "forward":
            by[0].copy_(by_z @ self.weight.T)
            if name == "backward" and self.kept:
                by[0].add_(self.grad_kept)
        found = [t for t in out if t is not None]
        if self.width is not None:
            found.append(by_frame)
        if self.outer and name == "backward":
            found.insert(0, by_number)
        return found


def check(library: ctypes.CDLL, case: Case, *, plain: bool, chip: int) -> float:
    """The largest error of all passes; raises AssertionError if it is too large."""
    worst, expected = 0.0, case.expected()
    for name in expected:
        found = case.emulated(library, name, plain=plain, chip=chip)
        for a, b in zip(found, expected[name], strict=True):
            scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
            atol = TOLERANCE[case.dtype] if case.parts == 2 or name == "second" else TOLERANCE_OF_ONE
            torch.testing.assert_close(a.double(), b, rtol=0, atol=atol * scale)
            worst = max(worst, float((a.double() - b).abs().max()) / scale if b.numel() else 0.0)
    return worst


def check_ends(library: ctypes.CDLL, inputs: int, columns: int, chip: int) -> float:
    """The largest error of the sums of messages along angles for their edges, and of the gradients."""
    gen = torch.Generator().manual_seed(columns)
    lengths = torch.tensor([3, 0, 26, 16, 1, 40])
    rows, atoms = int(lengths.sum()) + 3, len(lengths)
    index = torch.cat([torch.arange(atoms).repeat_interleave(lengths), torch.full((3,), -1)]).int()
    offsets = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
    sizes = (rows, inputs), (inputs, 2 * columns), (atoms, columns), (rows, columns), (rows, columns)
    x, weight, of_atom, grad_p, grad_q = (torch.randn(size, generator=gen) for size in sizes)
    given = [x.double().requires_grad_(), of_atom.double().requires_grad_()]
    made = given[0] @ weight.double() + F.pad(given[1], (0, columns))[index.long()]
    p, q = torch.where(index[:, None] < 0, 0.0, made).split(columns, 1)
    by = torch.autograd.grad((p * grad_p).sum() + (q * grad_q).sum(), given)
    out = [
        torch.full(size, torch.nan)
        for size in ((rows, columns), (rows, columns), (rows, inputs), (atoms, columns))
    ]
    tensors = x, weight, of_atom, grad_p, grad_q, index, offsets, *out
    pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
    for backward in (False, True):
        library.run_angle_ends(backward, pointers, (ctypes.c_int64 * 5)(rows, atoms, inputs, columns, chip))
    worst = 0.0
    for a, b in zip(out, (p, q, *by), strict=True):
        error = float((a.double() - b).abs().max() / b.abs().max())
        assert error < TOLERANCE[torch.float32], error
        worst = max(worst, error)
    return worst


def main() -> None:
    lengths = [0, 27, 16, 1, 40, 0, 33, 90]
    with library_of("message", __doc__) as library:
        for inputs, columns, chip in itertools.product((32, 64), (96, 16), (1, 8)):
            print(
                f"ends of angles, {inputs}, {columns}, {chip}: {check_ends(library, inputs, columns, chip):.1e}"
            )
        for dtype in (torch.float32, torch.float64):
            for shape in ((3, 4, 3), (2, 0, 2), (1, 5, 0), (0, 3, 0), (70, 10, 70), (40, 96, 0)):
                for some in (lengths, 5 * lengths):  # with more of them, a warp each
                    case = Case(*shape, some, 7, CODES["tanh"], dtype)
                    print(f"{dtype}, {shape}, {len(some)}: {check(library, case, plain=True, chip=1):.1e}")
        wide = (32, 16, 32), (32, 48, 0), (64, 32, 64), (128, 128, 128)
        for shape, chip, activation in itertools.product(wide, (1, 8), ("silu", "silut")):
            case = Case(*shape, lengths, 7, CODES[activation], torch.float32)
            print(
                f"tensor cores, {shape}, {chip}, {activation}: {check(library, case, plain=False, chip=chip):.1e}"
            )
            case = Case(*shape, lengths, 7, CODES[activation], torch.float32, parts=1)
            print(
                f"tensor cores, {shape}, {chip}, one part: {check(library, case, plain=False, chip=chip):.1e}"
            )
        # There are no kernels with frames for wider rows.
        for shape, chip, width in itertools.product(wide[:3], (1, 8), (0, 16, 32)):
            case = Case(*shape, lengths, 7, CODES["silut"], torch.float32, width=width)
            print(f"frames, {shape}, {chip}, {width}: {check(library, case, plain=False, chip=chip):.1e}")
        groups = (3, 3), (0, 0), (4, 0), (28, 24), (35, 33), (1, 1)
        for shape, some in itertools.product([*wide[:3], (32, 128, 32)], (groups, groups[:3])):
            lengths = [size if k < size else 0 for count, size in some for k in range(count)]
            for name in ("silut", "silu"):
                case = Case(*shape, lengths, len(lengths), CODES[name], torch.float32, some)
                for chip in (1, 8):
                    print(
                        f"groups, {shape}, {chip}, {name}: {check(library, case, plain=False, chip=chip):.1e}"
                    )
            other = dataclasses.replace(case, outer=True)
            for chip in (1, 8):
                print(f"outer, {shape}, {chip}: {check(library, other, plain=False, chip=chip):.1e}")
            case = dataclasses.replace(case, parts=1)
            print(f"groups, {shape}, {chip}, one part: {check(library, case, plain=False, chip=chip):.1e}")


if __name__ == "__main__":
    main()
