// libnccl for the ranks of one host. Small contributions are exchanged for real through shared memory, since programs
// decide by them (sizes, shapes, pickled objects); large ones are not moved, and nobody waits for them.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>

#include "device.hpp"

using namespace emulated;

namespace {

constexpr int SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6;
constexpr int NO_COLOR = -1;
constexpr size_t MOST_SHARED_BYTES = 256 << 10;   // that one rank contributes to a collective
constexpr size_t MOST_MESSAGE_BYTES = 64 << 10;   // from one rank to another
constexpr uint64_t MESSAGES_ON_THE_WAY = 16;      // between two ranks, before the sender waits
constexpr double SECONDS_PER_CHECK = 0.2;         // whether the other processes are alive

struct Id {
    char bytes[128];
};

struct Contribution {
    std::atomic<int> process;
    std::atomic<uint64_t> num_posted, num_read;
    char bytes[2][MOST_SHARED_BYTES];  // of this operation and of the previous one, which others may still read
};

struct Mailbox {
    std::atomic<uint64_t> num_posted, num_read;
    size_t sizes[MESSAGES_ON_THE_WAY];
    char bytes[MESSAGES_ON_THE_WAY][MOST_MESSAGE_BYTES];
};

struct Communicator {
    Id id;
    int num_ranks;
    int rank;
    int device;
    uint64_t num_operations = 0;
    uint64_t num_splits = 0;
    Contribution* contributions = nullptr;  // of all ranks; null: no other process is reached
    Mailbox* mailboxes = nullptr;           // from rank a to rank b at a * num_ranks + b
    size_t mapped_bytes = 0;
    std::atomic<bool> is_aborted{false};
};

thread_local int group_depth = 0;
thread_local std::vector<std::function<int()>> group_sends, group_others;

size_t width_of(int type) {
    static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < 12 ? widths[type] : 1;
}

std::string hexadecimal(const Id& id) {
    std::string text;
    for (int at = 0; at < 16; ++at) {
        char digits[4];
        snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(id.bytes[at]));
        text += digits;
    }
    return text;
}

bool is_alive(int process) { return process <= 0 || kill(process, 0) == 0 || errno == EPERM; }

// Waits for other ranks; an abort and the death of one of them end it.
int wait_for(Communicator* own, const std::function<bool()>& is_done) {
    double next_check_s = now_s() + SECONDS_PER_CHECK;
    for (int attempt = 0; !is_done(); ++attempt) {
        if (own->is_aborted) return SYSTEM_ERROR;
        if (attempt > 100) usleep(50);
        if (now_s() < next_check_s) continue;
        next_check_s = now_s() + SECONDS_PER_CHECK;
        for (int rank = 0; rank < own->num_ranks; ++rank)
            if (!is_alive(own->contributions[rank].process) && !is_done()) return REMOTE_ERROR;
    }
    return SUCCESS;
}

// Gives the contribution of each rank to `read`, once all are there.
int exchange(Communicator* own, const void* bytes, size_t size, const std::function<void(const char*, int)>& read) {
    uint64_t nth = own->num_operations++;
    Contribution* all = own->contributions;
    auto each_rank = [own](const std::function<bool(int)>& holds) {
        return [own, holds] {
            for (int rank = 0; rank < own->num_ranks; ++rank)
                if (!holds(rank)) return false;
            return true;
        };
    };
    if (nth > 0)
        if (int error = wait_for(own, each_rank([=](int rank) { return all[rank].num_read >= nth - 1; }))) return error;
    emulated::read(all[own->rank].bytes[nth % 2], bytes, size);
    all[own->rank].num_posted = nth + 1;
    if (int error = wait_for(own, each_rank([=](int rank) { return all[rank].num_posted >= nth + 1; }))) return error;
    for (int rank = 0; rank < own->num_ranks; ++rank) read(all[rank].bytes[nth % 2], rank);
    all[own->rank].num_read = nth + 1;
    return SUCCESS;
}

