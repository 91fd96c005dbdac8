"""A trained lattice as two ONNX graphs, for programs that have neither Python nor PyTorch: its encoder and its decoder.

Pictures are grey, ``(H, W)`` in [0, 1], with sides that are multiples of 8, any in either graph.

The **encoder** takes ``picture``, ``bits (L,)`` of zeros and ones, ``pilot (64, 64)`` and ``emphasis (L,)``, ones where
no bit is to be drawn more strongly. It gives ``residual (H, W)``, which is still to be scaled to a floor.

The **decoder** takes ``picture`` and ``weights (H / 8, W / 8)`` by which cells count. It gives ``logits (L,)`` and
``evidence (4, H / 8, W / 8)``. Both compute what :class:`floormark.network.Lattice` does.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, checker, helper, numpy_helper

from floormark import network as tool
from floormark import patches
from floormark.network import CELL, CELLS_ACROSS, GROUPS, SLOTS, Lattice, slot_owners
from floormark.patches import SQUARE_SIDE
from samplewise.storage import atomic

ENCODER_FILE, DECODER_FILE = "lattice-encoder.onnx", "lattice-decoder.onnx"
OPERATORS, FORMAT = 18, 10  # versions of ONNX: of its operators, and of the file
SQUARES = patches.PATCH_SIDE // SQUARE_SIDE  # along a side of a patch

Sides = Sequence[int | str]


class _Graph:
    """A graph that is built from its inputs on; a value is known by its name."""

    def __init__(self, network: Lattice) -> None:
        self.network = network
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def __call__(self, operator: str, *values: str, **settings: Any) -> str:
        """Apply an operator; the name of its result."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, values, [name], **settings))
        return name

    def constant(self, values: Any, name: str | None = None) -> str:
        """An array, or one number."""
        whole = np.asarray(values).dtype.kind in "iu"
        array: NDArray[Any] = np.array(values, np.int64 if whole else np.float32, order="C")
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def numbers(self, operator: str, value: str, *others: float) -> str:
        """An operator of a value and constants."""
        return self(operator, value, *(self.constant(float(other)) for other in others))

    def picture(self) -> str:
        """The input of that name, ``(1, 1, H, W)``."""
        return self("Unsqueeze", "picture", self.constant([0, 1]))

    def unshuffled(self, picture: str) -> str:
        return self("SpaceToDepth", self.numbers("Sub", picture, 0.5), blocksize=tool.UNSHUFFLED)

    def convolved(self, name: str, values: str, stride: int = 1) -> str:
        """A convolution of the network."""
        names = [f"{name}.{part}" for part in ("weight", "bias")]
        kernel = self.network.weights[names[0]]
        reach = kernel.shape[2] // 2
        given = [self.constant(self.network.weights[each], each) for each in names]
        return self("Conv", values, *given, strides=[stride] * 2, pads=[reach] * 4)

    def block(self, name: str, values: str, stride: int = 1) -> str:
        """A 3x3 convolution, group norm, ReLU."""
        values = self.convolved(f"{name}.0", values, stride)
        groups = self("Reshape", values, self.constant([1, GROUPS, -1]))
        plain = self.constant(np.ones(GROUPS)), self.constant(np.zeros(GROUPS))
        normed = self("InstanceNormalization", groups, *plain, epsilon=tool.NORM_EPSILON)
        values = self("Reshape", normed, self("Shape", values))
        for operator, part in (("Mul", "weight"), ("Add", "bias")):
            name_of_part = f"{name}.1.{part}"
            channels = self.network.weights[name_of_part][:, None, None]
            values = self(operator, values, self.constant(channels, name_of_part))
        return self("Relu", values)

    def side(self, values: str, axis: int) -> str:
        """The length along an axis, ``(1,)``."""
        return self("Shape", values, start=axis, end=axis + 1)

    def repeated(self, tiles: str, like: str) -> str:
        """Tiles ``(1, C, h, w)`` side by side until they are as large as another array of that kind."""
        first, one, axis_0 = self.constant(0), self.constant(1), self.constant([0])
        for axis in (2, 3):
            length = self("Squeeze", self.side(like, axis), axis_0)
            places = self("Mod", self("Range", first, length, one), self("Squeeze", self.side(tiles, axis), axis_0))
            tiles = self("Gather", tiles, places, axis=axis)
        return tiles

    def laid_out(self, values: str, like: str) -> str:
        """The value of each bit at each of its slots, ``(L,)`` to ``(1, 4, h, w)``."""
        slots = self("Gather", values, self.constant(slot_owners(self.network.bits), f"owners_{len(self.nodes)}"))
        return self.repeated(self("Reshape", slots, self.constant([1, SLOTS, CELLS_ACROSS, CELLS_ACROSS])), like)

    def resized(self, values: str, like: str) -> str:
        """Values ``(1, 1, h, w)``, interpolated linearly to the size of another array."""
        how = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
        return self("Resize", values, "", "", self("Shape", like), **how)

    def powered(self, values: str, factor: float) -> str:
        """Ten to the power of a multiple of values."""
        return self("Exp", self.numbers("Mul", values, factor * np.log(10.0)))

    def decibels(self, values: str) -> str:
        """-10 times the logarithm to base 10."""
        return self.numbers("Mul", self("Log", values), -10.0 / np.log(10.0))

    def calmness(self, picture: str) -> str:
        """See :func:`floormark.patches.calmness`, ``(1, 1, H, W)`` to ``(1, 1, rows, columns)``."""
        pooled = {"kernel_shape": [SQUARE_SIDE] * 2, "strides": [SQUARE_SIDE] * 2}
        channels = self("SpaceToDepth", picture, blocksize=SQUARE_SIDE)  # the pixels of a square, one after the other
        # First the mean and then the differences from it: their squares alone would cancel in single precision.
        rest = self("Sub", channels, self("AveragePool", picture, **pooled))
        variance = self("ReduceMean", self("Mul", rest, rest), self.constant([1]))
        spread = self("Sqrt", self.numbers("Max", variance, patches.MIN_SPREAD**2))
        calm = self.decibels(spread)
        # The mean over each patch; those at the edges may be smaller.
        down, across = (self("Mod", self("Neg", self.side(calm, axis)), self.constant([SQUARES])) for axis in (2, 3))
        none = self.constant([0])
        edges = self("Concat", none, none, none, none, none, none, down, across, axis=0)
        there = self(
            "ConstantOfShape", self("Shape", calm), value=helper.make_tensor("", TensorProto.FLOAT, [1], [1.0])
        )
        pooled = {"kernel_shape": [SQUARES] * 2, "strides": [SQUARES] * 2}
        sums, counts = (self("AveragePool", self("Pad", each, edges), **pooled) for each in (calm, there))
        return self("Div", sums, counts)

    def allowed(self, picture: str) -> str:
        """The change allowed in each patch, relative to its image, from :func:`floormark.patches.above_image`."""
        calm = self.calmness(picture)
        mean = self.decibels(self("ReduceMean", self.powered(calm, -0.1)))
        above = self("Sub", calm, self.numbers("Min", mean, patches.MAX_TYPICAL))
        above = self.numbers(
            "Sub", self.numbers("Clip", above, -patches.MAX_LIVELIER, patches.MAX_CALMER), patches.TYPICAL_BELOW
        )
        return self.powered(above, -0.05)

    def drawn(self, amounts: str) -> str:
        """The sum of basis patterns, each by its amount."""
        reach = (tool.BASIS_SIDE - CELL) // 2
        basis = np.roll(self.network.basis_tiles(), (reach, reach), (1, 2))[
            :, None, : tool.BASIS_SIDE, : tool.BASIS_SIDE
        ]
        return self("ConvTranspose", amounts, self.constant(basis, "basis"), strides=[CELL] * 2, pads=[reach] * 4)

    def finished(self, what: str, inputs: dict[str, Sides], outputs: dict[str, tuple[str, Sides]]) -> ModelProto:
        """The file's content: inputs by name, outputs by name with the value that they are."""
        for name, (value, _) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [value], [name]))
        given, found = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, sides) for name, sides in each.items()]
            for each in (inputs, {name: sides for name, (_, sides) in outputs.items()})
        )
        graph: GraphProto = helper.make_graph(self.nodes, what, given, found, list(self.constants.values()))
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPERATORS)], ir_version=FORMAT, producer_name="samplewise"
        )
        helper.set_model_props(model, {"network": self.network.name})
        checker.check_model(model, full_check=True)
        return model


