/* A wall clock that stands still where the environment says, for openmls reads the system's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    const char *fixed = getenv("XMTP_TEST_CLOCK");
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (id != CLOCK_REALTIME || !fixed)
        return real(id, at);
    at->tv_sec = (time_t)atoll(fixed);
    at->tv_nsec = 0;
    return 0;
}
