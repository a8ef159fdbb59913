// Decode attention, cut into items of (sequence, kv head, run of tokens) that threads take one after another.
//
// Runs have a fixed length, so that the order of every sum, and with it every bit of the result, depends neither on
// the number of threads nor on what else is in the batch.
#include <algorithm>
#include <cmath>
#include <new>
#include <vector>

#include "api.h"
#include "cpu.h"
#include "pool.h"

namespace {

constexpr int64_t kRun = 256;  // tokens: enough items for 64 threads at 8 kv heads x 2048, under 2% spent on merging

struct Item {
  int64_t sequence;
  int64_t kv_head;
  int64_t first;
  int64_t count;
};

struct Call {
  const char *k, *v;
  Dtype q_dtype, kv_dtype;
  const float* sinks;
  void* out;
  int64_t heads, kv_heads, group, capacity, head_dim, padded_dim, row_bytes;
  float softcap;
  const Variant* variant;
  const float* q;                 // [batch, heads, padded_dim], scaled
  std::vector<Item> items;        // ordered by sequence and kv head
  std::vector<int64_t> begins;    // [batch * kv_heads + 1]: the items of one sequence and kv head
  float *largest, *total;         // [items, group]
  float* context;                 // [items, group, padded_dim]
};

int64_t element_bytes(Dtype dtype) { return dtype == kFloat32 ? 4 : 2; }

bool known(int32_t dtype) { return dtype >= kFloat32 && dtype <= kFloat16; }

// Kept between the calls of a thread: fresh pages cost more than the work done in them.
float* scratch(size_t floats) {
  thread_local std::vector<float> kept;
  if (kept.size() < floats) kept.resize(floats);
  return kept.data();
}

template <class T>
void scale_rows(const void* q, int64_t rows, int64_t head_dim, int64_t padded_dim, float scale, float* out) {
  const T* from = static_cast<const T*>(q);
  for (int64_t row = 0; row < rows; row++) {
    for (int64_t d = 0; d < head_dim; d++) out[row * padded_dim + d] = widen(from[row * head_dim + d]) * scale;
    std::fill(out + row * padded_dim + head_dim, out + (row + 1) * padded_dim, 0.0f);
  }
}

void list_items(Call& call, const int32_t* lengths, int64_t batch, int64_t window) {
  call.begins.push_back(0);
  for (int64_t b = 0; b < batch; b++) {
    const int64_t length = lengths[b], start = std::max<int64_t>(0, length - window);
    for (int64_t kv_head = 0; kv_head < call.kv_heads; kv_head++) {
      for (int64_t first = start; first < length; first += kRun)
        call.items.push_back({b, kv_head, first, std::min(kRun, length - first)});
      call.begins.push_back(static_cast<int64_t>(call.items.size()));
    }
  }
}

void attend_item(void* context, int64_t index) {
  const Call& call = *static_cast<const Call*>(context);
  const Item& item = call.items[static_cast<size_t>(index)];
  const int64_t row = (item.sequence * call.kv_heads + item.kv_head) * call.capacity + item.first;
  AttentionRun run;
  run.k = call.k + row * call.row_bytes;
  run.v = call.v + row * call.row_bytes;
  run.kv_dtype = call.kv_dtype;
  run.count = item.count;
  run.head_dim = call.head_dim;
  run.padded_dim = call.padded_dim;
  run.group = call.group;
  run.q = call.q + (item.sequence * call.heads + item.kv_head * call.group) * call.padded_dim;
  run.softcap = call.softcap;
  run.largest = call.largest + index * call.group;
  run.total = call.total + index * call.group;
  run.context = call.context + index * call.group * call.padded_dim;
  call.variant->attend(run);
}

template <class T>
void merge_head(const Call& call, int64_t begin, int64_t end, int64_t member, float sink, T* out) {
  float peak = sink;
  for (int64_t i = begin; i < end; i++) peak = std::max(peak, call.largest[i * call.group + member]);
  float* sum = call.context + (begin * call.group + member) * call.padded_dim;
  float total = std::exp(sink - peak);
  for (int64_t i = begin; i < end; i++) {
    const float weight = std::exp(call.largest[i * call.group + member] - peak);
    const float* part = call.context + (i * call.group + member) * call.padded_dim;
    total += weight * call.total[i * call.group + member];
    for (int64_t d = 0; d < call.head_dim; d++) sum[d] = i == begin ? part[d] * weight : sum[d] + part[d] * weight;
  }
  for (int64_t d = 0; d < call.head_dim; d++) narrow(sum[d] / total, out + d);
}

template <class T>
void merge_group(const Call& call, int64_t index) {
  const int64_t begin = call.begins[static_cast<size_t>(index)], end = call.begins[static_cast<size_t>(index) + 1];
  for (int64_t member = 0; member < call.group; member++) {
    const int64_t head = index % call.kv_heads * call.group + member;
    const float sink = call.sinks ? call.sinks[head] : -INFINITY;
    const int64_t row = index / call.kv_heads * call.heads + head;
    merge_head(call, begin, end, member, sink, static_cast<T*>(call.out) + row * call.head_dim);
  }
}

void merge_item(void* context, int64_t index) {
  const Call& call = *static_cast<const Call*>(context);
  switch (call.q_dtype) {
    case kFloat32: merge_group<float>(call, index); break;
    case kBfloat16: merge_group<Bfloat16>(call, index); break;
    case kFloat16: merge_group<Float16>(call, index); break;
  }
}

void scale_queries(const Call& call, const void* q, int64_t rows, float scale, float* out) {
  switch (call.q_dtype) {
    case kFloat32: scale_rows<float>(q, rows, call.head_dim, call.padded_dim, scale, out); break;
    case kBfloat16: scale_rows<Bfloat16>(q, rows, call.head_dim, call.padded_dim, scale, out); break;
    case kFloat16: scale_rows<Float16>(q, rows, call.head_dim, call.padded_dim, scale, out); break;
  }
}

void run_call(Call& call, const void* q, int64_t batch, float scale, Threads threads) {
  const int64_t rows = batch * call.heads, items = static_cast<int64_t>(call.items.size());
  const int64_t heads = items * call.group;
  float* memory = scratch(static_cast<size_t>((rows + heads) * call.padded_dim + 2 * heads));
  scale_queries(call, q, rows, scale, memory);
  call.q = memory;
  call.context = memory + rows * call.padded_dim;
  call.largest = call.context + heads * call.padded_dim;
  call.total = call.largest + heads;
  parallel_for(threads, items, attend_item, &call);
  const int64_t groups = batch * call.kv_heads;
  // Merging reads a hundredth of what attending does: waking helpers pays only for many runs
  const bool many = heads * call.padded_dim > 1 << 18;
  parallel_for(many ? threads : Threads{1, 0}, groups, merge_item, &call);
}

}  // namespace

