// What is known of PyTorch's own kernels by their names. Those that fill a tensor with one value are done, not only
// launched: programs decide by zeros, ones and constants (the scale of a gradient scaler, flags of errors). Of others it
// is known what they overwrite, so that the host does not read what an earlier tensor held in that place.
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "device.hpp"

namespace {

constexpr size_t BLOCK_BYTES = 512;  // to which PyTorch's allocator rounds tensors up

enum Kind { FILLS, IS_ELEMENTWISE, REDUCES };

struct Kernel {
    Kind kind;
    size_t width;  // of the elements that it fills
};

std::mutex lock;
std::unordered_map<const void*, Kernel> kernels;  // by address on the host

struct TypeWidth {
    const char* mangled;
    size_t bytes;
};

const TypeWidth TYPE_WIDTHS[] = {
    {"b", 1}, {"h", 1}, {"a", 1}, {"s", 2}, {"N3c104HalfE", 2}, {"N3c108BFloat16E", 2},
    {"i", 4}, {"f", 4}, {"l", 8}, {"d", 8}, {"N3c107complexIfEE", 8},
};

const char FILL_FUNCTOR[] = "11FillFunctorI";

bool starts_with(const char* text, const char* beginning) { return strncmp(text, beginning, strlen(beginning)) == 0; }

size_t width_of_fill(const char* mangled_name) {
    const char* functor = strstr(mangled_name, FILL_FUNCTOR);
    if (!functor) return 0;
    for (const TypeWidth& known : TYPE_WIDTHS)
        if (starts_with(functor + strlen(FILL_FUNCTOR), known.mangled)) return known.bytes;
    return 0;
}

void fill_with(char* target, size_t count, const void* value, size_t width) {
    std::vector<char> contents(count * width);
    for (size_t at = 0; at < count; ++at) memcpy(contents.data() + at * width, value, width);
    emulated::write(target, contents.data(), contents.size());
}

}  // namespace

void emulated::register_kernel(const void* function, const char* mangled_name) {
    // Both take the number of elements, the functor, and an array of pointers, the first of which is the result's.
    bool is_elementwise = strstr(mangled_name, "vectorized_elementwise_kernel") ||
                          strstr(mangled_name, "unrolled_elementwise_kernel");
    bool reduces = strstr(mangled_name, "reduce") || strstr(mangled_name, "3cub");
    if (!is_elementwise && !reduces) return;
    size_t width = is_elementwise ? width_of_fill(mangled_name) : 0;
    std::lock_guard<std::mutex> guard(lock);
    kernels[function] = {width ? FILLS : is_elementwise ? IS_ELEMENTWISE : REDUCES, width};
}

void emulated::do_kernel(const void* function, void** arguments) {
    Kernel kernel;
    {
        std::lock_guard<std::mutex> guard(lock);
        auto found = kernels.find(function);
        if (found == kernels.end()) return;
        kernel = found->second;
    }
    if (kernel.kind == REDUCES) return forget_all();  // a host often reads what it reduced to
    size_t count = *static_cast<int*>(arguments[0]);
    char* result = *static_cast<char**>(arguments[2]);
    if (kernel.kind == FILLS && count * kernel.width <= MOST_DEVICE_COPY_BYTES)
        fill_with(result, count, arguments[1], kernel.width);
    else
        forget(result, (count + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES);
}
