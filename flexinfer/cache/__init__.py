"""The KV cache in the layout that decode attention reads: one contiguous run per (sequence, kv head)."""

from flexinfer.cache.kv import KvLayer as KvLayer
from flexinfer.cache.kv import kv_layer as kv_layer
from flexinfer.cache.views import Group as Group
from flexinfer.cache.views import typed_view as typed_view
