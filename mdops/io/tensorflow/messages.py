"""The messages of a TensorFlow graph that are read: the number, the name and the contents of each field.

Numbers and names are those of TensorFlow's graph.proto, node_def.proto, attr_value.proto, tensor.proto and
tensor_shape.proto. Other fields are skipped.
"""

from typing import Any

# A message is a dict with the list of values of each field. A value is bytes, a number, a message or an array (of
# packed numbers).
Message = dict[str, list[Any]]

INTEGER, FLOAT, DOUBLE, BYTES = "integer", "float", "double", "bytes"

FIELDS: dict[str, dict[int, tuple[str, str]]] = {
    "GraphDef": {1: ("node", "NodeDef")},
    "NodeDef": {1: ("name", BYTES), 2: ("op", BYTES), 3: ("input", BYTES), 5: ("attr", "AttrEntry")},
    "AttrEntry": {1: ("key", BYTES), 2: ("value", "AttrValue")},
    "AttrValue": {
        1: ("list", "ListValue"),
        2: ("s", BYTES),
        3: ("i", INTEGER),
        4: ("f", FLOAT),
        5: ("b", INTEGER),
        6: ("type", INTEGER),
        8: ("tensor", "TensorProto"),
    },
    "ListValue": {3: ("i", INTEGER), 4: ("f", FLOAT)},
    "TensorProto": {
        1: ("dtype", INTEGER),
        2: ("tensor_shape", "TensorShapeProto"),
        4: ("tensor_content", BYTES),
        5: ("float_val", FLOAT),
        6: ("double_val", DOUBLE),
        7: ("int_val", INTEGER),
        8: ("string_val", BYTES),
        10: ("int64_val", INTEGER),
        11: ("bool_val", INTEGER),
        13: ("half_val", INTEGER),
    },
    "TensorShapeProto": {2: ("dim", "Dim")},
    "Dim": {1: ("size", INTEGER)},
}

# The names of data types in the text format.
TYPES = {
    "DT_FLOAT": 1,
    "DT_DOUBLE": 2,
    "DT_INT32": 3,
    "DT_STRING": 7,
    "DT_INT64": 9,
    "DT_BOOL": 10,
    "DT_BFLOAT16": 14,
    "DT_HALF": 19,
}
