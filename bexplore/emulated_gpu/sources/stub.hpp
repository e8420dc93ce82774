// A function that PyTorch's libraries want and a training does not need: it succeeds and does nothing.
// With BEXPLORE_EMULATED_LOG_STUBS set, each call is named on standard error.
#pragma once

#include <cstdio>
#include <cstdlib>

#define STUB(name)                                                                                  \
    extern "C" __attribute__((visibility("default"))) int name(void) {                              \
        if (getenv("BEXPLORE_EMULATED_LOG_STUBS")) fprintf(stderr, "emulated stub: " #name "\n");   \
        return 0;                                                                                   \
    }

// A function of cuBLAS: a product, which is a kernel on the stream of its handle (cublas.cpp).
int launch_on_handle(void* handle);

#define CUBLAS_STUB(name)                                                                                     \
    extern "C" __attribute__((visibility("default"))) int name(void* handle) { return launch_on_handle(handle); }

// A function that leaves results on the device (cuSOLVER, cuSPARSE, cuFFT).
namespace emulated {
void forget_all();
}

#define RESULT_STUB(name)                                              \
    extern "C" __attribute__((visibility("default"))) int name(void) { \
        emulated::forget_all();                                        \
        return 0;                                                      \
    }
