/*
 * A disk that fails on demand and that tells what it was made to keep. Preloaded into the server by
 * tests; it stands between SQLite and the system for the files of one database.
 *
 * DISK_DATABASE  the database; its log counts too
 * DISK_FAULT     a file that says what fails now: "sync", or "full N" to let N more writes pass
 * DISK_SYNCS     a file that gets one byte for each sync while syncs fail
 * DISK_KEPT      a folder with a copy of each file as it was when it was last synced
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum fault { NONE, SYNC, FULL };

static int passed_writes;

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

/* Finds the path behind a descriptor; tells whether it is the database or its log. */
static int is_ours(int fd, char *path) {
    const char *database = getenv("DISK_DATABASE");
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = database ? readlink(link, path, PATH_MAX - 1) : -1;
    if (length < 0) return 0;
    path[length] = 0;
    size_t base = strlen(database);
    if (strncmp(path, database, base) != 0) return 0;
    return path[base] == 0 || strcmp(path + base, "-wal") == 0;
}

static enum fault fault(int *writes) {
    const char *path = getenv("DISK_FAULT");
    char text[32] = {0};
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return NONE;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return NONE;
    if (strncmp(text, "sync", 4) == 0) return SYNC;
    return sscanf(text, "full %d", writes) == 1 ? FULL : NONE;
}

static void count_sync(void) {
    ssize_t (*real)(int, const void *, size_t) = next("write");
    const char *path = getenv("DISK_SYNCS");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd < 0) return;
    if (real(fd, "s", 1) != 1) abort();
    close(fd);
}

/* Copies a file that was just synced beside the others. */
static void keep(const char *path) {
    const char *folder = getenv("DISK_KEPT");
    if (!folder) return;
    ssize_t (*real)(int, const void *, size_t) = next("write");
    char kept[PATH_MAX], made[PATH_MAX + 8], block[65536];
    snprintf(kept, sizeof kept, "%s/%s", folder, strrchr(path, '/') + 1);
    snprintf(made, sizeof made, "%s.new", kept);
    int from = open(path, O_RDONLY | O_CLOEXEC);
    int to = open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (from < 0 || to < 0) abort();
    for (ssize_t length; (length = read(from, block, sizeof block)) > 0;)
        if (real(to, block, length) != length) abort();
    /* Closing a descriptor of the database would drop the locks of this process on it. */
    if (strcmp(path + strlen(path) - 4, "-wal") == 0) close(from);
    close(to);
    if (rename(made, kept) != 0) abort();
}

static int synced(int fd, const char *name) {
    int (*real)(int) = next(name);
    char path[PATH_MAX];
    int writes;
    if (!is_ours(fd, path)) return real(fd);
    if (fault(&writes) == SYNC) {
        count_sync();
        errno = EIO;
        return -1;
    }
    int result = real(fd);
    if (result == 0) keep(path);
    return result;
}

int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }

static int has_room(int fd) {
    char path[PATH_MAX];
    int writes;
    if (!is_ours(fd, path)) return 1;
    if (fault(&writes) != FULL) {
        passed_writes = 0;
        return 1;
    }
    if (passed_writes++ < writes) return 1;
    errno = ENOSPC;
    return 0;
}

ssize_t write(int fd, const void *bytes, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = next("write");
    return has_room(fd) ? real(fd, bytes, size) : -1;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
    ssize_t (*real)(int, const void *, size_t, off_t) = next("pwrite");
    return has_room(fd) ? real(fd, bytes, size, at) : -1;
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = next("pwrite64");
    return has_room(fd) ? real(fd, bytes, size, at) : -1;
}
