/* Connects to a server of a service that a lottery names, and says which it was.
 *
 *     pick-c SERVICE DAEMONS KEYS [TIMES]
 *
 * A server that cannot be reached is told to the client, which then leaves it alone for five seconds, and another is picked. */

#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <plimsoll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* How many servers are tried. */
#define TRIES 5

/* A connection to one that serves, or -1. */
static int reach(plimsoll_client *client, const char *service)
{
    plimsoll_answer answer;
    int turn;

    for (turn = 0; turn < TRIES; turn++) {
        const struct sockaddr *address = (const struct sockaddr *) &answer.member.address;
        int fd;

        if (plimsoll_pick(client, service, &answer) != PLIMSOLL_OK) {
            fprintf(stderr, "%s\n", plimsoll_message());
            return -1;
        }
        fd = socket(address->sa_family, SOCK_STREAM, 0);
        if (fd >= 0 && connect(fd, address, answer.member.address_len) == 0) {
            printf("%s\n", answer.member.text);
            return fd;
        }
        fprintf(stderr, "%s: %s\n", answer.member.text, strerror(errno));
        if (fd >= 0)
            close(fd);
        plimsoll_failed(client, answer.member.number);
    }
    fprintf(stderr, "none of %d could be reached\n", TRIES);
    return -1;
}

int main(int argc, char **argv)
{
    plimsoll_options options = PLIMSOLL_OPTIONS;
    plimsoll_client *client;
    int times, status = EXIT_SUCCESS;

    if (argc < 4) {
        fprintf(stderr, "usage: %s SERVICE DAEMONS KEYS [TIMES]\n", argv[0]);
        return 2;
    }
    options.daemons = argv[2];
    options.keys = argv[3];
    if (plimsoll_open(&options, &client) != PLIMSOLL_OK) {
        fprintf(stderr, "%s\n", plimsoll_message());
        return 2;
    }
    for (times = argc > 4 ? atoi(argv[4]) : 1; times > 0 && status == EXIT_SUCCESS; times--) {
        int fd = reach(client, argv[1]);

        /* Here it would be used. */
        if (fd < 0)
            status = EXIT_FAILURE;
        else
            close(fd);
    }
    plimsoll_close(client);
    return status;
}
