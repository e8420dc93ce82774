// libcudnn: its graphs have one engine, and no workspace.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "device.hpp"

using namespace emulated;

namespace {

int make_descriptor(void** descriptor) {
    *descriptor = calloc(1, 256);
    return 0;
}


int write_zero(size_t* bytes) {
    *bytes = 0;
    return 0;
}

}  // namespace

API int cudnnCreate(void** handle) { return make_descriptor(handle); }
API size_t cudnnGetVersion() { return BEXPLORE_CUDNN_VERSION; }
API size_t cudnnGetCudartVersion() { return BEXPLORE_CUDA_VERSION; }
API const char* cudnnGetErrorString(int) { return "emulated cuDNN"; }
API void cudnnGetLastErrorString(char* text, size_t size) { snprintf(text, size, "emulated cuDNN"); }

API int cudnnGetProperty(int which, int* value) {
    int version = cudnnGetVersion();
    *value = which == 0 ? version / 10000 : which == 1 ? version / 100 % 100 : version % 100;
    return 0;
}

API int cudnnCreateTensorDescriptor(void** descriptor) { return make_descriptor(descriptor); }
API int cudnnCreateFilterDescriptor(void** descriptor) { return make_descriptor(descriptor); }
API int cudnnCreateConvolutionDescriptor(void** descriptor) { return make_descriptor(descriptor); }
API int cudnnCreateActivationDescriptor(void** descriptor) { return make_descriptor(descriptor); }

// Graphs

API int cudnnBackendCreateDescriptor(int, void** descriptor) { return make_descriptor(descriptor); }

API int cudnnBackendGetAttribute(void*, int name, int, int64_t, int64_t* count, void* value) {
    int64_t found = 0;
    switch (name) {
        case 202:  // results of the heuristic
        case 300:  // the engine of a configuration
            found = 1;
            break;
        case 303:  // workspace of the engine's configuration
        case 402:  // workspace of the plan
            found = 1;
            if (value) *static_cast<int64_t*>(value) = 0;
            break;
        case 1301:  // engines of a graph
            found = 1;
            if (value) *static_cast<int64_t*>(value) = 1;
            break;
    }
    if (count) *count = found;
    return 0;
}

// Batch normalization

API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void*, int, int, void*, void*, void*, void*, void*,
                                                                 size_t* bytes) {
    return write_zero(bytes);
}

API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void*, int, int, void*, void*, size_t* bytes) {
    return write_zero(bytes);
}

API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void*, int, int, void*, void*, void*, void*, void*, void*,
                                                          void*, size_t* bytes) {
    return write_zero(bytes);
}
