// Drives the kernel library without Python, for builds with sanitizers: heap blocks of the exact size, unfilled rows
// poisoned, several callers at once. Exits with 1 at the first wrong result.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "api.h"
#include "cpu.h"
#include "dtypes.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(at, nbytes) ASAN_POISON_MEMORY_REGION(at, nbytes)
#define UNPOISON(at, nbytes) ASAN_UNPOISON_MEMORY_REGION(at, nbytes)
#else
#define POISON(at, nbytes) (void)(at), (void)(nbytes)
#define UNPOISON(at, nbytes) (void)(at), (void)(nbytes)
#endif

namespace {

struct Shape {
  int64_t batch, kv_heads, group, capacity, head_dim;
};

void fail(const char* what, const Shape& s) {
  std::fprintf(stderr, "%s: batch %ld, kv heads %ld, group %ld, capacity %ld, head dim %ld\n", what, long(s.batch),
               long(s.kv_heads), long(s.group), long(s.capacity), long(s.head_dim));
  std::exit(1);
}

template <class T>
struct Case {
  Shape shape;
  std::vector<float> q;
  std::vector<T> k, v;
  std::vector<int32_t> lengths;

  Case(const Shape& s, unsigned seed) : shape(s) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(size_t(s.batch * s.kv_heads * s.group * s.head_dim));
    k.resize(size_t(s.batch * s.kv_heads * s.capacity * s.head_dim));
    v.resize(k.size());
    for (auto& x : q) x = normal(random);
    for (auto& x : k) narrow(normal(random), &x);
    for (auto& x : v) narrow(normal(random), &x);
    for (int64_t b = 0; b < s.batch; b++) lengths.push_back(int32_t(1 + random() % unsigned(s.capacity)));
  }

  // Rows behind the length of each sequence, in K and V
  template <class Do>
  void unfilled(Do act) {
    for (int64_t row = 0; row < shape.batch * shape.kv_heads; row++) {
      const int64_t length = lengths[size_t(row / shape.kv_heads)];
      const size_t nbytes = size_t((shape.capacity - length) * shape.head_dim) * sizeof(T);
      act(k.data() + (row * shape.capacity + length) * shape.head_dim, nbytes);
      act(v.data() + (row * shape.capacity + length) * shape.head_dim, nbytes);
    }
  }

  std::vector<float> expected(int64_t window) const {
    std::vector<float> out(q.size());
    for (int64_t row = 0; row < shape.batch * shape.kv_heads * shape.group; row++) {
      const int64_t kv = row / shape.group, length = lengths[size_t(kv / shape.kv_heads)];
      std::vector<double> sum(size_t(shape.head_dim));
      double total = 0;
      for (int64_t t = std::max<int64_t>(0, length - window); t < length; t++) {
        const int64_t at = (kv * shape.capacity + t) * shape.head_dim;
        double score = 0;
        for (int64_t d = 0; d < shape.head_dim; d++)
          score += double(q[size_t(row * shape.head_dim + d)]) * double(widen(k[size_t(at + d)]));
        const double weight = std::exp(0.1 * score);
        total += weight;
        for (int64_t d = 0; d < shape.head_dim; d++) sum[size_t(d)] += weight * double(widen(v[size_t(at + d)]));
      }
      for (int64_t d = 0; d < shape.head_dim; d++)
        out[size_t(row * shape.head_dim + d)] = float(sum[size_t(d)] / total);
    }
    return out;
  }

  void run(int32_t dtype, int32_t isa, int32_t threads, int64_t window, const std::vector<float>& want) {
    std::vector<float> out(q.size());
    const int32_t status = fx_decode_attention(
        q.data(), kFloat32, k.data(), v.data(), dtype, lengths.data(), nullptr, out.data(), shape.batch,
        shape.kv_heads * shape.group, shape.kv_heads, shape.capacity, shape.head_dim, 0.1f, window, 0, isa, threads, 0);
    if (status != kOk) fail("refused", shape);
    for (size_t i = 0; i < out.size(); i++) {
      if (!(std::fabs(out[i] - want[i]) < 1e-4f)) fail("wrong", shape);
    }
  }
};

template <class T>
void check(const Shape& shape, int32_t dtype, unsigned seed) {
  const int32_t best = std::min<int32_t>(fx_detected_isa(), kAvx512);
  for (int64_t window : {shape.capacity, int64_t{7}}) {
    Case<T> one(shape, seed);
    const std::vector<float> want = one.expected(window);
    one.unfilled([](T* at, size_t nbytes) { POISON(at, nbytes); });
    for (int32_t isa = kGeneric; isa <= best; isa++) {
      for (int32_t threads : {1, 3}) one.run(dtype, isa, threads, window, want);
    }
    one.unfilled([](T* at, size_t nbytes) { UNPOISON(at, nbytes); });
  }
}

void check_all(unsigned seed) {
  for (const Shape& shape : {Shape{1, 2, 1, 300, 64}, Shape{3, 1, 3, 70, 33}, Shape{2, 2, 4, 130, 80},
                             Shape{1, 1, 7, 513, 5}, Shape{2, 3, 2, 1, 16}}) {
    check<float>(shape, kFloat32, seed);
    check<Bfloat16>(shape, kBfloat16, seed + 1);
    check<Float16>(shape, kFloat16, seed + 2);
  }
}

}  // namespace

int main() {
  std::vector<std::thread> callers;
  for (unsigned i = 0; i < 3; i++) callers.emplace_back(check_all, 10 * i);
  for (auto& caller : callers) caller.join();
  if (fx_read_bandwidth(1 << 20, fx_detected_isa() >= kAvx2 ? kAvx2 : kGeneric, 3) <= 0) return 1;
  if (fx_peak_flops(0, kGeneric, 2) <= 0) return 1;
  std::puts("ok");
  return 0;
}
