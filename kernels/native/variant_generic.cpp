#define FX_WIDTH 4
#define FX_VARIANT kGenericVariant
#include "variant_body.h"
