#include "block.h"
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <link.h>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace software_cuda {
namespace {

constexpr size_t STACK = 64 << 10;
constexpr unsigned MOST_THREADS = 1024, WARP = 32;

// Keeps the registers that a function must keep on the stack, and goes on with another stack.
extern "C" void software_cuda_switch(void **save, void *load);
#if defined(__x86_64__)
__asm__(".text\n.type software_cuda_switch,@function\nsoftware_cuda_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp,(%rdi)\n  movq %rsi,%rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
        ".size software_cuda_switch,.-software_cuda_switch\n");
#else
#error "the software CUDA device switches stacks on x86-64 alone"
#endif

enum class State { ready, in_warp, at_barrier, done };

struct Copy {
    void *to;
    const void *from;
    unsigned group;
};

struct Thread {
    void *stack_pointer;
    State state;
    uint3 index;
    unsigned number;
    // Of what it waits for.
    Place place;
    Exchange exchange;
    unsigned mask, from_lane;
    uint64_t value, result;
    // What it began to copy, and how many groups it ended.
    std::vector<Copy> copies;
    unsigned groups;
};

struct Worker {
    const Launch *launch = nullptr;
    uint3 block{};
    Thread *current = nullptr;
    void *scheduler = nullptr;
    std::vector<Thread> threads;
    char *stacks = nullptr;
    int vote_sum = 0, vote_all = 1, barrier_result = 0;
    Vote vote{};
    std::string failure;

    Worker() {
        size_t size = STACK * MOST_THREADS;
        stacks = static_cast<char *>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    }
    ~Worker() { munmap(stacks, STACK * MOST_THREADS); }

    std::string run_block(uint3 index);
    void pass(unsigned warp, bool &progress);
    void wait(State state, Place place);
    void complete(unsigned mask);
    std::string stuck() const;
    unsigned count() const { return unsigned(threads.size()); }
};

// Read at every `threadIdx`, hence where it costs nothing to find.
__attribute__((tls_model("initial-exec"))) thread_local Worker *worker = nullptr;

std::string where(Place place) {
    const char *name = strrchr(place.file, '/');
    return std::string(name ? name + 1 : place.file) + ":" + std::to_string(place.line);
}

std::string text(uint3 v) { return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")"; }

void enter() {
    worker->launch->body();
    worker->current->state = State::done;
    void *unused;
    software_cuda_switch(&unused, worker->scheduler);
    __builtin_unreachable();
}

void *new_stack(char *stack, unsigned number) {
    // Stacks that begin at the same place of a page would all meet in the same lines of the cache.
    stack += STACK - 64 - number % 63 * 64;
    // What the switch takes off: six registers and the address to return to, so that the stack has the
    // alignment of a called function's.
    void **top = reinterpret_cast<void **>(stack);
    *--top = nullptr;
    *--top = reinterpret_cast<void *>(&enter);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    return top;
}

// Stops this thread until its state is `ready` again.
void Worker::wait(State state, Place place) {
    current->state = state;
    current->place = place;
    software_cuda_switch(&current->stack_pointer, scheduler);
}

// Runs a warp's threads until none of them can go on.
void Worker::pass(unsigned warp, bool &progress) {
    bool again = true;
    while (again) {
        again = false;
        for (unsigned i = warp * WARP; i < std::min(count(), (warp + 1) * WARP); i++) {
            if (threads[i].state != State::ready) continue;
            current = &threads[i];
            software_cuda_switch(&scheduler, current->stack_pointer);
            again = progress = true;
            if (!failure.empty()) return;
        }
    }
}

std::string Worker::run_block(uint3 index) {
    block = index;
    failure.clear();
    uint3 size = launch->block;
    threads.resize(size.x * size.y * size.z);
    for (unsigned i = 0; i < count(); i++) {
        Thread &t = threads[i];
        t.number = i;
        t.index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
        t.state = State::ready;
        t.copies.clear(), t.groups = 0;
        t.stack_pointer = new_stack(stacks + STACK * i, i);
    }
    for (;;) {
        bool progress = false;
        for (unsigned warp = 0; warp * WARP < count(); warp++) {
            pass(warp, progress);
            if (!failure.empty()) return failure;
        }
        unsigned waiting = 0, done = 0;
        for (const Thread &t : threads) waiting += t.state == State::at_barrier, done += t.state == State::done;
        if (done == count()) return {};
        if (waiting == count()) {
            barrier_result = vote == Vote::all_sum ? vote_sum : vote == Vote::all_and ? vote_all : vote_sum != 0;
            vote_sum = 0, vote_all = 1;
            for (Thread &t : threads) {
                if (t.place.line != threads[0].place.line || t.place.file != threads[0].place.file)
                    return "thread 0 waits at the barrier " + where(threads[0].place) + ", thread " + std::to_string(t.number) +
                           " at " + where(t.place);
                t.state = State::ready;
            }
        } else if (!progress) {
            return stuck();
        }
    }
}

std::string Worker::stuck() const {
    std::string all = "not all threads reach what others wait for:";
    unsigned named = 0;
    for (State state : {State::at_barrier, State::in_warp, State::done}) {
        for (const Thread &t : threads) {
            if (t.state != state || named > 8) continue;
            named++;
            all += " thread " + std::to_string(t.number);
            all += state == State::done ? " has ended;" : (state == State::at_barrier ? " waits at the barrier " : " waits for its warp at ") + where(t.place) + ";";
            break;
        }
    }
    return all;
}

// Gives all lanes of `mask` their results.
void Worker::complete(unsigned mask) {
    Thread *warp = &threads[current->number / WARP * WARP];
    unsigned lanes = std::min(WARP, count() - unsigned(warp - threads.data()));
    Exchange what = current->exchange;
    auto each = [&](auto f) {
        for (unsigned i = 0; i < lanes; i++)
            if (mask >> i & 1) f(warp[i], i);
    };
    uint64_t all = what == Exchange::bit_and || what == Exchange::min_unsigned ? ~0ull
                   : what == Exchange::min_signed                              ? uint64_t(INT64_MAX)
                   : what == Exchange::max_signed                              ? uint64_t(INT64_MIN)
                                                                               : 0;
    each([&](Thread &t, unsigned lane) {
        switch (what) {
        case Exchange::ballot: all |= uint64_t(t.value & 1) << lane; break;
        case Exchange::add: all += t.value; break;
        case Exchange::bit_or: all |= t.value; break;
        case Exchange::bit_xor: all ^= t.value; break;
        case Exchange::bit_and: all &= t.value; break;
        case Exchange::min_signed: all = uint64_t(std::min(int64_t(all), int64_t(t.value))); break;
        case Exchange::max_signed: all = uint64_t(std::max(int64_t(all), int64_t(t.value))); break;
        case Exchange::min_unsigned: all = std::min(all, uint64_t(uint32_t(t.value))); break;
        case Exchange::max_unsigned: all = std::max(all, uint64_t(uint32_t(t.value))); break;
        default: break;
        }
    });
    each([&](Thread &t, unsigned) {
        t.result = all;
        if (what == Exchange::shuffle) {
            // What a lane outside of the mask holds is not defined; here it is a NaN.
            t.result = t.from_lane < lanes && mask >> t.from_lane & 1 ? warp[t.from_lane].value : ~0ull;
        } else if (what == Exchange::match) {
            t.result = 0;
            each([&](Thread &other, unsigned lane) { t.result |= uint64_t(other.value == t.value) << lane; });
        }
        t.state = State::ready;
    });
}

// Arrays that stand for dynamic shared memory.
std::vector<DynamicShared> &dynamic_arrays() {
    static std::vector<DynamicShared> arrays;
    return arrays;
}
// Bytes beyond a launch's dynamic shared memory that are watched.
constexpr size_t MARGIN = 256;

void clear_dynamic(unsigned size) {
    for (const DynamicShared &a : dynamic_arrays()) memset(a.address(), 0xff, std::min(a.size, size + MARGIN));
}

bool dynamic_overrun(unsigned size) {
    for (const DynamicShared &a : dynamic_arrays()) {
        const unsigned char *from = static_cast<unsigned char *>(a.address()) + size;
        for (size_t i = 0; i < std::min(MARGIN, a.size - size); i++)
            if (from[i] != 0xff) return true;
    }
    return false;
}

// All shared memory, being the kernel library's thread-local memory, gets a pattern that is a NaN in every
// format.
void clear_shared() {
    auto clear = [](dl_phdr_info *info, size_t, void *array) {
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const auto &part = info->dlpi_phdr[i];
            if (part.p_type != PT_TLS || !info->dlpi_tls_data) continue;
            char *begin = static_cast<char *>(info->dlpi_tls_data);
            if (array < begin || array >= begin + part.p_memsz) continue;
            memset(begin, 0xff, part.p_memsz);
            return 1;
        }
        return 0;
    };
    for (const DynamicShared &a : dynamic_arrays()) dl_iterate_phdr(clear, a.address());
}

// Threads of the CPU, which share the blocks of a launch.
class Pool {
    std::vector<std::thread> threads;
    // Kernels and products come from any thread, and have the pool one after the other.
    std::mutex turn, mutex;
    std::condition_variable wake, finished;
    const std::function<void()> *task = nullptr;
    uint64_t round = 0;
    unsigned busy = 0;
    bool end = false;

    void work() {
        for (uint64_t seen = 0;;) {
            std::unique_lock lock(mutex);
            wake.wait(lock, [&] { return end || round != seen; });
            if (end) return;
            seen = round;
            lock.unlock();
            (*task)();
            lock.lock();
            if (--busy == 0) finished.notify_one();
        }
    }

  public:
    Pool() {
        const char *wish = getenv("SOFTWARE_CUDA_THREADS");
        unsigned n = wish ? atoi(wish) : std::thread::hardware_concurrency();
        for (unsigned i = 1; i < n; i++) threads.emplace_back([this] { work(); });
    }
    // Every thread, the calling one too, runs the task.
    void all(const std::function<void()> &f) {
        std::lock_guard mine(turn);
        {
            std::lock_guard lock(mutex);
            task = &f, busy = unsigned(threads.size()), round++;
        }
        wake.notify_all();
        f();
        std::unique_lock lock(mutex);
        finished.wait(lock, [&] { return busy == 0; });
    }
    static Pool &get() {
        // Never destroyed: a library's end must not wait for its threads.
        static Pool *pool = new Pool;
        return *pool;
    }
};

// Workers are kept, since their stacks are large.
std::mutex idle_lock;
std::vector<std::unique_ptr<Worker>> &idle() {
    static auto *workers = new std::vector<std::unique_ptr<Worker>>;
    return *workers;
}

std::unique_ptr<Worker> take_worker() {
    std::lock_guard lock(idle_lock);
    if (idle().empty()) return std::make_unique<Worker>();
    std::unique_ptr<Worker> w = std::move(idle().back());
    idle().pop_back();
    return w;
}

void give_worker(std::unique_ptr<Worker> w) {
    w->current = nullptr;
    std::lock_guard lock(idle_lock);
    idle().push_back(std::move(w));
}

struct sigaction before_segv, before_bus;

// An address that no allocation holds: says who asked, then lets the process end as it would have.
void on_fault(int signal, siginfo_t *info, void *context) {
    if (worker && worker->current) {
        char line[512];
        int n = snprintf(line, sizeof line,
                         "software CUDA: kernel %s, block (%u, %u, %u), thread (%u, %u, %u): no allocation holds the address %p\n",
                         worker->launch->kernel.c_str(), worker->block.x, worker->block.y, worker->block.z, worker->current->index.x,
                         worker->current->index.y, worker->current->index.z, info->si_addr);
        if (write(2, line, size_t(n)) < 0) _exit(139);
        ::signal(signal, SIG_DFL);
        return;
    }
    const struct sigaction &before = signal == SIGSEGV ? before_segv : before_bus;
    if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(signal, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) before.sa_handler(signal);
    else ::signal(signal, SIG_DFL);
}

void watch_faults() {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before_segv);
    sigaction(SIGBUS, &action, &before_bus);
}

} // namespace

