// What this machine's memory and arithmetic units reach, measured.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "api.h"
#include "cpu.h"
#include "pool.h"

namespace {

constexpr int64_t kPiece = 4 << 20;  // bytes a thread takes at a time
constexpr int kPasses = 5;

double seconds_of(int threads, int64_t items, void (*work)(void*, int64_t), void* context) {
  const auto start = std::chrono::steady_clock::now();
  parallel_for({threads, 0}, items, work, context);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Reading {
  char* data;
  int64_t nbytes;
  const Variant* variant;
  std::atomic<uint64_t> seen{0};

  int64_t size_of(int64_t piece) const { return std::min(kPiece, nbytes - piece * kPiece); }
};

// Written with something: pages of zeros may all be one and the same page of memory
void touch_piece(void* context, int64_t piece) {
  Reading& reading = *static_cast<Reading*>(context);
  memset(reading.data + piece * kPiece, 1, static_cast<size_t>(reading.size_of(piece)));
}

void read_piece(void* context, int64_t piece) {
  Reading& reading = *static_cast<Reading*>(context);
  reading.seen ^= reading.variant->read(reading.data + piece * kPiece, static_cast<size_t>(reading.size_of(piece)));
}

struct Arithmetic {
  bool bf16_units;
  Isa isa;
  int64_t rounds;
  std::atomic<int64_t> flops{0};
};

void multiply(void* context, int64_t) {
  Arithmetic& arithmetic = *static_cast<Arithmetic*>(context);
  int64_t flops = 0;
  if (arithmetic.bf16_units) {
    bf16_multiply_add(arithmetic.isa, arithmetic.rounds, &flops);
  } else {
    const Variant& variant = variant_for(arithmetic.isa);
    volatile float kept = variant.multiply_add(arithmetic.rounds);
    (void)kept;
    flops = arithmetic.rounds * variant.flops_per_round;
  }
  arithmetic.flops += flops;
}

double flops_per_second(bool bf16_units, Isa isa, int threads) {
  // Short turns that double until one is long against waking the threads and settling clocks
  Arithmetic arithmetic{bf16_units, isa, 1 << 12};
  double best = 0;
  for (double seconds = 0; seconds < 0.03; arithmetic.rounds *= 2) {
    arithmetic.flops = 0;
    seconds = seconds_of(threads, threads, multiply, &arithmetic);
    best = std::max(best, static_cast<double>(arithmetic.flops) / seconds);
  }
  return best;
}

}  // namespace

FX_API double fx_read_bandwidth(int64_t nbytes, int32_t isa, int32_t threads) {
  void* data = mmap(nullptr, static_cast<size_t>(nbytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return 0;
  Reading reading{static_cast<char*>(data), nbytes, &variant_for(static_cast<Isa>(isa))};
  const int64_t pieces = (nbytes + kPiece - 1) / kPiece;
  seconds_of(threads, pieces, touch_piece, &reading);
  std::vector<double> times;
  for (int pass = 0; pass < kPasses; pass++) times.push_back(seconds_of(threads, pieces, read_piece, &reading));
  munmap(data, static_cast<size_t>(nbytes));
  std::sort(times.begin(), times.end());
  return static_cast<double>(nbytes) / times[kPasses / 2];
}

FX_API double fx_peak_flops(int32_t bf16, int32_t isa, int32_t threads) {
  const Isa level = static_cast<Isa>(isa);
  const double widened = flops_per_second(false, level, threads);
  if (!bf16 || level < kAvx512Bf16) return widened;
  return std::max(widened, flops_per_second(true, level, threads));
}
