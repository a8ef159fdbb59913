"""The KV cache in the layout that decode attention reads: one contiguous run per (sequence, kv head)."""

from flexinfer.cache.kv import KvLayer as KvLayer
from flexinfer.cache.kv import kv_layer as kv_layer