uint3 thread_index() { return worker->current->index; }
uint3 block_index() { return worker->block; }
uint3 block_size() { return worker->launch->block; }
uint3 grid_size() { return worker->launch->grid; }
unsigned lane() { return worker->current->number % WARP; }

unsigned present_lanes() {
    unsigned first = worker->current->number / WARP * WARP, n = std::min(WARP, worker->count() - first);
    return n == WARP ? ~0u : (1u << n) - 1;
}

void begin_copy(void *to, const void *from) {
    Thread &thread = *worker->current;
    if ((uintptr_t(to) | uintptr_t(from)) % 16 && worker->failure.empty())
        worker->failure = "thread " + std::to_string(thread.number) + " copies 16 bytes from or to an address that is no multiple of 16";
    else
        thread.copies.push_back({to, from, thread.groups});
}

void end_copies() { worker->current->groups++; }

void wait_for_copies(unsigned later_groups) {
    Thread &thread = *worker->current;
    auto make = [&](const Copy &copy) {
        if (copy.group + later_groups >= thread.groups) return false;
        if (copy.from) memcpy(copy.to, copy.from, 16);
        else memset(copy.to, 0, 16);
        return true;
    };
    thread.copies.erase(std::remove_if(thread.copies.begin(), thread.copies.end(), make), thread.copies.end());
}

