#define FX_WIDTH 16
#define FX_VARIANT kAvx512Variant
#include "variant_body.h"
