/* Faults of the system below a real process, switched on and off from outside: a disk without room, a wall clock that
 * is off. Loaded with LD_PRELOAD. The switches are a shared file, $PROCESS_FAULTS/<pid>, made when the process begins:
 * three 64-bit numbers: how many nanoseconds the wall clock is ahead, the error that every write into a file ends with
 * (0: none), and how many nanoseconds each write into a file and each flush of one takes longer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct switches {
    volatile int64_t clock_ahead_ns;
    volatile int64_t refusal;
    volatile int64_t slower_ns;
};

static struct switches none;
static struct switches *on = &none;

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_gettimeofday)(struct timeval *, void *);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pwritev)(int, const struct iovec *, int, off_t);
static int (*real_fallocate)(int, off_t, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

__attribute__((constructor)) static void begin(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_gettimeofday = dlsym(RTLD_NEXT, "gettimeofday");
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_pwritev = dlsym(RTLD_NEXT, "pwritev");
    real_fallocate = dlsym(RTLD_NEXT, "posix_fallocate");
    const char *folder = getenv("PROCESS_FAULTS");
    char path[4096];
    if (folder == NULL || snprintf(path, sizeof path, "%s/%d", folder, (int)getpid()) >= (int)sizeof path) return;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (ftruncate(fd, sizeof none) == 0) {
        void *shared = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (shared != MAP_FAILED) on = shared;
    }
    close(fd);
}

static int is_file(int fd) {
    struct stat found;
    /* What the process says still gets through: its log may be on another disk. */
    return fd > 2 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
}

static void wait_for_disk(int64_t ns) {
    struct timespec pause = {ns / 1000000000, ns % 1000000000};
    nanosleep(&pause, NULL);
}

static int is_refused(int fd) {
    int64_t slower_ns = on->slower_ns;
    if (on->refusal == 0 && slower_ns == 0) return 0;
    if (!is_file(fd)) return 0;
    if (slower_ns != 0) wait_for_disk(slower_ns);
    return on->refusal != 0;
}

static ssize_t refuse(void) {
    errno = (int)on->refusal;
    return -1;
}

static int is_wall_clock(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE; }

int clock_gettime(clockid_t id, struct timespec *now) {
    if (real_clock_gettime == NULL) real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_clock_gettime(id, now);
    int64_t ahead_ns = on->clock_ahead_ns;
    if (failed == 0 && ahead_ns != 0 && is_wall_clock(id)) {
        int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + ahead_ns;
        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    if (real_gettimeofday == NULL) real_gettimeofday = dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real_gettimeofday(now, zone);
    int64_t ahead_ns = on->clock_ahead_ns;
    if (failed == 0 && ahead_ns != 0) {
        int64_t us = (int64_t)now->tv_sec * 1000000 + now->tv_usec + ahead_ns / 1000;
        now->tv_sec = us / 1000000;
        now->tv_usec = us % 1000000;
    }
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) *out = now.tv_sec;
    return now.tv_sec;
}

ssize_t write(int fd, const void *bytes, size_t size) {
    if (real_write == NULL) real_write = dlsym(RTLD_NEXT, "write");
    return is_refused(fd) ? refuse() : real_write(fd, bytes, size);
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
    return is_refused(fd) ? refuse() : real_pwrite(fd, bytes, size, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t at) {
    return is_refused(fd) ? refuse() : real_pwrite(fd, bytes, size, at);
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
    return is_refused(fd) ? refuse() : real_writev(fd, pieces, count);
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) {
    return is_refused(fd) ? refuse() : real_pwritev(fd, pieces, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off_t at) {
    return is_refused(fd) ? refuse() : real_pwritev(fd, pieces, count, at);
}

int posix_fallocate(int fd, off_t at, off_t size) { return is_refused(fd) ? (int)on->refusal : real_fallocate(fd, at, size); }

int posix_fallocate64(int fd, off_t at, off_t size) { return is_refused(fd) ? (int)on->refusal : real_fallocate(fd, at, size); }

int fsync(int fd) {
    if (real_fsync == NULL) real_fsync = dlsym(RTLD_NEXT, "fsync");
    if (on->slower_ns != 0 && is_file(fd)) wait_for_disk(on->slower_ns);
    return real_fsync(fd);
}

int fdatasync(int fd) {
    if (real_fdatasync == NULL) real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    if (on->slower_ns != 0 && is_file(fd)) wait_for_disk(on->slower_ns);
    return real_fdatasync(fd);
}
