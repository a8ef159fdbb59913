// The C ABI that kernels/library.py opens: raw pointers, no torch headers, no Python version in it.
#pragma once

#include <cstdint>

#define FX_API extern "C" __attribute__((visibility("default")))

// Raised with every change of a signature, so that a library left over from an older build is noticed.
constexpr int32_t kAbi = 1;

enum Status : int32_t { kOk = 0, kOutOfMemory = 1, kUnknownDtype = 2 };

FX_API int32_t fx_abi();

// The highest Isa that CPU and operating system offer; see cpu.h.
FX_API int32_t fx_detected_isa();

// 1 when tile instructions work. May end the process: call it in one that nobody misses.
FX_API int32_t fx_amx_works();

// Hands over torch's GOMP_parallel; see pool.h.
FX_API void fx_borrow_team(void* gomp_parallel);

// One new token per sequence over its cached K and V:
//   out[b, n] = softmax(scale * q[b, n] . k[b, n / (heads / kv_heads), first..length)) . v[same rows]
// q, out [batch, heads, head_dim] in q_dtype; k, v [batch, kv_heads, capacity, head_dim] in kv_dtype; lengths [batch];
// all contiguous. Attended are the last `window` of the length rows of a sequence (window >= capacity: all of them).
// softcap 0: none. sinks [heads], one more score for each head that has no value, or null.
// `threads` at most share the work: those of the caller's OpenMP team of that size, or with team 0 some of our own.
// Returns a Status, or -(b + 1) when lengths[b] is not in [1, capacity].
FX_API int32_t fx_decode_attention(const void* q, int32_t q_dtype, const void* k, const void* v, int32_t kv_dtype,
                                   const int32_t* lengths, const float* sinks, void* out, int64_t batch, int64_t heads,
                                   int64_t kv_heads, int64_t capacity, int64_t head_dim, float scale, int64_t window,
                                   float softcap, int32_t isa, int32_t threads, int32_t team);

// Median bytes per second of reading nbytes of memory, touched beforehand, on `threads` threads. 0: out of memory.
FX_API double fx_read_bandwidth(int64_t nbytes, int32_t isa, int32_t threads);

// Multiplies and adds per second in registers on `threads` threads, in float32; bf16 != 0 asks for the faster of that,
// to which bf16 can always be widened, and of the level's own bf16 products.
FX_API double fx_peak_flops(int32_t bf16, int32_t isa, int32_t threads);
