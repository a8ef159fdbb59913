#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers leaf(uint32_t number, uint32_t part = 0) {
  Registers r;
  __get_cpuid_count(number, part, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool has(uint32_t bits, int bit) { return (bits >> bit) & 1; }

// The register sets that the operating system saves and restores.
uint64_t enabled_states() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

constexpr uint64_t kAvxStates = 0x6, kAvx512States = 0xe6, kTileStates = 0x60000;

bool enabled(uint64_t states, uint64_t wanted) { return (states & wanted) == wanted; }

Isa ask_cpu() {
  const Registers basic = leaf(1), extended = leaf(7), more = leaf(7, 1);
  const bool os_saves = has(basic.ecx, 27);
  const uint64_t states = os_saves ? enabled_states() : 0;
  const bool fma_f16c = has(basic.ecx, 12) && has(basic.ecx, 29);
  if (!fma_f16c || !has(extended.ebx, 5) || !enabled(states, kAvxStates)) return kGeneric;
  const bool f_dq_bw_vl =
      has(extended.ebx, 16) && has(extended.ebx, 17) && has(extended.ebx, 30) && has(extended.ebx, 31);
  if (!f_dq_bw_vl || !enabled(states, kAvx512States)) return kAvx2;
  const bool vnni = has(extended.ecx, 11), bf16 = has(more.eax, 5);
  if (!vnni || !bf16) return kAvx512;
  const bool tiles = has(extended.edx, 22) && has(extended.edx, 24) && has(extended.edx, 25);
  return tiles && enabled(states, kTileStates) ? kAmx : kAvx512Bf16;
}

}  // namespace

Isa detected_isa() {
  // Asked once: under a hypervisor each question is a trap of ten microseconds
  static const Isa found = ask_cpu();
  return found;
}

const Variant& variant_for(Isa isa) {
  return isa >= kAvx512 ? kAvx512Variant : isa == kAvx2 ? kAvx2Variant : kGenericVariant;
}

#else

Isa detected_isa() { return kGeneric; }

const Variant& variant_for(Isa) { return kGenericVariant; }

#endif
