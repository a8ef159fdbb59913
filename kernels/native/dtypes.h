// Number formats of tensors that cross the C ABI, and their scalar conversions.
//
// Headers of this folder are compiled once for each instruction set. Everything in them has internal linkage (static
// or an anonymous namespace): of two weak copies of one inline function the linker keeps any, and one built for
// AVX-512 would crash an older CPU.
#pragma once

#include <cstdint>
#include <cstring>

enum Dtype : int32_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2 };

struct Bfloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

static inline float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float widen(float value) { return value; }

static inline float widen(Bfloat16 value) { return from_bits(static_cast<uint32_t>(value.bits) << 16); }

static inline float widen(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t rest = static_cast<uint32_t>(value.bits & 0x7fff) << 13;
  // Infinity and NaN keep their top exponent; everything else, subnormals too, is rebased by 2^112.
  if (rest >= 0x0f800000) return from_bits(sign | 0x70000000 | rest);
  return from_bits(sign | to_bits(from_bits(rest) * 0x1p112f));
}

static inline void narrow(float value, float* out) { *out = value; }

// Both narrowings round to the nearest, ties to even, and keep NaN.
static inline void narrow(float value, Bfloat16* out) {
  const uint32_t bits = to_bits(value);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  out->bits = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline void narrow(float value, Float16* out) {
  const uint32_t bits = to_bits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t size = bits & 0x7fffffff;
  uint32_t half;
  if (size > 0x7f800000) {
    half = 0x7e00;
  } else if (size >= 0x477ff000) {  // 65520 and above round to infinity
    half = 0x7c00;
  } else if (size < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded fraction in the lowest bits
    half = to_bits(from_bits(size) + 0.5f) - to_bits(0.5f);
  } else {
    half = (size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13;
  }
  out->bits = static_cast<uint16_t>(sign | half);
}
