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
