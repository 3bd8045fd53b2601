// NCCL between processes of one machine, for devices in software, whose memory is the process's own: everything is
// copied through memory that the processes share, when it is asked for. Of a sum each rank adds up the values in the
// order of the ranks, so that all have the same bits.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <vector>

namespace {

enum Status { Success = 0, SystemError = 2, InvalidArgument = 4, InvalidUsage = 5 };
enum Type { Float32 = 7, Bfloat16 = 9 };

constexpr int kMostRanks = 8;
constexpr size_t kBytes = 64 << 10;

// What one rank says to another: full while the receiver has not taken it.
struct Mailbox {
    std::atomic<uint32_t> bytes;
    char data[kBytes];
};

struct Shared {
    std::atomic<int> came;
    Mailbox boxes[kMostRanks][kMostRanks];
};

struct Call {
    bool sends;
    int peer;
    char *data;
    size_t left;
};

}  // namespace

struct ncclComm {
    Shared *shared;
    int rank, size;
};

struct ncclUniqueId {
    char internal[128];
};

namespace {

thread_local int depth = 0;
thread_local std::vector<Call> calls;
thread_local std::vector<std::function<int()>> reductions;
thread_local ncclComm *caller = nullptr;

size_t size_of(int type) {
    return type == Float32 ? 4 : type == Bfloat16 ? 2 : 0;
}

// One mailbox's worth of a call, if there is room or news. Calls to one peer, or from one, keep their order.
bool step(ncclComm *comm, Call &call) {
    Mailbox &box = call.sends ? comm->shared->boxes[comm->rank][call.peer] : comm->shared->boxes[call.peer][comm->rank];
    uint32_t there = box.bytes.load(std::memory_order_acquire);
    if (call.sends == (there != 0)) return false;
    size_t bytes = call.sends ? (call.left < kBytes ? call.left : kBytes) : there;
    if (bytes > call.left) {
        fprintf(stderr, "software NCCL: rank %d was sent more than it asked for\n", comm->rank);
        _exit(70);
    }
    if (call.sends) {
        memcpy(box.data, call.data, bytes);
        box.bytes.store(bytes, std::memory_order_release);
    } else {
        memcpy(call.data, box.data, bytes);
        box.bytes.store(0, std::memory_order_release);
    }
    call.data += bytes;
    call.left -= bytes;
    return true;
}

int run(ncclComm *comm, std::vector<Call> all) {
    for (bool left = true; left;) {
        left = false;
        bool moved = false, begun[2][kMostRanks] = {};
        for (Call &call : all) {
            if (call.left == 0 || begun[call.sends][call.peer]) continue;
            begun[call.sends][call.peer] = left = true;
            moved |= step(comm, call);
        }
        if (!moved) sched_yield();
    }
    return Success;
}

int ask(ncclComm *comm, Call call) {
    if (call.peer < 0 || call.peer >= comm->size) return InvalidArgument;
    if (depth == 0) return run(comm, {call});
    caller = comm;
    calls.push_back(call);
    return Success;
}

}  // namespace

extern "C" {

int ncclGetUniqueId(ncclUniqueId *id) {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/software-nccl-%d-%ld%09ld", getpid(), long(now.tv_sec), now.tv_nsec);
    return Success;
}

int ncclCommInitRank(ncclComm **comm, int size, ncclUniqueId id, int rank) {
    if (size > kMostRanks || rank < 0 || rank >= size) return InvalidArgument;
    int file = shm_open(id.internal, O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return SystemError;
    void *at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED) return SystemError;
    Shared *shared = static_cast<Shared *>(at);
    shared->came.fetch_add(1);
    while (shared->came.load() < size) sched_yield();
    // Everybody has it open, and it is gone when they are.
    shm_unlink(id.internal);
    *comm = new ncclComm{shared, rank, size};
    return Success;
}

int ncclCommAbort(ncclComm *comm) {
    munmap(comm->shared, sizeof(Shared));
    delete comm;
    return Success;
}

int ncclCommDestroy(ncclComm *comm) {
    return ncclCommAbort(comm);
}

int ncclGroupStart() {
    depth++;
    return Success;
}

int ncclGroupEnd() {
    if (--depth > 0) return Success;
    std::vector<Call> all;
    all.swap(calls);
    if (int status = all.empty() ? Success : run(caller, all)) return status;
    std::vector<std::function<int()>> sums;
    sums.swap(reductions);
    for (auto &sum : sums) {
        if (int status = sum()) return status;
    }
    return Success;
}

int ncclSend(const void *data, size_t count, int type, int peer, ncclComm *comm, void *) {
    if (size_of(type) == 0) return InvalidArgument;
    return ask(comm, {true, peer, static_cast<char *>(const_cast<void *>(data)), count * size_of(type)});
}

int ncclRecv(void *data, size_t count, int type, int peer, ncclComm *comm, void *) {
    if (size_of(type) == 0) return InvalidArgument;
    return ask(comm, {false, peer, static_cast<char *>(data), count * size_of(type)});
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm *comm, void *) {
    if (type != Float32 || op != 0) return InvalidUsage;
    // In a group it is done at the end, as by the real one.
    if (depth > 0) {
        reductions.push_back([=] { return ncclAllReduce(from, to, count, type, op, comm, nullptr); });
        return Success;
    }
    std::vector<float> own(static_cast<const float *>(from), static_cast<const float *>(from) + count);
    std::vector<std::vector<float>> others(comm->size, std::vector<float>(count));
    std::vector<Call> all;
    for (int peer = 0; peer < comm->size; peer++) {
        all.push_back({true, peer, reinterpret_cast<char *>(own.data()), count * 4});
        all.push_back({false, peer, reinterpret_cast<char *>(others[peer].data()), count * 4});
    }
    int status = run(comm, all);
    float *sums = static_cast<float *>(to);
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (int peer = 0; peer < comm->size; peer++) sum += others[peer][i];
        sums[i] = sum;
    }
    return status;
}
}
