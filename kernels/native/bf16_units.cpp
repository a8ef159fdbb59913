// The CPU's own bf16 products: AVX-512 BF16 and AMX. So far they are only measured; kernels that use them follow.
// Compiled to nothing where the compiler does not know them.
#include "cpu.h"

#if defined(FX_HAS_BF16_UNITS)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr int kChains = 12;
constexpr int64_t kAvx512Flops = kChains * 2 * 32;         // 32 products and as many sums an instruction
constexpr int64_t kTileFlops = 4 * 2 * int64_t{16} * 16 * 32;  // 16 x 16 sums of 32 products each, in four tiles

// Linux gives tile registers, 8 KiB a thread, to processes that ask.
bool tiles_allowed() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Not on the stack: the intrinsic tells the compiler only of the first 8 bytes that it reads.
const TileShapes kWholeTiles;

void avx512_rounds(int64_t rounds) {
  __m512 sums[kChains];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  const __m512bh factor = (__m512bh)_mm512_set1_epi16(0x3f00);
  for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; i++) sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
  }
  for (auto& sum : sums) __asm__ volatile("" : : "v"(sum));
}

void tile_rounds(int64_t rounds) {
  _tile_loadconfig(&kWholeTiles);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t round = 0; round < rounds; round++) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
}

}  // namespace

bool amx_works() {
  if (detected_isa() < kAmx || !tiles_allowed()) return false;
  uint16_t ones[512];  // bf16 1.0
  int8_t small_ones[1024];
  float sums[256];
  int32_t small_sums[256];
  for (auto& one : ones) one = 0x3f80;
  for (auto& one : small_ones) one = 1;
  _tile_loadconfig(&kWholeTiles);
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(2, ones, 64);  // the operands must be different tiles
  _tile_loadd(3, ones, 64);
  _tile_dpbf16ps(0, 2, 3);
  _tile_loadd(2, small_ones, 64);
  _tile_loadd(3, small_ones, 64);
  _tile_dpbssd(1, 2, 3);
  _tile_stored(0, sums, 64);
  _tile_stored(1, small_sums, 64);
  _tile_release();
  bool right = true;
  for (float sum : sums) right = right && sum == 32.0f;
  for (int32_t sum : small_sums) right = right && sum == 64;
  return right;
}

void bf16_multiply_add(Isa isa, int64_t rounds, int64_t* flops) {
  if (isa == kAmx && tiles_allowed()) {
    tile_rounds(rounds);
    *flops = rounds * kTileFlops;
  } else {
    avx512_rounds(rounds);
    *flops = rounds * kAvx512Flops;
  }
}

#else

bool amx_works() { return false; }

void bf16_multiply_add(Isa, int64_t, int64_t* flops) { *flops = 0; }

#endif
