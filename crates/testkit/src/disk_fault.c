/*
 * Makes the disk of one process full, small or slow (LD_PRELOAD). The file DISK_FAULT_FILE holds four numbers, which may change while
 * the process runs: whether the disk is full, whether the next write fails, by how many milliseconds a sync is late, and how many
 * mebibytes are free at most for a process that asks (0: as many as there are).
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
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct faults {
    int is_full;
    int fail_next_write;
    int sync_delay_ms;
    int max_free_mebibytes;
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

typedef int (*statvfs_call)(const char *, struct statvfs *);

static int limited_statvfs(const char *name, const char *path, struct statvfs *found) {
    statvfs_call real = (statvfs_call)dlsym(RTLD_NEXT, name);
    int result = real ? real(path, found) : -1;
    int most = __atomic_load_n(&faults()->max_free_mebibytes, __ATOMIC_SEQ_CST);
    if (result == 0 && most > 0 && found->f_frsize > 0) {
        fsblkcnt_t blocks = (fsblkcnt_t)most * 1048576 / found->f_frsize;
        if (found->f_bfree > blocks) found->f_bfree = blocks;
        if (found->f_bavail > blocks) found->f_bavail = blocks;
    }
    return result;
}

int statvfs(const char *path, struct statvfs *found) {
    return limited_statvfs("statvfs", path, found);
}

/* The same structure on 64-bit systems. */
int statvfs64(const char *path, struct statvfs64 *found) {
    return limited_statvfs("statvfs64", path, (struct statvfs *)found);
}
