// What is compiled once for each instruction set, behind plain function pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtypes.h"

// Rows of q and of the context are padded to this many floats, the widest vector of any variant.
constexpr int64_t kPadding = 16;

// One run of consecutive tokens of one sequence and one kv head, attended by the whole group of query heads that
// shares it. Written back: for every query head the largest score, the sum of exp(score - largest), and that sum's
// terms times V, so that runs can be merged in any order.
struct AttentionRun {
  const void* k;         // [count, head_dim]
  const void* v;         // [count, head_dim]
  Dtype kv_dtype;        //
  int64_t count;         // tokens, at least 1
  int64_t head_dim;      //
  int64_t padded_dim;    // head_dim rounded up to kPadding
  int64_t group;         // query heads
  const float* q;        // [group, padded_dim], scaled, zeros behind head_dim
  float softcap;         // 0: none
  float* largest;        // [group]
  float* total;          // [group]
  float* context;        // [group, padded_dim]
};

struct Variant {
  void (*attend)(const AttentionRun& run);
  // Reads every byte once; the result only keeps the compiler from leaving the loads out.
  uint64_t (*read)(const void* data, size_t nbytes);
  // Multiply-adds in registers, `rounds` times flops_per_round.
  float (*multiply_add)(int64_t rounds);
  int64_t flops_per_round;
};

extern const Variant kGenericVariant;
extern const Variant kAvx2Variant;
extern const Variant kAvx512Variant;
