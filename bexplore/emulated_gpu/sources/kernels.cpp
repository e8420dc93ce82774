// PyTorch's own kernels, by their names. Programs decide by some results, and then the memory that they take depends on
// them: masks of ones that are left out, flags of errors, the scale of a gradient scaler, lengths of pickled objects.
// So the kernels that make and combine constants, masks and integers are done on the host, up to a size. Of others it
// is known what they overwrite, so that the host does not read what an earlier tensor held in that place.
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "device.hpp"

namespace {

constexpr size_t BLOCK_BYTES = 512;       // to which PyTorch's allocator rounds tensors up
constexpr size_t MOST_ELEMENTS = 1 << 21; // of masks and integers; a batch of token numbers has fewer

enum class Kind {
    FILL, ADD_NUMBER, ADD, COMPARE, CAST, NOT, AND, OR, OTHER_ELEMENTWISE, UPDATE_SCALE,
    COUNT_NONZERO, SUM_COUNTS, SELECT_NONZERO, NOTHING,  // of `nonzero`, by cub: `x[mask]` has as many rows
    SUM, MAXIMUM, MINIMUM, ALL, ANY, REDUCTION,  // by PyTorch's own `reduce_kernel`
    LIBRARY  // of cub, or another one, whose arguments are not known
};

struct Kernel {
    Kind kind;
    size_t width;          // of the elements that it fills, or casts to
    int cast_from = -1;    // c10::ScalarType; below 0 where an argument tells it
};

std::mutex& lock = *new std::mutex();
auto& kernels = *new std::unordered_map<const void*, Kernel>();  // by address on the host; never destroyed

// The scale of a gradient scaler, and the updates since it last grew.
struct Scale {
    float factor;
    int num_updates;
};
auto& filled_scalars = *new std::unordered_map<const void*, float>();  // by address: where a scale may begin
auto& scales = *new std::unordered_map<const void*, Scale>();          // by address, once they were updated
auto& counts = *new std::unordered_map<const void*, int32_t>();        // by address of the parts of a count

struct Name {
    const char* part;
    Kind kind;
};

// All numbers here are integers, of 64 bits unless their name has an `Ii`; all flags are bool.
const Name ELEMENTWISE_NAMES[] = {
    {"21CUDAFunctorOnSelf_addIlE", Kind::ADD_NUMBER},
    {"15CUDAFunctor_addIlE", Kind::ADD},
    {"16CompareEqFunctorIlE", Kind::COMPARE},
    {"17BitwiseAndFunctorIbE", Kind::AND},
    {"16BitwiseOrFunctorIbE", Kind::OR},
};
const Name INTEGER_REDUCTIONS[] = {
    {"11sum_functorIlll", Kind::SUM}, {"13MaxNanFunctorIlE", Kind::MAXIMUM}, {"13MinNanFunctorIlE", Kind::MINIMUM},
    {"13MaxNanFunctorIiE", Kind::MAXIMUM}, {"13MinNanFunctorIiE", Kind::MINIMUM}};
const Name FLAG_REDUCTIONS[] = {{"15and_kernel_cuda", Kind::ALL}, {"14or_kernel_cuda", Kind::ANY}};

struct TypeWidth {
    const char* mangled;
    size_t bytes;
};

const TypeWidth TYPE_WIDTHS[] = {
    {"b", 1}, {"h", 1}, {"a", 1}, {"s", 2}, {"N3c104HalfE", 2}, {"N3c108BFloat16E", 2},
    {"i", 4}, {"f", 4}, {"l", 8}, {"d", 8}, {"N3c107complexIfEE", 8},
};

const char FILL_FUNCTOR[] = "11FillFunctorI";

bool contains(const char* name, const char* part) { return strstr(name, part) != nullptr; }

template <size_t N>
Kind kind_of(const char* name, const Name (&known)[N], Kind otherwise) {
    for (const Name& one : known)
        if (contains(name, one.part)) return one.kind;
    return otherwise;
}

size_t width_of_fill(const char* name) {
    const char* functor = strstr(name, FILL_FUNCTOR);
    if (!functor) return 0;
    functor += strlen(FILL_FUNCTOR);
    for (const TypeWidth& known : TYPE_WIDTHS)
        if (strncmp(functor, known.mangled, strlen(known.mangled)) == 0) return known.bytes;
    return 0;
}

// To bool or to integers of 64 bits: from whatever type, or, in versions after 2.13, from the one in the name.
Kernel cast_kernel(const char* name) {
    if (contains(name, "converting_copy_kernel_cudaIblE")) return {Kind::CAST, sizeof(int64_t), 11};
    if (contains(name, "converting_copy_kernel_cudaIilE")) return {Kind::CAST, sizeof(int64_t), 3};
    if (!contains(name, "direct_copy_kernel_cuda") || !contains(name, "LoadWithCast")) return {Kind::CAST, 0};
    size_t width = contains(name, "EUlbE_St5array")   ? sizeof(bool)
                   : contains(name, "EUliE_St5array") ? sizeof(int32_t)
                   : contains(name, "EUllE_St5array") ? sizeof(int64_t)
                                                      : 0;
    return {Kind::CAST, width};
}

Kernel elementwise_kernel(const char* name) {
    if (size_t width = width_of_fill(name)) return {Kind::FILL, width};
    if (Kernel cast = cast_kernel(name); cast.width) return cast;
    if ((contains(name, "bitwise_not_kernel_cuda") || contains(name, "logical_not_kernel_cuda")) &&
        contains(name, "EUlbE_St5array"))
        return {Kind::NOT, sizeof(bool)};
    Kind kind = kind_of(name, ELEMENTWISE_NAMES, Kind::OTHER_ELEMENTWISE);
    bool has_flag = contains(name, "UnaryFunctorIbbb");  // beside the elements
    if ((kind == Kind::AND || kind == Kind::OR) && has_flag) return {Kind::OTHER_ELEMENTWISE, 0};
    bool has_number = contains(name, "13AUnaryFunctorIllb") || contains(name, "13BUnaryFunctorIllb");
    return {kind == Kind::COMPARE && !has_number ? Kind::OTHER_ELEMENTWISE : kind, 0};
}

// Source: `nonzero_cuda_out_impl` in aten/src/ATen/native/cuda/Nonzero.cu: a sum by cub, then a selection. A sum of
// many elements has a second pass over its parts.
Kernel library_kernel(const char* name) {
    if (contains(name, "23DeviceCompactInitKernelI")) return {Kind::NOTHING, 0};
    bool is_of_flags = contains(name, "9NonZeroOpIbE");
    if (contains(name, "18DeviceReduceKernelI") || contains(name, "28DeviceReduceSingleTileKernelI")) {
        if (is_of_flags) return {Kind::COUNT_NONZERO, contains(name, "18DeviceReduceKernelI") ? sizeof(int64_t) : sizeof(int32_t)};
        if (contains(name, "10policy_hubIiy") && contains(name, "EPiS")) return {Kind::SUM_COUNTS, 0};
    }
    if (is_of_flags && contains(name, "23DeviceSelectSweepKernelI")) return {Kind::SELECT_NONZERO, 0};
    return {Kind::LIBRARY, 0};
}

Kernel reduction_kernel(const char* name) {
    if (!contains(name, "13reduce_kernelI")) return library_kernel(name);
    if (contains(name, "8ReduceOpIl")) return {kind_of(name, INTEGER_REDUCTIONS, Kind::REDUCTION), sizeof(int64_t)};
    if (contains(name, "8ReduceOpIi")) return {kind_of(name, INTEGER_REDUCTIONS, Kind::REDUCTION), sizeof(int32_t)};
    if (contains(name, "8ReduceOpIb")) return {kind_of(name, FLAG_REDUCTIONS, Kind::REDUCTION), sizeof(bool)};
    return {Kind::REDUCTION, 0};
}

template <typename Element>
std::vector<Element> read_elements(const void* source, size_t count) {
    std::vector<Element> values(count);
    emulated::read(values.data(), source, count * sizeof(Element));
    return values;
}

template <typename Element>
void write_elements(void* target, const std::vector<Element>& values) {
    emulated::write(target, values.data(), values.size() * sizeof(Element));
}

void fill_with(char* target, size_t count, const void* value, size_t width) {
    std::vector<char> contents(count * width);
    for (size_t at = 0; at < count; ++at) memcpy(contents.data() + at * width, value, width);
    write_elements(target, contents);
}

// The functor holds a number and its factor where one is added to each element, else the factor alone.
void add(Kind kind, size_t count, const int64_t* functor, char** addresses) {
    auto values = read_elements<int64_t>(addresses[1], count);
    auto others = kind == Kind::ADD ? read_elements<int64_t>(addresses[2], count)
                                    : std::vector<int64_t>(count, functor[0]);
    int64_t factor = kind == Kind::ADD ? functor[0] : functor[1];
    for (size_t at = 0; at < count; ++at) values[at] += factor * others[at];
    write_elements(addresses[0], values);
}

// The functor holds which comparison it is (0: equal, 1: not equal), and the number.
void compare(size_t count, const char* functor, char** addresses) {
    int comparison;
    int64_t number;
    memcpy(&comparison, functor, sizeof comparison);
    memcpy(&number, functor + sizeof number, sizeof number);
    auto values = read_elements<int64_t>(addresses[1], count);
    std::vector<char> results(count);
    for (size_t at = 0; at < count; ++at) results[at] = (values[at] == number) == (comparison == 0);
    write_elements(addresses[0], results);
}

void combine_flags(Kind kind, size_t count, char** addresses) {
    auto values = read_elements<char>(addresses[1], count);
    auto others = kind == Kind::NOT ? std::vector<char>(count, 0) : read_elements<char>(addresses[2], count);
    for (size_t at = 0; at < count; ++at)
        values[at] = kind == Kind::NOT ? !values[at] : kind == Kind::AND ? values[at] && others[at] : values[at] || others[at];
    write_elements(addresses[0], values);
}

// Elements of one of PyTorch's types as integers; of floating point, whether they differ from zero.
// Empty: an unknown type.
std::vector<int64_t> read_as_integers(const void* source, size_t count, int type) {
    std::vector<int64_t> values(count);
    auto convert = [&](auto sample) {
        auto elements = read_elements<decltype(sample)>(source, count);
        for (size_t at = 0; at < count; ++at) values[at] = elements[at];
    };
    auto convert_floating = [&](auto sample) {
        auto elements = read_elements<decltype(sample)>(source, count);
        for (size_t at = 0; at < count; ++at) values[at] = elements[at] != 0;
    };
    switch (type) {  // c10::ScalarType
        case 0: convert(uint8_t()); break;
        case 1: convert(int8_t()); break;
        case 2: convert(int16_t()); break;
        case 3: convert(int32_t()); break;
        case 4: convert(int64_t()); break;
        case 6: convert_floating(float()); break;
        case 7: convert_floating(double()); break;
        case 11: convert(char()); break;
        default: values.clear();
    }
    return values;
}

bool cast(size_t count, size_t width, int type, char** addresses) {
    bool is_floating = type == 6 || type == 7;
    if (is_floating && width != sizeof(bool)) return false;
    std::vector<int64_t> values = read_as_integers(addresses[1], count, type);
    if (values.size() != count) return false;
    if (width == sizeof(int64_t)) {
        write_elements(addresses[0], values);
        return true;
    }
    if (width == sizeof(int32_t)) {
        write_elements(addresses[0], std::vector<int32_t>(values.begin(), values.end()));
        return true;
    }
    std::vector<char> flags(count);
    for (size_t at = 0; at < count; ++at) flags[at] = values[at] != 0;
    write_elements(addresses[0], flags);
    return true;
}

void note_scalar(const void* address, const void* value) {
    std::lock_guard<std::mutex> guard(lock);
    memcpy(&filled_scalars[address], value, sizeof(float));
    scales.erase(address);
}

// The arguments: the scale, the updates since it grew, whether a gradient was not finite, by how much the scale grows
// and falls, and after how many updates it grows. PyTorch fills the scale when it makes it, and no other kernel
// changes it. Whether a gradient was not finite is a kernel's result, so it reads as zero unless the host wrote it.
void update_scale(void** arguments) {
    void* addresses[3];
    double growth, backoff;
    int interval;
    for (int at = 0; at < 3; ++at) memcpy(&addresses[at], arguments[at], sizeof(void*));
    memcpy(&growth, arguments[3], sizeof growth);
    memcpy(&backoff, arguments[4], sizeof backoff);
    memcpy(&interval, arguments[5], sizeof interval);
    float is_infinite;
    emulated::read(&is_infinite, addresses[2], sizeof is_infinite);
    std::lock_guard<std::mutex> guard(lock);
    auto [entry, is_new] = scales.try_emplace(addresses[0], Scale{filled_scalars[addresses[0]], 0});
    Scale& scale = entry->second;
    if (is_infinite) {
        scale = {static_cast<float>(scale.factor * backoff), 0};
    } else if (++scale.num_updates == interval) {
        scale = {static_cast<float>(scale.factor * growth), 0};
    }
    emulated::write_lasting(addresses[0], &scale.factor, sizeof scale.factor);
    emulated::write_lasting(addresses[1], &scale.num_updates, sizeof scale.num_updates);
}

bool do_elementwise(const Kernel& kernel, void** arguments) {
    size_t count = *static_cast<int*>(arguments[0]);
    char** addresses = static_cast<char**>(arguments[2]);  // of the result first
    char* functor = static_cast<char*>(arguments[1]);
    if (kernel.kind == Kind::FILL) {
        bool is_small = count * kernel.width <= emulated::MOST_DEVICE_COPY_BYTES;
        bool may_be_mask = kernel.width == sizeof(bool) || kernel.width == sizeof(int64_t);
        if (!is_small && (!may_be_mask || count > MOST_ELEMENTS)) return false;
        fill_with(addresses[0], count, functor, kernel.width);
        if (count == 1 && kernel.width == sizeof(float)) note_scalar(addresses[0], functor);
        return true;
    }
    if (count > MOST_ELEMENTS) return false;
    switch (kernel.kind) {
        case Kind::ADD_NUMBER:
        case Kind::ADD:
            add(kernel.kind, count, reinterpret_cast<int64_t*>(functor), addresses);
            return true;
        case Kind::COMPARE:
            compare(count, functor, addresses);
            return true;
        case Kind::NOT:
        case Kind::AND:
        case Kind::OR:
            combine_flags(kernel.kind, count, addresses);
            return true;
        case Kind::CAST: {  // arguments: ..., two calculators of offsets, how it loads (a type first), how it stores
            int type = kernel.cast_from < 0 ? *static_cast<int8_t*>(arguments[5]) : kernel.cast_from;
            return cast(count, kernel.width, type, addresses);
        }
        default:
            return false;
    }
}

int64_t reduced(Kind kind, const std::vector<int64_t>& values) {
    int64_t result = kind == Kind::SUM || kind == Kind::ANY ? 0 : kind == Kind::ALL ? 1 : values[0];
    for (int64_t value : values) switch (kind) {
            case Kind::SUM: result += value; break;
            case Kind::MAXIMUM: result = value > result ? value : result; break;
            case Kind::MINIMUM: result = value < result ? value : result; break;
            case Kind::ALL: result = result && value; break;
            default: result = result || value;
        }
    return result;
}

struct Addresses {
    void* source;
    void* result;
};

// The addresses in the argument of a reduction. Before them lie arrays that are not filled, with whatever the stack held;
// behind them those of a second result and of buffers, which index it begins with, two flags, and how many results it
// has. Without any such place, none.
// Source: `ReduceOp` in aten/src/ATen/native/cuda/Reduce.cuh.
std::vector<Addresses> list_addresses(const char* argument) {
    constexpr size_t FROM = 64, UNTIL = 1536;
    constexpr uint64_t FLAGS = 0x0101;
    std::vector<Addresses> found;
    for (size_t at = FROM; at < UNTIL; at += sizeof(void*)) {
        struct {
            void *source, *result, *buffers[4];
            uint64_t first;
            uint16_t flags;
            int32_t num_results;
        } fields;
        memcpy(&fields, argument + at, sizeof fields);
        bool is_end = fields.first == 0 && !(fields.flags & ~FLAGS) && (fields.num_results == 1 || fields.num_results == 2);
        if (is_end && emulated::find_range(fields.source, nullptr, nullptr, nullptr) &&
            emulated::find_range(fields.result, nullptr, nullptr, nullptr))
            found.push_back({fields.source, fields.result});
    }
    return found;
}

// Behind a functor of a byte lies the result of nothing, and then the sizes, which are integers of 32 bits.
size_t sizes_after_functor(size_t width) { return 2 * width < sizeof(int32_t) ? sizeof(int32_t) : 2 * width; }

// The argument of a reduction: a functor without state, the result of nothing, the sizes of an element and of the
// reduction, and further on the addresses. Says whether it was done: not where there are several results, or where what
// is reduced is not known.
bool do_reduction(const Kernel& kernel, const char* argument) {
    size_t sizes_at = sizes_after_functor(kernel.width);
    int sizes[3];  // of an element, number of elements, number of results
    memcpy(sizes, argument + sizes_at, sizeof sizes);
    size_t count = sizes[1];
    if (static_cast<size_t>(sizes[0]) != kernel.width || sizes[1] < 1 || count > MOST_ELEMENTS || sizes[2] != 1)
        return false;
    for (const Addresses& found : list_addresses(argument)) {
        if (!emulated::is_known(found.source, count * kernel.width)) continue;
        int type = kernel.width == sizeof(int64_t) ? 4 : kernel.width == sizeof(int32_t) ? 3 : 11;
        int64_t result = reduced(kernel.kind, read_as_integers(found.source, count, type));
        emulated::write(found.result, &result, kernel.width);  // the lowest bytes come first
        return true;
    }
    return false;
}

// Forgets the result of a reduction, which the host often reads; all, where no address of one is found. A check of
// values that are not known holds: of weights that ranks share, or of gradients that are finite.
void forget_result(Kind kind, const char* argument) {
    std::vector<Addresses> found = list_addresses(argument);
    if (found.empty()) return emulated::forget_all();
    for (const Addresses& one : found) emulated::forget(one.result, BLOCK_BYTES);
    if (kind == Kind::ALL) write_elements(found[0].result, std::vector<char>(1, 1));
}

// The first arguments of a pass that counts: where the flags begin, where the count goes, and how many flags there are.
// Says whether it was done: not where the flags are not known, or what is counted is not.
bool count_flags(const Kernel& kernel, void** arguments) {
    void* source = *static_cast<void**>(arguments[0]);
    void* result = *static_cast<void**>(arguments[1]);
    std::lock_guard<std::mutex> guard(lock);
    int32_t count = 0;
    if (kernel.kind == Kind::SUM_COUNTS) {
        auto found = counts.find(source);
        if (found == counts.end()) return false;
        count = found->second;
        counts.erase(found);
    } else {
        bool is_long = kernel.width == sizeof(int64_t);
        int64_t num_flags = is_long ? *static_cast<int64_t*>(arguments[2]) : *static_cast<int32_t*>(arguments[2]);
        if (num_flags < 0 || static_cast<size_t>(num_flags) > MOST_ELEMENTS || !emulated::is_known(source, num_flags))
            return false;
        for (char flag : read_elements<char>(source, num_flags)) count += flag != 0;
        if (is_long) counts[result] = count;
    }
    emulated::write(result, &count, sizeof count);
    return true;
}

// The arguments: numbers from 0, where the flags begin, where the positions of those that are set go, and, as the
// eighth, how many flags there are.
void select_flags(void** arguments) {
    void* source = *static_cast<void**>(arguments[1]);
    void* result = *static_cast<void**>(arguments[2]);
    int num_flags = *static_cast<int*>(arguments[7]);
    if (num_flags < 0 || static_cast<size_t>(num_flags) > MOST_ELEMENTS || !emulated::is_known(source, num_flags))
        return emulated::forget_all();
    std::vector<int64_t> positions;
    auto flags = read_elements<char>(source, num_flags);
    for (int at = 0; at < num_flags; ++at)
        if (flags[at]) positions.push_back(at);
    write_elements(result, positions);
}

}  // namespace

