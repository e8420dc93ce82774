// What is known of PyTorch's own kernels by their names. Those that fill a tensor with one value are done, not only
// launched: programs decide by zeros, ones and constants (the scale of a gradient scaler, flags of errors); so are sums
// of a few integers (lengths and offsets of pickled objects). Of others it is known what they overwrite, so that the host does not
// read what an earlier tensor held in that place.
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "device.hpp"

namespace {

constexpr size_t BLOCK_BYTES = 512;  // to which PyTorch's allocator rounds tensors up

constexpr size_t MOST_SUMMED = 4096;  // integers

enum Kind { FILLS, ADDS_INTEGER, ADDS_INTEGERS, IS_ELEMENTWISE, SUMS_INTEGERS, REDUCES };

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

std::vector<int64_t> read_integers(const void* source, size_t count) {
    std::vector<int64_t> values(count);
    emulated::read(values.data(), source, count * sizeof(int64_t));
    return values;
}

// The functor holds what is multiplied: a number and a factor where one is added to each element, else the factor alone.
void add_integers(Kind kind, size_t count, const int64_t* functor, char** addresses) {
    std::vector<int64_t> values = read_integers(addresses[1], count);
    std::vector<int64_t> others = kind == ADDS_INTEGERS ? read_integers(addresses[2], count)
                                                        : std::vector<int64_t>(count, functor[0]);
    int64_t factor = kind == ADDS_INTEGERS ? functor[0] : functor[1];
    for (size_t at = 0; at < count; ++at) values[at] += factor * others[at];
    emulated::write(addresses[0], values.data(), count * sizeof(int64_t));
}

void fill_with(char* target, size_t count, const void* value, size_t width) {
    std::vector<char> contents(count * width);
    for (size_t at = 0; at < count; ++at) memcpy(contents.data() + at * width, value, width);
    emulated::write(target, contents.data(), contents.size());
}

// The argument of PyTorch's reduction of 64-bit integers: a functor without state, the sum of nothing, the sizes of an
// element and of the reduction, and further on, side by side, the addresses of what is reduced and of the result.
// Between them lie arrays that are not filled, with whatever the stack held. Says whether it was done: not where there
// are several results or too many elements.
bool sum_integers(const char* argument) {
    constexpr size_t SIZES_AT = 16, ADDRESSES_FROM = 64, ADDRESSES_UNTIL = 1536;
    int sizes[3];  // of an element, number of elements, number of results
    memcpy(sizes, argument + SIZES_AT, sizeof sizes);
    if (sizes[0] != sizeof(int64_t) || sizes[1] < 1 || static_cast<size_t>(sizes[1]) > MOST_SUMMED || sizes[2] != 1) return false;
    for (size_t at = ADDRESSES_FROM; at < ADDRESSES_UNTIL; at += sizeof(void*)) {
        void* addresses[2];
        memcpy(addresses, argument + at, sizeof addresses);
        if (!emulated::find_range(addresses[0], nullptr, nullptr, nullptr) ||
            !emulated::find_range(addresses[1], nullptr, nullptr, nullptr))
            continue;
        int64_t sum = 0;
        for (int64_t value : read_integers(addresses[0], sizes[1])) sum += value;
        emulated::write(addresses[1], &sum, sizeof sum);
        return true;
    }
    return false;
}

}  // namespace

void emulated::register_kernel(const void* function, const char* mangled_name) {
    // Both take the number of elements, the functor, and an array of pointers, the first of which is the result's.
    bool is_elementwise = strstr(mangled_name, "vectorized_elementwise_kernel") ||
                          strstr(mangled_name, "unrolled_elementwise_kernel");
    bool reduces = strstr(mangled_name, "reduce") || strstr(mangled_name, "3cub");
    if (!is_elementwise && !reduces) return;
    size_t width = is_elementwise ? width_of_fill(mangled_name) : 0;
    Kind kind = is_elementwise ? IS_ELEMENTWISE : REDUCES;
    if (width)
        kind = FILLS;
    else if (is_elementwise && strstr(mangled_name, "21CUDAFunctorOnSelf_addIlE"))
        kind = ADDS_INTEGER;
    else if (is_elementwise && strstr(mangled_name, "15CUDAFunctor_addIlE"))
        kind = ADDS_INTEGERS;
    else if (strstr(mangled_name, "8ReduceOpIl") && strstr(mangled_name, "11sum_functorIlll"))
        kind = SUMS_INTEGERS;
    std::lock_guard<std::mutex> guard(lock);
    kernels[function] = {kind, width};
}

void emulated::do_kernel(const void* function, void** arguments) {
    Kernel kernel;
    {
        std::lock_guard<std::mutex> guard(lock);
        auto found = kernels.find(function);
        if (found == kernels.end()) return;
        kernel = found->second;
    }
    if (kernel.kind == SUMS_INTEGERS && sum_integers(static_cast<char*>(arguments[0]))) return;
    if (kernel.kind == REDUCES || kernel.kind == SUMS_INTEGERS) return forget_all();  // a host often reads what it reduced to
    size_t count = *static_cast<int*>(arguments[0]);
    char** addresses = static_cast<char**>(arguments[2]);
    char* result = addresses[0];
    bool adds = kernel.kind == ADDS_INTEGER || kernel.kind == ADDS_INTEGERS;
    if (adds && count <= MOST_SUMMED)
        add_integers(kernel.kind, count, static_cast<int64_t*>(arguments[1]), addresses);
    else if (kernel.kind == FILLS && count * kernel.width <= MOST_DEVICE_COPY_BYTES)
        fill_with(result, count, arguments[1], kernel.width);
    else
        forget(result, (count + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES);
}
