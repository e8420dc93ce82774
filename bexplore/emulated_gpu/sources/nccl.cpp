#include "device.hpp"
API int ncclGetVersion(int* version) { *version = BEXPLORE_NCCL_VERSION; return 0; }
