"""Compile the kernels to machine code of a GPU that is not here: what the interpreter forgives, Triton's compiler refuses.

    python -m tests.kernels.ahead_of_time [compute capability, e.g. 90]

Prints one line for each variant with its registers and stack. TRITON_INTERPRET must not be set.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from acct.kernels import compilation, scoring

SHORT = {"fp32": tl.float32, "bf16": tl.bfloat16, "fp16": tl.float16}


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], capability: int, warps: int) -> Any:
    """Machine code; types: of the arguments that are no constants."""
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    values = {name: constants.get(name) for name, kind in signature.items() if kind == "constexpr"}
    return triton.compile(ASTSource(kernel, signature, values), target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})


def score(capability: int, width: int, kind: str) -> Any:
    """The scoring kernel for one d_M and type."""
    pointers = dict.fromkeys(("token", "base", "slots", "match", "readout", "scores"), f"*{kind}")
    padded = triton.next_power_of_2(width)
    constants = {"WIDTH": width, "WIDTH_PAD": padded, "QUERY_SLOTS": 4, "PLACES": scoring.HELD // padded, "GROUP": scoring.UNITS}
    return compiled(scoring._score, {**pointers, "context": "i32", "units": "i32"}, constants, capability, scoring.WARPS)


def slots(capability: int, dims: tuple[int, int, int], module: str, states: str, result: str, with_residual: bool, rotate: bool) -> Any:
    """The slots' kernel for widths (source dim, residual, target dim) and types of modules, states and result."""
    types = dict.fromkeys(("order", "tile_unit", "tile_first", "tile_stop", "where"), "*i64")
    types |= {
        "source": f"*{states}",
        "bridge": f"*{module}",
        "bias": f"*{module}",
        "result": f"*{result}",
        "total": "*fp32",
        "units": "i32",
    }
    if with_residual:
        types |= {"read": "*i64", **dict.fromkeys(("z", "readout", "xi", "condition"), f"*{module}")}
    if rotate:
        types |= {"turn": "*i64", "cos": f"*{result}", "sin": f"*{result}"}
    inner, width, dim = dims
    constants = {
        "INNER": inner, "WIDTH": width, "DIM": dim, "HALF_PAD": max(triton.next_power_of_2(dim // 2), 16), "CONDITIONS": 4,
        "RESIDUAL": with_residual, "ROTATE": rotate, "SLOTS": compilation.BLOCK_SLOTS, "STEP": compilation.BLOCK_INNER,
        "OPERAND": SHORT[module], "PRECISION": "ieee",
    }  # fmt: skip
    return compiled(compilation._map_slots, types, constants, capability, compilation.WARPS)


def resources(code: Any) -> str:
    """Registers and stack (what spills) of a thread, from the disassembler that ships with Triton."""
    reader = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(code.asm["cubin"])
        said = subprocess.run([str(reader), "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    used = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert used is not None, said
    return f"{used[1]} registers, {used[2]} bytes of stack, {code.metadata.shared} bytes shared, {code.metadata.num_warps} warps"


def main(capability: int) -> None:
    for width, kind in ((128, "fp32"), (160, "bf16")):
        print(f"score d_M={width} {kind}: {resources(score(capability, width, kind))}", flush=True)
    variants = [
        ((128, 416, 128), "fp32", "bf16", "bf16", True, True), ((64, 0, 80), "fp32", "fp16", "fp32", False, False),
        ((128, 416, 128), "bf16", "bf16", "bf16", True, True),
    ]  # fmt: skip
    for dims, module, states, result, with_residual, rotate in variants:
        name = f"slots {dims} modules {module} states {states} result {result} residual={with_residual} rotate={rotate}"
        made = slots(capability, dims, module, states, result, with_residual, rotate)
        print(f"{name}: {resources(made)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 90)
