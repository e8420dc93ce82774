// libcudnn: its graphs have one engine, and no workspace.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

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

struct Handle {
    cudaStream_t stream;
};

API int cudnnCreate(void** handle) { return make_descriptor(handle); }

API int cudnnSetStream(void* handle, cudaStream_t stream) {
    static_cast<Handle*>(handle)->stream = stream;
    return 0;
}

API int cudnnGetStream(void* handle, cudaStream_t* stream) {
    *stream = static_cast<Handle*>(handle)->stream;
    return 0;
}

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

// Names of attributes, as cudnnBackendAttributeName_t has them.
enum Attribute {
    HEURISTIC_RESULTS = 202,
    CONFIGURATION_ENGINE = 300,
    CONFIGURATION_WORKSPACE_BYTES = 303,
    CONFIGURATION_SHARED_BYTES = 304,  // a number of 32 bits
    PLAN_WORKSPACE_BYTES = 402,
    ENGINE_NUMBER = 1301,
};

// One result, of one engine. All other lists (notes, knobs) are empty.
API int cudnnBackendGetAttribute(void*, int name, int, int64_t, int64_t* count, void* value) {
    int64_t found = 1;
    switch (name) {
        case HEURISTIC_RESULTS:
        case CONFIGURATION_ENGINE:
            break;
        case CONFIGURATION_WORKSPACE_BYTES:
        case PLAN_WORKSPACE_BYTES:
        case ENGINE_NUMBER:
            if (value) *static_cast<int64_t*>(value) = 0;
            break;
        case CONFIGURATION_SHARED_BYTES:
            if (value) *static_cast<int32_t*>(value) = 0;
            break;
        default:
            found = 0;
    }
    if (count) *count = found;
    return 0;
}

API int cudnnBackendExecute(void* handle, void*, void*) {
    return launch(static_cast<Handle*>(handle)->stream) ? 5000 : 0;  // 5000: CUDNN_STATUS_EXECUTION_FAILED
}

// Layers. None needs a workspace.

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

API int cudnnGetConvolutionForwardWorkspaceSize(void*, void*, void*, void*, void*, int, size_t* bytes) {
    return write_zero(bytes);
}

API int cudnnGetConvolutionBackwardDataWorkspaceSize(void*, void*, void*, void*, void*, int, size_t* bytes) {
    return write_zero(bytes);
}

API int cudnnGetConvolutionBackwardFilterWorkspaceSize(void*, void*, void*, void*, void*, int, size_t* bytes) {
    return write_zero(bytes);
}

API int cudnnGetCTCLossWorkspaceSize(void*, void*, void*, void*, void*, void*, int, void*, size_t* bytes) {
    return write_zero(bytes);
}

API int cudnnGetCTCLossWorkspaceSize_v8(void*, int, void*, void*, void*, size_t* bytes) { return write_zero(bytes); }

API int cudnnDropoutGetStatesSize(void*, size_t* bytes) {
    *bytes = 1 << 20;  // not published; PyTorch allocates it once
    return 0;
}

API int cudnnCreateDropoutDescriptor(void** descriptor) { return make_descriptor(descriptor); }
API int cudnnCreatePoolingDescriptor(void** descriptor) { return make_descriptor(descriptor); }
API int cudnnCreateCTCLossDescriptor(void** descriptor) { return make_descriptor(descriptor); }
API int cudnnCreateSpatialTransformerDescriptor(void** descriptor) { return make_descriptor(descriptor); }

// Recurrent layers: their weights lie in one space, first all matrices and then all biases, layer by layer, and of
// each layer those of the input before those of the state.

namespace {

constexpr int LSTM = 2, GRU = 3;  // cells; the others have one gate
constexpr int NO_BIAS = 0;

struct Recurrent {
    int cell, bias, num_directions, type;
    int64_t input, hidden, projected, num_layers;

    int64_t num_gates() const { return cell == LSTM ? 4 : cell == GRU ? 3 : 1; }
    int64_t width() const { return type == 1 ? 8 : type == 0 ? 4 : 2; }
    int64_t input_of(int64_t pseudo_layer) const {
        return pseudo_layer < num_directions ? input : projected * num_directions;
    }
    int64_t num_projection_elements() const { return projected == hidden ? 0 : hidden * projected; }
    int64_t num_matrix_elements(int64_t pseudo_layer) const {
        return num_gates() * hidden * (input_of(pseudo_layer) + projected) + num_projection_elements();
    }
    int64_t num_bias_elements() const { return bias == NO_BIAS ? 0 : 2 * num_gates() * hidden; }
    int64_t num_elements_before(int64_t pseudo_layer) const {
        int64_t sum = 0;
        for (int64_t layer = 0; layer < pseudo_layer; ++layer) sum += num_matrix_elements(layer);
        return sum;
    }
    int64_t num_pseudo_layers() const { return num_layers * num_directions; }
};

struct RecurrentData {
    int64_t num_steps, batch_size;
};

struct Tensor {
    int type, num_dimensions;
    int sizes[8];
};

void write_matrix(void* descriptor, int type, int64_t rows, int64_t columns) {
    if (!descriptor) return;
    *static_cast<Tensor*>(descriptor) = {type, 3, {1, static_cast<int>(rows), static_cast<int>(columns)}};
}

}  // namespace

