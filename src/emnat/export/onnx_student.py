"""A student as two ONNX graphs, made from its weights: source → memory and length scores; memory → best labels.

They are built by hand, with ONNX Runtime's own operators for attention and dynamic quantisation, which no exporter
emits: in int8 that is about a quarter faster than an exported and then quantised graph (docs/log.md). The second graph
ends in the three best labels of every position, all that argmax and ODD need: nothing as large as the vocabulary leaves
it.
Shapes: B sources, S source positions, T target positions, D hidden, V vocabulary, K×N a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from emnat.config import Model
from emnat.decoding.exported import DECODER_FILE, ENCODER_FILE
from emnat.models import NAT
from emnat.text.subwords import PAD, SPECIAL

Precision = Literal["float32", "int8"]
Array = npt.NDArray[Any]
_MICROSOFT = "com.microsoft"
_OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid(_MICROSOFT, 1)]
_TOP = 3


def save_for_onnx(student: NAT, folder: Path, precision: Precision) -> None:
    """Write both graphs into `folder`, in ONNX Runtime's dialect."""
    for build, name in ((_encoder, ENCODER_FILE), (_decoder, DECODER_FILE)):
        onnx.save(build(_Network(student, precision)), str(folder / name))


class _Network:
    """Nodes and weights of a graph in the making. A value is known by its name."""

    def __init__(self, student: NAT, precision: Precision) -> None:
        self.settings: Model = student.settings
        self.weights = {key: value.detach().float().cpu().numpy() for key, value in student.state_dict().items()}
        self.scale = np.float32(student.embedding.scale)
        self._int8 = precision == "int8"
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, value: Array) -> str:
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def integers(self, *values: int) -> str:
        return self.constant("integers_" + "_".join(map(str, values)), np.array(values, np.int64))

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        return self.nodes(kind, 1, *inputs, domain=domain, **attributes)[0]

    def nodes(self, kind: str, outputs: int, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        names = [f"{kind}_{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names

    def graph(self, inputs: dict[str, Any], outputs: dict[str, Any], results: list[str]) -> onnx.ModelProto:
        """`inputs` and `outputs`: name → (type, shape); `results`: the values that become the outputs."""
        self._nodes += [helper.make_node("Identity", [own], [name]) for own, name in zip(results, outputs, strict=True)]
        taken, given = (
            [helper.make_tensor_value_info(name, *kind) for name, kind in side.items()] for side in (inputs, outputs)
        )
        graph = helper.make_graph(self._nodes, "student", taken, given, list(self._initializers.values()))
        return helper.make_model(graph, opset_imports=_OPSETS, ir_version=9)

    def matrix_product(self, x: str, name: str, matrix_KN: Array, bias_N: Array | None = None) -> str:
        """x · matrix + bias. The matrix lies as it is read, so that nothing is transposed at run time."""
        if self._int8:
            inputs = [x, *self._quantised(name, matrix_KN)]
            if bias_N is not None:
                inputs += ["", self.constant(f"{name}.bias", bias_N)]
            return self.node("DynamicQuantizeMatMul", *inputs, domain=_MICROSOFT)
        product = self.node("MatMul", x, self.constant(name, matrix_KN))
        return product if bias_N is None else self.node("Add", product, self.constant(f"{name}.bias", bias_N))

    def linear(self, x: str, name: str) -> str:
        return self.matrix_product(x, name, self.weights[f"{name}.weight"].T, self.weights[f"{name}.bias"])

    def norm(self, x: str, name: str) -> str:
        parts = (self.constant(f"{name}.{part}", self.weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return self.node("LayerNormalization", x, *parts, epsilon=1e-5)

    def final_norm(self, x: str, name: str) -> str:
        return self.norm(x, name) if self.settings.norm == "pre" else x

    def around(self, x: str, name: str, sublayer: Callable[[str], str]) -> str:
        """The residual connection and its normalisation (see Residual in models/layers.py)."""
        if self.settings.norm == "pre":
            return self.node("Add", x, sublayer(self.norm(x, f"{name}.norm")))
        return self.norm(self.node("Add", x, sublayer(x)), f"{name}.norm")

    def self_attention(self, x: str, name: str, lengths32_B: str) -> str:
        inputs, heads, hidden = f"{name}.inputs", self.settings.heads, self.settings.hidden
        if self._int8:
            bias = self.constant(f"{inputs}.bias", self.weights[f"{inputs}.bias"])
            matrix, scale = self._quantised(inputs, self.weights[f"{inputs}.weight"].T)
            rounded, step, zero = self.nodes("DynamicQuantizeLinear", 3, x)
            attended = self.node(
                "QAttention",
                rounded,
                matrix,
                bias,
                step,
                scale,
                lengths32_B,
                zero,
                domain=_MICROSOFT,
                num_heads=heads,
            )
        else:
            thirds = self.integers(hidden, hidden, hidden)
            query, key, value = self.nodes("Split", 3, self.linear(x, inputs), thirds, axis=-1)
            attended = self.attention(query, key, value, lengths32_B)
        return self.linear(attended, f"{name}.output")

    def cross_attention(self, x: str, name: str, key_value: list[str], source_lengths32_B: str) -> str:
        key, value = key_value
        attended = self.attention(self.linear(x, f"{name}.query"), key, value, source_lengths32_B)
        return self.linear(attended, f"{name}.output")

    def attention(self, query: str, key: str, value: str, lengths32_B: str) -> str:
        inputs = query, key, value, "", lengths32_B
        return self.node("MultiHeadAttention", *inputs, domain=_MICROSOFT, num_heads=self.settings.heads)

    def feed_forward(self, x: str, name: str) -> str:
        return self.linear(self.node("Relu", self.linear(x, f"{name}.inner")), f"{name}.outer")

    def embedding(self, ids_BS: str) -> str:
        vectors_VD = self.weights["embedding.tokens"]
        if not self._int8:
            return self.node("Gather", self.constant("tokens", vectors_VD * self.scale), ids_BS)
        scale_V1 = np.maximum(np.abs(vectors_VD).max(1, keepdims=True), 1e-9) / 127
        rounded = self.constant("tokens.int8", np.rint(vectors_VD / scale_V1).astype(np.int8))
        steps = self.constant("tokens.scale", (scale_V1 * self.scale).astype(np.float32))
        rows = self.node("Cast", self.node("Gather", rounded, ids_BS), to=TensorProto.FLOAT)
        return self.node("Mul", rows, self.node("Gather", steps, ids_BS))

    def _quantised(self, name: str, matrix_KN: Array) -> tuple[str, str]:
        """Signed bytes with a scale for each column and no zero point: the fast case of today's CPUs."""
        scale_N = (np.maximum(np.abs(matrix_KN).max(0), 1e-9) / 127).astype(np.float32)
        rounded_KN = np.clip(np.rint(matrix_KN / scale_N), -127, 127).astype(np.int8)
        return self.constant(f"{name}.int8", rounded_KN), self.constant(f"{name}.scale", scale_N)


def _encoder(network: _Network) -> onnx.ModelProto:
    n = network
    size = n.node("Slice", n.node("Shape", "source"), n.integers(1), n.integers(2))
    positions = n.constant("source_positions", n.weights["embedding.source_positions"])
    x = n.node("Add", n.embedding("source"), n.node("Slice", positions, n.integers(0), size, n.integers(0)))
    lengths32 = n.node("Cast", "source_lengths", to=TensorProto.INT32)
    for layer in range(n.settings.encoder_layers):
        name = f"encoder.layers.{layer}"
        attention = partial(n.self_attention, name=f"{name}.attention", lengths32_B=lengths32)
        x = n.around(x, f"{name}.around_attention", attention)
        x = n.around(x, f"{name}.around_feed_forward", partial(n.feed_forward, name=f"{name}.feed_forward"))
    memory = n.final_norm(x, "encoder.norm")
    results = [memory, _length_scores(n, memory, size)]
    return n.graph(
        {"source": (TensorProto.INT64, ["B", "S"]), "source_lengths": (TensorProto.INT64, ["B"])},
        {"memory": (TensorProto.FLOAT, ["B", "S", "D"]), "length_scores": (TensorProto.FLOAT, ["B", "L"])},
        results,
    )


def _length_scores(n: _Network, memory: str, size: str) -> str:
    """Logits of the lengths 1, 2, …, from the mean of each source's states; never quantised."""
    zero, one = n.constant("zero", np.array(0, np.int64)), n.constant("one", np.array(1, np.int64))
    positions = n.node("Range", zero, n.node("Squeeze", size), one)
    lengths_B1 = n.node("Unsqueeze", "source_lengths", n.integers(1))
    inside_BS = n.node("Cast", n.node("Less", positions, lengths_B1), to=TensorProto.FLOAT)
    masked = n.node("Mul", memory, n.node("Unsqueeze", inside_BS, n.integers(2)))
    total = n.node("ReduceSum", masked, n.integers(1), keepdims=0)
    mean = n.node("Div", total, n.node("Cast", lengths_B1, to=TensorProto.FLOAT))
    matrix = n.constant("length_head", n.weights["length_head.weight"].T)
    return n.node("Add", n.node("MatMul", mean, matrix), n.constant("length_head.bias", n.weights["length_head.bias"]))


def _decoder(network: _Network) -> onnx.ModelProto:
    n = network
    hidden, layers = n.settings.hidden, n.settings.decoder_layers
    source_lengths32 = n.node("Cast", "source_lengths", to=TensorProto.INT32)
    lengths32 = n.node("Cast", "target_lengths", to=TensorProto.INT32)
    inputs_TD = n.weights["embedding.tokens"][PAD] * n.scale + n.weights["embedding.target_positions"]
    size = n.node("ReduceMax", "target_lengths", keepdims=1)
    x = n.node("Slice", n.constant("inputs", inputs_TD), n.integers(0), size, n.integers(0))
    rows = n.node("Concat", n.node("Shape", "target_lengths"), n.integers(1), n.integers(1), axis=0)
    x = n.node("Expand", n.node("Unsqueeze", x, n.integers(0)), rows)
    # Keys and values of the source for all layers: one large product is faster than many.
    names = [f"decoder.{layer}.cross.key_value" for layer in range(layers)]
    matrix = np.concatenate([n.weights[f"{name}.weight"].T for name in names], axis=1)
    bias = np.concatenate([n.weights[f"{name}.bias"] for name in names])
    products = n.matrix_product("memory", "cross", matrix, bias)
    keys_values = n.nodes("Split", 2 * layers, products, n.integers(*[hidden] * 2 * layers), axis=-1)
    for layer in range(layers):
        name, key_value = f"decoder.{layer}", keys_values[2 * layer : 2 * layer + 2]
        attention = partial(n.self_attention, name=f"{name}.attention", lengths32_B=lengths32)
        x = n.around(x, f"{name}.around_attention", attention)
        cross = partial(
            n.cross_attention, name=f"{name}.cross", key_value=key_value, source_lengths32_B=source_lengths32
        )
        x = n.around(x, f"{name}.around_cross", cross)
        x = n.around(x, f"{name}.around_feed_forward", partial(n.feed_forward, name=f"{name}.feed_forward"))
    # Special symbols come first in the vocabulary and are never output: they are simply left away.
    first = len(SPECIAL)
    logits = n.matrix_product(n.final_norm(x, "norm"), "output", n.weights["embedding.tokens"][first:].T)
    values, indices = n.nodes("TopK", 2, logits, n.integers(_TOP), axis=-1)
    return n.graph(
        {
            "memory": (TensorProto.FLOAT, ["B", "S", hidden]),
            "source_lengths": (TensorProto.INT64, ["B"]),
            "target_lengths": (TensorProto.INT64, ["B"]),
        },
        {"scores": (TensorProto.FLOAT, ["B", "T", _TOP]), "labels": (TensorProto.INT64, ["B", "T", _TOP])},
        [values, n.node("Add", indices, n.integers(first))],
    )
