// libcublas: handles that remember what they are told; every product is a launch.
#include "device.hpp"

using namespace emulated;

namespace {
struct Handle {
    cudaStream_t stream = nullptr;
    int math_mode = 0;
    int pointer_mode = 0;
};
Handle* handle_of(void* handle) { return static_cast<Handle*>(handle); }
}  // namespace

API int cublasCreate_v2(void** handle) {
    *handle = new Handle();
    return 0;
}

API int cublasDestroy_v2(void* handle) {
    delete handle_of(handle);
    return 0;
}

API int cublasSetStream_v2(void* handle, cudaStream_t stream) {
    handle_of(handle)->stream = stream;
    return 0;
}

API int cublasGetStream_v2(void* handle, cudaStream_t* stream) {
    *stream = handle_of(handle)->stream;
    return 0;
}

API int cublasSetMathMode(void* handle, int mode) {
    handle_of(handle)->math_mode = mode;
    return 0;
}

API int cublasGetMathMode(void* handle, int* mode) {
    *mode = handle_of(handle)->math_mode;
    return 0;
}

API int cublasSetPointerMode_v2(void* handle, int mode) {
    handle_of(handle)->pointer_mode = mode;
    return 0;
}

API int cublasGetPointerMode_v2(void* handle, int* mode) {
    *mode = handle_of(handle)->pointer_mode;
    return 0;
}

API const char* cublasGetStatusString(int) { return "emulated cuBLAS"; }
API size_t cublasGetCudartVersion() { return BEXPLORE_CUDA_VERSION; }

// Factorizations of several matrices, which also write on the host whether an argument was wrong. Others write on the
// device alone.
#define FILLER_6 void*, void*, void*, void*, void*, void*
#define BATCHED(name, ...)                                            \
    API int name(void* handle, __VA_ARGS__, int* wrong_argument) {    \
        *wrong_argument = 0;                                          \
        return launch_on_handle(handle);                              \
    }
#define BATCHED_ALL(name, ...)                    \
    BATCHED(cublasS##name##Batched, __VA_ARGS__)  \
    BATCHED(cublasD##name##Batched, __VA_ARGS__)  \
    BATCHED(cublasC##name##Batched, __VA_ARGS__)  \
    BATCHED(cublasZ##name##Batched, __VA_ARGS__)

int launch_on_handle(void* handle);
BATCHED_ALL(geqrf, void*, void*, void*, void*, void*)
BATCHED_ALL(gels, FILLER_6, void*, void*)
BATCHED_ALL(getrs, FILLER_6, void*, void*)

// What every other function does, which gets the handle first (stub.hpp).
int launch_on_handle(void* handle) { return launch(handle_of(handle)->stream) ? 13 : 0; }  // 13: execution failed