int map_exchange(Communicator* own) {
    std::string folder = shared_folder();
    if (folder.empty() || own->num_ranks == 1) return SUCCESS;
    std::string path = folder + "/nccl-" + hexadecimal(own->id);
    size_t contributions = sizeof(Contribution) * own->num_ranks;
    own->mapped_bytes = contributions + sizeof(Mailbox) * own->num_ranks * own->num_ranks;
    int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, own->mapped_bytes)) return SYSTEM_ERROR;
    int flags = MAP_SHARED | MAP_NORESERVE;
    void* mapped = mmap(nullptr, own->mapped_bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return SYSTEM_ERROR;
    own->contributions = static_cast<Contribution*>(mapped);
    own->mailboxes = reinterpret_cast<Mailbox*>(static_cast<char*>(mapped) + contributions);
    own->contributions[own->rank].process = getpid();
    int error = exchange(own, "", 0, [](const char*, int) {});
    if (own->rank == 0) unlink(path.c_str());  // all have it
    return error;
}

// Buffers of a process on a device, whatever the number of its communicators.
bool take_buffers(int device) {
    static std::mutex lock;
    static bool is_taken[MAX_DEVICES];
    std::lock_guard<std::mutex> guard(lock);
    if (!is_taken[device])
        is_taken[device] = charge(device, number_in_environment("BEXPLORE_EMULATED_COLLECTIVES_BYTES", 0));
    return is_taken[device];
}

int make_communicator(Communicator** made, int num_ranks, const Id& id, int rank) {
    if (rank < 0 || rank >= num_ranks) return INVALID_ARGUMENT;
    if (num_ranks > 1 && !take_buffers(current_device())) return UNHANDLED_CUDA_ERROR;
    *made = new Communicator{id, num_ranks, rank, current_device()};
    return map_exchange(*made);
}

void write_random(Id* id) {
    memset(id, 0, sizeof *id);
    if (getrandom(id->bytes, 16, 0) != 16) snprintf(id->bytes, 16, "%d", getpid());
}

// Reductions

float from_half(uint16_t bits) {
    uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 0) return (sign ? -1 : 1) * fraction * 5.9604644775390625e-8f;  // 2^-24
    uint32_t whole = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
    float value;
    memcpy(&value, &whole, sizeof value);
    return value;
}

uint16_t to_half(float value) {
    uint32_t whole;
    memcpy(&whole, &value, sizeof whole);
    uint16_t sign = whole >> 16 & 0x8000;
    int exponent = static_cast<int>(whole >> 23 & 255) - 112;
    uint16_t fraction = whole >> 13 & 1023;
    if (exponent >= 31) return sign | 0x7c00 | ((whole & 0x7fffffff) > 0x7f800000 ? 512 : 0);
    return exponent <= 0 ? sign : static_cast<uint16_t>(sign | exponent << 10 | fraction);
}

float from_bfloat16(uint16_t bits) {
    uint32_t whole = static_cast<uint32_t>(bits) << 16;
    float value;
    memcpy(&value, &whole, sizeof value);
    return value;
}

uint16_t to_bfloat16(float value) {
    uint32_t whole;
    memcpy(&whole, &value, sizeof whole);
    return whole >> 16;
}

struct Half {
    static float load(uint16_t bits) { return from_half(bits); }
    static uint16_t store(float value) { return to_half(value); }
};
struct Bfloat16 {
    static float load(uint16_t bits) { return from_bfloat16(bits); }
    static uint16_t store(float value) { return to_bfloat16(value); }
};
template <typename Number>
struct Plain {
    static Number load(Number value) { return value; }
    static Number store(Number value) { return value; }
};

template <typename Stored, typename Form>
void reduce_into(char* sum_bytes, const char* added_bytes, size_t count, int operation) {
    Stored* sum = reinterpret_cast<Stored*>(sum_bytes);
    const Stored* added = reinterpret_cast<const Stored*>(added_bytes);
    for (size_t at = 0; at < count; ++at) {
        auto one = Form::load(sum[at]), other = Form::load(added[at]);
        switch (operation) {
            case 1: one = one * other; break;
            case 2: one = std::max(one, other); break;
            case 3: one = std::min(one, other); break;
            default: one = one + other;
        }
        sum[at] = Form::store(one);
    }
}