int block_barrier(Place place, int value, Vote vote) {
    worker->vote_sum += value;
    worker->vote_all &= value;
    worker->vote = vote;
    worker->wait(State::at_barrier, place);
    return worker->barrier_result;
}

uint64_t warp_exchange(Exchange what, unsigned mask, uint64_t value, unsigned from_lane, Place place) {
    Worker &w = *worker;
    Thread &self = *w.current;
    if (!(mask >> lane() & 1)) {
        w.failure = "thread " + std::to_string(self.number) + " is not in the mask of its own exchange at " + where(place);
        w.wait(State::in_warp, place);
    }
    mask &= present_lanes();
    self.exchange = what, self.mask = mask, self.value = value, self.from_lane = from_lane;
    Thread *warp = &w.threads[self.number / WARP * WARP];
    for (unsigned i = 0; i < WARP; i++) {
        if (!(mask >> i & 1) || &warp[i] == &self) continue;
        if (warp[i].state != State::in_warp) {
            w.wait(State::in_warp, place);
            return self.result;
        }
        if (warp[i].exchange != what || warp[i].mask != mask || warp[i].place.line != place.line) {
            w.failure = "thread " + std::to_string(warp[i].number) + " waits for its warp at " + where(warp[i].place) + ", thread " +
                        std::to_string(self.number) + " at " + where(place);
            w.wait(State::in_warp, place);
        }
    }
    w.complete(mask);
    return self.result;
}

