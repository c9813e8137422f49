/*
 * Makes the disk of one process full or slow (LD_PRELOAD). The file DISK_FAULT_FILE holds three numbers, which may change while the
 * process runs: whether the disk is full, whether the next write fails, and by how many milliseconds a sync is late.
 *
 * On a full disk no space can be allocated, and the write that needed some fails. Space that was allocated before stays usable, as
 * it does on a real disk.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct faults {
    int is_full;
    int fail_next_write;
    int sync_delay_ms;
};

static struct faults *faults(void) {
    static struct faults none, *shared;
    static int known;
    if (!known) {
        const char *path = getenv("DISK_FAULT_FILE");
        int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
        if (file >= 0) {
            void *mapped = mmap(NULL, sizeof(struct faults), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (mapped != MAP_FAILED) shared = mapped;
            close(file);
        }
        known = 1;
    }
    return shared ? shared : &none;
}

static int refuse(void) {
    errno = ENOSPC;
    return -1;
}

int fallocate64(int file, int mode, off64_t offset, off64_t length) {
    if (__atomic_load_n(&faults()->is_full, __ATOMIC_SEQ_CST)) return refuse();
    return syscall(SYS_fallocate, file, mode, offset, length);
}

int fallocate(int file, int mode, off_t offset, off_t length) {
    return fallocate64(file, mode, offset, length);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset) {
    if (__atomic_exchange_n(&faults()->fail_next_write, 0, __ATOMIC_SEQ_CST)) return refuse();
    return syscall(SYS_pwrite64, file, bytes, count, offset);
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t offset) {
    return pwrite64(file, bytes, count, offset);
}

static void delay(void) {
    int milliseconds = __atomic_load_n(&faults()->sync_delay_ms, __ATOMIC_SEQ_CST);
    struct timespec time = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    if (milliseconds > 0) nanosleep(&time, NULL);
}

int fdatasync(int file) {
    delay();
    return syscall(SYS_fdatasync, file);
}

int fsync(int file) {
    delay();
    return syscall(SYS_fsync, file);
}