template <typename Stored, typename Form>
void divide(char* bytes, size_t count, int by) {
    Stored* values = reinterpret_cast<Stored*>(bytes);
    for (size_t at = 0; at < count; ++at) values[at] = Form::store(Form::load(values[at]) / by);
}

template <typename Stored, typename Form>
void fold(char* sum, const char* added, size_t count, int operation, int num_ranks, bool is_last) {
    reduce_into<Stored, Form>(sum, added, count, operation);
    if (is_last && operation == 4) divide<Stored, Form>(sum, count, num_ranks);  // 4: the average
}

void fold_typed(int type, char* sum, const char* added, size_t count, int operation, int ranks, bool is_last) {
    switch (type) {
        case 0: return fold<int8_t, Plain<int8_t>>(sum, added, count, operation, ranks, is_last);
        case 1: return fold<uint8_t, Plain<uint8_t>>(sum, added, count, operation, ranks, is_last);
        case 2: return fold<int32_t, Plain<int32_t>>(sum, added, count, operation, ranks, is_last);
        case 3: return fold<uint32_t, Plain<uint32_t>>(sum, added, count, operation, ranks, is_last);
        case 4: return fold<int64_t, Plain<int64_t>>(sum, added, count, operation, ranks, is_last);
        case 5: return fold<uint64_t, Plain<uint64_t>>(sum, added, count, operation, ranks, is_last);
        case 6: return fold<uint16_t, Half>(sum, added, count, operation, ranks, is_last);
        case 7: return fold<float, Plain<float>>(sum, added, count, operation, ranks, is_last);
        case 8: return fold<double, Plain<double>>(sum, added, count, operation, ranks, is_last);
        case 9: return fold<uint16_t, Bfloat16>(sum, added, count, operation, ranks, is_last);
    }
}

// Folds the contributions of all ranks, each from `offset` on, and writes the result once the last is there.
std::function<void(const char*, int)> reduction(Communicator* own, void* target, size_t offset, size_t count, int type,
                                                int operation) {
    auto result = std::make_shared<std::vector<char>>();
    return [=](const char* bytes, int rank) {
        bool is_last = rank == own->num_ranks - 1;
        if (rank == 0)
            result->assign(bytes + offset, bytes + offset + count * width_of(type));
        else
            fold_typed(type, result->data(), bytes + offset, count, operation, own->num_ranks, is_last);
        if (is_last) write(target, result->data(), result->size());
    };
}

// Operations. In a group they are done at its end, sends first, so that no two ranks wait for each other.

int run_or_defer(std::vector<std::function<int()>>& deferred, std::function<int()> operation) {
    if (group_depth == 0) return operation();
    deferred.push_back(std::move(operation));
    return SUCCESS;
}

// A collective: `read` gets the contribution of each rank. Where none is exchanged, `alone` does what it can.
int collective(Communicator* own, cudaStream_t stream, const void* sent, size_t size,
               std::function<void(const char*, int)> read, std::function<void()> alone) {
    return run_or_defer(group_others, [=]() -> int {
        if (launch(stream)) return UNHANDLED_CUDA_ERROR;
        if (own->contributions && size <= MOST_SHARED_BYTES) return exchange(own, sent, size, read);
        alone();
        return SUCCESS;
    });
}

Mailbox& mailbox(Communicator* own, int from, int to) { return own->mailboxes[from * own->num_ranks + to]; }

}  // namespace

API int ncclGetVersion(int* version) {
    *version = BEXPLORE_NCCL_VERSION;
    return SUCCESS;
}

API const char* ncclGetErrorString(int error) {
    return error == UNHANDLED_CUDA_ERROR ? "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
           : error == SYSTEM_ERROR       ? "unhandled system error (run with NCCL_DEBUG=INFO for details)"
           : error == REMOTE_ERROR       ? "remote process exited or there was a network error"
           : error                       ? "invalid argument"
                                         : "no error";
}

API const char* ncclGetLastError(Communicator*) { return ""; }

// Communicators

