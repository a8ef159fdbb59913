// What this CPU and operating system can run.
#pragma once

#include "variant.h"

// Higher includes lower. From kAvx512 on all of F, BW, DQ and VL; kAvx512Bf16 adds BF16 and VNNI; kAmx tiles with BF16
// and INT8 products.
enum Isa : int { kGeneric = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3, kAmx = 4 };

// What the CPU has and the operating system keeps across context switches. That tiles really work is another question:
// see amx_works.
Isa detected_isa();

// Runs a few tile instructions and checks their result. Where a virtual machine shows the flags of AMX without having
// it, this ends the process with an illegal instruction, so call it in a process that nobody misses.
bool amx_works();

// The best variant for a level.
const Variant& variant_for(Isa isa);

// Multiplies and adds with the bf16 instructions of this level; sets *flops to their number, 0 where it has none.
void bf16_multiply_add(Isa isa, int64_t rounds, int64_t* flops);
