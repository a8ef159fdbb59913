// The body of each variant_*.cpp, which sets FX_WIDTH (float lanes of a vector) and FX_VARIANT first.
#include "attend.h"

namespace {

static uint64_t read(const void* data, size_t nbytes) {
  constexpr size_t kLanes = sizeof(UintVec);
  constexpr int kStreams = 8;
  const char* bytes = static_cast<const char*>(data);
  UintVec seen[kStreams] = {};
  size_t at = 0;
  for (; at + kStreams * kLanes <= nbytes; at += kStreams * kLanes) {
#pragma GCC unroll 8
    for (int i = 0; i < kStreams; i++) seen[i] ^= load_raw<UintVec>(bytes + at + i * kLanes);
  }
  uint64_t all = 0;
  for (int i = 0; i < kStreams; i++) {
    for (int64_t lane = 0; lane < W; lane++) all ^= seen[i][lane];
  }
  for (; at < nbytes; at++) all ^= static_cast<unsigned char>(bytes[at]);
  return all;
}

constexpr int kChains = 12;  // two units of five cycles' latency at most, with registers left for the factors
constexpr int kPerRound = 8;

static float multiply_add(int64_t rounds) {
  Vec sums[kChains];
  for (int i = 0; i < kChains; i++) sums[i] = broadcast(static_cast<float>(i));
  Vec factor = broadcast(0.999f), term = broadcast(1e-3f);
  for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 8
    for (int r = 0; r < kPerRound; r++) {
#pragma GCC unroll 12
      for (int i = 0; i < kChains; i++) sums[i] = sums[i] * factor + term;
    }
  }
  float all = 0;
  for (int i = 0; i < kChains; i++) all += sums[i][0];
  return all;
}

}  // namespace

extern const Variant FX_VARIANT = {attend, read, multiply_add, 2 * W * kChains * kPerRound};