def encoder(network: Lattice) -> ModelProto:
    """The graph that draws a message: ``draw(encode(picture, bits, pilot), emphasis)``."""
    graph = _Graph(network)
    picture = graph.picture()
    features = graph.block("coarse", graph.block("fine", graph.unshuffled(picture)), stride=2)
    signs = graph.laid_out(graph.numbers("Sub", graph.numbers("Mul", "bits", 2.0), 1.0), features)
    mixed = graph.convolved("mix.1", graph.block("mix.0", graph("Concat", features, signs, axis=1)))
    amounts = graph("Mul", graph.numbers("Mul", graph("Sigmoid", mixed), 2.0), graph.laid_out("emphasis", features))
    drawn = graph.drawn(graph("Mul", signs, amounts))
    pilot = graph.repeated(graph("Unsqueeze", "pilot", graph.constant([0, 1])), picture)
    learned = graph.resized(graph("Softplus", graph.convolved("gain", features)), picture)
    gain = graph("Mul", learned, graph.resized(graph.allowed(picture), picture))
    whole = graph("Mul", gain, graph("Add", drawn, graph.numbers("Mul", pilot, tool.PILOT_AMPLITUDE)))
    residual = graph("Squeeze", graph.numbers("Mul", whole, tool.UNIT_CHANGE), graph.constant([0, 1]))
    inputs: dict[str, Sides] = {"picture": ["H", "W"], "bits": [network.bits], "pilot": [tool.TILE, tool.TILE]}
    return graph.finished("encoder", inputs | {"emphasis": [network.bits]}, {"residual": (residual, ["H", "W"])})