void emulated::register_kernel(const void* function, const char* name) {
    // Both take the number of elements, the functor, and an array of pointers, the first of which is the result's.
    bool is_elementwise =
        contains(name, "vectorized_elementwise_kernel") || contains(name, "unrolled_elementwise_kernel");
    bool is_of_scale = contains(name, "amp_update_scale_cuda_kernel");
    if (!is_elementwise && !is_of_scale && !contains(name, "reduce") && !contains(name, "3cub")) return;
    std::lock_guard<std::mutex> guard(lock);
    kernels[function] = is_elementwise ? elementwise_kernel(name)
                        : is_of_scale  ? Kernel{Kind::UPDATE_SCALE, 0}
                                       : reduction_kernel(name);
}

void emulated::do_kernel(const void* function, void** arguments) {
    Kernel kernel;
    {
        std::lock_guard<std::mutex> guard(lock);
        auto found = kernels.find(function);
        if (found == kernels.end()) return;
        kernel = found->second;
    }
    if (kernel.kind == Kind::UPDATE_SCALE) return update_scale(arguments);
    if (kernel.kind == Kind::NOTHING) return;
    if (kernel.kind == Kind::SELECT_NONZERO) return select_flags(arguments);
    if (kernel.kind == Kind::COUNT_NONZERO || kernel.kind == Kind::SUM_COUNTS) {
        if (!count_flags(kernel, arguments)) forget_all();
        return;
    }
    if (kernel.kind == Kind::LIBRARY) return forget_all();  // a host often reads what it reduced to
    if (kernel.kind >= Kind::SUM) {
        const char* argument = static_cast<char*>(arguments[0]);
        if (kernel.kind != Kind::REDUCTION && do_reduction(kernel, argument)) return;
        return forget_result(kernel.kind, argument);
    }
    if (do_elementwise(kernel, arguments)) return;
    size_t count = *static_cast<int*>(arguments[0]);
    forget(*static_cast<char**>(arguments[2]), (count + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES);
}