API int cudnnCreateRNNDescriptor(void** descriptor) { return make_descriptor(descriptor); }
API int cudnnCreateRNNDataDescriptor(void** descriptor) { return make_descriptor(descriptor); }

API int cudnnSetRNNDescriptor_v8(void* descriptor, int, int cell, int bias, int direction, int, int type, int, int,
                                 int32_t input, int32_t hidden, int32_t projected, int32_t num_layers, void*,
                                 uint32_t) {
    *static_cast<Recurrent*>(descriptor) = {cell, bias, direction + 1, type, input, hidden, projected, num_layers};
    return 0;
}

API int cudnnSetRNNDataDescriptor(void* descriptor, int, int, int num_steps, int batch_size, int, const int*, void*) {
    *static_cast<RecurrentData*>(descriptor) = {num_steps, batch_size};
    return 0;
}

API int cudnnGetRNNWeightSpaceSize(void*, void* descriptor, size_t* bytes) {
    const Recurrent& layers = *static_cast<Recurrent*>(descriptor);
    int64_t count = layers.num_elements_before(layers.num_pseudo_layers());
    *bytes = (count + layers.num_pseudo_layers() * layers.num_bias_elements()) * layers.width();
    return 0;
}

// The reserve keeps for the backward pass at least the gates, the states and the cells of all steps.
API int cudnnGetRNNTempSpaceSizes(void*, void* descriptor, int is_training, void* data_descriptor, size_t* work_bytes,
                                  size_t* reserve_bytes) {
    const Recurrent& layers = *static_cast<Recurrent*>(descriptor);
    const RecurrentData& data = *static_cast<RecurrentData*>(data_descriptor);
    int64_t kept = layers.num_gates() + (layers.cell == LSTM ? 2 : 1);
    if (work_bytes) *work_bytes = 0;
    if (!reserve_bytes) return 0;
    *reserve_bytes = is_training ? layers.num_pseudo_layers() * data.num_steps * data.batch_size * kept *
                                       layers.hidden * layers.width()
                                 : 0;
    return 0;
}

API int cudnnGetRNNWeightParams(void*, void* descriptor, int32_t pseudo_layer, size_t, const void* space, int32_t part,
                                void* matrix_descriptor, void** matrix, void* bias_descriptor, void** bias) {
    const Recurrent& layers = *static_cast<Recurrent*>(descriptor);
    char* start = static_cast<char*>(const_cast<void*>(space));
    int64_t gates = layers.num_gates(), input = layers.input_of(pseudo_layer);
    int64_t before = layers.num_elements_before(pseudo_layer);
    bool is_of_input = part < gates;
    if (part == 2 * gates) {  // the projection
        before += gates * layers.hidden * (input + layers.projected);
        write_matrix(matrix_descriptor, layers.type, layers.projected, layers.hidden);
        if (matrix) *matrix = layers.num_projection_elements() ? start + before * layers.width() : nullptr;
        if (bias) *bias = nullptr;
        return 0;
    }
    int64_t columns = is_of_input ? input : layers.projected;
    before += is_of_input ? part * layers.hidden * input
                          : gates * layers.hidden * input + (part - gates) * layers.hidden * layers.projected;
    write_matrix(matrix_descriptor, layers.type, layers.hidden, columns);
    if (matrix) *matrix = start + before * layers.width();
    int64_t biases = layers.num_elements_before(layers.num_pseudo_layers()) +
                     pseudo_layer * layers.num_bias_elements() + part * layers.hidden;
    write_matrix(bias_descriptor, layers.type, layers.hidden, 1);
    if (bias) *bias = layers.bias == NO_BIAS ? nullptr : start + biases * layers.width();
    return 0;
}

API int cudnnGetTensorNdDescriptor(void* descriptor, int most, int* type, int* count, int* sizes, int* strides) {
    const Tensor& tensor = *static_cast<Tensor*>(descriptor);
    *type = tensor.type;
    *count = tensor.num_dimensions;
    int stride = 1;
    for (int at = tensor.num_dimensions - 1; at >= 0; --at) {
        if (at < most) {
            sizes[at] = tensor.sizes[at];
            strides[at] = stride;
        }
        stride *= tensor.sizes[at];
    }
    return 0;
}

API int cudnnGetFilterNdDescriptor(void* descriptor, int most, int* type, int* format, int* count, int* sizes) {
    int strides[8];
    *format = 0;
    return cudnnGetTensorNdDescriptor(descriptor, most < 8 ? most : 8, type, count, sizes, strides);
}