API int ncclGetUniqueId(Id* id) {
    write_random(id);
    return SUCCESS;
}

API int ncclCommInitRank(Communicator** made, int num_ranks, Id id, int rank) {
    return make_communicator(made, num_ranks, id, rank);
}

API int ncclCommInitRankConfig(Communicator** made, int num_ranks, Id id, int rank, void*) {
    return make_communicator(made, num_ranks, id, rank);
}

API int ncclCommInitRankScalable(Communicator** made, int num_ranks, int rank, int, Id* ids, void*) {
    return make_communicator(made, num_ranks, ids[0], rank);
}

// The devices of one process: nothing is exchanged.
API int ncclCommInitAll(Communicator** made, int num_devices, const int* devices) {
    Id id;
    write_random(&id);
    for (int rank = 0; rank < num_devices; ++rank) {
        int device = devices ? devices[rank] : rank;
        if (num_devices > 1 && !take_buffers(device)) return UNHANDLED_CUDA_ERROR;
        made[rank] = new Communicator{id, num_devices, rank, device};
    }
    return SUCCESS;
}

API int ncclCommSplit(Communicator* parent, int color, int key, Communicator** made, void*) {
    struct Choice {
        int color, key, rank;
    };
    uint64_t nth = ++parent->num_splits;
    Choice own{color, key, parent->rank};
    std::vector<Choice> same{};
    *made = nullptr;
    if (!parent->contributions) {
        if (color == NO_COLOR) return SUCCESS;
        *made = new Communicator{parent->id, parent->num_ranks, parent->rank, parent->device};
        return SUCCESS;
    }
    int error = exchange(parent, &own, sizeof own, [&](const char* bytes, int) {
        Choice other;
        memcpy(&other, bytes, sizeof other);
        if (other.color == color) same.push_back(other);
    });
    if (error || color == NO_COLOR) return error;
    std::stable_sort(same.begin(), same.end(), [](const Choice& a, const Choice& b) { return a.key < b.key; });
    int rank = 0;
    while (same[rank].rank != parent->rank) ++rank;
    Id id = parent->id;  // changed alike by all ranks of a colour: a step of a linear congruential generator each
    uint64_t words[2];
    memcpy(words, id.bytes, sizeof words);
    words[0] = (words[0] + nth) * 6364136223846793005u + 1442695040888963407u;
    words[1] = (words[1] + static_cast<uint64_t>(color) + 1) * 6364136223846793005u + 1442695040888963407u;
    memcpy(id.bytes, words, sizeof words);
    return make_communicator(made, same.size(), id, rank);
}

API int ncclCommCount(Communicator* own, int* count) {
    *count = own->num_ranks;
    return SUCCESS;
}

API int ncclCommUserRank(Communicator* own, int* rank) {
    *rank = own->rank;
    return SUCCESS;
}

API int ncclCommCuDevice(Communicator* own, int* device) {
    *device = own->device;
    return SUCCESS;
}

API int ncclCommGetAsyncError(Communicator*, int* error) {
    *error = SUCCESS;
    return SUCCESS;
}

// Another thread may still wait in it, so a communicator is not given back.
API int ncclCommAbort(Communicator* own) {
    own->is_aborted = true;
    return SUCCESS;
}

