// libcusolver: no factorization needs a workspace. Where each function writes the size of its own, by position.
#include "device.hpp"

// Arguments before the size; those after it are the caller's own matter.
#define FILLER_3 void*, void*, void*
#define FILLER_4 FILLER_3, void*
#define FILLER_5 FILLER_4, void*
#define FILLER_7 FILLER_4, FILLER_3
#define FILLER_8 FILLER_4, FILLER_4
#define FILLER_10 FILLER_7, FILLER_3
#define FILLER_11 FILLER_8, FILLER_3
#define FILLER_12 FILLER_8, FILLER_4
#define FILLER_16 FILLER_12, FILLER_4

// Types of numbers: S and D are real, C and Z complex.
#define NO_WORKSPACE(type, name, ...)                                     \
    API int cusolverDn##type##name##_bufferSize(__VA_ARGS__, int* num_elements) { \
        *num_elements = 0;                                                   \
        return 0;                                                            \
    }
#define NO_WORKSPACE_REAL(name, ...) NO_WORKSPACE(S, name, __VA_ARGS__) NO_WORKSPACE(D, name, __VA_ARGS__)
#define NO_WORKSPACE_COMPLEX(name, ...) NO_WORKSPACE(C, name, __VA_ARGS__) NO_WORKSPACE(Z, name, __VA_ARGS__)
#define NO_WORKSPACE_ALL(name, ...) NO_WORKSPACE_REAL(name, __VA_ARGS__) NO_WORKSPACE_COMPLEX(name, __VA_ARGS__)

NO_WORKSPACE_ALL(potrf, FILLER_5)
NO_WORKSPACE_ALL(geqrf, FILLER_5)
NO_WORKSPACE_ALL(getrf, FILLER_5)
NO_WORKSPACE_ALL(gesvd, FILLER_3)
NO_WORKSPACE_ALL(gesvdj, FILLER_12)
NO_WORKSPACE_ALL(gesvdjBatched, FILLER_11)
NO_WORKSPACE_ALL(gesvdaStridedBatched, FILLER_16)
NO_WORKSPACE_ALL(sytrf, FILLER_4)
NO_WORKSPACE_REAL(syevd, FILLER_7)
NO_WORKSPACE_COMPLEX(heevd, FILLER_7)
NO_WORKSPACE_REAL(syevjBatched, FILLER_7)
NO_WORKSPACE_COMPLEX(heevjBatched, FILLER_7)
NO_WORKSPACE_REAL(orgqr, FILLER_7)
NO_WORKSPACE_COMPLEX(ungqr, FILLER_7)
NO_WORKSPACE_REAL(ormqr, FILLER_11)
NO_WORKSPACE_COMPLEX(unmqr, FILLER_11)

// The interface of 64 bits: sizes on the device and on the host.
#define NO_WORKSPACE_64(name, ...)                                                               \
    API int cusolverDn##name##_bufferSize(__VA_ARGS__, size_t* device_bytes, size_t* host_bytes) {       \
        *device_bytes = *host_bytes = 0;                                                            \
        return 0;                                                                                   \
    }

NO_WORKSPACE_64(Xpotrf, FILLER_8)
NO_WORKSPACE_64(Xgeqrf, FILLER_10)
NO_WORKSPACE_64(Xsyevd, FILLER_11)
NO_WORKSPACE_64(XsyevBatched, FILLER_11)
NO_WORKSPACE_64(Xsytrs, FILLER_11)
NO_WORKSPACE_64(Xgeev, FILLER_16, void*)
