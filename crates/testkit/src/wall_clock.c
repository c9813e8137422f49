/*
 * Shifts the wall clock of one process (LD_PRELOAD): every reading is off by WALL_CLOCK_OFFSET seconds, or by the number in the
 * file WALL_CLOCK_FILE, which may change while the process runs. Deadlines in wall clock time are shifted back before the kernel
 * sees them. Clocks that cannot be set (monotonic, boot time) stay as they are.
 *
 * Why not a package: libfaketime deadlocks in mongod, because it first asks the dynamic linker for symbols from inside
 * mongod's allocator; datefudge does not shift timed waits, so a mongod that is an hour ahead waits an hour.
 * Allocates nothing, and looks up only symbols that exist.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
    static long seconds;
    static volatile long *shared;
    static int known;
    if (!known) {
        const char *given = getenv("WALL_CLOCK_OFFSET");
        const char *path = getenv("WALL_CLOCK_FILE");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        seconds = given ? atol(given) : 0;
        if (file >= 0) {
            void *mapped = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
            if (mapped != MAP_FAILED) shared = mapped;
            close(file);
        }
        known = 1;
    }
    return shared ? *shared : seconds;
}

static int is_wall_clock(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && is_wall_clock(clock)) now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* The size of a deadline shows its clock: no machine has been up since 2001. */
static struct timespec kernel_time(const struct timespec *deadline) {
    struct timespec moved = *deadline;
    if (moved.tv_sec > 1000000000) moved.tv_sec -= offset();
    return moved;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec moved = kernel_time(until);
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    return real(cond, mutex, &moved);
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    struct timespec moved = kernel_time(until);
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    return real(cond, mutex, clock, &moved);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
    static int (*real)(sem_t *, const struct timespec *);
    struct timespec moved = kernel_time(until);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    return real(sem, &moved);
}

int sem_clockwait(sem_t *restrict sem, clockid_t clock, const struct timespec *restrict until) {
    static int (*real)(sem_t *, clockid_t, const struct timespec *);
    struct timespec moved = kernel_time(until);
    if (!real) real = dlsym(RTLD_NEXT, "sem_clockwait");
    return real(sem, clock, &moved);
}