API int ncclMemAlloc(void** pointer, size_t bytes) {
    return allocate(current_device(), bytes, pointer) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

API int ncclMemFree(void* pointer) {
    release(pointer);
    return SUCCESS;
}

// Groups

API int ncclGroupStart() {
    ++group_depth;
    return SUCCESS;
}

API int ncclGroupEnd() {
    if (--group_depth) return SUCCESS;
    auto sends = std::move(group_sends), others = std::move(group_others);
    group_sends.clear();
    group_others.clear();
    for (auto* operations : {&sends, &others})
        for (auto& operation : *operations)
            if (int error = operation()) return error;
    return SUCCESS;
}

// Collectives

API int ncclAllGather(const void* sent, void* received, size_t count, int type, Communicator* own,
                      cudaStream_t stream) {
    size_t size = count * width_of(type);
    char* target = static_cast<char*>(received);
    return collective(
        own, stream, sent, size, [=](const char* bytes, int rank) { write(target + rank * size, bytes, size); },
        [=] {
            for (int rank = 0; rank < own->num_ranks; ++rank) copy(target + rank * size, sent, size);
        });
}

API int ncclAllReduce(const void* sent, void* received, size_t count, int type, int operation, Communicator* own,
                      cudaStream_t stream) {
    size_t size = count * width_of(type);
    return collective(own, stream, sent, size, reduction(own, received, 0, count, type, operation),
                      [=] { copy(received, sent, size); });
}

API int ncclReduce(const void* sent, void* received, size_t count, int type, int operation, int root,
                   Communicator* own, cudaStream_t stream) {
    size_t size = count * width_of(type);
    if (own->rank != root) return collective(own, stream, sent, size, [](const char*, int) {}, [] {});
    return ncclAllReduce(sent, received, count, type, operation, own, stream);
}

API int ncclReduceScatter(const void* sent, void* received, size_t count, int type, int operation, Communicator* own,
                          cudaStream_t stream) {
    size_t size = count * width_of(type);
    size_t offset = own->rank * size;
    return collective(own, stream, sent, size * own->num_ranks,
                      reduction(own, received, offset, count, type, operation),
                      [=] { copy(received, static_cast<const char*>(sent) + offset, size); });
}

API int ncclBroadcast(const void* sent, void* received, size_t count, int type, int root, Communicator* own,
                      cudaStream_t stream) {
    size_t size = count * width_of(type);
    auto read = [=](const char* bytes, int rank) {
        if (rank == root) write(received, bytes, size);
    };
    const void* contributed = own->rank == root ? sent : received;
    return collective(own, stream, contributed, size, read, [=] {
        if (own->rank == root) copy(received, sent, size);
    });
}

API int ncclBcast(void* buffer, size_t count, int type, int root, Communicator* own, cudaStream_t stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, own, stream);
}

API int ncclAlltoAll(const void* sent, void* received, size_t count, int type, Communicator* own,
                     cudaStream_t stream) {
    size_t size = count * width_of(type);
    char* target = static_cast<char*>(received);
    auto read = [=](const char* bytes, int rank) { write(target + rank * size, bytes + own->rank * size, size); };
    return collective(own, stream, sent, size * own->num_ranks, read, [] {});
}

// Messages

API int ncclSend(const void* sent, size_t count, int type, int peer, Communicator* own, cudaStream_t stream) {
    size_t size = count * width_of(type);
    return run_or_defer(group_sends, [=]() -> int {
        if (launch(stream)) return UNHANDLED_CUDA_ERROR;
        if (!own->mailboxes || size > MOST_MESSAGE_BYTES) return SUCCESS;
        Mailbox& box = mailbox(own, own->rank, peer);
        uint64_t nth = box.num_posted;
        auto has_room = [&box, nth] { return nth - box.num_read < MESSAGES_ON_THE_WAY; };
        if (int error = wait_for(own, has_room)) return error;
        read(box.bytes[nth % MESSAGES_ON_THE_WAY], sent, size);
        box.sizes[nth % MESSAGES_ON_THE_WAY] = size;
        box.num_posted = nth + 1;
        return SUCCESS;
    });
}

API int ncclRecv(void* received, size_t count, int type, int peer, Communicator* own, cudaStream_t stream) {
    size_t size = count * width_of(type);
    return run_or_defer(group_others, [=]() -> int {
        if (launch(stream)) return UNHANDLED_CUDA_ERROR;
        if (!own->mailboxes || size > MOST_MESSAGE_BYTES) return SUCCESS;
        Mailbox& box = mailbox(own, peer, own->rank);
        uint64_t nth = box.num_read;
        if (int error = wait_for(own, [&box, nth] { return box.num_posted > nth; })) return error;
        write(received, box.bytes[nth % MESSAGES_ON_THE_WAY], std::min(size, box.sizes[nth % MESSAGES_ON_THE_WAY]));
        box.num_read = nth + 1;
        return SUCCESS;
    });
}
