// Decode attention over one run of tokens, included by each variant after vec.h.
//
// Tokens go in blocks that fit the first-level cache. A block's K rows give scores, its V rows the weighted sum, and
// up to four query heads use each loaded row while it is in registers, so that grouped heads read K and V from memory
// once. A running maximum keeps the sums exact across blocks.
#pragma once

#include "variant.h"
#include "vec.h"

namespace {

constexpr int64_t kBlock = 64;  // tokens; 16 KiB each of K and V at 128 dimensions in 16 bits
constexpr int kHeads = 4;       // query heads that share a loaded row: four accumulators a row fit 16 registers

// Asks for a row before it is needed. Only a hint: it never faults, whatever the address.
template <class T>
static inline void prefetch_row(const T* row, int64_t head_dim) {
  const char* bytes = reinterpret_cast<const char*>(row);
  for (int64_t at = 0; at < head_dim * static_cast<int64_t>(sizeof(T)); at += 64) __builtin_prefetch(bytes + at);
}

// Scores of `Tokens` rows of K for `Heads` query heads, over all whole vectors of a row.
template <class T, int Heads, int Tokens>
static inline void score_tile(const AttentionRun& run, const float* q, const T* k, float (*scores)[kBlock]) {
  constexpr int kSums = Heads * Tokens;
  Vec sums[(kSums + 3) / 4 * 4] = {};
  for (int64_t d = 0; d + W <= run.head_dim; d += W) {
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; t++) {
      const Vec row = load(k + t * run.head_dim + d);
#pragma GCC unroll 4
      for (int h = 0; h < Heads; h++) sums[h * Tokens + t] += row * load(q + h * run.padded_dim + d);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kSums; i += 4) {
    const Vec4 four = add_across(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
    if (Tokens % 4 == 0) {
      memcpy(&scores[i / Tokens][i % Tokens], &four, sizeof four);
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) {
        if (i + j < kSums) scores[(i + j) / Tokens][(i + j) % Tokens] = four[j];
      }
    }
  }
}

// The dimensions behind the last whole vector. Rare, since head dims are multiples of 16 but for tiny test models.
template <class T>
static inline void score_tail(const AttentionRun& run, const float* q, const T* k, int64_t count, float* scores) {
  for (int64_t t = 0; t < count; t++) {
    for (int64_t d = run.head_dim / W * W; d < run.head_dim; d++) scores[t] += widen(k[t * run.head_dim + d]) * q[d];
  }
}

template <class T, int Heads>
static inline void score_block(const AttentionRun& run, const float* q, const T* k, const T* v, int64_t count,
                               float (*scores)[kBlock]) {
  // Eight sums or more hide the latency of a multiply-add; AVX-512 has the registers for twice as many.
  constexpr int kTokens = Heads == 1 ? 8 : Heads == 2 ? 4 : Heads == 3 ? 4 : FX_WIDTH == 16 ? 4 : 2;
  int64_t t = 0;
  for (; t + kTokens <= count; t += kTokens) {
    for (int i = 0; i < kTokens; i++) prefetch_row(v + (t + i) * run.head_dim, run.head_dim);
    score_tile<T, Heads, kTokens>(run, q, k + t * run.head_dim, reinterpret_cast<float(*)[kBlock]>(&scores[0][t]));
  }
  for (; t < count; t++) {
    score_tile<T, Heads, 1>(run, q, k + t * run.head_dim, reinterpret_cast<float(*)[kBlock]>(&scores[0][t]));
  }
  if (run.head_dim % W != 0) {
    for (int h = 0; h < Heads; h++) score_tail(run, q + h * run.padded_dim, k, count, scores[h]);
  }
}

// Turns one head's scores into exp(score - largest), keeps the running maximum and sum, and returns what the sums so
// far have to be multiplied by.
static inline float soften(float* scores, int64_t count, float softcap, float* largest, float* total) {
  const int64_t rounded = (count + W - 1) / W * W;
  // Lanes behind `count` repeat the first score for the maximum, then add 1e-38 to a sum of at least 1
  for (int64_t t = count; t < rounded; t++) scores[t] = scores[0];
  if (softcap != 0) {
    for (int64_t t = 0; t < rounded; t += W) store(scores + t, vec_tanh(load(scores + t) / softcap) * softcap);
  }
  Vec peaks = broadcast(*largest);
  for (int64_t t = 0; t < rounded; t += W) peaks = larger(load(scores + t), peaks);
  float peak = peaks[0];
  for (int64_t i = 1; i < W; i++) peak = peaks[i] > peak ? peaks[i] : peak;
  for (int64_t t = count; t < rounded; t++) scores[t] = -__builtin_inff();
  Vec sums = {};
  for (int64_t t = 0; t < rounded; t += W) {
    const Vec weights = vec_exp(load(scores + t) - peak);
    store(scores + t, weights);
    sums += weights;
  }
  const Vec4 four = add_down_to_4(sums);
  const float shrink = __builtin_expf(*largest - peak);
  *total = *total * shrink + (four[0] + four[1] + (four[2] + four[3]));
  *largest = peak;
  return shrink;
}

// Adds the block's weighted V rows to `Vecs` vectors of the context of `Heads` query heads, from dimension d on.
template <class T, int Heads, int Vecs>
static inline void weigh_columns(const AttentionRun& run, const T* v, const float (*weights)[kBlock], int64_t count,
                                 const float* shrink, float* context) {
  Vec sums[Heads][Vecs];
#pragma GCC unroll 4
  for (int h = 0; h < Heads; h++) {
#pragma GCC unroll 8
    for (int i = 0; i < Vecs; i++) sums[h][i] = load(context + h * run.padded_dim + i * W) * shrink[h];
  }
  for (int64_t t = 0; t < count; t++) {
    Vec row[Vecs];
#pragma GCC unroll 8
    for (int i = 0; i < Vecs; i++) row[i] = load(v + t * run.head_dim + i * W);
#pragma GCC unroll 4
    for (int h = 0; h < Heads; h++) {
      const Vec weight = broadcast(weights[h][t]);
#pragma GCC unroll 8
      for (int i = 0; i < Vecs; i++) sums[h][i] += row[i] * weight;
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < Heads; h++) {
#pragma GCC unroll 8
    for (int i = 0; i < Vecs; i++) store(context + h * run.padded_dim + i * W, sums[h][i]);
  }
}

// The dimensions behind the last whole vector.
template <class T, int Heads>
static inline void weigh_tail(const AttentionRun& run, const T* v, const float (*weights)[kBlock], int64_t count,
                              const float* shrink, float* context, int64_t left) {
  for (int h = 0; h < Heads; h++) {
    Vec sum = load(context + h * run.padded_dim) * shrink[h];
    for (int64_t t = 0; t < count; t++) sum += load_first(v + t * run.head_dim, left) * weights[h][t];
    store(context + h * run.padded_dim, sum);
  }
}

template <class T, int Heads>
static inline void weigh_block(const AttentionRun& run, const T* v, const float (*weights)[kBlock], int64_t count,
                               const float* shrink, float* context) {
  // As many accumulators as there are registers to spare beside the rows
  constexpr int kVecs = (FX_WIDTH == 16 ? 16 : 8) / Heads > 8 ? 8 : (FX_WIDTH == 16 ? 16 : 8) / Heads;
  int64_t d = 0;
  for (; d + kVecs * W <= run.head_dim; d += kVecs * W)
    weigh_columns<T, Heads, kVecs>(run, v + d, weights, count, shrink, context + d);
  for (; d + 2 * W <= run.head_dim; d += 2 * W)
    weigh_columns<T, Heads, 2>(run, v + d, weights, count, shrink, context + d);
  for (; d + W <= run.head_dim; d += W)
    weigh_columns<T, Heads, 1>(run, v + d, weights, count, shrink, context + d);
  if (d < run.head_dim) weigh_tail<T, Heads>(run, v + d, weights, count, shrink, context + d, run.head_dim - d);
}

template <class T, int Heads>
static inline void attend_heads(const AttentionRun& run, int64_t first, const T* k, const T* v, int64_t count) {
  alignas(64) float scores[Heads][kBlock];
  float shrink[Heads];
  const int64_t row = first * run.padded_dim;
  score_block<T, Heads>(run, run.q + row, k, v, count, scores);
  for (int h = 0; h < Heads; h++)
    shrink[h] = soften(scores[h], count, run.softcap, run.largest + first + h, run.total + first + h);
  weigh_block<T, Heads>(run, v, scores, count, shrink, run.context + row);
}

template <class T>
static void attend_run(const AttentionRun& run) {
  for (int64_t h = 0; h < run.group; h++) {
    run.largest[h] = -__builtin_inff();
    run.total[h] = 0;
  }
  memset(run.context, 0, static_cast<size_t>(run.group * run.padded_dim) * sizeof(float));
  for (int64_t start = 0; start < run.count; start += kBlock) {
    const int64_t count = run.count - start < kBlock ? run.count - start : kBlock;
    const T* k = static_cast<const T*>(run.k) + start * run.head_dim;
    const T* v = static_cast<const T*>(run.v) + start * run.head_dim;
    int64_t first = 0;
    for (; first + kHeads <= run.group; first += kHeads) attend_heads<T, kHeads>(run, first, k, v, count);
    switch (run.group - first) {
      case 3: attend_heads<T, 3>(run, first, k, v, count); break;
      case 2: attend_heads<T, 2>(run, first, k, v, count); break;
      case 1: attend_heads<T, 1>(run, first, k, v, count); break;
      default: break;
    }
  }
}

static void attend(const AttentionRun& run) {
  switch (run.kv_dtype) {
    case kFloat32: attend_run<float>(run); break;
    case kBfloat16: attend_run<Bfloat16>(run); break;
    case kFloat16: attend_run<Float16>(run); break;
  }
}

}  // namespace
