// Float vectors of FX_WIDTH lanes in the compiler's own vector types: the instruction set is chosen by the flags that
// a variant's file is compiled with, so one source serves all of them.
#pragma once

#include <cstdint>
#include <cstring>

#include "dtypes.h"

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t W = FX_WIDTH;

typedef float Vec __attribute__((vector_size(FX_WIDTH * 4)));
typedef uint32_t UintVec __attribute__((vector_size(FX_WIDTH * 4)));
typedef uint16_t ShortVec __attribute__((vector_size(FX_WIDTH * 2)));
typedef float Vec4 __attribute__((vector_size(16)));

template <class To, class From>
static inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class V>
static inline V load_raw(const void* from) {
  V value;
  memcpy(&value, from, sizeof value);
  return value;
}

static inline Vec broadcast(float value) { return value - Vec{}; }

static inline Vec load(const float* from) { return load_raw<Vec>(from); }

// Spelt out where GCC makes five instructions of the generic conversion.
static inline Vec load(const Bfloat16* from) {
#if FX_WIDTH == 16
  const UintVec wide = bits_as<UintVec>(_mm512_cvtepu16_epi32(load_raw<__m256i>(from)));
#elif FX_WIDTH == 8
  const UintVec wide = bits_as<UintVec>(_mm256_cvtepu16_epi32(load_raw<__m128i>(from)));
#else
  const UintVec wide = __builtin_convertvector(load_raw<ShortVec>(from), UintVec);
#endif
  return bits_as<Vec>(wide << 16);
}

static inline Vec load(const Float16* from) {
#if FX_WIDTH == 16
  return bits_as<Vec>(_mm512_cvtph_ps(load_raw<__m256i>(from)));
#elif defined(__F16C__)
  return bits_as<Vec>(_mm256_cvtph_ps(load_raw<__m128i>(from)));
#else
  Vec value;
  for (int64_t i = 0; i < W; i++) value[i] = widen(from[i]);
  return value;
#endif
}

// The first n lanes, zeros in the rest. What lies behind them may be another token's row, or nothing at all.
template <class T>
static inline Vec load_first(const T* from, int64_t n) {
  T lanes[W] = {};
  memcpy(lanes, from, static_cast<size_t>(n) * sizeof(T));
  return load(lanes);
}

static inline void store(float* to, Vec value) { memcpy(to, &value, sizeof value); }

static inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

static inline Vec4 add_down_to_4(Vec value) {
  Vec4 sum = {};
  for (int64_t i = 0; i < W / 4; i++) {
    Vec4 part;
    memcpy(&part, reinterpret_cast<const char*>(&value) + i * sizeof part, sizeof part);
    sum += part;
  }
  return sum;
}

#if FX_WIDTH == 16
#define FX_SHUFFLE(name) _mm512_##name
#elif FX_WIDTH == 8
#define FX_SHUFFLE(name) _mm256_##name
#else
#define FX_SHUFFLE(name) _mm_##name
#endif

// The sums of four vectors, in four lanes. Two shuffles within each 128 bits bring all four together, so that only one
// vector is left to be folded.
static inline Vec4 add_across(Vec a, Vec b, Vec c, Vec d) {
#if defined(__SSE__)
  const Vec ab = (Vec)FX_SHUFFLE(unpacklo_ps)(a, b) + (Vec)FX_SHUFFLE(unpackhi_ps)(a, b);
  const Vec cd = (Vec)FX_SHUFFLE(unpacklo_ps)(c, d) + (Vec)FX_SHUFFLE(unpackhi_ps)(c, d);
  return add_down_to_4((Vec)FX_SHUFFLE(shuffle_ps)(ab, cd, 0x44) + (Vec)FX_SHUFFLE(shuffle_ps)(ab, cd, 0xee));
#else
  Vec4 sums = {};
  for (int64_t i = 0; i < W; i++) sums += Vec4{a[i], b[i], c[i], d[i]};
  return sums;
#endif
}

// exp to within 2 units in the last place, for -87 <= x <= 88 and clamped to that range. NaN stays NaN.
static inline Vec vec_exp(Vec x) {
  const Vec low = broadcast(-87.0f), high = broadcast(88.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  // Adding 1.5 * 2^23 rounds to a whole number and leaves it in the lowest bits.
  const Vec magic = broadcast(12582912.0f);
  const Vec shifted = x * 1.44269504f + magic;
  const Vec n = shifted - magic;
  const Vec r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  Vec p = broadcast(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const UintVec exponent = bits_as<UintVec>(shifted) - bits_as<UintVec>(magic) + 127;
  return p * bits_as<Vec>(exponent << 23);
}

static inline Vec vec_tanh(Vec x) { return 1.0f - 2.0f / (vec_exp(x * 2.0f) + 1.0f); }

}  // namespace
