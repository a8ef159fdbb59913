#include "api.h"

#include "cpu.h"
#include "pool.h"

FX_API int32_t fx_abi() { return kAbi; }

FX_API int32_t fx_detected_isa() { return detected_isa(); }

FX_API int32_t fx_amx_works() { return amx_works() ? 1 : 0; }

FX_API void fx_borrow_team(void* gomp_parallel) { borrow_team(reinterpret_cast<TeamStart>(gomp_parallel)); }
