"""WeightStore: the CPU's one copy of the weights, under canonical names."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flexinfer.spec.model_spec import Block, ModelSpec
from flexinfer.weights.names import Place


class WeightStore:
    """Every tensor of a model on the CPU, contiguous, in `spec.weight_dtype`, each held once.

    Tensors of a type that needed no conversion are views of the mapped checkpoint: reading them may read the disk,
    and they must not be written to.
    """

    def __init__(self, spec: ModelSpec, tensors: Mapping[Place, torch.Tensor]) -> None:
        """`tensors` has every place of `spec` but a tied head's out.weight. Raises AssertionError otherwise."""
        self._blocks: dict[tuple[int | None, Block], dict[str, torch.Tensor]] = {b: {} for b in spec.blocks()}
        for (layer, block, name), tensor in tensors.items():
            self._blocks[layer, block][name] = tensor
        self.nbytes = sum(tensor.nbytes for tensor in tensors.values())
        """Bytes of all tensors, a tied head counted once."""
        if spec.tied_head:
            self._blocks[None, "head"]["out.weight"] = self._blocks[None, "embed"]["tokens.weight"]
        self._check(spec)

    def block(self, layer: int | None, block: Block) -> dict[str, torch.Tensor]:
        """Tensors of one block by canonical name; a tied head's out.weight is the embedding's own tensor.

        Raises KeyError for a block that the model does not have, and for every block after `close`.
        """
        return dict(self._blocks[layer, block])

    def close(self) -> None:
        """Let go of all tensors. Files are unmapped once nobody else holds one of them."""
        self._blocks.clear()

    def _check(self, spec: ModelSpec) -> None:
        """What the engine relies on: the planned bytes, one type, real and contiguous storage."""
        if self.nbytes != spec.total_bytes:
            raise AssertionError(f"{spec.name}: {self.nbytes} bytes placed, {spec.total_bytes} planned")
        dtype = getattr(torch, spec.weight_dtype)
        for (layer, block), tensors in self._blocks.items():
            if set(tensors) != {t.name for t in spec.block_tensors(block)}:
                raise AssertionError(f"{spec.name}: layer {layer} {block} has {sorted(tensors)}")
            for name, tensor in tensors.items():
                if tensor.device.type != "cpu" or tensor.dtype != dtype or not tensor.is_contiguous():
                    raise AssertionError(f"{spec.name}: layer {layer} {block} {name} is {tensor.device} {tensor.dtype}")
