// libcufft: transforms without a work area.
#include "device.hpp"

API int cufftCreate(int* plan) {
    static int last = 0;
    *plan = ++last;
    return 0;
}

API int cufftXtMakePlanMany(int, int, long long*, long long*, long long, long long, int, long long*, long long,
                            long long, int, long long, size_t* bytes, int) {
    *bytes = 0;
    return 0;
}