void add_dynamic_shared(DynamicShared array) { dynamic_arrays().push_back(array); }

std::string run(const Launch &launch) {
    static std::once_flag once;
    std::call_once(once, watch_faults);
    static std::mutex one_at_a_time;
    std::lock_guard lock(one_at_a_time);
    uint64_t blocks = uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    std::atomic<uint64_t> next{0};
    std::mutex failing;
    std::string failure;
    std::function<void()> work = [&] {
        uint64_t i = next++;
        if (i >= blocks) return;
        std::unique_ptr<Worker> mine = take_worker();
        worker = mine.get();
        worker->launch = &launch;
        clear_shared();
        for (; i < blocks; i = next++) {
            clear_dynamic(launch.dynamic_shared);
            uint3 index{unsigned(i % launch.grid.x), unsigned(i / launch.grid.x % launch.grid.y), unsigned(i / launch.grid.x / launch.grid.y)};
            std::string wrong = worker->run_block(index);
            if (wrong.empty() && dynamic_overrun(launch.dynamic_shared)) wrong = "wrote past its dynamic shared memory";
            if (!wrong.empty()) {
                std::lock_guard lock(failing);
                if (failure.empty()) failure = "kernel " + launch.kernel + ", block " + text(index) + ": " + wrong;
                next = blocks;
            }
        }
        worker = nullptr;
        give_worker(std::move(mine));
    };
    if (blocks == 1) work();
    else Pool::get().all(work);
    return failure;
}

void parallel(size_t n, const std::function<void(size_t)> &f) {
    std::atomic<size_t> next{0};
    std::function<void()> work = [&] {
        for (size_t i = next++; i < n; i = next++) f(i);
    };
    if (n < 2) work();
    else Pool::get().all(work);
}

} // namespace software_cuda