def decoder(network: Lattice) -> ModelProto:
    """The graph that reads a picture whose first tile begins at its corner: evidence of cells, logits of bits."""
    graph = _Graph(network)
    values = graph.unshuffled(graph.picture())
    for number, stride in enumerate((1, 1, 2, 1)):
        values = graph.block(f"decoder.{number}", values, stride)
    evidence = graph("Mul", graph.convolved("decoder.4", values), "weights")
    # Over all tiles: each cell belongs to a slot of the tile, and each slot to a bit.
    owners = slot_owners(network.bits).reshape(1, SLOTS, CELLS_ACROSS, CELLS_ACROSS)
    bits = graph("Reshape", graph.repeated(graph.constant(owners, "owners"), evidence), graph.constant([-1]))
    none = graph.constant(np.zeros(network.bits), "nothing")
    flat = graph("Reshape", evidence, graph.constant([-1]))
    logits = graph("ScatterElements", none, bits, flat, reduction="add")
    return graph.finished(
        "decoder",
        {"picture": ["H", "W"], "weights": ["h", "w"]},
        {
            "evidence": (graph("Squeeze", evidence, graph.constant([0])), [SLOTS, "h", "w"]),
            "logits": (logits, [network.bits]),
        },
    )


def export(network: Lattice, folder: Path) -> list[Path]:
    """Write both graphs into a folder; of one network the files are always the same."""
    files = {ENCODER_FILE: encoder(network), DECODER_FILE: decoder(network)}
    for name, model in files.items():
        with atomic(folder / name) as temporary:
            temporary.write_bytes(model.SerializeToString(deterministic=True))
    return [folder / name for name in files]
