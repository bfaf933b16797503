/*
 * A server that judges load generators: one thread, as little work as possible, and a stamp of CLOCK_MONOTONIC for every
 * request as it is read. On a schedule it stands still: first half a period after the first request, so that a run of whole
 * periods holds whole stalls. On SIGTERM it writes its stamps (nanoseconds, 64 bits each, in
 * the machine's order) and ends.
 *
 * usage: responder PORT BACKLOG STALL_MS EVERY_MS STAMPS_FILE      (EVERY_MS 0: it never stalls)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_STAMPS = 1 << 23, MAX_FDS = 1 << 16 };

static const char ANSWER[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
/* HTTP/1.0 keeps a connection only if both say so. */
static const char KEPT[] = "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello";
static const char LAST[] = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";

static uint64_t stamps[MAX_STAMPS];
static size_t stamped;
static volatile sig_atomic_t ended;

static void end(int signal) {
    (void)signal;
    ended = 1;
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Stands still while the schedule says so. */
static void stall(uint64_t length, uint64_t every) {
    if (!every || !stamped)
        return;
    uint64_t begin = stamps[0] + every / 2, at;
    while (!ended && now() >= begin && (at = (now() - begin) % every) < length) {
        uint64_t left = length - at;
        struct timespec rest = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        nanosleep(&rest, NULL);
    }
}

/* Answers what came; closes at the end or where the client says so. A request never comes in pieces on this loopback. */
static void serve(int fd) {
    char bytes[16384];
    ssize_t got = recv(fd, bytes, sizeof bytes - 1, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        close(fd);
        return;
    }
    bytes[got] = 0;
    uint64_t moment = now();
    int old = strstr(bytes, " HTTP/1.0\r\n") != NULL, kept = old && strcasestr(bytes, "keep-alive") != NULL;
    int last = !kept && (old || strcasestr(bytes, "connection: close") != NULL);
    const char *answer = last ? LAST : kept ? KEPT : ANSWER;
    for (char *head = bytes; (head = strstr(head, "\r\n\r\n")) != NULL; head += 4) {
        if (stamped < MAX_STAMPS)
            stamps[stamped++] = moment;
        if (send(fd, answer, strlen(answer), MSG_NOSIGNAL) < 0) {
            close(fd);
            return;
        }
    }
    if (last)
        close(fd);
}

int main(int count, char **words) {
    if (count != 6) {
        fprintf(stderr, "usage: %s PORT BACKLOG STALL_MS EVERY_MS STAMPS_FILE\n", words[0]);
        return 2;
    }
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, atoi(words[2]))) {
        perror("responder");
        return 1;
    }
    uint64_t length = (uint64_t)atoi(words[3]) * 1000000u, every = (uint64_t)atoi(words[4]) * 1000000u;
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[256];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    while (!ended) {
        int ready = epoll_wait(epoll, events, 256, 100);
        for (int i = 0; i < ready; i++) {
            stall(length, every);
            int fd = events[i].data.fd;
            if (fd != listener) {
                serve(fd);
                continue;
            }
            for (int client; (client = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
                setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                event = (struct epoll_event){.events = EPOLLIN, .data.fd = client};
                epoll_ctl(epoll, EPOLL_CTL_ADD, client, &event);
            }
        }
    }
    FILE *file = fopen(words[5], "wb");
    if (!file || fwrite(stamps, sizeof *stamps, stamped, file) != stamped || fclose(file)) {
        perror("responder");
        return 1;
    }
    return 0;
}