FX_API int32_t fx_decode_attention(const void* q, int32_t q_dtype, const void* k, const void* v, int32_t kv_dtype,
                                   const int32_t* lengths, const float* sinks, void* out, int64_t batch, int64_t heads,
                                   int64_t kv_heads, int64_t capacity, int64_t head_dim, float scale, int64_t window,
                                   float softcap, int32_t isa, int32_t threads, int32_t team) {
  if (!known(q_dtype) || !known(kv_dtype)) return kUnknownDtype;
  for (int64_t b = 0; b < batch; b++) {
    if (lengths[b] < 1 || lengths[b] > capacity) return static_cast<int32_t>(-(b + 1));
  }
  try {
    Call call;
    call.k = static_cast<const char*>(k);
    call.v = static_cast<const char*>(v);
    call.q_dtype = static_cast<Dtype>(q_dtype);
    call.kv_dtype = static_cast<Dtype>(kv_dtype);
    call.sinks = sinks;
    call.out = out;
    call.heads = heads;
    call.kv_heads = kv_heads;
    call.group = heads / kv_heads;
    call.capacity = capacity;
    call.head_dim = head_dim;
    call.padded_dim = (head_dim + kPadding - 1) / kPadding * kPadding;
    call.row_bytes = head_dim * element_bytes(call.kv_dtype);
    call.softcap = softcap;
    call.variant = &variant_for(static_cast<Isa>(isa));
    list_items(call, lengths, batch, window);
    run_call(call, q, batch, scale, {threads, team});
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
  return kOk;
}
