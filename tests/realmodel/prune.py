"""A GGUF model reduced to its first layers: gibberish, but a real tokenizer, KV cache and grammar, in a third of the size."""

from __future__ import annotations

import os
from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter

__all__ = ["prune"]


def prune(source: Path, target: Path, layers: int) -> None:
    """Copies tensors as they are, without those of later layers; `target` appears whole or not at all."""
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    part = target.with_suffix(f".{os.getpid()}.part")
    writer = GGUFWriter(part, architecture)
    for name, field in reader.fields.items():
        if name == "general.architecture" or name.startswith("GGUF."):
            continue
        kind = field.types[0]
        item_kind = field.types[-1] if kind is GGUFValueType.ARRAY else None
        value = layers if name == f"{architecture}.block_count" else field.contents()
        writer.add_key_value(name, value, kind, sub_type=item_kind)
    kept = [tensor for tensor in reader.tensors if _layer(tensor.name) < layers]
    for tensor in kept:
        writer.add_tensor_info(
            tensor.name, tensor.data.shape, tensor.data.dtype, tensor.data.nbytes, tensor.tensor_type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in kept:
        writer.write_tensor_data(tensor.data)
    writer.close()
    part.replace(target)


def _layer(tensor: str) -> int:
    """The layer a tensor belongs to, -1 for embeddings and the like."""
    return int(tensor.split(".")[1]) if tensor.startswith("blk.") else -1
