#define FX_WIDTH 8
#define FX_VARIANT kAvx2Variant
#include "variant_body.h"
